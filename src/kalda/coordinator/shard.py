"""One partition of `__consumer_offsets`: its groups and offsets, on the runtime of replayed state.

Offsets and the existence of groups are replayed state in full: a handler computes records, and only their replay
changes anything. A classic group's members are soft state (see `classic_group`): its records are replayed into a group
when the log is loaded, and leave a group that lives here as it is.

Life of a shard: loading (batches are replayed as they come) → active → closed. A shard is never reopened; a partition
that comes back gets a new one.

Epochs of the timeline are ends of the log: the state at an epoch holds everything below that offset, and a high
watermark commits the epoch of the same number.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import UuidSource
from kalda.base.pending import Pending
from kalda.coordinator.classic_group import ClassicGroup, GroupState
from kalda.coordinator.classic_protocol import ClassicProtocol
from kalda.coordinator.config import GroupCoordinatorConfig
from kalda.coordinator.offsets import Offsets, Topics
from kalda.coordinator.rebalance import Rebalancer
from kalda.coordinator.records import (
    ForeignRecord,
    GroupLogRecord,
    GroupRecord,
    OffsetRecord,
    decode_record,
    encode_record,
)
from kalda.coordinator.timers import CoordinatorTimer, TimerTask
from kalda.protocol.notation import Buffer
from kalda.records.batch import iter_batches
from kalda.records.builder import read_records
from kalda.statemachine.runtime import Appended, ReplicatedRuntime, Result
from kalda.statemachine.timeline import LATEST, SnapshotRegistry, TimelineDict

log = logging.getLogger(__name__)

R = TypeVar("R")
_NO_PRODUCER = -1
_COMMIT_MARKER = 1
_FOLD_EVERY = 10_000
"""While loading, the records between two commits of the timeline: it keeps old values for a revert that cannot come."""

_TOMBSTONES_A_BATCH = 1_000
"""So many fit into a batch of max.message.bytes, with the longest names of topics."""

Append = Callable[[Sequence[tuple[bytes, bytes | None]]], int]


class EventClock(Protocol):
    """The time of the event being handled."""

    def now_ms(self) -> int: ...

    def wall_ms(self) -> int: ...


class GroupShard:
    """Groups and offsets of one partition, while this node coordinates it."""

    def __init__(
        self,
        partition: int,
        leader_epoch: int,
        config: GroupCoordinatorConfig,
        append: Append,
        timers: CoordinatorTimer,
        clock: EventClock,
        topics: Topics,
        new_uuid: UuidSource,
    ) -> None:
        """`append` writes records (key, value) as one batch and returns the offset after the last."""
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.loading = True
        self._config = config
        self._append_to_log = append
        self._timers = timers
        self._clock = clock
        self.registry = SnapshotRegistry()
        self.runtime: ReplicatedRuntime[GroupLogRecord] = ReplicatedRuntime(
            self.registry, self._append, self._replay, not_leader=ErrorCode.NOT_COORDINATOR
        )
        self.groups: TimelineDict[str, ClassicGroup] = TimelineDict(self.registry)
        self.foreign_groups: TimelineDict[str, str] = TimelineDict(self.registry)
        """Groups of other types in this log, by id: their ids are taken."""
        self.offsets = Offsets(self.registry, config, topics)
        self.rebalancer = Rebalancer(config, timers, self.groups, self.write, clock.now_ms, clock.wall_ms)
        self.classic = ClassicProtocol(config, self.groups, self.rebalancer, self.write, self._create_group, new_uuid)
        self._nascent: dict[str, ClassicGroup] = {}
        self._expiration = TimerTask(self._expire)
        self._writing = False
        self._high_watermark = 0
        self._load_end = 0
        self._loaded_since_fold = 0

    # -- loading -------------------------------------------------------------------------------------------------

    def load(self, buffer: Buffer, high_watermark: int) -> None:
        """Replay the batches in `buffer`, which follow those loaded before. Raises `CorruptRecord` or
        `InvalidRequest` where they cannot be read; the shard is of no use then."""
        assert self.loading
        for position, header in iter_batches(buffer):
            if header.base_offset >= high_watermark and not self.runtime.active:
                self._claim()
            producer_id = header.producer_id if header.is_transactional else _NO_PRODUCER
            records = read_records(buffer, position, header)
            for record in records:
                if record.key is None:
                    continue
                if header.is_control:
                    self._replay_control(producer_id, record.key)
                else:
                    self._replay_one(decode_record(record.key, record.value), record.offset, producer_id)
            self._load_end = header.next_offset
            self._loaded_since_fold += len(records)
            if self.runtime.active:
                span = header.next_offset - header.base_offset
                self.runtime.offsets.on_append(header.base_offset, span, header.next_offset)
            elif self._loaded_since_fold >= _FOLD_EVERY:
                self._fold()

    def finish_loading(self, high_watermark: int) -> None:
        """All batches are replayed. Sessions of the members in the log start now."""
        if not self.runtime.active:
            self._claim()
        self.loading = False
        self.on_high_watermark(high_watermark)
        for group in list(self.groups.values()):
            self.rebalancer.adopt(group)
        self._arm_expiration()
        log.debug("loaded partition %d: %d groups", self.partition, len(self.groups))

    def _fold(self) -> None:
        self._loaded_since_fold = 0
        if self._load_end:
            self.runtime.on_commit(self._load_end)

    def _claim(self) -> None:
        self._fold()
        self.runtime.claim(self.leader_epoch, self._load_end)

    def _replay_control(self, producer_id: int, key: bytes) -> None:
        """An end of transaction: int16 version, int16 type, 0 for abort and 1 for commit; other types mean nothing."""
        kind = int.from_bytes(key[2:4], "big") if len(key) >= 4 else -1
        if producer_id >= 0 and kind in (0, _COMMIT_MARKER):
            self.offsets.replay_marker(producer_id, committed=kind == _COMMIT_MARKER)

    def close(self) -> None:
        """The partition moved away: whoever waits must look for the new coordinator."""
        self._timers.disarm(self._expiration)
        for group in list(self.groups.values()):
            self.rebalancer.abandon(group)
        self.loading = False
        self.runtime.renounce()

    # -- replay --------------------------------------------------------------------------------------------------

    def _replay(self, record: GroupLogRecord, offset: int) -> None:
        self._replay_one(record, offset, _NO_PRODUCER)

    def _replay_one(self, record: GroupLogRecord, offset: int, producer_id: int) -> None:
        if isinstance(record, OffsetRecord):
            self.offsets.replay(record, offset, producer_id)
            if record.value is not None and record.group_id not in self.groups:
                self._replay_simple_group(record.group_id)
        elif isinstance(record, GroupRecord):
            self._replay_group(record)
        else:
            self._replay_foreign(record)

    def _replay_simple_group(self, group_id: str) -> None:
        """Offsets without membership make a group too: one without protocol and members."""
        if group_id not in self.foreign_groups:
            self.groups[group_id] = ClassicGroup(group_id, GroupState.EMPTY, state_timestamp_ms=self._clock.wall_ms())

    def _replay_group(self, record: GroupRecord) -> None:
        group_id = record.group_id
        if record.value is None:
            self.groups.pop(group_id, None)
        elif self.loading:
            self.groups[group_id] = ClassicGroup.from_record(group_id, record.value)
            self.foreign_groups.pop(group_id, None)
        elif group_id not in self.groups:
            self.groups[group_id] = self._nascent.pop(group_id)

    def _replay_foreign(self, record: ForeignRecord) -> None:
        if record.group_type is None:
            return
        if record.value is None:
            self.foreign_groups.pop(record.group_id, None)
        else:
            self.foreign_groups[record.group_id] = record.group_type
            self.groups.pop(record.group_id, None)

    def _create_group(self, group_id: str) -> ClassicGroup:
        group = ClassicGroup(group_id, GroupState.EMPTY, state_timestamp_ms=self._clock.wall_ms())
        self._nascent[group_id] = group
        return group

    # -- writing -------------------------------------------------------------------------------------------------

    def write(self, records: Sequence[GroupLogRecord]) -> Pending[None]:
        """Append and replay; the answer comes with the commit."""
        return self.write_with(records, None)

    def write_with(self, records: Sequence[GroupLogRecord], response: R) -> Pending[R]:
        """As `write`, answered with `response`. Without records it waits for the writes before it."""
        self._writing = True
        try:
            return self.runtime.write(lambda: Result(records, response))
        finally:
            self._writing = False
            self._nascent.clear()
            if self._high_watermark > self.runtime.offsets.last_committed_offset:
                self.runtime.on_commit(self._high_watermark)

    def erase(self, tombstones: Sequence[GroupLogRecord]) -> Pending[None]:
        """As `write`, of any number of records, some of which may last without the others: a batch a part."""
        outcome = self.write(tombstones[:_TOMBSTONES_A_BATCH])
        for start in range(_TOMBSTONES_A_BATCH, len(tombstones), _TOMBSTONES_A_BATCH):
            if outcome.error is not None:
                break
            outcome = self.write(tombstones[start : start + _TOMBSTONES_A_BATCH])
        return outcome

    def _append(self, epoch: int, records: Sequence[GroupLogRecord]) -> Appended:
        end = self._append_to_log([encode_record(record) for record in records])
        return Appended(end - len(records), end)

    def on_high_watermark(self, high_watermark: int) -> None:
        """All below `high_watermark` is committed. May be told from inside an append, before the replay."""
        self._high_watermark = max(self._high_watermark, high_watermark)
        if not self._writing and not self.loading:
            self.runtime.on_commit(self._high_watermark)

    def committed_epoch(self) -> int:
        """The epoch at which a read sees committed state only; LATEST where everything is committed."""
        stable = self.runtime.offsets.last_stable_offset
        newest = self.registry.newest
        return LATEST if newest is None or newest <= stable else self.runtime.offsets.stable_epoch

    @property
    def knows_too_little(self) -> bool:
        """True until all that was loaded is known to be committed: the predecessor may have known it."""
        return self.runtime.offsets.last_stable_offset < self._load_end

    # -- groups --------------------------------------------------------------------------------------------------

    def group(self, group_id: str) -> ClassicGroup:
        """Raises GROUP_ID_NOT_FOUND."""
        group = self.groups.get(group_id)
        if group is None:
            if group_id in self.foreign_groups:
                raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a classic group.")
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        return group

    def _arm_expiration(self) -> None:
        self._timers.arm(self._expiration, self._clock.now_ms() + self._config.retention_check_interval_ms)

    def _expire(self, now_ms: int) -> None:
        """Drop expired offsets, and groups of which nothing is left."""
        records: list[GroupLogRecord] = []
        for group_id, group in list(self.groups.items()):
            nothing_left = self.offsets.expire(group, self._clock.wall_ms(), records)
            if nothing_left and group.is_empty:
                records.append(GroupRecord(group_id, None))
        if records:
            outcome = self.erase(records)
            if outcome.error is not None:
                log.warning(
                    "partition %d: expired offsets stay until the next check: %s", self.partition, outcome.error
                )
        self._arm_expiration()
