"""One partition of `__share_group_state`: what share groups have acknowledged, for the share partitions of its keys.

A share partition begins with a snapshot, when the group coordinator initializes it, and ends with a tombstone. A write
appends an update, or after so many updates another snapshot. The topic is not compacted: all below the oldest of the
latest snapshots is redundant, and deleted by a timer. A share partition at rest would hold that up, so where others
are written to, its snapshot is written anew by another timer.

Two epochs fence. The state epoch grows when the group's state is initialized anew, the leader epoch when the partition
of the topic has another leader: a leader reads the state before it writes, and with that announces its epoch. A write
that names an older one of either is refused. An epoch of -1 is not checked.

A write is applied when it is appended, and answered when it is committed. A read waits for the writes before it: a
leader must not begin with what may be taken back.

State batches are ranges of offsets, each with the delivery state and the delivery count of its records. Those of a
share partition are sorted by offset, do not overlap, and two that touch differ in state or count. A write brings
further ones, which may overlap these and one another. Where two cover an offset, the higher delivery count counts, and
for equal counts the higher delivery state: deliveries only go on.

Invariants:

- a write never moves the start offset back: one that is late, or sent again, changes nothing below it;
- what `combined` returns is sorted, without overlaps, and as few batches as can be;
- `ShareState.fencing_epoch >= ShareState.leader_epoch`.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from kalda.base.background import Steps
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.base.scheduling import Pending
from kalda.base.share_states import NO_OFFSET, SharePartitionKey, StateBatch, StateWrite
from kalda.coordinator.partition import CoordinatorPartition
from kalda.coordinator.share.records import (
    ShareRecord,
    batches_of,
    check_batches,
    decode_record,
    encode_record,
    snapshot_batches,
    update_batches,
)
from kalda.coordinator.timers import CoordinatorTimer, EventClock, TimerTask
from kalda.protocol.messages.share_records import ShareSnapshotValue, ShareUpdateValue
from kalda.statemachine.timeline import TimelineDict


class ShareCoordinatorConfig(NamedTuple):
    """Values of the broker keys named beside each field, with Kafka's defaults."""

    updates_per_snapshot: int = 500  # share.coordinator.snapshot.update.records.per.snapshot
    cold_snapshot_interval_ms: int = 300_000  # share.coordinator.cold.partition.snapshot.interval.ms
    prune_interval_ms: int = 300_000  # share.coordinator.state.topic.prune.interval.ms
    write_timeout_ms: int = 5_000  # share.coordinator.write.timeout.ms

    @classmethod
    def from_properties(cls, values: Mapping[str, Any]) -> ShareCoordinatorConfig:
        """From parsed broker configs."""
        return cls(
            updates_per_snapshot=values["share.coordinator.snapshot.update.records.per.snapshot"],
            cold_snapshot_interval_ms=values["share.coordinator.cold.partition.snapshot.interval.ms"],
            prune_interval_ms=values["share.coordinator.state.topic.prune.interval.ms"],
            write_timeout_ms=values["share.coordinator.write.timeout.ms"],
        )


log = logging.getLogger(__name__)

R = TypeVar("R")
NO_EPOCH = -1
"""An epoch that the sender does not know: it is not checked."""
NO_COUNT = -1
"""The delivery complete count of a share partition that was never read, or of a writer of version 0."""
_KEYS_A_STEP = 200
"""Share partitions that one step looks through."""


class ShareState(NamedTuple):
    """What is persisted of a share partition."""

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    """Nothing below it is delivered any more; `NO_OFFSET` before the first read of the partition."""
    delivery_complete_count: int
    """How many records from the start offset on need no further delivery; `NO_COUNT` where it is unknown."""
    batches: StateBatches
    created_ms: int
    """When the latest snapshot with new state was written."""
    written_ms: int
    """When the latest snapshot was written."""
    snapshot_offset: int
    """The offset of the latest snapshot. Records of this key below it are redundant."""
    updates: int
    """Update records since then."""
    fencing_epoch: int
    """The highest leader epoch that was seen. An initialization resets `leader_epoch` and not this."""


class ShareShard:
    """The share partitions of one partition of the topic, while this node coordinates it."""

    def __init__(
        self,
        partition: CoordinatorPartition[ShareRecord],
        config: ShareCoordinatorConfig,
        timers: CoordinatorTimer,
        clock: EventClock,
        has_partition: Callable[[Uuid, int], bool],
        prune: Callable[[int, int], None],
    ) -> None:
        """`has_partition(topic_id, partition)`: whether the cluster has it. `prune(index, offset)` deletes the records
        below an offset of this partition of the topic, and raises `ApiError`."""
        self.partition = partition
        """What this shard writes with."""
        self.states: TimelineDict[SharePartitionKey, ShareState] = TimelineDict(partition.registry)
        """Replayed: every share partition that is initialized."""
        self._config = config
        self._timers = timers
        self._clock = clock
        self._has_partition = has_partition
        self._prune = prune
        self.pruned_to = 0
        """The offset of the latest deletion of records; 0 before the first."""
        self._pruning = TimerTask(self._prune_redundant)
        self._snapshotting = TimerTask(self._snapshot_cold)

    # -- what the runtime calls ----------------------------------------------------------------------------------

    def encode(self, record: ShareRecord) -> tuple[bytes, bytes | None]:
        """Key and value as they are appended."""
        return encode_record(record)

    def decode(self, key: bytes, value: bytes | None) -> ShareRecord:
        """The record that these bytes hold. Raises `UnknownRecordType` and `InvalidRequest`."""
        return decode_record(key, value)

    def replay(self, record: ShareRecord, offset: int, producer_id: int) -> None:
        """Apply a record."""
        key, value = record
        held = self.states.get(key)
        if value is None:
            self.states.pop(key, None)
        elif isinstance(value, ShareSnapshotValue):
            fencing_epoch = value.leader_epoch if held is None else max(held.fencing_epoch, value.leader_epoch)
            self.states[key] = ShareState(
                value.snapshot_epoch,
                value.state_epoch,
                value.leader_epoch,
                value.start_offset,
                value.delivery_complete_count,
                combined((), batches_of(value), value.start_offset),
                value.create_timestamp,
                value.write_timestamp,
                offset,
                0,
                fencing_epoch,
            )
        else:
            self.states[key] = _updated(
                _NEVER_INITIALIZED._replace(snapshot_offset=offset) if held is None else held, value
            )

    def on_transaction_end(self, producer_id: int, *, committed: bool) -> None:
        """No transaction has records in `__share_group_state`."""

    def on_loaded(self) -> None:
        """All records are replayed."""
        self._arm(self._pruning, self._config.prune_interval_ms)
        self._arm(self._snapshotting, self._config.cold_snapshot_interval_ms)

    def on_unloaded(self) -> None:
        """Another node leads."""
        self._timers.disarm(self._pruning)
        self._timers.disarm(self._snapshotting)

    def on_topics_deleted(self, topics: Mapping[str, Uuid]) -> None:
        """The state of deleted topics is deleted."""
        deleted = frozenset(topics.values())
        tombstones = [ShareRecord(key, None) for key in self.states if key.topic_id in deleted]
        if tombstones:
            self.partition.write_in_parts(tombstones).then(
                lambda _, error: self._log_failure("share partitions of deleted topics stay", error)
            )

    # -- requests ------------------------------------------------------------------------------------------------

    def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int, response: R) -> Pending[R]:
        """Begin a share partition, or begin it anew in a later state epoch: nothing of a former state counts. Raises
        FENCED_STATE_EPOCH, UNKNOWN_TOPIC_OR_PARTITION, and INVALID_REQUEST for a partition number below 0. A request
        that is sent again changes nothing."""
        self._check_number(key)
        held = self.states.get(key)
        if held is not None and NO_EPOCH != state_epoch < held.state_epoch:
            raise ApiError(ErrorCode.FENCED_STATE_EPOCH, _FENCED_STATE_EPOCH)
        self._check_exists(key)
        if held is not None and held.state_epoch == state_epoch and held.start_offset == start_offset:
            return self.partition.write_with([], response)
        now_ms = self._clock.wall_ms()
        snapshot = ShareSnapshotValue(
            snapshot_epoch=0 if held is None else held.snapshot_epoch + 1,
            state_epoch=state_epoch,
            leader_epoch=0,
            start_offset=start_offset,
            create_timestamp=now_ms,
            write_timestamp=now_ms,
            delivery_complete_count=NO_COUNT if start_offset == NO_OFFSET else 0,
        )
        return self.partition.write_with([ShareRecord(key, snapshot)], response)

    def write(self, key: SharePartitionKey, write: StateWrite, response: R) -> Pending[R]:
        """Add to the state of a share partition. Raises as `initialize`, FENCED_LEADER_EPOCH, and INVALID_REQUEST
        where it is not initialized or a batch is no range."""
        self._check_number(key)
        check_batches(write.batches)
        held = self._initialized(key, "Write")
        self._check_leader_epoch(held, write.leader_epoch)
        if NO_EPOCH != write.state_epoch < held.state_epoch:
            raise ApiError(ErrorCode.FENCED_STATE_EPOCH, _FENCED_STATE_EPOCH)
        self._check_exists(key)
        return self.partition.write_with([self._record(key, held, write, held.leader_epoch)], response)

    def read(self, key: SharePartitionKey, leader_epoch: int) -> Pending[ShareState]:
        """The state of a share partition, for the leader of its partition in that epoch: writes of former leaders are
        refused from now on. Raises as `write`."""
        self._check_number(key)
        held = self._initialized(key, "Read")
        self._check_leader_epoch(held, leader_epoch)
        self._check_exists(key)
        if leader_epoch in (NO_EPOCH, held.fencing_epoch):
            return self.partition.write_with([], held)
        write = StateWrite(held.state_epoch, leader_epoch, held.start_offset, held.delivery_complete_count, [])
        return self.partition.write_with([self._record(key, held, write, leader_epoch)], held)

    def summary(self, key: SharePartitionKey) -> Pending[ShareState | None]:
        """The state of a share partition, None where it is not initialized, for a node that does not lead its
        partition. Raises INVALID_REQUEST for a partition number below 0 and UNKNOWN_TOPIC_OR_PARTITION."""
        self._check_number(key)
        self._check_exists(key)
        return self.partition.write_with([], self.states.get(key))

    def delete(self, key: SharePartitionKey, response: R) -> Pending[R]:
        """End a share partition; nothing where it is not initialized. Raises as `summary`."""
        self._check_number(key)
        self._check_exists(key)
        return self.partition.write_with([ShareRecord(key, None)] if key in self.states else [], response)

    def _record(self, key: SharePartitionKey, held: ShareState, write: StateWrite, leader_epoch: int) -> ShareRecord:
        """An update, or a snapshot after so many of them."""
        start_offset = max(write.start_offset, held.start_offset)
        count = write.delivery_complete_count
        if write.start_offset == held.start_offset:
            count = max(count, held.delivery_complete_count)
        elif write.start_offset < held.start_offset:
            count = held.delivery_complete_count  # what was counted is partly below the start offset
        if held.updates < self._config.updates_per_snapshot:
            update = ShareUpdateValue(
                snapshot_epoch=held.snapshot_epoch,
                leader_epoch=leader_epoch,
                start_offset=start_offset,
                delivery_complete_count=count,
                state_batches=update_batches(combined((), write.batches, start_offset)),
            )
            return ShareRecord(key, update)
        now_ms = self._clock.wall_ms()
        snapshot = ShareSnapshotValue(
            snapshot_epoch=held.snapshot_epoch + 1,
            state_epoch=held.state_epoch,
            leader_epoch=leader_epoch,
            start_offset=start_offset,
            delivery_complete_count=count,
            create_timestamp=now_ms,
            write_timestamp=now_ms,
            state_batches=snapshot_batches(combined(held.batches, write.batches, start_offset)),
        )
        return ShareRecord(key, snapshot)

    # -- checks

    def _check_number(self, key: SharePartitionKey) -> None:
        if key.partition < 0:
            raise ApiError(ErrorCode.INVALID_REQUEST, "The partition id cannot be a negative number.")

    def _check_exists(self, key: SharePartitionKey) -> None:
        if not self._has_partition(key.topic_id, key.partition):
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")

    def _check_leader_epoch(self, held: ShareState, leader_epoch: int) -> None:
        if NO_EPOCH != leader_epoch < held.fencing_epoch:
            raise ApiError(
                ErrorCode.FENCED_LEADER_EPOCH,
                f"The leader epoch {leader_epoch} in the request is older than {held.fencing_epoch}, "
                "that of the latest leader.",
            )

    def _initialized(self, key: SharePartitionKey, operation: str) -> ShareState:
        held = self.states.get(key)
        if held is None:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"{operation} operation on uninitialized share partition not allowed."
            )
        return held

    # -- timers --------------------------------------------------------------------------------------------------

    @property
    def redundant_to(self) -> int:
        """The offset below which no record of this partition has an effect, as far as it is committed."""
        epoch, end = self.partition.committed_epoch(), self.partition.high_watermark
        return min((state.snapshot_offset for state in self.states.values(epoch)), default=end)

    def _prune_redundant(self, _now_ms: int) -> None:
        """Delete the records that later snapshots have made redundant."""
        self._arm(self._pruning, self._config.prune_interval_ms)
        offset = self.redundant_to
        if offset <= self.pruned_to:
            return
        try:
            self._prune(self.partition.index, offset)
        except ApiError as error:
            self._log_failure(f"records below offset {offset} stay", error)
        else:
            self.pruned_to = offset

    def _snapshot_cold(self, _now_ms: int) -> Steps[None]:
        """Write snapshots of share partitions that had none for long anew, so that records before them can be deleted.
        Where all were written this way the topic is at rest, and nothing is to be gained. A fault in the state of one
        holds up no other."""
        now_ms = self._clock.wall_ms()
        if any(state.written_ms == state.created_ms for state in self.states.values()):
            for count, key in enumerate(list(self.states), 1):
                if count % _KEYS_A_STEP == 0:
                    yield
                if not self.partition.is_active:
                    return
                state = self.states.get(key)
                if state is None or now_ms - state.written_ms < self._config.cold_snapshot_interval_ms:
                    continue
                try:
                    error = self.partition.write([ShareRecord(key, _snapshot_anew(state, now_ms))]).error
                except Exception:
                    log.exception("no snapshot of share partition %s could be written", key.coordinator_key)
                    continue
                if error is not None:
                    self._log_failure("snapshots of share partitions at rest are not written", error)
                    break
        self._arm(self._snapshotting, self._config.cold_snapshot_interval_ms)

    def _arm(self, timer: TimerTask, delay_ms: int) -> None:
        if self.partition.is_active:
            self._timers.arm(timer, self._clock.now_ms() + delay_ms)

    def _log_failure(self, what: str, error: ApiError | None) -> None:
        if error is not None and error.code is not ErrorCode.NOT_COORDINATOR:
            log.warning("partition %d of __share_group_state: %s: %s", self.partition.index, what, error)


_FENCED_STATE_EPOCH = "The share coordinator rejected the request because the state epoch did not match."
_NEVER_INITIALIZED = ShareState(0, 0, 0, NO_OFFSET, NO_COUNT, (), 0, 0, 0, 0, 0)
"""What an update adds to where its snapshot is missing, which no coordinator writes."""


def _updated(held: ShareState, update: ShareUpdateValue) -> ShareState:
    start_offset = held.start_offset if update.start_offset == NO_OFFSET else update.start_offset
    leader_epoch = held.leader_epoch if update.leader_epoch == NO_EPOCH else update.leader_epoch
    return held._replace(
        start_offset=start_offset,
        leader_epoch=leader_epoch,
        delivery_complete_count=update.delivery_complete_count,
        batches=combined(held.batches, batches_of(update), start_offset),
        updates=held.updates + 1,
        fencing_epoch=max(held.fencing_epoch, leader_epoch),
    )


def _snapshot_anew(state: ShareState, now_ms: int) -> ShareSnapshotValue:
    """The same state at a later offset."""
    return ShareSnapshotValue(
        snapshot_epoch=state.snapshot_epoch + 1,
        state_epoch=state.state_epoch,
        leader_epoch=state.leader_epoch,
        start_offset=state.start_offset,
        delivery_complete_count=state.delivery_complete_count,
        create_timestamp=state.created_ms,
        write_timestamp=now_ms,
        state_batches=snapshot_batches(state.batches),
    )


StateBatches = tuple[StateBatch, ...]


def _first_offset(batch: StateBatch) -> int:
    return batch.first_offset


def _last_offset(batch: StateBatch) -> int:
    return batch.last_offset


def combined(held: Sequence[StateBatch], new: Iterable[StateBatch], start_offset: int) -> StateBatches:
    """`held` with `new` over it, without what is below `start_offset`. `held` fulfils the invariant, `new` need not."""
    result = list(held)
    for batch in new:
        _insert(result, batch)
    if start_offset != NO_OFFSET:
        del result[: bisect_left(result, start_offset, key=_last_offset)]
        if result and result[0].first_offset < start_offset:
            result[0] = result[0]._replace(first_offset=start_offset)
    return tuple(result)


def _insert(batches: list[StateBatch], new: StateBatch) -> None:
    """Put one batch over the others; the cost is that of those which it overlaps or touches."""
    begin = bisect_left(batches, new.first_offset - 1, key=_last_offset)
    end = bisect_right(batches, new.last_offset + 1, key=_first_offset)
    pieces: list[StateBatch] = []
    at = new.first_offset
    """From here on the new batch is not in `pieces` yet."""
    for old in batches[begin:end]:
        if old.first_offset > at and at <= new.last_offset:
            at = _append(pieces, new, at, min(old.first_offset - 1, new.last_offset))
        if old.first_offset < new.first_offset:
            _append(pieces, old, old.first_offset, min(old.last_offset, new.first_offset - 1))
        first, last = max(old.first_offset, new.first_offset), min(old.last_offset, new.last_offset)
        if first <= last:
            at = _append(pieces, max(old, new, key=_priority), first, last)
        if old.last_offset > new.last_offset:
            _append(pieces, old, max(old.first_offset, new.last_offset + 1), old.last_offset)
    if at <= new.last_offset:
        _append(pieces, new, at, new.last_offset)
    batches[begin:end] = pieces


def _priority(batch: StateBatch) -> tuple[int, int]:
    return batch.delivery_count, batch.delivery_state


def _append(pieces: list[StateBatch], batch: StateBatch, first: int, last: int) -> int:
    """Append this part of a batch, to the piece before where they are the same; the offset after it."""
    if pieces and pieces[-1].last_offset + 1 == first and _priority(pieces[-1]) == _priority(batch):
        pieces[-1] = pieces[-1]._replace(last_offset=last)
    else:
        pieces.append(batch._replace(first_offset=first, last_offset=last))
    return last + 1
