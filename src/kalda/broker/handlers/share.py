"""ShareFetch (78) and ShareAcknowledge (79): members of share groups at the leaders of partitions (KIP-932).

A request names what its session fetches from now on, and acknowledges what the member has had. Acknowledgements are
written before their answer; a fetch that waits holds up those which it brings. With `is_renew_ack` a request renews
locks and fetches nothing (KIP-1222).

They are served and announced while the feature `share.version` is finalized, as are the other APIs of share groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from kalda.base.background import ITEMS_A_STEP, Steps
from kalda.base.configs.definition import parse_duration_ms
from kalda.base.configs.group import GROUP
from kalda.base.configs.resources import ConfigResourceType
from kalda.base.configs.server import ServerConfig
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending, Timers
from kalda.base.sensors import SensorName, counted
from kalda.base.share_states import AcknowledgeType, AcquireMode, SharePartitionKey
from kalda.broker.channels.auto_topics import AutoTopics
from kalda.broker.channels.dead_letter_writer import PLAN, DeadLetterTopics, DeadLetterWriter
from kalda.broker.handlers.share_coordinators import ShareCoordinators
from kalda.broker.handlers.shared import error_on_top
from kalda.broker.handlers.transactions import leader_of
from kalda.broker.metadata_cache import MetadataCache
from kalda.broker.module import BrokerContext, Module
from kalda.broker.requests.context import Reply, RequestContext
from kalda.broker.requests.rows import QuotaClass, Row
from kalda.coordinator.answers import answer_after_all
from kalda.metadata.configs import ConfigResource
from kalda.metadata.features import SHARE_VERSION
from kalda.metadata.image import MetadataImage
from kalda.network.server.connection import Connection
from kalda.protocol.access import READ_GROUP, READ_TOPIC, Caller
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.share import (
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeResponseLeaderIdAndEpoch,
    ShareAcknowledgeResponseNodeEndpoint,
    ShareAcknowledgeResponsePartitionData,
    ShareAcknowledgeTopicResponse,
    ShareFetchableTopicResponse,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareFetchResponseNodeEndpoint,
    ShareFetchResponsePartitionData,
)
from kalda.replication.replica_manager import ReplicaManager
from kalda.replication.share.dead_letters import read_sources
from kalda.replication.share.share_fetch import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    FetchLimits,
    ShareEntry,
    ShareFetch,
    ShareSession,
    ShareSessions,
    TopicIdPartition,
    check_member,
)
from kalda.replication.share.share_partition import Acknowledgement, SharePartition, ShareSettings
from kalda.replication.share.share_partitions import EARLIEST, LATEST, SharePartitions

_FIRST_WITH_RENEWAL = 2
_FIRST_WITH_DEAD_LETTERS = 2
"""Of the levels of share.version."""
_SESSIONS = "kafka.server:type=ShareSessionCache"
_GROUPS = "kafka.server:type=ShareGroupMetrics"


class Acknowledged(NamedTuple):
    """The outcome of the acknowledgements of one partition."""

    partition: TopicIdPartition
    outcome: Pending[None]


class ShareHandlers:
    """Requests of members of share groups."""

    def __init__(
        self,
        replicas: ReplicaManager,
        shares: SharePartitions,
        sessions: ShareSessions,
        metadata: MetadataCache,
        timers: Timers,
        count: Callable[[AcknowledgeType, int], None],
        is_enabled: Callable[[], bool],
    ) -> None:
        """`count(type, records)` is called for what was acknowledged. `is_enabled()`: whether share groups are on."""
        self._is_enabled = is_enabled
        self._replicas = replicas
        self._shares = shares
        self._sessions = sessions
        self._metadata = metadata
        self._timers = timers
        self._count = count

    def rows(self) -> list[Row]:
        """Both APIs."""
        fetch_failed, acknowledge_failed = error_on_top, error_on_top
        return [
            Row(ApiKey.SHARE_FETCH, self.share_fetch, fetch_failed, _may_consume, QuotaClass.FETCH),
            Row(ApiKey.SHARE_ACKNOWLEDGE, self.share_acknowledge, acknowledge_failed, _may_consume),
        ]

    def _check_enabled(self) -> None:
        if not self._is_enabled():
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION)

    # -- ShareFetch

    def share_fetch(self, context: RequestContext, request: ShareFetchRequest) -> Reply[ShareFetchResponse]:
        """Acknowledge, then read what no member has; where that is less than `min_bytes`, wait for more."""
        self._check_enabled()
        group_id, member_id = check_member(request.group_id, request.member_id)
        is_renewal = request.is_renew_ack and context.api_version >= _FIRST_WITH_RENEWAL
        if is_renewal:
            _check_fetches_nothing(request)
        named, acknowledged = _named(request), _acknowledged(request)
        try:
            session = self._session(context, request, group_id, member_id, bool(acknowledged))
        except ApiError as error:
            if error.code is ErrorCode.SHARE_SESSION_LIMIT_REACHED:
                return self._idle(error, request.max_wait_ms)
            raise
        is_final = request.share_session_epoch == FINAL_EPOCH
        if not is_final:
            self._sessions.update(session, named, _forgotten(request))
        return self._share_fetch(context, request, session, acknowledged, is_renewal or is_final)

    def _share_fetch(
        self,
        context: RequestContext,
        request: ShareFetchRequest,
        session: ShareSession,
        acknowledged: dict[TopicIdPartition, list[Acknowledgement]],
        fetches_nothing: bool,
    ) -> Steps[Reply[ShareFetchResponse]]:
        group_id = session.group_id
        names = self._names([*session.partitions, *acknowledged])
        refused = self._refused(context, names.values())
        renews = request.is_renew_ack and context.api_version >= _FIRST_WITH_RENEWAL
        outcomes = yield from self._acknowledge(session, acknowledged, names, refused, renews)
        entries: list[ShareEntry] = []
        failed: list[tuple[TopicIdPartition, ErrorCode]] = []
        for count, partition in enumerate([] if fetches_nothing else session.rotated(), 1):
            if count % ITEMS_A_STEP == 0:
                yield
            name = names.get(partition)
            try:
                entries.append(ShareEntry(*self._entry(group_id, partition, name, refused)))
            except ApiError as error:
                failed.append((partition, error.code))
        settings = self._shares.settings_of(group_id)
        limits = FetchLimits(
            max(0, request.max_wait_ms) if entries else 0,
            request.min_bytes,
            request.max_bytes,
            request.max_records,
            request.batch_size,
            _mode(request),
        )
        fetched = ShareFetch(
            self._replicas, self._shares, entries, session.member_id, limits, read_committed=settings.read_committed
        ).run()
        if not isinstance(fetched, ShareFetchResponse | Pending):
            fetched = yield from fetched
        if isinstance(fetched, Pending):
            context.connection.answer_alone()
        is_first = request.share_session_epoch == INITIAL_EPOCH

        def finish(response: ShareFetchResponse) -> Reply[ShareFetchResponse]:
            def complete() -> ShareFetchResponse:
                _add_results(response, failed, outcomes, keeps_empty=is_first)
                response.acquisition_lock_timeout_ms = settings.lock_duration_ms
                self._name_leaders(context, response)
                if request.share_session_epoch == FINAL_EPOCH:
                    self._end(session)
                return response

            return answer_after_all([outcome for _, outcome in outcomes], complete)

        return fetched.and_then(finish) if isinstance(fetched, Pending) else finish(fetched)

    def _session(
        self, context: RequestContext, request: ShareFetchRequest, group_id: str, member_id: str, acknowledges: bool
    ) -> ShareSession:
        epoch = request.share_session_epoch
        if epoch == FINAL_EPOCH:
            return self._sessions.get(group_id, member_id)
        if epoch != INITIAL_EPOCH:
            return self._sessions.advance(group_id, member_id, epoch)
        if acknowledges:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, "The first request of a share session has nothing to acknowledge."
            )
        return self._sessions.begin(group_id, member_id, context.connection.id)

    def _idle(self, error: ApiError, max_wait_ms: int) -> Pending[ShareFetchResponse]:
        """Answer with the error after the time that a fetch may wait: the member tries again at once."""
        answer: Pending[ShareFetchResponse] = Pending()
        response = ShareFetchResponse(error_code=int(error.code), error_message=error.message)
        timer = self._timers.call_later_ms(max(0, max_wait_ms), lambda: answer.complete(response))
        answer.on_abandoned = timer.cancel
        return answer

    def _entry(
        self, group_id: str, partition: TopicIdPartition, name: str | None, refused: frozenset[str]
    ) -> tuple[str, int, SharePartition]:
        if name is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
        if name in refused:
            raise ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return name, partition.number, self._shares.get(SharePartitionKey(group_id, *partition), name)

    def _names(self, partitions: Iterable[TopicIdPartition]) -> dict[TopicIdPartition, str]:
        """The topics that exist."""
        found = {each: self._metadata.topic_name(each.topic_id) for each in partitions}
        return {each: name for each, name in found.items() if name is not None}

    def _refused(self, context: RequestContext, names: Iterable[str]) -> frozenset[str]:
        """Topics that the caller may not read."""
        counts: dict[str, int] = {}
        for name in names:
            counts[name] = counts.get(name, 0) + 1
        return READ_TOPIC.refused(context, counts) or frozenset()

    # -- ShareAcknowledge

    def share_acknowledge(
        self, context: RequestContext, request: ShareAcknowledgeRequest
    ) -> Steps[Reply[ShareAcknowledgeResponse]]:
        """Acknowledge, and answer when it is written."""
        self._check_enabled()
        group_id, member_id = check_member(request.group_id, request.member_id)
        epoch = request.share_session_epoch
        if epoch == INITIAL_EPOCH:
            raise ApiError(ErrorCode.INVALID_SHARE_SESSION_EPOCH, "A share session begins with a fetch.")
        if epoch == FINAL_EPOCH:
            session = self._sessions.get(group_id, member_id)
        else:
            session = self._sessions.advance(group_id, member_id, epoch)
        acknowledged = _acknowledged(request, named_alone=True)
        names = self._names(acknowledged)
        refused = self._refused(context, names.values())
        renews = request.is_renew_ack and context.api_version >= _FIRST_WITH_RENEWAL
        outcomes = yield from self._acknowledge(session, acknowledged, names, refused, renews)

        def finish() -> ShareAcknowledgeResponse:
            if epoch == FINAL_EPOCH:
                self._end(session)
            response = ShareAcknowledgeResponse(
                responses=_acknowledge_results(outcomes),
                acquisition_lock_timeout_ms=self._shares.settings_of(group_id).lock_duration_ms,
            )
            self._name_leaders(context, response)
            return response

        return answer_after_all([outcome for _, outcome in outcomes], finish)

    def _acknowledge(
        self,
        session: ShareSession,
        acknowledged: Mapping[TopicIdPartition, list[Acknowledgement]],
        names: Mapping[TopicIdPartition, str],
        refused: frozenset[str],
        renews: bool,
    ) -> Steps[list[Acknowledged]]:
        outcomes: list[Acknowledged] = []
        work = 0
        for partition, acknowledgements in acknowledged.items():
            work += 1 + sum(len(each.types) for each in acknowledgements)
            if work >= ITEMS_A_STEP:
                work = 0
                yield
            outcome: Pending[None] = Pending()
            outcomes.append(Acknowledged(partition, outcome))
            try:
                name = names.get(partition)
                _check_acknowledgements(acknowledgements, renews=renews)
                if name is None:
                    raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
                if name in refused:
                    raise ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                if not acknowledgements:
                    self._check_exists(partition)
                    outcomes.pop()  # Kafka answers nothing to nothing
                    continue
                share = self._held(SharePartitionKey(session.group_id, *partition), name)
            except ApiError as error:
                outcome.fail(error)
                continue
            written = share.acknowledge(session.member_id, acknowledgements)
            written.then(outcome.settle)
            if outcome.error is None:
                self._count_all(acknowledgements)
        return outcomes

    def _check_exists(self, partition: TopicIdPartition) -> None:
        found = self._metadata.topic_by_id(partition.topic_id)
        if found is None or partition.number not in found.partitions:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def _held(self, key: SharePartitionKey, name: str) -> SharePartition:
        """The share partition whose records a member may have."""
        self._replicas.get(name, key.partition).check_leader(-1)
        share = self._shares.find(key)
        if share is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "No record of this partition is acquired here.")
        return share

    def _count_all(self, acknowledgements: Sequence[Acknowledgement]) -> None:
        for first, last, types in acknowledgements:
            if len(types) == 1:
                self._count(AcknowledgeType(types[0]), last - first + 1)
            else:
                for each in types:
                    self._count(AcknowledgeType(each), 1)

    # -- the end of sessions

    def on_disconnect(self, connection: Connection) -> None:
        """A connection was closed: its members have nothing any more."""
        for session in self._sessions.on_disconnect(connection.id):
            self._release(session)

    def _end(self, session: ShareSession) -> None:
        self._sessions.end(session.group_id, session.member_id)
        self._release(session)

    def _release(self, session: ShareSession) -> None:
        for partition in session.partitions:
            share = self._shares.find(SharePartitionKey(session.group_id, *partition))
            if share is not None:
                share.release(session.member_id)

    def _name_leaders(self, context: RequestContext, response: ShareFetchResponse | ShareAcknowledgeResponse) -> None:
        """Name the leaders of partitions that are not led here (KIP-951)."""
        leaders: set[int] = set()
        for topic in response.responses:
            for each in topic.partitions:
                if each.error_code not in _MOVED:
                    continue
                found = self._metadata.topic_by_id(topic.topic_id)
                registration = None if found is None else found.partitions.get(each.partition_index)
                if registration is not None and registration.has_leader:
                    each.current_leader = type(each.current_leader)(
                        leader_id=registration.leader, leader_epoch=registration.leader_epoch
                    )
                    leaders.add(registration.leader)
        if leaders:
            endpoint = (
                ShareFetchResponseNodeEndpoint
                if isinstance(response, ShareFetchResponse)
                else ShareAcknowledgeResponseNodeEndpoint
            )
            response.node_endpoints = [  # type: ignore[assignment]
                endpoint(node_id=each.node_id, host=each.host, port=each.port, rack=each.rack)
                for each in self._metadata.broker_entries(context.listener_name)
                if each.node_id in leaders
            ]


_MOVED = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


def _may_consume(caller: Caller, request: ShareFetchRequest | ShareAcknowledgeRequest) -> ApiError | None:
    """A request without a group is refused by its handler."""
    return None if request.group_id is None else READ_GROUP.refusal(caller, request.group_id)


def _check_fetches_nothing(request: ShareFetchRequest) -> None:
    fields = ("max_bytes", "min_bytes", "max_records", "max_wait_ms")
    wrong = [name for name in fields if getattr(request, name)]
    if wrong:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"A request that renews locks fetches nothing: {', '.join(wrong)} must be 0."
        )


def _mode(request: ShareFetchRequest) -> AcquireMode:
    try:
        return AcquireMode(request.share_acquire_mode)
    except ValueError:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{request.share_acquire_mode} is no share acquire mode.") from None


def _named(request: ShareFetchRequest) -> list[TopicIdPartition]:
    return [
        TopicIdPartition(topic.topic_id, each.partition_index) for topic in request.topics for each in topic.partitions
    ]


def _forgotten(request: ShareFetchRequest) -> list[TopicIdPartition]:
    return [
        TopicIdPartition(topic.topic_id, number)
        for topic in request.forgotten_topics_data
        for number in topic.partitions
    ]


def _acknowledged(
    request: ShareFetchRequest | ShareAcknowledgeRequest, *, named_alone: bool = False
) -> dict[TopicIdPartition, list[Acknowledgement]]:
    """What a request acknowledges, by partition; with `named_alone` also of partitions with nothing."""
    found: dict[TopicIdPartition, list[Acknowledgement]] = {}
    for topic in request.topics:
        for each in topic.partitions:
            if each.acknowledgement_batches or named_alone:
                found.setdefault(TopicIdPartition(topic.topic_id, each.partition_index), []).extend(
                    Acknowledgement(batch.first_offset, batch.last_offset, batch.acknowledge_types)
                    for batch in each.acknowledgement_batches
                )
    return found


def _check_acknowledgements(acknowledgements: Sequence[Acknowledgement], *, renews: bool) -> None:
    """Raises INVALID_REQUEST where they overlap, or their types do not fit. `renews`: whether RENEW is among these."""
    last_before = -1
    for first, last, types in acknowledgements:
        if not last_before <= first <= last:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"The offsets {first} to {last} are no range behind offset {last_before}."
            )
        if not types or (len(types) > 1 and last - first + 1 != len(types)):
            raise ApiError(ErrorCode.INVALID_REQUEST, f"{len(types)} types do not fit the offsets {first} to {last}.")
        for each in types:
            if not AcknowledgeType.GAP <= each <= AcknowledgeType.RENEW or (
                each == AcknowledgeType.RENEW and not renews
            ):
                raise ApiError(
                    ErrorCode.INVALID_REQUEST, f"The acknowledge type {each} is not allowed in this request."
                )
        last_before = last


def _add_results(
    response: ShareFetchResponse,
    failed: Iterable[tuple[TopicIdPartition, ErrorCode]],
    outcomes: Iterable[Acknowledged],
    *,
    keeps_empty: bool,
) -> None:
    """Add what was not fetched, and what became of acknowledgements. Without `keeps_empty` partitions of which there is
    nothing to say are left out."""
    answers = {
        TopicIdPartition(topic.topic_id, each.partition_index): each
        for topic in response.responses
        for each in topic.partitions
    }
    for partition, code in failed:
        answers[partition] = ShareFetchResponsePartitionData(partition_index=partition.number, error_code=int(code))
    answered: set[TopicIdPartition] = set()
    for partition, outcome in outcomes:
        answer = answers.get(partition)
        if answer is None:
            answer = answers[partition] = ShareFetchResponsePartitionData(partition_index=partition.number)
        answered.add(partition)
        if outcome.error is not None:
            answer.acknowledge_error_code = int(outcome.error.code)
            answer.acknowledge_error_message = outcome.error.message or None
    topics: dict[bytes, ShareFetchableTopicResponse] = {}
    for partition, answer in answers.items():
        if keeps_empty or answer.records or answer.error_code or partition in answered:
            topic = topics.setdefault(partition.topic_id, ShareFetchableTopicResponse(topic_id=partition.topic_id))
            if not topic.partitions:
                topic.partitions = []
            topic.partitions.append(answer)
    response.responses = list(topics.values())


def _acknowledge_results(outcomes: Iterable[Acknowledged]) -> list[ShareAcknowledgeTopicResponse]:
    topics: dict[bytes, list[ShareAcknowledgeResponsePartitionData]] = {}
    for partition, outcome in outcomes:
        result = ShareAcknowledgeResponsePartitionData(
            partition_index=partition.number, current_leader=ShareAcknowledgeResponseLeaderIdAndEpoch()
        )
        if outcome.error is not None:
            result.error_code = int(outcome.error.code)
            result.error_message = outcome.error.message or None
        topics.setdefault(partition.topic_id, []).append(result)
    return [
        ShareAcknowledgeTopicResponse(topic_id=topic_id, partitions=partitions)  # type: ignore[arg-type]
        for topic_id, partitions in topics.items()
    ]


_BOUNDS: Final[Mapping[str, tuple[str, str]]] = {
    "share.record.lock.duration.ms": (
        "group.share.min.record.lock.duration.ms",
        "group.share.max.record.lock.duration.ms",
    ),
    "share.delivery.count.limit": ("group.share.min.delivery.count.limit", "group.share.max.delivery.count.limit"),
    "share.partition.max.record.locks": (
        "group.share.min.partition.max.record.locks",
        "group.share.max.partition.max.record.locks",
    ),
}
"""Of values that groups have: the broker's bounds may have changed since they were set."""


class GroupConfigs:
    """The configs of share groups, as the image has them, over the values of this broker."""

    def __init__(self, config: ServerConfig, cache: MetadataCache, wall_ms: Callable[[], int]) -> None:
        self._config = config
        self._cache = cache
        self._wall_ms = wall_ms
        self._image: MetadataImage | None = None
        self._settings: dict[str, ShareSettings] = {}
        """Of groups that were asked for under `_image`."""

    def settings(self, group_id: str) -> ShareSettings:
        """Those of a group."""
        image = self._cache.image
        former = self._image
        if former is None or image.configs is not former.configs or image.features is not former.features:
            self._settings.clear()
        self._image = image
        found = self._settings.get(group_id)
        if found is None:
            found = self._settings[group_id] = ShareSettings(
                lock_duration_ms=self._value(
                    group_id, "share.record.lock.duration.ms", "group.share.record.lock.duration.ms"
                ),
                delivery_count_limit=self._value(
                    group_id, "share.delivery.count.limit", "group.share.delivery.count.limit"
                ),
                max_record_locks=self._value(
                    group_id, "share.partition.max.record.locks", "group.share.partition.max.record.locks"
                ),
                renew_enabled=self._value(group_id, "share.renew.acknowledge.enable"),
                read_committed=self._value(group_id, "share.isolation.level") == "read_committed",
                dead_letter_topic=self._value(group_id, "errors.deadletterqueue.topic.name").strip()
                if image.features.level(SHARE_VERSION) >= _FIRST_WITH_DEAD_LETTERS
                else "",
                copies_dead_letters=self._value(group_id, "errors.deadletterqueue.copy.record.enable"),
            )
        return found

    def first_time(self, group_id: str) -> int:
        """Where a group begins that has consumed nothing yet: `LATEST`, `EARLIEST` or a timestamp."""
        policy: str = self._value(group_id, "share.auto.offset.reset")
        if policy == "earliest":
            return EARLIEST
        if policy == "latest":
            return LATEST
        return self._wall_ms() - (parse_duration_ms(policy.removeprefix("by_duration:")) or 0)

    def _value(self, group_id: str, name: str, broker_key: str | None = None) -> Any:
        """The group's value; else that of the broker, or the default of a key that brokers do not have."""
        text = self._cache.image.configs.of(ConfigResource(ConfigResourceType.GROUP, group_id)).get(name)
        if text is not None:
            value = GROUP[name].parse(text)
            if name in _BOUNDS:
                least, most = (self._config[key] for key in _BOUNDS[name])
                value = max(least, min(value, most))
            return value
        return GROUP.default(name) if broker_key is None else self._config[broker_key]


class ShareModule(Module):
    """Rests on the replicas; on the share coordinators, which keep the state of share partitions."""

    def __init__(
        self,
        context: BrokerContext,
        replicas: ReplicaManager,
        coordinators: ShareCoordinators,
        auto_topics: AutoTopics,
    ) -> None:
        """`auto_topics` creates dead letter topics, where they are missing."""
        cache, clock = context.cache, context.host.clock
        self._context = context
        configs = GroupConfigs(context.config, cache, clock.wall_ms)
        self._dead_letter_topics = DeadLetterTopics(configs.settings, cache, context.config.values)
        self._dead_letters = DeadLetterWriter(
            self._dead_letter_topics,
            cache.topic_name,
            partial(read_sources, replicas),
            partial(leader_of, cache),
            coordinators.channels.send,
            lambda name: auto_topics.create_planned({name: PLAN}),
            context.timers,
            clock,
            context.sensors,
            context.config["request.timeout.ms"],
        )
        self._shares = SharePartitions(
            replicas,
            coordinators.persister,
            self._dead_letters,
            configs.settings,
            configs.first_time,
            context.timers,
            clock.mono_ms,
        )
        sessions = ShareSessions(context.config["group.share.max.share.sessions"])
        sensors = context.sensors
        counters = {
            kind: sensors.counter(_GROUPS, "RecordAcknowledgementsPerSec", (("ackType", kind.name.capitalize()),))
            for kind in AcknowledgeType
        }

        def count(kind: AcknowledgeType, records: int) -> None:
            counters[kind].value += records

        sensors.gauge(_SESSIONS, "ShareSessionsCount", read=lambda: len(sessions))
        sensors.gauge(_SESSIONS, "SharePartitionsCount", read=lambda: sessions.partition_count)
        evictions = SensorName(_SESSIONS, "ShareSessionEvictionsPerSec")
        sensors.add_source(lambda: [(evictions, counted(sessions.evictions))])
        self._handlers = ShareHandlers(
            replicas,
            self._shares,
            sessions,
            cache,
            context.timers,
            count,
            lambda: cache.image.features.level(SHARE_VERSION) > 0,
        )

    def rows(self) -> list[Row]:
        """ShareFetch, ShareAcknowledge."""
        return self._handlers.rows()

    def explain_locks(self, group_id: str) -> dict[str, Any]:
        """For `kalda groups describe --locks`."""
        return self._shares.explain_locks(group_id)

    def on_config(self, current: ServerConfig, image: MetadataImage) -> None:
        """The rules for dead letter topics may have changed."""
        self._dead_letter_topics.update(current.values)

    def start(self) -> None:
        """Sessions end with their connections from now on."""
        for listener in self._context.config.broker_listeners:
            self._context.server.listeners[listener.listener].on_close.append(self._handlers.on_disconnect)

    def close(self) -> None:
        """Write no dead letter any more."""
        self._dead_letters.close()
