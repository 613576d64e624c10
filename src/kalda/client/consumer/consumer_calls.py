"""The calls of a consumer: the same in the blocking and the asyncio one."""

from __future__ import annotations

import itertools
import logging
import os
import re
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, runtime_checkable

from kalda import __version__
from kalda.base.configs.consumer import CONSUMER, ConsumerConfig, consumer_config
from kalda.base.errors import ApiError, ErrorCode, WrongState
from kalda.base.ids import TopicPartition, can_be_requested
from kalda.client.consumer.common_calls import CommonCalls, K, Steps, V, Wait, with_deserializers
from kalda.client.transport.config_files import read_config
from kalda.clientcore.consumer import ConsumerCore, SubscriptionPattern
from kalda.clientcore.consuming.fetcher import Taken
from kalda.clientcore.consuming.positions import GroupMetadata
from kalda.clientcore.consuming.subscription import EARLIEST, LATEST, OffsetAndEpoch, SubscriptionKind
from kalda.clientcore.groups.membership import Call, Callback
from kalda.clientcore.serdes import close_all, interceptors_of
from kalda.protocol.messages.partitions import OffsetSpec
from kalda.records.consuming import Record, RecordIterator

if TYPE_CHECKING:
    from typing import Unpack

    from kalda.client.consumer.common_calls import Deserialize, Deserializes
    from kalda.client.keywords import ConsumerKeywords

Partition = TopicPartition | tuple[str, int]
Offset = OffsetAndEpoch | int
log = logging.getLogger(__name__)
_numbers = itertools.count(1)


@runtime_checkable
class RebalanceListener(Protocol):
    """Called by `poll` when partitions are given and taken. `revoked` before they are taken away, `lost` where another
    member may own them already."""

    def assigned(self, partitions: list[TopicPartition]) -> Any: ...
    def revoked(self, partitions: list[TopicPartition]) -> Any: ...
    def lost(self, partitions: list[TopicPartition]) -> Any: ...


class ListenerCalls:
    """A listener of single functions; those that are not given do nothing, `lost` calls `revoked` then."""

    def __init__(
        self,
        on_assigned: Callable[[list[TopicPartition]], Any] | None,
        on_revoked: Callable[[list[TopicPartition]], Any] | None,
        on_lost: Callable[[list[TopicPartition]], Any] | None,
    ) -> None:
        self.assigned = on_assigned or _nothing
        self.revoked = on_revoked or _nothing
        self.lost = on_lost or self.revoked


class ConsumerInterceptor(Protocol):
    """Sees what is consumed and committed, and may replace the records. What it raises is logged. It may have
    `configure(configs)`, called with the consumer's keys as they were given, and `close()`."""

    def on_consume(self, records: list[Record]) -> list[Record]: ...
    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndEpoch]) -> None: ...


class ConsumerCalls(CommonCalls, Generic[K, V]):
    """What both consumers can do."""

    _core: ConsumerCore
    _config: ConsumerConfig
    _listener: RebalanceListener | None
    _listening: object = None
    """The thread or task that is in a call of the listener by `poll`."""
    _listening_since_ms = 0
    _interceptors: Sequence[ConsumerInterceptor] = ()
    _is_revoking = False
    """The listener is being called for partitions that are taken away."""

    def __init__(
        self,
        config: Mapping[str, object] | str | os.PathLike[str] | None = None,
        *,
        key_deserializer: Deserialize[K] | type[Deserializes[K]] | str | None = None,
        value_deserializer: Deserialize[V] | type[Deserializes[V]] | str | None = None,
        **keywords: Unpack[ConsumerKeywords],
    ) -> None:
        """`config` has Kafka's keys, or names a properties file; keywords are the keys in snake_case. Raises
        `InvalidConfig`. A consumer of asyncio makes its connections in the loop of the first call that waits."""
        self._config = settings = consumer_config(
            read_config(CONSUMER, config), with_deserializers(keywords, key_deserializer, value_deserializer)
        )
        self._interceptors = interceptors_of(settings.given, "on_consume and on_commit")
        of_group = "" if settings.group_id is None else f"{settings.group_id}-"
        self._core = ConsumerCore(
            settings,
            client_id=settings.client_id or f"consumer-{of_group}{next(_numbers)}",
            software_version=__version__,
            random=self._host.random,
            member_id=self._host.new_member_id(),
            now_ms=self._now_ms(),
            wall_ms=self._host.wall_ms,
        )
        self._core.push_metrics(self._host.wall_ms)
        self._iterator = RecordIterator(self._next_records)
        self._listener = None
        self._start()

    # -- what is read

    def subscribe(
        self,
        topics: Iterable[str] | str | re.Pattern[str] | SubscriptionPattern,
        listener: RebalanceListener | None = None,
        *,
        on_assigned: Callable[[list[TopicPartition]], Any] | None = None,
        on_revoked: Callable[[list[TopicPartition]], Any] | None = None,
        on_lost: Callable[[list[TopicPartition]], Any] | None = None,
    ) -> None:
        """Read topics, as a member of the group: names, or a compiled pattern that the whole name matches. It replaces
        the subscription that there is. Partitions are assigned during `poll`, which calls the listener."""
        self._check_open()
        with self._lock:
            core = self._begin()
            if isinstance(topics, re.Pattern | SubscriptionPattern):
                core.subscribe_pattern(topics)
            else:
                core.subscribe([topics] if isinstance(topics, str) else topics)
            if listener is None and (on_assigned or on_revoked or on_lost):
                listener = ListenerCalls(on_assigned, on_revoked, on_lost)
            self._listener = listener
        self._changed()

    def assign(self, partitions: Iterable[Partition]) -> None:
        """Read these partitions, without a group's assignment. Those that were assigned keep their position."""
        self._check_open()
        with self._lock:
            core = self._begin()
            core.assign([_partition(each) for each in partitions])
            self._keep_rest_of(core.subscription.partitions)
        self._changed()

    def subscription(self) -> frozenset[str]:
        """The topics subscribed to; with a pattern, those that match."""
        return self._core.subscription.topics if self._core.subscription.is_by_group else frozenset()

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that are read."""
        with self._lock:
            return frozenset(self._core.subscription.partitions)

    def pause(self, *partitions: Partition) -> None:
        """Return no records of these partitions until `resume`; without arguments, of all. A rebalance that takes a
        partition away ends its pause."""
        self._check_open()
        with self._lock:
            for partition in self._named(partitions):
                self._put_back(partition)
                self._core.subscription.state(partition).is_paused = True

    def resume(self, *partitions: Partition) -> None:
        """Return records of these partitions again; without arguments, of all."""
        self._check_open()
        with self._lock:
            for partition in self._named(partitions):
                self._core.subscription.state(partition).is_paused = False
        self._changed()

    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are paused."""
        with self._lock:
            return frozenset(p for p, state in self._core.subscription.partitions.items() if state.is_paused)

    # -- positions

    def seek(self, partition: Partition, offset: Offset) -> None:
        """Continue at this offset: the next record of the partition that is returned. Raises `ValueError` where the
        partition is not assigned."""
        self._check_open()
        position = _position(offset)
        with self._lock:
            self._begin()
            which = _partition(partition)
            state = self._core.subscription.state(which)
            self._drop_rest_of(which)
            state.seek(position)
        self._changed()

    def seek_to_beginning(self, *partitions: Partition) -> None:
        """Continue at the log's first offset; without arguments, of all assigned partitions."""
        self._seek_to(partitions, EARLIEST)

    def seek_to_end(self, *partitions: Partition) -> None:
        """Continue after the last record that there is; without arguments, of all assigned partitions."""
        self._seek_to(partitions, LATEST)

    def _seek_to(self, partitions: tuple[Partition, ...], reset: Any) -> None:
        self._check_open()
        with self._lock:
            self._begin()
            for partition in self._named(partitions):
                self._drop_rest_of(partition)
                self._core.seek_to(partition, reset)
        self._changed()

    def positions(self) -> dict[TopicPartition, OffsetAndEpoch]:
        """The next offset of every assigned partition that has one: what a commit commits by default. In a `for` loop,
        the offset after the record that was returned last."""
        with self._lock:
            found = self._core.subscription.positions()
            for record in reversed(self._iterator.rest):
                partition = TopicPartition(record.topic, record.partition)
                if partition in found:
                    found[partition] = OffsetAndEpoch(record.offset, _epoch(record))
            return found

    def _positions_after_failure(self) -> dict[TopicPartition, OffsetAndEpoch]:
        """As `positions`, but the record that the `for` loop was working on when it failed is not processed."""
        found = self.positions()
        last = self._iterator.last
        if last is not None:
            partition = TopicPartition(last.topic, last.partition)
            if partition in found and found[partition].offset > last.offset:
                found[partition] = OffsetAndEpoch(last.offset, _epoch(last))
        return found

    def current_lag(self, partition: Partition) -> int | None:
        """Records between the position and the end that this consumer may read; None where it is not known yet."""
        with self._lock:
            state = self._core.subscription.state(_partition(partition))
            end = state.last_stable_offset if self._config.read_committed else state.high_watermark
            position = self.positions().get(state.partition)
            return None if end < 0 or position is None else max(0, end - position.offset)

    def group_metadata(self) -> GroupMetadata:
        """What a transactional producer names of this consumer, for `send_offsets_to_transaction`."""
        with self._lock:
            return self._core.group_metadata()

    def enforce_rebalance(self, reason: str = "requested by the application") -> None:
        """Make the group rebalance, at the next poll."""
        self._check_open()
        with self._lock:
            self._core.request_rejoin(reason)

    # -- calls that wait

    def _position_steps(self, partition: Partition, timeout: float | None) -> Steps:
        (which,) = partitions_of([partition])
        self._check_open()
        with self._lock:
            state = self._core.need_position(which)
        due_ms = self._due_ms(timeout)
        self._driven.polling += 1
        try:
            while state.offset < 0:
                self._raise_if_woken()
                with self._lock:
                    self._core.raise_error()
                found = lambda: state.offset >= 0 or self._has_trouble()  # noqa: E731
                if not (yield Wait(found, due_ms)):
                    raise ApiError(ErrorCode.REQUEST_TIMED_OUT, f"the position of {which} was not found in time")
        finally:
            self._driven.polling -= 1
        return self.positions()[which].offset

    def _has_trouble(self) -> bool:
        return self._is_woken or self._driven.is_ending or self._core.has_error

    def _commit_steps(self, offsets: Mapping[Partition, Offset] | Record | None, timeout: float | None) -> Steps:
        chosen = offsets_of(offsets)
        began_ns = self._now_ns()
        committed = yield from self._wait(
            "the commit",
            timeout,
            lambda operation: self._core.commit(
                self.positions() if chosen is None else chosen, operation, repeats=True
            ),
        )
        self._core.metrics.commit_sync_ns.value += self._now_ns() - began_ns
        self._intercept_commit(committed or {})

    def _committed_steps(self, partitions: tuple[Partition, ...], timeout: float | None) -> Steps:
        wanted = partitions_of(partitions) or sorted(self.assignment())
        began_ns = self._now_ns()
        found = yield from self._wait(
            "reading committed offsets", timeout, lambda operation: self._core.committing.read(wanted, operation)
        )
        self._core.metrics.committed_ns.value += self._now_ns() - began_ns
        return {partition: found.get(partition) for partition in wanted}

    def _times_steps(self, times: Mapping[Partition, int], timeout: float | None) -> Steps:
        found = yield from self._list_steps(times_of(times), timeout)
        return {partition: each if each.offset >= 0 else None for partition, each in found.items()}

    def _end_steps(self, partitions: tuple[Partition, ...], spec: OffsetSpec, timeout: float | None) -> Steps:
        wanted = partitions_of(partitions) or sorted(self.assignment())
        found = yield from self._list_steps(dict.fromkeys(wanted, int(spec)), timeout)
        return {partition: each.offset for partition, each in found.items()}

    def _list_steps(self, times: Mapping[TopicPartition, int], timeout: float | None) -> Steps:
        found = yield from self._wait(
            "looking up offsets", timeout, lambda operation: self._core.positions.list_offsets(times, operation)
        )
        return {partition: found[partition] for partition in times}

    def _lag_steps(self, partitions: tuple[Partition, ...], timeout: float | None) -> Steps:
        ends = yield from self._end_steps(partitions, OffsetSpec.LATEST, timeout)
        positions = self.positions()
        return {
            partition: max(0, end - positions[partition].offset)
            for partition, end in ends.items()
            if partition in positions
        }

    def _topic_steps(self, topic: str, timeout: float | None) -> Steps:
        found = yield from self._wait(
            "the topic's metadata", timeout, lambda operation: self._core.topic(topic, operation)
        )
        if found is None:
            raise unknown_topic(topic)
        return found

    def _unsubscribe_steps(self) -> Steps:
        """After the listener was called with what is given up."""
        with self._lock:
            self._begin()
            self._iterator.replace_rest([])
            operation = self._core.unsubscribe()
        self._listener = None
        if operation is not None:
            yield from self._finish(operation)

    def _commit_last_steps(self, *, processed: bool, due_ms: int) -> Steps:
        """The first part of the end. Not `processed`: the record that the `for` loop was working on is not."""
        with self._lock:
            core = self._begin()
            operation = core.begin_close(self.positions() if processed else self._positions_after_failure())
        yield from self._finish_quietly(operation, due_ms)

    def _leave_steps(self, leave_group: bool | None, due_ms: int) -> Steps:
        """The last part of the end."""
        with self._lock:
            operation = self._begin().begin_leave(leave_group)
        yield from self._finish_quietly(operation, due_ms)

    # -- inside

    def _buffered(self, max_records: int | None) -> tuple[int, list[Record]]:
        """How many records a poll returns at most, and those of a `for` loop that come first. Raises `ValueError`."""
        limit = self._config.max_poll_records if max_records is None else max_records
        if limit < 1:
            raise ValueError(f"max_records is {limit}; at least 1 is expected")
        rest: list[Record] = self._iterator.rest
        if rest:
            self._iterator.replace_rest(rest[limit:])
        return limit, rest[:limit]

    @abstractmethod
    def _now_ns(self) -> int:
        """As `_now_ms`, as exact as can be."""

    def _begin(self) -> ConsumerCore:
        self._core.requests.now_ms = self._now_ms()
        return self._core

    def _named(self, partitions: tuple[Partition, ...]) -> list[TopicPartition]:
        if not partitions:
            return list(self._core.subscription.partitions)
        return [_partition(each) for each in partitions]

    def _drop_rest_of(self, partition: TopicPartition) -> None:
        rest = self._iterator.rest
        if rest:
            self._iterator.replace_rest([r for r in rest if (r.topic, r.partition) != partition])

    def _keep_rest_of(self, partitions: Collection[TopicPartition]) -> None:
        rest = self._iterator.rest
        if rest:
            kept = [r for r in rest if TopicPartition(r.topic, r.partition) in partitions]
            self._iterator.replace_rest(kept)

    def _put_back(self, partition: TopicPartition) -> None:
        """Records of the partition that the `for` loop has not returned are fetched again."""
        first = next((r for r in self._iterator.rest if (r.topic, r.partition) == partition), None)
        if first is not None:
            self._drop_rest_of(partition)
            state = self._core.subscription.state(partition)
            state.seek(OffsetAndEpoch(first.offset))

    def _put_all_back(self) -> None:
        for partition in {TopicPartition(r.topic, r.partition) for r in self._iterator.rest}:
            self._put_back(partition)

    def _intercepted(self, records: list[Record]) -> list[Record]:
        """What the interceptors make of records. Those of one that fails are returned without it: they must not be
        lost, as their positions are behind them."""
        for interceptor in self._interceptors:
            try:
                records = interceptor.on_consume(records)
            except Exception:
                log.exception("an interceptor's on_consume failed; the records are returned without it")
        return records

    def _intercept_commit(self, offsets: Mapping[TopicPartition, OffsetAndEpoch]) -> None:
        """Offsets are committed."""
        for interceptor in self._interceptors:
            try:
                interceptor.on_commit(offsets)
            except Exception:
                log.exception("an interceptor's on_commit failed")

    def _close_objects(self) -> None:
        interceptors, self._interceptors = self._interceptors, ()
        close_all((*interceptors, *self._take_codecs()))

    def _require_no_listener(self) -> None:
        """Raises `WrongState` in a call of the listener, which a poll would call again."""
        if self._listening is not None and self._listening == self._current():
            raise WrongState("a rebalance listener cannot poll: it is called by poll")

    def _claim_callback(self) -> Callback | None:
        """The call of the listener that is due, for this thread or task; `_end_callback` follows. None where there is
        none, and where another thread or task is in it."""
        with self._lock:
            callback = self._core.callback
            if callback is None or self._listening is not None:
                return None
            self._listening, self._listening_since_ms = self._current(), self._now_ms()
            self._is_revoking = callback.call is not Call.ASSIGNED
            return callback

    def _end_callback(self, callback: Callback, *, was_called: bool = True) -> None:
        """The listener has returned, or has raised. Where it was not called yet, the call stays due."""
        with self._lock:
            self._listening, self._is_revoking = None, False
            self._begin()
            metrics = self._core.coordinator_metrics
            if was_called and self._listener is not None and metrics is not None:
                metrics.callbacks[callback.call.value].append(self._now_ms() - self._listening_since_ms)
            if was_called and self._core.callback is callback:
                self._core.on_callback_done()
            self._core.run(self._now_ms(), True)

    def _may_continue(self) -> bool:
        """Whether a poll has something to do besides waiting."""
        core = self._core
        if core.callback is not None and self._listening is not None:
            return core.fetcher.has_records or core.has_error
        return core.has_news

    def _listener_call(self, callback: Callback) -> Callable[[], Any] | None:
        """What the listener is called for; None without a listener."""
        listener = self._listener
        if listener is None:
            return None
        function = {
            Call.ASSIGNED: listener.assigned,
            Call.REVOKED: listener.revoked,
            Call.LOST: listener.lost,
        }[callback.call]
        return lambda: function(list(callback.partitions))


def offsets_of(offsets: Mapping[Partition, Offset] | Record | None) -> dict[TopicPartition, OffsetAndEpoch] | None:
    """What to commit: offsets by partition, or the offset after a record."""
    if offsets is None:
        return None
    if isinstance(offsets, Record):
        partition = TopicPartition(offsets.topic, offsets.partition)
        return {partition: OffsetAndEpoch(offsets.offset + 1, _epoch(offsets))}
    if not isinstance(offsets, Mapping):
        raise ValueError(f"{offsets!r} cannot be committed: offsets by partition, or a record, are expected")
    return {_partition(partition): _position(offset) for partition, offset in offsets.items()}


def first_offsets(taken: Iterable[Record | Taken]) -> dict[TopicPartition, int]:
    """Where what was taken from the buffers begins."""
    found: dict[TopicPartition, int] = {}
    for each in taken:
        found.setdefault(
            TopicPartition(each.topic, each.partition), each.start if isinstance(each, Taken) else each.offset
        )
    return found


def times_of(times: Mapping[Partition, int]) -> dict[TopicPartition, int]:
    """Timestamps by partition."""
    for timestamp_ms in times.values():
        if not isinstance(timestamp_ms, int) or timestamp_ms < 0:
            raise ValueError(
                f"{timestamp_ms!r} is not a timestamp: milliseconds since 1970, not negative, are expected"
            )
    return {_partition(partition): timestamp_ms for partition, timestamp_ms in times.items()}


def partitions_of(partitions: Iterable[Partition]) -> list[TopicPartition]:
    """Partitions of pairs."""
    return [_partition(each) for each in partitions]


def unknown_topic(topic: str) -> ApiError:
    """The topic of a call does not exist."""
    return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic} does not exist; check the name")


def _partition(pair: Partition) -> TopicPartition:
    match pair:
        case (str(topic), int(partition)) if partition >= 0 and can_be_requested(topic):
            return pair if isinstance(pair, TopicPartition) else TopicPartition(topic, partition)
    raise ValueError(f"{pair!r} is not a partition: a topic's name and a number from 0 on are expected")


def _position(offset: Offset) -> OffsetAndEpoch:
    position = OffsetAndEpoch(offset) if isinstance(offset, int) else offset
    if not isinstance(position, OffsetAndEpoch):
        raise ValueError(f"{offset!r} is not an offset: a number or an OffsetAndEpoch is expected")
    if position.offset < 0:
        raise ValueError(f"offset {position.offset} is negative")
    return position


def _nothing(_partitions: list[TopicPartition]) -> None:
    return None


def require_subscription(kind: SubscriptionKind) -> None:
    """Raises `WrongState` where nothing was subscribed to or assigned."""
    if kind is SubscriptionKind.NONE:
        raise WrongState("the consumer reads nothing: subscribe to topics or assign partitions first")


def _epoch(record: Record) -> int:
    return -1 if record.leader_epoch is None else record.leader_epoch
