"""The group coordinator: consumer groups and their committed offsets, in `__consumer_offsets`.

JoinGroup (11), Heartbeat (12), LeaveGroup (13), SyncGroup (14), DescribeGroups (15), ListGroups (16), DeleteGroups
(42), OffsetCommit (8), OffsetFetch (9), OffsetDelete (47), TxnOffsetCommit (28): passed to the coordinator, with the
time. Each group belongs to one partition of the topic, and the leader of that partition coordinates it: the publisher
calls the table of coordinators when this broker starts or stops to lead one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from kalda.assignors.server_assignor import TopicShape
from kalda.assignors.server_assignors import load_assignors, made_assignor
from kalda.base.background import ITEMS_A_STEP, Steps
from kalda.base.configs.resources import ConfigResourceType
from kalda.base.configs.server import ServerConfig
from kalda.base.errors import ApiError, InvalidRequest, as_api_error
from kalda.base.ids import OFFSETS_TOPIC, ZERO_UUID, TopicPartition, Uuid
from kalda.base.scheduling import Clock, Pending
from kalda.base.sensors import Measurable, SensorName, Sensors, gauged
from kalda.broker.handlers.consumer_groups import ConsumerGroupHandlers
from kalda.broker.handlers.group_kinds import GroupKinds
from kalda.broker.handlers.share_coordinators import ShareCoordinators
from kalda.broker.handlers.share_groups import ShareGroupHandlers
from kalda.broker.handlers.shared import error_on_items, error_on_top
from kalda.broker.handlers.streams_groups import CreateFor, StreamsGroupHandlers, StreamsTopics
from kalda.broker.handlers.visible_offsets import only_visible_offsets
from kalda.broker.metadata_cache import MetadataCache
from kalda.broker.module import BrokerContext, Module
from kalda.broker.replicas.coordinators import Coordinators, add_load_times
from kalda.broker.requests.context import Reply, RequestContext
from kalda.broker.requests.rows import Authorization, Failed, Handler, Items, Row, itself, on_group
from kalda.coordinator.answers import answer_after_all
from kalda.coordinator.groups.classic_group import GroupState
from kalda.coordinator.groups.config import (
    GROUP_METRICS,
    ConsumerGroupConfig,
    GroupCoordinatorConfig,
    ShareGroupConfig,
    ShareServices,
    StreamsGroupConfig,
    StreamsServices,
)
from kalda.coordinator.groups.consumer_group import ConsumerGroupState
from kalda.coordinator.groups.group_coordinator import GroupCoordinator
from kalda.coordinator.groups.kind_group import CONSUMER, SHARE, STREAMS
from kalda.coordinator.groups.shard import GroupShard
from kalda.coordinator.groups.share_group import ShareGroupState
from kalda.coordinator.groups.streams.group import StreamsGroupState
from kalda.coordinator.internal_topics import GROUPS
from kalda.coordinator.runtime import LoadState
from kalda.metadata.configs import ConfigResource
from kalda.metadata.image import MetadataDelta, MetadataImage
from kalda.network.python_classes import WatchedClass
from kalda.protocol.access import (
    CLUSTER_RESOURCE_NAME,
    DELETE_GROUP,
    DESCRIBE_GROUP,
    READ_GROUP,
    READ_TOPIC,
    WRITE_TRANSACTIONAL_ID,
    Caller,
    operations_on,
)
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from kalda.protocol.messages.security import AclOperation, AclResourceType
from kalda.protocol.messages.transactions import TxnOffsetCommitRequest
from kalda.protocol.notation import Request, Response, shallow_copy
from kalda.records.batch import NO_SEQUENCE
from kalda.replication.replica_manager import ReplicaManager
from kalda.replication.verification import ClientSupport, Errors, TransactionVerifier
from kalda.storage.log.producer_state import Verification

if TYPE_CHECKING:
    from kalda.coordinator.groups.group_coordinator import GroupCoordinator
    from kalda.replication.replica_manager import ReplicaManager

# Requests of many items that a coordinator writes or reads: handled some hundred items a step.
#
# A coordinator decides about a request in one go, and writes one batch for it, which has to fit into
# `max.message.bytes`. So a request of many items is passed to it in chunks, each a request of its own, and the
# results are one response. A chunk that fails has the error of the request in its place; the others are not harmed.

CHUNK_ITEMS = 200


class Chunks(NamedTuple):
    """Where the items of a request and their results are: the names of nested lists, from the top."""

    asked: tuple[str, ...]
    answered: tuple[str, ...]
    failed: Failed
    """As `Row.failed`."""

    def handler(self, handler: Handler) -> Handler:
        """`handler`, which gets a request of many items in chunks."""

        def handle(context: RequestContext, request: Any) -> Reply[Any]:
            if _has_at_most(CHUNK_ITEMS, getattr(request, self.asked[0]) or (), self.asked[1:]) is None:
                return self._in_chunks(handler, context, request)
            return handler(context, request)

        return handle

    def _in_chunks(self, handler: Handler, context: RequestContext, request: Request) -> Steps[Any]:
        chunks: list[Request] = []
        replies: list[Any] = []  # responses, or pending ones
        for some, _ in _cut(getattr(request, self.asked[0]), self.asked[1:]):
            if chunks:
                yield
            chunk = shallow_copy(request)
            setattr(chunk, self.asked[0], some)
            chunks.append(chunk)
            try:
                replies.append(handler(context, chunk))
            except InvalidRequest:
                raise
            except Exception as error:
                replies.append(self._refusal(chunk, context, as_api_error(error)))

        def join() -> Steps[Response]:
            return self._joined(context, chunks, replies)

        return answer_after_all([each for each in replies if isinstance(each, Pending)], join)

    def _joined(self, context: RequestContext, chunks: list[Request], replies: list[Any]) -> Steps[Response]:
        whole: Response | None = None
        for chunk, reply in zip(chunks, replies, strict=True):
            response: Any = reply
            if isinstance(reply, Pending):
                response = reply.value if reply.error is None else self._refusal(chunk, context, reply.error)
            if whole is None:
                whole = response
                continue
            yield
            _join(whole, response, self.answered)
        assert whole is not None, "there are items"
        return whole

    def _refusal(self, chunk: Request, context: RequestContext, error: ApiError) -> Response:
        refusal = self.failed(chunk, context.api_version, error)
        assert refusal is not None, "these requests are answered"
        return refusal


def _has_at_most(left: int, items: Iterable[Any], nested: tuple[str, ...]) -> int | None:
    """How many items there may be besides; None where there are too many."""
    for item in items:
        left -= 1
        if left >= 0 and nested:
            inner = _has_at_most(left, getattr(item, nested[0]) or (), nested[1:])
            left = -1 if inner is None else inner
        if left < 0:
            return None
    return left


def _cut(items: Sequence[Any], nested: tuple[str, ...]) -> Iterator[tuple[list[Any], int]]:
    """Chunks of items, and how many a chunk has at all depths. One whose nested list is long is in several chunks, with
    a piece of that list in each."""
    if not nested:
        for start in range(0, len(items), CHUNK_ITEMS):
            some = list(items[start : start + CHUNK_ITEMS])
            yield some, len(some)
        return
    chunk: list[Any] = []
    size = 0
    for item in items:
        inner = getattr(item, nested[0])
        for piece, piece_size in _cut(inner, nested[1:]) if inner else ((inner, 0),):
            copy = shallow_copy(item)
            setattr(copy, nested[0], piece)
            chunk.append(copy)
            size += 1 + piece_size
            if size >= CHUNK_ITEMS:
                yield chunk, size
                chunk, size = [], 0
    if chunk:
        yield chunk, size


def _join(whole: Any, part: Any, answered: tuple[str, ...]) -> None:
    """Add the results of a chunk. Its first item may be a further piece of the last one."""
    name, nested = answered[0], answered[1:]
    for field in type(whole).declared:  # an error of a whole chunk
        if field != name and not isinstance(getattr(whole, field), list) and not getattr(whole, field):
            setattr(whole, field, getattr(part, field))
    mine, others = getattr(whole, name), getattr(part, name)
    if nested and mine and others and _are_pieces(mine[-1], others[0]):
        _join(mine[-1], others[0], nested)
        others = others[1:]
    mine.extend(others)


def _are_pieces(one: Any, other: Any) -> bool:
    """Whether two items differ in their lists alone."""
    return all(
        getattr(one, name) == getattr(other, name)
        for name in type(one).declared
        if not isinstance(getattr(one, name), list)
    )


class _NamesTopic(Protocol):
    name: str
    topic_id: Uuid


Q = TypeVar("Q")
R = TypeVar("R")

_FIRST_JOIN_WITHOUT_NAME = 7
_FIRST_FETCH_ERROR_ON_TOP = 2
_FIRST_FETCH_OF_GROUPS = 8
_STEP_ITEMS = 2_000


class GroupHandlers:
    """Groups and their offsets."""

    def __init__(
        self,
        coordinator: GroupCoordinator,
        clock: Clock,
        on_handled: Callable[[], None],
        topic_name: Callable[[Uuid], str | None] = lambda _: None,
        serves_consumer_groups: Callable[[], bool] = lambda: True,
        serves_share_groups: Callable[[], bool] = lambda: True,
        serves_streams_groups: Callable[[], bool] = lambda: True,
        streams_topics: StreamsTopics | None = None,
    ) -> None:
        """`on_handled` is called after each request: the coordinator's next deadline may be nearer than its timer.
        `topic_name(id)` looks a topic up. `serves_consumer_groups()`: whether consumer groups of KIP-848 are on;
        likewise `serves_share_groups()` and `serves_streams_groups()`. `streams_topics` creates internal topics of
        streams groups, which there are none of without it."""
        self._share_groups = ShareGroupHandlers(coordinator, serves_share_groups)
        self._consumer_groups = ConsumerGroupHandlers(coordinator, serves_consumer_groups)
        self._streams_groups = StreamsGroupHandlers(coordinator, streams_topics, serves_streams_groups)
        self._topic_name = topic_name
        self._coordinator = coordinator
        self._clock = clock
        self._on_handled = on_handled

    def rows(self) -> list[Row]:
        """One row an API."""
        return [
            *self._rows_of_members(),
            *self._rows_of_groups(),
            *self._rows_of_offsets(),
            *self._consumer_groups.rows(self._timed),
            *self._share_groups.rows(self._timed),
            *self._streams_groups.rows(self._timed),
        ]

    def _rows_of_members(self) -> list[Row]:
        coordinator, timed, read = self._coordinator, self._timed, on_group(READ_GROUP)
        return [
            Row(ApiKey.JOIN_GROUP, timed(coordinator.join_group), join_group_failed, read),
            Row(ApiKey.SYNC_GROUP, timed(coordinator.sync_group), error_on_top, read),
            Row(ApiKey.HEARTBEAT, timed(coordinator.heartbeat), error_on_top, read),
            Row(ApiKey.LEAVE_GROUP, timed(coordinator.leave_group), error_on_top, read),
        ]

    def _rows_of_groups(self) -> list[Row]:
        coordinator, timed, per_item = self._coordinator, self._timed, Authorization.PER_ITEM
        described = Items(DESCRIBE_GROUP, describe_groups_failed, "groups", "groups", itself)
        deleted = Items(DELETE_GROUP, delete_groups_failed, "groups_names", "results", itself)
        chunks = Chunks(("groups_names",), ("results",), delete_groups_failed)
        return [
            Row(
                ApiKey.DESCRIBE_GROUPS,
                timed(self._describe_groups),
                describe_groups_failed,
                per_item,
                items=described.stage,
                has_large_answer=True,
            ),
            Row(ApiKey.LIST_GROUPS, timed(self._list_groups), error_on_top, per_item, has_large_answer=True),
            Row(
                ApiKey.DELETE_GROUPS,
                chunks.handler(timed(coordinator.delete_groups)),
                delete_groups_failed,
                per_item,
                items=deleted.stage,
            ),
        ]

    def _rows_of_offsets(self) -> list[Row]:
        requests, timed = self._coordinator.offsets, self._timed
        committed = Items(READ_TOPIC, offset_commit_failed, name_of=self._name_of)
        offsets_not_deleted = error_on_items("topics.partitions")
        committed_in_transaction = Items(READ_TOPIC, txn_offset_commit_failed, name_of=self._name_of)
        deleted = Items(READ_TOPIC, offsets_not_deleted, handles_none=True)
        of_topics = ("topics", "partitions")
        return [
            Row(
                ApiKey.OFFSET_COMMIT,
                Chunks(of_topics, of_topics, offset_commit_failed).handler(timed(requests.commit)),
                offset_commit_failed,
                on_group(READ_GROUP),
                items=committed.stage,
            ),
            Row(
                ApiKey.OFFSET_FETCH,
                self._fetched_in_chunks(timed(requests.fetch)),
                offset_fetch_failed,
                Authorization.PER_ITEM,
                items=partial(only_visible_offsets, self._name_of),
                has_large_answer=True,
            ),
            Row(
                ApiKey.OFFSET_DELETE,
                Chunks(of_topics, of_topics, error_on_top).handler(timed(requests.delete)),
                error_on_top,
                on_group(DELETE_GROUP),
                items=deleted.stage,
            ),
            Row(
                ApiKey.TXN_OFFSET_COMMIT,
                Chunks(of_topics, of_topics, txn_offset_commit_failed).handler(timed(requests.commit_in_transaction)),
                txn_offset_commit_failed,
                _may_commit_in_transaction,
                items=committed_in_transaction.stage,
            ),
        ]

    def _fetched_in_chunks(self, handler: Handler) -> Handler:
        """`handler`, in chunks of many partitions. All offsets of a group are one item."""
        partitions = ("topics", "partition_indexes")
        by_group = Chunks(("groups", *partitions), ("groups", "topics", "partitions"), offset_fetch_failed)
        by_topic = Chunks(partitions, ("topics", "partitions"), offset_fetch_failed)
        of_many, of_one = by_group.handler(handler), by_topic.handler(handler)

        def handle(context: RequestContext, request: OffsetFetchRequest) -> Reply[OffsetFetchResponse]:
            if context.api_version < _FIRST_FETCH_OF_GROUPS:
                return of_one(context, request)
            if any(group.topics is None for group in request.groups):  # a group may have them once
                return handler(context, request)
            return of_many(context, request)

        return handle

    def _name_of(self, topic: _NamesTopic) -> str | None:
        """The name of a topic that a request has by name or by id; None for an unknown id."""
        if topic.topic_id == ZERO_UUID:
            return topic.name
        return self._topic_name(topic.topic_id)

    def _timed(self, handle: Callable[[RequestContext, Q, int], R]) -> Callable[[RequestContext, Q], R]:
        clock, on_handled = self._clock, self._on_handled

        def handler(context: RequestContext, request: Q) -> R:
            reply = handle(context, request, clock.mono_ms())
            on_handled()
            return reply

        return handler

    def _describe_groups(
        self, context: RequestContext, request: DescribeGroupsRequest, now_ms: int
    ) -> Steps[DescribeGroupsResponse]:
        response = DescribeGroupsResponse()
        in_step = 0
        for group in self._coordinator.describe_groups(context, request, now_ms):
            if in_step >= ITEMS_A_STEP:
                in_step = 0
                yield
            if request.include_authorized_operations and not group.error_code:
                group.authorized_operations = operations_on(context, AclResourceType.GROUP, group.group_id)
            response.groups.append(group)
            in_step += 1 + len(group.members)
        return response

    def _list_groups(
        self, context: RequestContext, request: ListGroupsRequest, now_ms: int
    ) -> Steps[ListGroupsResponse]:
        """In steps: a coordinator may have very many groups. Who may describe the cluster sees all, others those that
        they may describe."""
        sees_all = context.allows(AclOperation.DESCRIBE, AclResourceType.CLUSTER, CLUSTER_RESOURCE_NAME, False)
        return _listed_groups(context, self._coordinator.list_groups(request, now_ms), sees_all)


def _listed_groups(context: RequestContext, every: Iterable[ListedGroup], sees_all: bool) -> Steps[ListGroupsResponse]:
    response = ListGroupsResponse()
    for count, group in enumerate(every, 1):
        if count % _STEP_ITEMS == 0:
            yield
        if sees_all or DESCRIBE_GROUP.holds_quietly(context, group.group_id):
            response.groups.append(group)
    return response


def _may_commit_in_transaction(caller: Caller, request: TxnOffsetCommitRequest) -> ApiError | None:
    """The caller must be allowed to write under the transactional id, and to read the group."""
    refusal = WRITE_TRANSACTIONAL_ID.refusal(caller, request.transactional_id)
    return refusal if refusal is not None else READ_GROUP.refusal(caller, request.group_id)


# How each API reports that the whole request failed.


def join_group_failed(request: JoinGroupRequest, version: int, error: ApiError) -> JoinGroupResponse:
    """The error on top. No protocol is null from version 7 on, an empty name before."""
    name = None if version >= _FIRST_JOIN_WITHOUT_NAME else ""
    return JoinGroupResponse(error_code=error.code, protocol_name=name)


describe_groups_failed = error_on_items("groups")


delete_groups_failed = error_on_items("results", "groups_names")


offset_commit_failed = error_on_items("topics.partitions")


txn_offset_commit_failed = error_on_items("topics.partitions")


_groups_not_fetched = error_on_items("groups")
_offsets_not_fetched = error_on_items("topics.partitions", "topics.partition_indexes", committed_offset=-1)


def offset_fetch_failed(request: OffsetFetchRequest, version: int, error: ApiError) -> Any:
    """The error of every group from version 8 on, on top in versions 2 to 7, of every partition in version 1."""
    if version >= _FIRST_FETCH_OF_GROUPS:
        return _groups_not_fetched(request, version, error)
    if version >= _FIRST_FETCH_ERROR_ON_TOP:
        return OffsetFetchResponse(error_code=error.code)
    return _offsets_not_fetched(request, version, error)


_MANAGER = "kafka.coordinator.group:type=GroupMetadataManager"
_COUNTED_STATES = {
    GroupState.PREPARING_REBALANCE: "NumGroupsPreparingRebalance",
    GroupState.COMPLETING_REBALANCE: "NumGroupsCompletingRebalance",
    GroupState.STABLE: "NumGroupsStable",
    GroupState.EMPTY: "NumGroupsEmpty",
    GroupState.DEAD: "NumGroupsDead",
}


class _AssignorInPython:
    """An assignor of the operator, as its file is at present. It keeps the name by which groups choose it."""

    def __init__(self, watched: WatchedClass[Any]) -> None:
        self.name: str = watched.made.name
        self._watched = watched

    def assign(self, *spec: Any) -> Any:
        """As the operator's class does it."""
        return self._watched.made.assign(*spec)


class GroupsModule(Module):
    """Rests on the table of coordinators, to which it adds its own; on the replicas and the verifier, for transactions
    that commit offsets."""

    def __init__(
        self,
        context: BrokerContext,
        coordinators: Coordinators,
        replicas: ReplicaManager,
        verifier: TransactionVerifier,
        shares: ShareCoordinators,
        create_for: CreateFor,
        kinds: GroupKinds,
    ) -> None:
        """`create_for` has topics of streams groups created."""
        clock, config, cache = context.host.clock, context.config, context.cache
        self._timers, self._jobs = context.timers, context.jobs
        self._assignors: list[WatchedClass[Any]] = []
        """Those in Python."""
        self._consumer_config = ConsumerGroupConfig(config.values, partial(_group_configs, cache))
        self._share_config = ShareGroupConfig(config.values, partial(_group_configs, cache))
        self._streams_config = StreamsGroupConfig(config.values, partial(_group_configs, cache))
        self._coordinator = coordinator = GroupCoordinator(
            GroupCoordinatorConfig.from_properties(config.values),
            coordinators.log(GROUPS),
            TopicNames(cache),
            context.host.new_uuid,
            lambda: coordinators.partition_count(GROUPS),
            load_assignors("group.consumer.assignors", config["group.consumer.assignors"], self._load),
            ShareServices(self._share_config, shares.persister, shares.latest),
            StreamsServices(
                self._streams_config,
                load_assignors("group.streams.assignors", config["group.streams.assignors"], self._load),
            ),
            clock.wall_ms,
            self._verify,
            self._consumer_config,
        )
        self._clock = clock
        self._replicas = replicas
        self._verifier = verifier
        self._shell = shell = coordinators.add(GROUPS, coordinator.runtime)
        self.explain_rebalance = coordinator.explain_rebalance
        """For `kalda explain rebalance`."""
        self._handlers = GroupHandlers(
            coordinator,
            clock,
            shell.arm,
            cache.topic_name,
            kinds.serves_consumer_groups,
            kinds.serves_share_groups,
            kinds.serves_streams_groups,
            StreamsTopics(create_for, config["request.timeout.ms"], clock.mono_ms),
        )
        _add_gauges(context.sensors, coordinator)
        most: int = context.config["kalda.metrics.logs.max"]
        context.sensors.add_source(lambda: lag_sensors(coordinator, replicas, most))

    def rows(self) -> list[Row]:
        """The group APIs."""
        return self._handlers.rows()

    def _load(self, key: str, path: str) -> _AssignorInPython:
        """Raises what the class raises, and `ValueError`."""
        watched = WatchedClass(key, path, made_assignor)
        self._assignors.append(watched)
        return _AssignorInPython(watched)

    def start(self) -> None:
        """Load assignors in Python again when their files change, from now on."""
        for each in self._assignors:
            each.start(self._timers, self._jobs)

    def close(self) -> None:
        """Stop the timers."""
        for each in self._assignors:
            each.close()

    def on_config(self, current: ServerConfig, image: MetadataImage) -> None:
        """Take over configs of consumer, share and streams groups that change while the node runs."""
        self._consumer_config.update(current.values)
        self._share_config.update(current.values)
        self._streams_config.update(current.values)

    def on_topics_changed(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Report topics that have changed to the coordinator."""
        topics = delta.topics
        if topics is None:
            return
        names = {topic.name for topic in topics.changed.values()} | {topic.name for topic in topics.deleted.values()}
        if names:
            self._coordinator.on_topics_changed(names, image.offset, created=bool(topics.created))

    def _verify(
        self, index: int, request: TxnOffsetCommitRequest, version: int
    ) -> Verification | Pending[Verification | None] | None:
        """As `VerifyTransaction` of the coordinator says."""
        support = ClientSupport.of_offset_commit(version)
        if not self._verifier.applies_to(support):
            return None
        producer_id, epoch = request.producer_id, request.producer_epoch
        guard = self._replicas.get(OFFSETS_TOPIC, index).start_verification(
            producer_id, NO_SEQUENCE, epoch, self._clock.wall_ms(), supports_epoch_bump=support.adds
        )
        if guard is None:
            return None
        at = TopicPartition(OFFSETS_TOPIC, index)
        verified: Pending[Verification | None] = Pending()

        def on_verified(errors: Errors | None, _: ApiError | None) -> None:
            assert errors is not None, "a verification completes"
            self._coordinator.runtime.advance(self._clock.mono_ms())
            if at in errors:
                verified.fail(ApiError(errors[at]))
            else:
                verified.complete(guard)
            self._shell.arm()

        self._verifier.verify(request.transactional_id, producer_id, epoch, [at], support).then(on_verified)
        return verified


def _add_gauges(sensors: Sensors, coordinator: GroupCoordinator) -> None:
    """Groups that this broker coordinates, in all and by state. Reading a count by state visits all groups."""

    def count(state: GroupState | None = None) -> float:
        return sum(
            len(shard.groups) if state is None else sum(group.state is state for group in shard.groups.values())
            for shard in coordinator.runtime.active_shards()
        )

    sensors.gauge(_MANAGER, "NumGroups", read=count)
    sensors.gauge(
        _MANAGER, "NumOffsets", read=lambda: sum(each.offsets.count for each in coordinator.runtime.active_shards())
    )
    add_load_times(sensors, GROUP_METRICS, coordinator.runtime)
    sensors.gauge(GROUP_METRICS, "group-count", (("protocol", "classic"),), count)
    for partition_state in LoadState:
        tags = (("state", partition_state.value),)
        sensors.gauge(GROUP_METRICS, "num-partitions", tags, partial(coordinator.runtime.count, partition_state))
    sensors.add_source(coordinator.counters.sensors)
    for state, name in _COUNTED_STATES.items():
        sensors.gauge(_MANAGER, name, read=partial(count, state))

    def count_of_kind(groups_of: Callable[[GroupShard], Mapping[str, Any]], state: Enum | None = None) -> float:
        return sum(
            len(groups_of(shard))
            if state is None
            else sum(group.state() is state for group in groups_of(shard).values())
            for shard in coordinator.runtime.active_shards()
        )

    kinds: tuple[tuple[str, Callable[[GroupShard], Mapping[str, Any]], type[Enum]], ...] = (
        (CONSUMER, lambda shard: shard.consumers.groups, ConsumerGroupState),
        (SHARE, lambda shard: shard.shares.groups, ShareGroupState),
        (STREAMS, lambda shard: shard.streams.groups, StreamsGroupState),
    )
    for kind, groups_of, states in kinds:
        sensors.gauge(GROUP_METRICS, "group-count", (("protocol", kind),), partial(count_of_kind, groups_of))
        for state_of_kind in states:
            tags = (("state", state_of_kind.value),)
            sensors.gauge(GROUP_METRICS, f"{kind}-group-count", tags, partial(count_of_kind, groups_of, state_of_kind))


def _group_configs(cache: MetadataCache, group_id: str) -> Mapping[str, str]:
    return cache.image.configs.of(ConfigResource(ConfigResourceType.GROUP, group_id))


class TopicNames:
    """Topics, as the coordinator looks them up."""

    def __init__(self, cache: MetadataCache) -> None:
        self._cache = cache

    def id_of(self, name: str) -> Uuid | None:
        """The id of a topic; None where the topic does not exist."""
        return self._cache.topic_id(name)

    def name_of(self, topic_id: Uuid) -> str | None:
        """The name of a topic; None where the topic does not exist."""
        return self._cache.topic_name(topic_id)

    def names(self) -> Sequence[str]:
        """The names of all topics."""
        return list(self._cache.image.topics.by_name)

    def shape_of(self, name: str) -> tuple[Uuid, TopicShape] | None:
        """Id, partitions and racks of a topic; None where the topic does not exist."""
        topic = self._cache.topic(name)
        if topic is None:
            return None
        brokers, count = self._cache.image.cluster.brokers, len(topic.partitions)
        rack_of = {broker_id: broker.rack for broker_id, broker in brokers.items() if broker.rack is not None}
        if not rack_of:
            return topic.id, TopicShape(name, count)
        racks = tuple(
            frozenset(rack_of[replica] for replica in topic.partitions[index].replicas if replica in rack_of)
            for index in range(count)
        )
        return topic.id, TopicShape(name, count, racks)

    def has_partition(self, name: str, partition: int) -> bool:
        """Whether the topic exists and has that partition."""
        topic = self._cache.topic(name)
        return topic is not None and partition in topic.partitions


_CONSUMER_GROUP: Final = "kafka.consumergroup"
"""Apache Kafka leaves the lag of groups to exporters beside it. The names are those that these have made usual, so that
their dashboards and alerts work."""


def lag_sensors(
    coordinator: GroupCoordinator, replicas: ReplicaManager, most: int
) -> Iterator[tuple[SensorName, Measurable]]:
    """A source for `Sensors.add_source`: of each committed offset, and its distance from the end of what consumers can
    read, where there is a replica. A follower has the high watermark with its next fetch only, so the end of its
    log is taken. Nothing where more than `most` are committed: they would hold the event loop."""
    shards = list(coordinator.runtime.active_shards())
    if sum(shard.offsets.count for shard in shards) > most:
        return
    for shard in shards:
        for group_id, topic, index, offset in list(shard.offsets.committed()):
            tags = (("consumergroup", group_id), ("topic", topic), ("partition", str(index)))
            yield SensorName(_CONSUMER_GROUP, "current_offset", tags), gauged(offset)
            replica = replicas.find(topic, index)
            if replica is not None:
                end = replica.log.high_watermark if replica.is_leader else replica.log.log_end_offset
                yield SensorName(_CONSUMER_GROUP, "lag", tags), gauged(max(0, end - offset))
