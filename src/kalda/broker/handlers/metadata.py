"""Metadata (3), DescribeCluster (60), DescribeTopicPartitions (75), FindCoordinator (10): brokers, topics, leaders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kalda.base.background import ITEMS_A_STEP, Steps
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import INTERNAL_TOPICS, ZERO_UUID, Uuid, is_topic_name
from kalda.broker.channels.auto_topics import AutoTopics
from kalda.broker.handlers.shared import check_endpoint_type, error_on_items, error_on_top
from kalda.broker.metadata_cache import AnswerKey, MetadataCache
from kalda.broker.module import Module
from kalda.broker.requests.context import Encoded, Reply, RequestContext
from kalda.broker.requests.rows import Authorization, Items, Row, itself, message_of
from kalda.coordinator.internal_topics import coordinator_partition
from kalda.coordinator.share.records import share_partition_key
from kalda.metadata.topics import TopicImage
from kalda.network.server.connection import Buffer
from kalda.protocol.access import (
    CLUSTER_RESOURCE_NAME,
    CREATE_TOPIC,
    DESCRIBE_GROUP,
    DESCRIBE_TOPIC,
    DESCRIBE_TRANSACTIONAL_ID,
    OMITTED_OPERATIONS,
    Caller,
    Need,
    cluster_operations,
    operations_on,
)
from kalda.protocol.apis import ApiKey
from kalda.protocol.encoder import ListEncoder
from kalda.protocol.framing import response_header
from kalda.protocol.messages.groups import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from kalda.protocol.messages.metadata import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseCursor,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    EndpointType,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseTopic,
)
from kalda.protocol.messages.security import AclOperation, AclResourceType

_STEP_ITEMS = 400
"""Topics and partitions of a Metadata answer that are described in one step: about a millisecond."""
_CORRELATION_BYTES = 4
_FIRST_BY_ID = 12
_FIRST_FIND_OF_MANY = 4
_FIRST_FIND_OF_SHARES = 6


class MetadataHandlers(Module):
    """Answers from the metadata cache."""

    def __init__(
        self,
        cache: MetadataCache,
        cluster_id: str,
        auto_topics: AutoTopics,
        coordinator_topic: Callable[[int], str | None],
        max_partitions: int,
    ) -> None:
        """`coordinator_topic(key_type)` is the internal topic that coordinates keys of a type, None where none does;
        `max_partitions` is `max.request.partition.size.limit`."""
        self._cache = cache
        self._cluster_id = cluster_id
        self._auto_topics = auto_topics
        self._coordinator_topic = coordinator_topic
        self._max_partitions = max_partitions

    def rows(self) -> list[Row]:
        """One row an API."""
        per_item = Authorization.PER_ITEM
        found = Items(_need_of_key, find_coordinator_failed, "coordinator_keys", "coordinators", itself)
        return [
            Row(ApiKey.METADATA, self.metadata, metadata_failed, per_item, has_large_answer=True),
            Row(ApiKey.DESCRIBE_CLUSTER, self.describe_cluster, error_on_top, Authorization.ANYONE),
            Row(
                ApiKey.DESCRIBE_TOPIC_PARTITIONS,
                self.describe_topic_partitions,
                describe_topic_partitions_failed,
                per_item,
                has_large_answer=True,
            ),
            Row(ApiKey.FIND_COORDINATOR, self.find_coordinator, find_coordinator_failed, _may_find, items=found.stage),
        ]

    # -- Metadata

    def metadata(self, context: RequestContext, request: MetadataRequest) -> Reply[MetadataResponse]:
        """Brokers and topics. An answer that names no missing topic is kept for the next equal request.

        Behind requests of the connection that wait, the answer is made when those have been answered: they may wait
        for a leader that has died, and an answer made on arrival would still name it.
        """
        _check_names(context, request)
        earlier = context.connection.after_earlier()
        if earlier is not None:
            return earlier.and_then(lambda _: self._answer(context, request))
        return self._answer(context, request)

    def _answer(self, context: RequestContext, request: MetadataRequest) -> Encoded | Steps[Encoded]:
        # What a caller may see is not what another one may see: with an authorizer no answer is kept.
        kept = self._cache.kept(_key(context)) if context.authorizer is None else None
        return self._made(context, request) if kept is None else _addressed(context, kept)

    def _made(self, context: RequestContext, request: MetadataRequest) -> Steps[Encoded]:
        """Topics and partitions that change between two steps are as they were when they were read; such an answer is
        not kept."""
        cache = self._cache
        changes = cache.changes
        response = self._without_topics(context, request)
        encoder = ListEncoder(MetadataResponse, context.api_version, "topics")
        is_complete = yield from self._add_topics(context, request, encoder)
        head = response_header(MetadataResponse, context.api_version)(0)[_CORRELATION_BYTES:]
        buffers = encoder.message(response, head)
        if is_complete and cache.changes == changes and context.authorizer is None:
            buffers = [bytes(buffers[0]), b"".join(buffers[1:])]
            cache.keep(_key(context), buffers)
        return _addressed(context, buffers, encoder.errors)

    def _without_topics(self, context: RequestContext, request: MetadataRequest) -> MetadataResponse:
        """The response without any topic."""
        cache = self._cache
        alive = cache.alive_brokers(context.listener_name)
        return MetadataResponse(
            brokers=cache.broker_entries(context.listener_name),
            cluster_id=self._cluster_id,
            controller_id=alive[0].id if alive else -1,
            cluster_authorized_operations=cluster_operations(context)
            if request.include_cluster_authorized_operations
            else OMITTED_OPERATIONS,
        )

    def _add_topics(self, context: RequestContext, request: MetadataRequest, encoder: ListEncoder) -> Steps[bool]:
        """Encode the topics of a request. Returns whether none is missing."""
        images = self._cache.image.topics
        is_checked = context.authorizer is not None
        missing: list[str] = []
        is_complete = True
        entries: list[MetadataResponseTopic] = []
        size = 0
        for requested in _requested(context, request, images.by_name):
            topic = images.by_name.get(requested) if isinstance(requested, str) else images.by_id.get(requested)
            refused = self._refused(context, request, requested, topic) if is_checked else None
            if refused is not None:
                is_complete = False
                entries += refused
            elif topic is not None:
                entry = self._topic_entry(context, request, topic)
                entries.append(entry)
                size = yield from self._add_partitions(context, topic, entry, size)
            else:
                is_complete = False
                entries.append(self._missing_entry(context, request, requested, missing))
            size += 1
            if size >= _STEP_ITEMS:
                size = 0
                yield from encoder.add(entries)
                entries = []
                yield
        yield from encoder.add(entries)
        if missing and request.allow_auto_topic_creation:
            self._auto_topics.create(missing)
        return is_complete

    def _add_partitions(
        self, context: RequestContext, topic: TopicImage, entry: MetadataResponseTopic, size: int
    ) -> Steps[int]:
        """Add the partitions of a topic to its entry. Returns how many topics and partitions this step has described;
        `size` were there before."""
        indexes = sorted(topic.partitions)
        for start in range(0, len(indexes), _STEP_ITEMS):
            if start:
                size = 0
                yield
            some = indexes[start : start + _STEP_ITEMS]
            entry.partitions += self._cache.partition_entries(topic, context.listener_name, context.api_version, some)
            size += len(some)
        return size

    def _topic_entry(
        self, context: RequestContext, request: MetadataRequest, topic: TopicImage
    ) -> MetadataResponseTopic:
        return MetadataResponseTopic(
            name=topic.name,
            topic_id=topic.id,
            is_internal=topic.name in INTERNAL_TOPICS,
            partitions=[],
            topic_authorized_operations=operations_on(context, AclResourceType.TOPIC, topic.name)
            if request.include_topic_authorized_operations
            else OMITTED_OPERATIONS,
        )

    def _refused(
        self, context: RequestContext, request: MetadataRequest, requested: str | Uuid, topic: TopicImage | None
    ) -> list[MetadataResponseTopic] | None:
        """What the answer has in place of a topic that the caller may not see, or not have created: an error, whether
        it exists or not; of all topics it is left out. None where the caller may."""
        name = requested if isinstance(requested, str) else topic.name if topic is not None else None
        if name is None:
            return None  # an unknown id
        if _names_all(context, request):
            return None if DESCRIBE_TOPIC.holds_quietly(context, name) else []
        is_internal = False
        may = DESCRIBE_TOPIC.holds(context, name)
        if may and topic is None and request.allow_auto_topic_creation and self._auto_topics.is_enabled:
            is_internal = name in INTERNAL_TOPICS
            may = context.allows(
                AclOperation.CREATE, AclResourceType.CLUSTER, CLUSTER_RESOURCE_NAME, False
            ) or CREATE_TOPIC.holds(context, name)
        if may:
            return None
        by_id = not isinstance(requested, str)
        return [
            MetadataResponseTopic(
                error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                name=None if by_id else name,
                topic_id=topic.id if by_id and topic is not None else ZERO_UUID,
                is_internal=is_internal,
            )
        ]

    def _missing_entry(
        self, context: RequestContext, request: MetadataRequest, requested: str | Uuid, missing: list[str]
    ) -> MetadataResponseTopic:
        """A topic that does not exist, by name or id; its name is added to `missing` where it could be created."""
        if not isinstance(requested, str):
            name = None if context.api_version >= _FIRST_BY_ID else ""
            return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=name, topic_id=requested)
        code = ErrorCode.INVALID_TOPIC_EXCEPTION
        if is_topic_name(requested):
            missing.append(requested)
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return MetadataResponseTopic(
            error_code=code,
            name=requested,
            is_internal=requested in INTERNAL_TOPICS,
            topic_authorized_operations=operations_on(context, AclResourceType.TOPIC, requested)
            if request.include_topic_authorized_operations
            else OMITTED_OPERATIONS,
        )

    # -- DescribeCluster

    def describe_cluster(self, context: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
        """The brokers. The listeners of controllers describe the controllers."""
        check_endpoint_type(request.endpoint_type, EndpointType.BROKERS, context.api_version)
        alive = self._cache.alive_brokers(context.listener_name)
        response = DescribeClusterResponse(
            cluster_id=self._cluster_id,
            controller_id=alive[0].id if alive else -1,
            endpoint_type=EndpointType.BROKERS,
            cluster_authorized_operations=cluster_operations(context)
            if request.include_cluster_authorized_operations
            else OMITTED_OPERATIONS,
        )
        brokers = self._cache.image.cluster.brokers
        for broker_id in sorted(brokers):
            broker = brokers[broker_id]
            endpoint = broker.listeners.get(context.listener_name)
            if endpoint is None or (broker.fenced and not request.include_fenced_brokers):
                continue
            response.brokers.append(
                DescribeClusterBroker(
                    broker_id=broker.id,
                    host=endpoint.host,
                    port=endpoint.port,
                    rack=broker.rack,
                    is_fenced=broker.fenced,
                )
            )
        return response

    # -- DescribeTopicPartitions

    def describe_topic_partitions(
        self, context: RequestContext, request: DescribeTopicPartitionsRequest
    ) -> Steps[DescribeTopicPartitionsResponse]:
        """Partitions with their eligible leaders, a page at a time (KIP-966); of all topics where none is named."""
        named = {topic.name for topic in request.topics}
        _check_cursor(request, is_named=not named or request.cursor is None or request.cursor.topic_name in named)
        return self._described(context, request, sorted(named) if named else None)

    def _described(
        self, context: RequestContext, request: DescribeTopicPartitionsRequest, names: Iterable[str] | None
    ) -> Steps[DescribeTopicPartitionsResponse]:
        """The response for these names, which are in order; None for all topics."""
        response = DescribeTopicPartitionsResponse()
        cursor = request.cursor
        cache = self._cache
        fetch_all = names is None
        if names is None:
            names = sorted(cache.image.topics.by_name)
        if cursor is not None:
            first_name = cursor.topic_name
            names = (name for name in names if name >= first_name)
        refused: list[str] = []
        if context.authorizer is not None:
            names = yield from _describable(context, names, refused, logs=not fetch_all)
        alive = {broker.id for broker in cache.alive_brokers(context.listener_name)}
        limit = max(1, min(request.response_partition_limit, self._max_partitions))
        size = 0
        for name in names:
            size += 1
            if size >= ITEMS_A_STEP:
                size = 0
                yield
            if limit == 0:
                response.next_cursor = DescribeTopicPartitionsResponseCursor(topic_name=name, partition_index=0)
                break
            first = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
            topic = cache.topic(name)
            if topic is None and fetch_all:
                continue  # deleted between two steps
            if topic is None:
                response.topics.append(_undescribed_topic(context, name))
                continue
            entry = DescribeTopicPartitionsResponseTopic(
                name=name,
                topic_id=topic.id,
                is_internal=name in INTERNAL_TOPICS,
                topic_authorized_operations=operations_on(context, AclResourceType.TOPIC, name),
            )
            response.topics.append(entry)
            indexes = [index for index in sorted(topic.partitions) if index >= first]
            for start in range(0, min(limit, len(indexes)), ITEMS_A_STEP):
                some = indexes[start : min(limit, start + ITEMS_A_STEP)]
                entry.partitions += [self._described_partition(topic, index, alive) for index in some]
                size += len(some)
                if size >= ITEMS_A_STEP:
                    size = 0
                    yield
            if len(indexes) > limit:
                response.next_cursor = DescribeTopicPartitionsResponseCursor(
                    topic_name=name, partition_index=indexes[limit]
                )
                break
            limit -= len(indexes)
        for name in () if fetch_all else refused:
            size += 1
            if size >= ITEMS_A_STEP:
                size = 0
                yield
            response.topics.append(
                DescribeTopicPartitionsResponseTopic(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name)
            )
        return response

    def _described_partition(
        self, topic: TopicImage, index: int, alive: set[int]
    ) -> DescribeTopicPartitionsResponsePartition:
        partition = topic.partitions[index]
        has_leader = partition.leader in alive
        return DescribeTopicPartitionsResponsePartition(
            error_code=ErrorCode.NONE if has_leader else ErrorCode.LEADER_NOT_AVAILABLE,
            partition_index=index,
            leader_id=partition.leader if has_leader else -1,
            leader_epoch=partition.leader_epoch,
            replica_nodes=list(partition.replicas),
            isr_nodes=list(partition.isr),
            eligible_leader_replicas=list(partition.elr),
            last_known_elr=list(partition.last_known_elr),
            offline_replicas=self._cache.offline_replicas(partition, alive),
        )

    # -- FindCoordinator

    def find_coordinator(
        self, context: RequestContext, request: FindCoordinatorRequest
    ) -> Steps[FindCoordinatorResponse]:
        """Which broker coordinates a key. A missing internal topic is created by the first request for it."""
        many = context.api_version >= _FIRST_FIND_OF_MANY
        found: list[Coordinator] = []
        for key in request.coordinator_keys if many else [request.key]:
            if found and len(found) % ITEMS_A_STEP == 0:
                yield
            found.append(self._find(context, request.key_type, key))
        if many:
            return FindCoordinatorResponse(coordinators=found)
        first = found[0]
        return FindCoordinatorResponse(
            error_code=first.error_code,
            error_message="The coordinator is not available." if first.error_code else "NONE",
            node_id=first.node_id,
            host=first.host,
            port=first.port,
        )

    def _find(self, context: RequestContext, key_type: int, key: str) -> Coordinator:
        hashed = key
        if key_type == _SHARE_KEY:
            if context.api_version < _FIRST_FIND_OF_SHARES:
                return _no_coordinator(key, ErrorCode.INVALID_REQUEST)
            try:
                hashed = share_partition_key(key).coordinator_key
            except ApiError as error:
                return _no_coordinator(key, error.code)
        name = self._coordinator_topic(key_type)
        if name is None:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Coordinators of type {key_type} are not served by this broker")
        topic = self._cache.topic(name)
        if topic is None:
            self._auto_topics.create([name])
            return _no_coordinator(key, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        partition = topic.partitions.get(coordinator_partition(hashed, len(topic.partitions)))
        for broker in self._cache.alive_brokers(context.listener_name):
            if partition is not None and broker.id == partition.leader:
                endpoint = broker.listeners[context.listener_name]
                return Coordinator(key=key, node_id=broker.id, host=endpoint.host, port=endpoint.port)
        return _no_coordinator(key, ErrorCode.COORDINATOR_NOT_AVAILABLE)


def _describable(
    context: RequestContext, names: Iterable[str], refused: list[str], *, logs: bool
) -> Steps[Iterable[str]]:
    """Those of the names that the caller may describe; the others are added to `refused`. `logs`: whether a denial is
    logged."""
    allowed: list[str] = []
    for count, name in enumerate(names, 1):
        if count % ITEMS_A_STEP == 0:
            yield
        may = DESCRIBE_TOPIC.holds(context, name) if logs else DESCRIBE_TOPIC.holds_quietly(context, name)
        (allowed if may else refused).append(name)
    return allowed


_GROUP_KEY, _TRANSACTION_KEY, _SHARE_KEY = 0, 1, 2
_NEED_OF_KEY = {_GROUP_KEY: DESCRIBE_GROUP, _TRANSACTION_KEY: DESCRIBE_TRANSACTIONAL_ID}


def _need_of_key(context: RequestContext, request: FindCoordinatorRequest) -> Need | None:
    """What the caller needs for each key; None in the versions with one key, which `_may_find` has checked."""
    return _NEED_OF_KEY.get(request.key_type) if context.api_version >= _FIRST_FIND_OF_MANY else None


def _may_find(caller: Caller, request: FindCoordinatorRequest) -> ApiError | None:
    """Keys of share groups are of brokers alone."""
    if request.key_type == _SHARE_KEY:
        return caller.refusal_on_cluster(AclOperation.CLUSTER_ACTION)
    if caller.api_version >= _FIRST_FIND_OF_MANY:
        return None
    need = _NEED_OF_KEY.get(request.key_type)
    return None if need is None or need.holds(caller, request.key) else ApiError(need.error)


def _no_coordinator(key: str, code: ErrorCode, message: str | None = "") -> Coordinator:
    return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=message)


def _undescribed_topic(context: RequestContext, name: str) -> DescribeTopicPartitionsResponseTopic:
    """A topic that does not exist."""
    is_legal = is_topic_name(name)
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_legal else ErrorCode.INVALID_TOPIC_EXCEPTION,
        name=name,
        topic_authorized_operations=operations_on(context, AclResourceType.TOPIC, name),
    )


def _check_cursor(request: DescribeTopicPartitionsRequest, *, is_named: bool) -> None:
    """Raises `ApiError` where the page begins at no partition. `is_named`: its topic is one of those asked for."""
    cursor = request.cursor
    if cursor is None:
        return
    if cursor.partition_index < 0:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Cursor partition index {cursor.partition_index} is negative")
    if not is_named:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"Cursor topic {cursor.topic_name!r} is not among the topics asked for"
        )


def _key(context: RequestContext) -> AnswerKey:
    return context.api_version, context.listener_name, bytes(context.frame[context.header.body_at :])


def _names_all(context: RequestContext, request: MetadataRequest) -> bool:
    return request.topics is None or (context.api_version == 0 and not request.topics)


def _requested(context: RequestContext, request: MetadataRequest, every: Iterable[str]) -> Iterable[str | Uuid]:
    """The names or ids of the topics of a request, each once; of a request for all topics, the names in order."""
    if _names_all(context, request):
        return sorted(every)
    topics = request.topics or ()
    if any(topic.topic_id != ZERO_UUID for topic in topics):
        return dict.fromkeys(topic.topic_id for topic in topics if topic.topic_id != ZERO_UUID)
    return dict.fromkeys(topic.name or "" for topic in topics)


def _check_names(context: RequestContext, request: MetadataRequest) -> None:
    """Raises `ApiError` where a topic is named in a way that the version lacks."""
    topics = request.topics or ()
    by_id = any(topic.topic_id != ZERO_UUID for topic in topics)
    if context.api_version < _FIRST_BY_ID and (by_id or any(topic.name is None for topic in topics)):
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"Topic ids are not supported in requests of version {context.api_version}"
        )
    if not by_id and any(topic.name is None for topic in topics):
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "a topic is requested by neither name nor id")


def _addressed(context: RequestContext, buffers: list[Buffer], errors: Mapping[int, int] | None = None) -> Encoded:
    """An answer, given that without its correlation id."""
    correlation_id = context.header.correlation_id.to_bytes(_CORRELATION_BYTES, "big", signed=True)
    return Encoded([correlation_id + buffers[0], *buffers[1:]], errors)


# How each API reports that the whole request failed.


def metadata_failed(request: MetadataRequest, version: int, error: ApiError) -> MetadataResponse:
    """The error of every topic; on top as well, in the versions that have that field."""
    return MetadataResponse(
        error_code=error.code,
        topics=[
            MetadataResponseTopic(name=topic.name or "", topic_id=topic.topic_id, error_code=error.code)
            for topic in request.topics or ()
        ],
    )


describe_topic_partitions_failed = error_on_items("topics")


def find_coordinator_failed(request: FindCoordinatorRequest, version: int, error: ApiError) -> FindCoordinatorResponse:
    """The error of every key from version 4 on, on top before."""
    if version >= _FIRST_FIND_OF_MANY:
        return FindCoordinatorResponse(
            coordinators=[_no_coordinator(key, error.code, message_of(error)) for key in request.coordinator_keys]
        )
    return FindCoordinatorResponse(error_code=error.code, error_message=message_of(error), node_id=-1, host="", port=-1)
