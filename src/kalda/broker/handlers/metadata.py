"""Metadata (3), DescribeCluster (60), DescribeTopicPartitions (75), FindCoordinator (10): brokers, topics, leaders."""

from __future__ import annotations

from collections.abc import Callable

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import ZERO_UUID
from kalda.base.topic_names import INTERNAL_TOPICS, is_topic_name
from kalda.broker.auto_topics import AutoTopics
from kalda.broker.context import Encoded, RequestContext
from kalda.broker.handlers.shared import describe_cluster_failed
from kalda.broker.metadata_cache import MetadataCache
from kalda.broker.rows import Authorization, Row, message_of
from kalda.coordinator.routing import coordinator_partition
from kalda.metadata.topics import TopicImage
from kalda.network.connection import AtTurn, Buffer
from kalda.protocol.apis import ApiKey
from kalda.protocol.framing import encode_response
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
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from kalda.protocol.messages.security import AclOperation

# Without an authorizer every caller may do everything: the bits of all operations that the resource type has.
TOPIC_OPERATIONS = AclOperation.bits(
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.CREATE,
    AclOperation.DELETE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
)
CLUSTER_OPERATIONS = AclOperation.bits(
    AclOperation.CREATE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.CLUSTER_ACTION,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
    AclOperation.IDEMPOTENT_WRITE,
)
_OMITTED = -(2**31)
"""The authorized operations of a response whose request does not include them."""
_FIRST_BY_ID = 12
_FIRST_FIND_OF_MANY = 4


class MetadataHandlers:
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
        unchecked = Authorization.UNCHECKED
        return [
            Row(ApiKey.METADATA, self.metadata, metadata_failed, unchecked),
            Row(ApiKey.DESCRIBE_CLUSTER, self.describe_cluster, describe_cluster_failed, Authorization.ANYONE),
            Row(
                ApiKey.DESCRIBE_TOPIC_PARTITIONS,
                self.describe_topic_partitions,
                describe_topic_partitions_failed,
                unchecked,
            ),
            Row(ApiKey.FIND_COORDINATOR, self.find_coordinator, find_coordinator_failed, unchecked),
        ]

    # -- Metadata

    def metadata(self, context: RequestContext, request: MetadataRequest) -> Encoded:
        """Brokers and topics. An answer that names no missing topic is kept for the next equal request.

        Behind requests of the connection that wait, the answer is made when those have been answered: they may wait
        for a leader that has died, and an answer made on arrival would still name it.
        """
        by_id = any(topic.topic_id != ZERO_UUID for topic in request.topics or ())
        if context.api_version < _FIRST_BY_ID and (by_id or any(topic.name is None for topic in request.topics or ())):
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"Topic ids are not supported in requests of version {context.api_version}"
            )
        if not by_id and any(topic.name is None for topic in request.topics or ()):
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "a topic is requested by neither name nor id")
        if context.connection.unanswered:
            return Encoded(AtTurn(lambda: self._encoded(context, request)))
        return Encoded(self._encoded(context, request))

    def _encoded(self, context: RequestContext, request: MetadataRequest) -> list[Buffer]:
        header = context.header
        key = (context.api_version, context.listener_name, bytes(context.frame[header.body_at :]))
        # What a caller may see is not what another one may see.
        may_be_shared = context.authorizer is None
        kept = self._cache.kept(key) if may_be_shared else None
        if kept is None:
            response, complete = self._metadata(context, request)
            buffers = encode_response(0, response, context.api_version)
            kept = [bytes(buffers[0])[4:]]
            if complete and may_be_shared:
                self._cache.keep(key, kept)
        return [header.correlation_id.to_bytes(4, "big", signed=True) + kept[0]]

    def _metadata(self, context: RequestContext, request: MetadataRequest) -> tuple[MetadataResponse, bool]:
        version = context.api_version
        cache = self._cache
        alive = cache.alive_brokers(context.listener_name)
        response = MetadataResponse(
            brokers=cache.broker_entries(context.listener_name),
            cluster_id=self._cluster_id,
            controller_id=alive[0].id if alive else -1,
            cluster_authorized_operations=CLUSTER_OPERATIONS
            if request.include_cluster_authorized_operations
            else _OMITTED,
        )
        by_id = any(topic.topic_id != ZERO_UUID for topic in request.topics or ())
        complete = True
        if request.topics is None or (version == 0 and not request.topics):
            topics = cache.image.topics.by_name
            response.topics = [self._topic_entry(context, request, topics[name]) for name in sorted(topics)]
            return response, complete
        missing: list[str] = []
        for requested in _distinct(request.topics):
            if by_id and requested.topic_id == ZERO_UUID:
                continue
            topic = (
                cache.topic_by_id(requested.topic_id)
                if requested.topic_id != ZERO_UUID
                else cache.topic(requested.name or "")
            )
            if topic is not None:
                response.topics.append(self._topic_entry(context, request, topic))
            else:
                complete = False
                response.topics.append(self._missing_entry(requested, version, missing))
        if missing and request.allow_auto_topic_creation:
            self._auto_topics.create(missing)
        return response, complete

    def _topic_entry(
        self, context: RequestContext, request: MetadataRequest, topic: TopicImage
    ) -> MetadataResponseTopic:
        return MetadataResponseTopic(
            name=topic.name,
            topic_id=topic.id,
            is_internal=topic.name in INTERNAL_TOPICS,
            partitions=list(self._cache.partition_entries(topic, context.listener_name, context.api_version)),
            topic_authorized_operations=TOPIC_OPERATIONS if request.include_topic_authorized_operations else _OMITTED,
        )

    def _missing_entry(
        self, requested: MetadataRequestTopic, version: int, missing: list[str]
    ) -> MetadataResponseTopic:
        """A topic that does not exist; its name is added to `missing` where it could be created."""
        if requested.topic_id != ZERO_UUID:
            name = None if version >= 12 else ""
            return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=name, topic_id=requested.topic_id)
        name = requested.name or ""
        code = ErrorCode.INVALID_TOPIC_EXCEPTION
        if is_topic_name(name):
            missing.append(name)
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return MetadataResponseTopic(error_code=code, name=name, is_internal=name in INTERNAL_TOPICS)

    # -- DescribeCluster

    def describe_cluster(self, context: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
        """The brokers. The listeners of controllers describe the controllers."""
        if request.endpoint_type != EndpointType.BROKERS:
            code = ErrorCode.MISMATCHED_ENDPOINT_TYPE
            if request.endpoint_type != EndpointType.CONTROLLERS:
                code = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
            raise ApiError(code, f"Unsupported endpoint type {request.endpoint_type}: this is a broker's listener")
        alive = self._cache.alive_brokers(context.listener_name)
        response = DescribeClusterResponse(
            cluster_id=self._cluster_id,
            controller_id=alive[0].id if alive else -1,
            endpoint_type=EndpointType.BROKERS,
            cluster_authorized_operations=CLUSTER_OPERATIONS
            if request.include_cluster_authorized_operations
            else _OMITTED,
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
    ) -> DescribeTopicPartitionsResponse:
        """Partitions with their eligible leaders, a page at a time (KIP-966)."""
        cursor = request.cursor
        if cursor is not None:
            if cursor.partition_index < 0:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST, f"Cursor partition index {cursor.partition_index} is negative"
                )
            if request.topics and cursor.topic_name not in {topic.name for topic in request.topics}:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST, f"Cursor topic {cursor.topic_name!r} is not among the topics asked for"
                )
        cache = self._cache
        fetch_all = not request.topics
        names = sorted(cache.image.topics.by_name) if fetch_all else sorted({topic.name for topic in request.topics})
        if cursor is not None:
            names = [name for name in names if name >= cursor.topic_name]
        alive = {broker.id for broker in cache.alive_brokers(context.listener_name)}
        limit = max(1, min(request.response_partition_limit, self._max_partitions))
        response = DescribeTopicPartitionsResponse()
        for name in names:
            if limit == 0:
                response.next_cursor = DescribeTopicPartitionsResponseCursor(topic_name=name, partition_index=0)
                return response
            first = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
            topic = cache.topic(name)
            if topic is None:
                is_legal = is_topic_name(name)
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_legal else ErrorCode.INVALID_TOPIC_EXCEPTION
                response.topics.append(
                    DescribeTopicPartitionsResponseTopic(
                        error_code=code, name=name, topic_authorized_operations=TOPIC_OPERATIONS
                    )
                )
                continue
            entry = DescribeTopicPartitionsResponseTopic(
                name=name,
                topic_id=topic.id,
                is_internal=name in INTERNAL_TOPICS,
                topic_authorized_operations=TOPIC_OPERATIONS,
            )
            response.topics.append(entry)
            for index in sorted(topic.partitions):
                if index < first:
                    continue
                if limit == 0:
                    response.next_cursor = DescribeTopicPartitionsResponseCursor(topic_name=name, partition_index=index)
                    return response
                entry.partitions.append(self._described_partition(topic, index, alive))
                limit -= 1
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

    def find_coordinator(self, context: RequestContext, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
        """Which broker coordinates a key. A missing internal topic is created by the first request for it."""
        many = context.api_version >= _FIRST_FIND_OF_MANY
        keys = request.coordinator_keys if many else [request.key]
        found = [self._find(context, request.key_type, key) for key in keys]
        if many:
            return FindCoordinatorResponse(coordinators=found)
        first = found[0]
        return FindCoordinatorResponse(
            error_code=first.error_code,
            error_message=first.error_message or "NONE",
            node_id=first.node_id,
            host=first.host,
            port=first.port,
        )

    def _find(self, context: RequestContext, key_type: int, key: str) -> Coordinator:
        name = self._coordinator_topic(key_type)
        if name is None:
            return _no_coordinator(
                key, ErrorCode.INVALID_REQUEST, f"Coordinators of type {key_type} are not served by this broker"
            )
        topic = self._cache.topic(name)
        if topic is None:
            self._auto_topics.create([name])
            return _no_coordinator(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, "The coordinator is not available.")
        partition = topic.partitions.get(coordinator_partition(key, len(topic.partitions)))
        for broker in self._cache.alive_brokers(context.listener_name):
            if partition is not None and broker.id == partition.leader:
                endpoint = broker.listeners[context.listener_name]
                return Coordinator(key=key, node_id=broker.id, host=endpoint.host, port=endpoint.port, error_message="")
        return _no_coordinator(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, "The coordinator is not available.")


def _no_coordinator(key: str, code: ErrorCode, message: str | None) -> Coordinator:
    return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=message)


def _distinct(topics: list[MetadataRequestTopic]) -> list[MetadataRequestTopic]:
    return list({(topic.name, topic.topic_id): topic for topic in topics}.values())


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


def describe_topic_partitions_failed(
    request: DescribeTopicPartitionsRequest, version: int, error: ApiError
) -> DescribeTopicPartitionsResponse:
    """The error of every topic."""
    return DescribeTopicPartitionsResponse(
        topics=[
            DescribeTopicPartitionsResponseTopic(name=topic.name, error_code=error.code) for topic in request.topics
        ]
    )


def find_coordinator_failed(request: FindCoordinatorRequest, version: int, error: ApiError) -> FindCoordinatorResponse:
    """The error of every key from version 4 on, on top before."""
    if version >= _FIRST_FIND_OF_MANY:
        return FindCoordinatorResponse(
            coordinators=[_no_coordinator(key, error.code, message_of(error)) for key in request.coordinator_keys]
        )
    return FindCoordinatorResponse(error_code=error.code, error_message=message_of(error), node_id=-1, host="", port=-1)
