"""A whole consumer without threads, sockets and clocks: its machines, put together.

    run(now, is_polling)       do all that can be done now
    deadline_ms(...)           when `run` is due, if nothing happens before
    connections                `take_actions` of these is what the shell has to do, in order
    callback                   a call of the rebalance listener that is due; `on_callback_done` after it
    begin_poll()               the application calls `poll`: what it was given before is processed
    take_records, take_chunks  what is buffered

The shell calls `at` before it hands an event to the connections, and never two of these at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple, cast

from kalda.assignors.stateless import Assignor, RangeAssignor, RoundRobinAssignor
from kalda.assignors.sticky import CooperativeStickyAssignor, StickyAssignor
from kalda.base.configs.consumer import ConsumerConfig
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import ZERO_UUID, TopicPartition, Uuid
from kalda.clientcore.connections.client_metrics import metric_config
from kalda.clientcore.connections.errors import Random, refused
from kalda.clientcore.connections.metadata import Topic, read_metadata
from kalda.clientcore.connections.requests import all_topics_request
from kalda.clientcore.consuming.consumer_errors import Operation
from kalda.clientcore.consuming.consumer_metrics import ConsumerMetrics, CoordinatorMetrics
from kalda.clientcore.consuming.fetcher import FetchConfig, Fetcher, Taken
from kalda.clientcore.consuming.positions import GroupMetadata, Positions
from kalda.clientcore.consuming.subscription import (
    EARLIEST,
    LATEST,
    OffsetAndEpoch,
    PartitionState,
    Reset,
    Status,
    Subscription,
    SubscriptionKind,
)
from kalda.clientcore.groups.classic_membership import ClassicMembership
from kalda.clientcore.groups.commits import Committing
from kalda.clientcore.groups.consumer_membership import ConsumerMembership
from kalda.clientcore.groups.membership import Callback, Membership, MembershipConfig
from kalda.clientcore.subscribed_core import SubscribedCore, require_name
from kalda.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from kalda.records.consuming import Record

_ASSIGNORS: dict[str, Callable[[], Assignor]] = {
    "range": RangeAssignor,
    "roundrobin": RoundRobinAssignor,
    "sticky": StickyAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}


class SubscriptionPattern(NamedTuple):
    """A regular expression (RE2) that the group's coordinator evaluates: `group.protocol=consumer` only."""

    pattern: str


class ConsumerCore(SubscribedCore):
    """The machines of one consumer."""

    config: ConsumerConfig
    metrics: ConsumerMetrics

    def __init__(
        self,
        config: ConsumerConfig,
        *,
        client_id: str,
        software_version: str,
        random: Random,
        member_id: str,
        now_ms: int,
        wall_ms: Callable[[], int],
    ) -> None:
        """`member_id` is a fresh UUID, for `group.protocol=consumer`; `wall_ms` is the wall clock. Raises
        `InvalidConfig`."""
        subscription = Subscription()
        metrics = _metrics_of(config, client_id, subscription, software_version)
        super().__init__(
            config,
            subscription,
            metrics,
            client_id=client_id,
            software_version=software_version,
            random=random,
            now_ms=now_ms,
        )
        self.coordinator_metrics: CoordinatorMetrics | None = None
        """None without a group."""
        if config.group_id is not None:
            self.coordinator_metrics = CoordinatorMetrics(
                self.metrics, self.subscription, is_classic=not config.is_consumer_protocol
            )
        self._reset = reset = _reset_of(config)
        self.fetcher = Fetcher(
            _fetch_config(config, reset), self.subscription, self.requests, self.metrics, *self._readers()
        )
        self.positions = Positions(
            self.subscription,
            self.requests,
            wall_ms,
            group_id=config.group_id,
            reset=reset,
            read_committed=config.read_committed,
            request_timeout_ms=config.request_timeout_ms,
        )
        self._topic_ids: dict[str, Uuid] = {}
        """Of the topics in which positions are, to notice one that was deleted and created again."""
        self.committing = Committing(
            self.requests,
            config.group_id,
            lambda: self._membership if self.subscription.is_by_group else None,
            metrics=self.coordinator_metrics,
            require_stable=config.read_committed,
            topic_ids=self._topic_ids,
        )
        self._membership = self._make_membership(member_id)
        self._next_auto_commit_ms = now_ms + config.auto_commit_interval_ms
        self._next_topics_ms = 0
        """When all topics are listed again, for a subscription by pattern."""
        self._seen_version = -1
        self._lookups: list[_Lookup] = []

    def _make_membership(self, member_id: str) -> Membership | None:
        config = self.config
        metrics = self.coordinator_metrics
        if config.group_id is None or metrics is None:
            return None
        settings = MembershipConfig(
            config.group_id,
            config.group_instance_id,
            config.client_rack,
            config.session_timeout_ms,
            config.heartbeat_interval_ms,
            config.max_poll_interval_ms,
            config.request_timeout_ms,
            config.group_remote_assignor,
        )
        if config.is_consumer_protocol:
            return ConsumerMembership(
                settings,
                member_id,
                self.subscription,
                self.requests,
                self._commit_before_rebalance,
                self._resolve_topic_ids,
                metrics,
            )
        assignors = [
            _ASSIGNORS[item]() if isinstance(item, str) else cast(Assignor, item() if isinstance(item, type) else item)
            for item in config.assignors
        ]
        return ClassicMembership(
            settings, assignors, self.subscription, self.requests, self._commit_before_rebalance, metrics
        )

    # -- turns

    def run(self, now_ms: int, is_polling: bool) -> None:
        """Do all that can be done now. `is_polling`: the application is in a call of `poll`."""
        self.requests.now_ms = now_ms
        self._want_topics()
        self.requests.run()
        self._list_topics()
        self._watch_topic_ids()  # before a commit: it would take positions in the former topic for the new one
        if self._membership is not None and self.subscription.is_by_group and not self.is_closed:
            self._membership.run(is_polling)
        self.committing.run()
        self.positions.run()
        self.fetcher.run()
        for lookup in list(self._lookups):
            lookup.run(self)
        self._run_own_metrics()

    def deadline_ms(self, now_ms: int, is_polling: bool) -> int | None:
        """When `run` is due, if nothing happens before; None: not before an event."""
        self.requests.now_ms = now_ms
        requests_ms = self.requests.deadline_ms()
        if requests_ms == now_ms:
            return now_ms
        times = [
            requests_ms,
            self.positions.deadline_ms(),
            self.fetcher.deadline_ms(),
            self.committing.deadline_ms(),
            self._own_metrics_due_ms,
        ]
        if self._membership is not None and self.subscription.is_by_group and not self.is_closed:
            times.append(self._membership.deadline_ms(is_polling))
        if self.subscription.pattern is not None:
            times.append(self._next_topics_ms)
        times += [lookup.operation.deadline_ms for lookup in self._lookups]
        return self.requests.earliest(times)

    # -- what is read

    def subscribe(self, topics: Iterable[str]) -> None:
        """Read these topics, as a member of the group. Raises `ApiError` without a group, `ValueError`."""
        self._require_group()
        names = list(topics)
        for name in names:
            require_name(name)
        if not names:
            self.unsubscribe()
            return
        self.subscription.subscribe(names)
        self._want_topics()

    def subscribe_pattern(self, pattern: re.Pattern[str] | SubscriptionPattern) -> None:
        """Read all topics whose whole name matches, those that are created later included."""
        self._require_group()
        if isinstance(pattern, SubscriptionPattern):
            if not self.config.is_consumer_protocol:
                raise ValueError("a SubscriptionPattern needs group.protocol=consumer; give a compiled re.Pattern")
            self.subscription.subscribe_server_pattern(pattern.pattern)
        else:
            self.subscription.subscribe_pattern(pattern)
            self._next_topics_ms = 0

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        """Read these partitions, without a group's assignment."""
        if not partitions:
            self.unsubscribe()
            return
        self.subscription.assign(partitions)
        self._want_topics()

    def unsubscribe(self) -> Operation | None:
        """Read nothing; leave the group. Returns what to wait for."""
        operation = None
        if self._membership is not None and self.subscription.is_by_group:
            operation = self._membership.begin_leave(None, "the consumer unsubscribed")
            self._membership.error = None
        self.subscription.unsubscribe()
        self._want_topics()
        return operation

    def _require_group(self) -> None:
        if self.config.group_id is None:
            raise ApiError(
                ErrorCode.INVALID_GROUP_ID, "to subscribe, set group.id; without a group, assign partitions instead"
            )

    # -- polls

    def begin_poll(self) -> None:
        """The application polls: the records that it was given before are processed, and may be committed."""
        config = self.config
        self._watch_topic_ids()  # before a commit, as in `run`
        self.metrics.on_poll(self.requests.now_ms)
        if config.enable_auto_commit and self.requests.now_ms >= self._next_auto_commit_ms:
            self._next_auto_commit_ms = self.requests.now_ms + config.auto_commit_interval_ms
            if self._membership is None or not self.subscription.is_by_group or self._membership.may_commit:
                operation = Operation("the commit", self.requests.now_ms + config.request_timeout_ms)
                operation.on_done = self._on_auto_committed
                self.committing.commit(self.subscription.positions(), operation, repeats=False)
        if self.is_rebalancing and self._membership is not None:
            # Here too, since a poll that finds records may end before `run` is called: else a member that always finds
            # some would keep the others of its group waiting.
            self._membership.run(is_polling=True)

    @property
    def is_rebalancing(self) -> bool:
        """Whether the membership of a group has steps to take that only polls take."""
        member = self._membership
        return member is not None and self.subscription.is_by_group and not (self.is_closed or member.is_settled)

    def _on_auto_committed(self, operation: Operation) -> None:
        error = operation.error
        if isinstance(error, ApiError) and error.code.retriable:
            soon_ms = self.requests.retry_at_ms()
            self._next_auto_commit_ms = min(self._next_auto_commit_ms, soon_ms)

    def raise_error(self) -> None:
        """Raise what the application has to see before it gets more records."""
        if (fatal := self._cluster_error()) is not None:
            raise fatal
        if self._membership is not None and self._membership.error is not None:
            error = self._membership.error
            if self.requests.coordinator_error is error:
                self.requests.coordinator_error = None
            self._membership.error = None
            raise error
        while self.positions.failures:
            failure = self.positions.failures.popleft()
            if not self.positions.is_mended(failure):
                raise failure
        if (refusal := self._topic_error()) is not None:
            self.metadata.request_update()
            raise refusal

    @property
    def has_error(self) -> bool:
        """Whether `raise_error` may raise."""
        return (
            self._cluster_error() is not None
            or (
                bool(self.positions.failures)
                and any(not self.positions.is_mended(failure) for failure in self.positions.failures)
            )
            or (self._membership is not None and self._membership.error is not None)
            or self._topic_error() is not None
        )

    @property
    def has_news(self) -> bool:
        """Whether a poll has something to do besides waiting."""
        return self.fetcher.has_records or self.callback is not None or self.has_error

    @property
    def may_commit(self) -> bool:
        """Whether commits of the membership are accepted, as far as is known."""
        return self._membership is not None and self._membership.may_commit

    def take_records(self, limit: int) -> list[Record]:
        """The next records; none where none is buffered. Raises what has failed."""
        return self.fetcher.take_records(limit)

    def take_chunks(self, rows: int) -> list[Taken]:
        """The next batches, for columns; none where none is buffered. Raises what has failed."""
        return self.fetcher.take_chunks(rows)

    def put_back(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Records that were taken from these offsets on are fetched again."""
        for partition, offset in offsets.items():
            state = self.subscription.partitions.get(partition)
            if state is not None:
                state.seek(OffsetAndEpoch(offset))

    @property
    def callback(self) -> Callback | None:
        """A call of the rebalance listener that is due."""
        return None if self._membership is None else self._membership.callback

    def need_position(self, partition: TopicPartition) -> PartitionState:
        """Find the partition's position, also while the listener is called for it, which could still seek. Raises
        `ValueError`."""
        state = self.subscription.state(partition)
        state.is_new = False
        return state

    def on_callback_done(self) -> None:
        """The listener has returned, or has raised."""
        assert self._membership is not None
        self._membership.on_callback_done()

    # -- offsets

    def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndEpoch] | None, operation: Operation, *, repeats: bool
    ) -> None:
        """Commit `offsets`; None: the positions. Raises `ApiError` without a group."""
        if self.config.group_id is None:
            raise ApiError(ErrorCode.INVALID_GROUP_ID, "a commit needs a group.id")
        chosen = self.subscription.positions() if offsets is None else offsets
        self.committing.commit(chosen, operation, repeats=repeats)

    def _commit_before_rebalance(self, partitions: list[TopicPartition]) -> Operation | None:
        if not self.config.enable_auto_commit:
            return None
        positions = self.subscription.positions()
        mine = {partition: positions[partition] for partition in partitions if partition in positions}
        if not mine:
            return None
        limit_ms = min(self.config.default_api_timeout_ms, self.config.max_poll_interval_ms)
        operation = Operation("the commit before a rebalance", self.requests.now_ms + limit_ms)
        self.committing.commit(mine, operation, repeats=True)
        return operation

    def group_metadata(self) -> GroupMetadata:
        """What commits and transactions name of this consumer. Raises `ApiError` without a group."""
        if self.config.group_id is None:
            raise ApiError(ErrorCode.INVALID_GROUP_ID, "there is no group: group.id is not set")
        if self._membership is None or not self.subscription.is_by_group:
            return GroupMetadata(self.config.group_id, group_instance_id=self.config.group_instance_id)
        return self._membership.group_metadata()

    def request_rejoin(self, reason: str) -> None:
        """Make the group rebalance."""
        if self._membership is not None:
            self._membership.request_rejoin(reason)

    def seek_to(self, partition: TopicPartition, reset: Reset) -> None:
        """Continue at an end of the log, once its offset was looked up."""
        self.subscription.state(partition).request_reset(reset)

    # -- close

    def begin_close(self, positions: Mapping[TopicPartition, OffsetAndEpoch]) -> Operation | None:
        """First step: commit the positions, where that is automatic."""
        if not self.config.enable_auto_commit or not positions:
            return None
        if self._membership is not None and self.subscription.is_by_group and not self._membership.may_commit:
            return None
        operation = Operation("the commit before closing", self.requests.now_ms + self.config.default_api_timeout_ms)
        self.committing.commit(positions, operation, repeats=True)
        return operation

    def begin_leave(self, leaves_group: bool | None) -> Operation | None:
        """Second step: leave the group, and end the fetch sessions. Returns what to wait for."""
        operation = None
        if self._membership is not None and self.subscription.is_by_group:
            operation = self._membership.begin_leave(leaves_group, "the consumer is being closed")
        self.fetcher.close()
        self.is_closed = True
        return operation

    # -- topics

    def topic(self, name: str, operation: Operation) -> None:
        """A topic's metadata: `operation` gets a `Topic`. Raises `ValueError`."""
        require_name(name)
        self._lookups.append(_Lookup(operation, [name]))

    def all_topics(self, operation: Operation) -> None:
        """All topics: `operation` gets a dict of `Topic`s by name."""
        self._lookups.append(_Lookup(operation, None))

    def on_lookup_done(self, lookup: _Lookup) -> None:
        self._lookups.remove(lookup)

    def _list_topics(self) -> None:
        """For a subscription by pattern: list all topics, now and then."""
        if self.subscription.kind is not SubscriptionKind.PATTERN or self.subscription.pattern is None:
            return
        now_ms = self.requests.now_ms
        if self._topics_in_flight or now_ms < self._next_topics_ms:
            return
        node_id = self.requests.any_node()
        if node_id is None:
            return
        self._topics_in_flight = True
        self.requests.send(node_id, all_topics_request(), self._on_topics)

    def _on_topics(self, answer: Any, error: ApiError | None) -> None:
        self._topics_in_flight = False
        now_ms = self.requests.now_ms
        if error is not None or self.subscription.pattern is None:
            self._next_topics_ms = self.requests.retry_at_ms()
            return
        self._next_topics_ms = now_ms + self.config.metadata_max_age_ms
        found = read_metadata(answer).topics.values()
        self.subscription.match(
            topic.name for topic in found if not (topic.is_internal and self.config.exclude_internal_topics)
        )
        self._want_topics()

    def _on_names(self, names: dict[Uuid, str]) -> None:
        if isinstance(self._membership, ConsumerMembership):
            self._membership.names_by_id.update(names)

    def _watch_topic_ids(self) -> None:
        """A topic that was deleted and created again is read from its beginning: nothing of it was consumed."""
        if self._seen_version == self.metadata.version:
            return
        self._seen_version = self.metadata.version
        remade = set()
        for name, topic in self.metadata.topics.items():  # also those of which no partition is assigned yet
            if topic.error_code or topic.topic_id == ZERO_UUID:
                continue
            if self._topic_ids.setdefault(name, topic.topic_id) != topic.topic_id:
                self._topic_ids[name] = topic.topic_id
                remade.add(name)
        if not remade or self._reset is None:
            return
        for partition, state in self.subscription.partitions.items():
            if partition.topic in remade and state.status is not Status.UNPOSITIONED:
                state.request_reset(EARLIEST)
                state.offset = state.epoch = -1  # nothing to commit: it was in the former topic


class _Lookup:
    """Metadata for the application, of one topic or of all."""

    def __init__(self, operation: Operation, names: list[str] | None) -> None:
        self.operation = operation
        self._names = names
        self._is_in_flight = False
        self._retry_at_ms = 0

    def run(self, core: ConsumerCore) -> None:
        requests = core.requests
        self.operation.expire(requests.now_ms)
        if self.operation.is_done:
            core.on_lookup_done(self)
            return
        if self._is_in_flight or requests.now_ms < self._retry_at_ms:
            return
        node_id = requests.any_node()
        if node_id is None:
            return
        self._is_in_flight = True
        request = all_topics_request()
        if self._names is not None:
            request = MetadataRequest(
                topics=[MetadataRequestTopic(name=name) for name in self._names],
                allow_auto_topic_creation=core.config.allow_auto_create_topics,
            )
        requests.send(node_id, request, lambda answer, error: self._on_answer(core, answer, error))

    def _on_answer(self, core: ConsumerCore, answer: Any, error: ApiError | None) -> None:
        self._is_in_flight = False
        self._retry_at_ms = core.requests.retry_at_ms()
        if error is not None:
            if not error.code.retriable:
                self.operation.fail(error)
            return
        topics = read_metadata(answer).topics
        if self._names is None:
            self.operation.succeed(dict(topics))
            return
        topic: Topic | None = topics.get(self._names[0])
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic is None else ErrorCode(topic.error_code)
        if code is ErrorCode.NONE or code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            self.operation.succeed(None if code else topic)
        elif not code.retriable:
            self.operation.fail(refused(code, f"topic {self._names[0]}"))


def _reset_of(config: ConsumerConfig) -> Reset | None:
    if config.auto_offset_reset == "none":
        return None
    if config.auto_offset_reset == "by_duration":
        return Reset(0, config.reset_duration_ms)
    return EARLIEST if config.auto_offset_reset == "earliest" else LATEST


def _metrics_of(config: ConsumerConfig, client_id: str, subscription: Subscription, version: str) -> ConsumerMetrics:
    return ConsumerMetrics(
        client_id,
        subscription,
        metric_config(config.values),
        read_committed=config.read_committed,
        version=version,
    )


def _fetch_config(config: ConsumerConfig, reset: Reset | None) -> FetchConfig:
    return FetchConfig(
        config.fetch_max_wait_ms,
        config.fetch_min_bytes,
        config.fetch_max_bytes,
        config.max_partition_fetch_bytes,
        config.read_committed,
        config.check_crcs,
        config.client_rack,
        config.request_timeout_ms,
        config.retry_backoff_max_ms,
        config.metadata_max_age_ms,
        reset,
    )
