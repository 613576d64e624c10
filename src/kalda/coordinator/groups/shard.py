"""One partition of `__consumer_offsets`: its groups and offsets.

Replayed in full are the offsets, which groups exist, and each classic group's checkpoint, the value of its latest
GroupMetadata record: a handler computes records, and only their replay changes these, whether the record comes from
the log or has just been appended.

A classic group itself (`ClassicGroup`) is made from its checkpoint, when the partition is loaded or when its first
record is replayed. From then on requests change it: in a rebalance it runs ahead of its checkpoint, and it comes back
to it, as a new checkpoint, when it is Stable or Empty again. A record that removes the group, or gives its id to a
group of another type, ends it: its parked requests are answered, and its timers disarmed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Protocol

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid, UuidSource
from kalda.coordinator.answers import write_error
from kalda.coordinator.groups.classic_group import GROUP_TYPE, ClassicGroup, GroupState
from kalda.coordinator.groups.classic_protocol import ClassicProtocol
from kalda.coordinator.groups.config import GroupCoordinatorConfig
from kalda.coordinator.groups.counters import GroupCounters
from kalda.coordinator.groups.offsets import KnownTopics, Offsets
from kalda.coordinator.groups.rebalance import Rebalancer
from kalda.coordinator.groups.records import (
    ForeignRecord,
    GroupLogRecord,
    GroupRecord,
    OffsetRecord,
    decode_record,
    encode_record,
)
from kalda.coordinator.partition import CoordinatorPartition
from kalda.coordinator.timers import CoordinatorTimer, TimerTask
from kalda.protocol.messages.group_records import GroupMetadataValue
from kalda.protocol.messages.groups import ListedGroup
from kalda.statemachine.timeline import TimelineDict

log = logging.getLogger(__name__)


class EventClock(Protocol):
    """The time of the event being handled."""

    def now_ms(self) -> int: ...

    def wall_ms(self) -> int: ...


class GroupShard:
    """Groups and offsets of one partition, while this node coordinates it."""

    def __init__(
        self,
        partition: CoordinatorPartition[GroupLogRecord],
        config: GroupCoordinatorConfig,
        timers: CoordinatorTimer,
        clock: EventClock,
        topics: KnownTopics,
        new_uuid: UuidSource,
        counters: GroupCounters,
    ) -> None:
        self.partition = partition
        """What this shard writes with."""
        self.checkpoints: TimelineDict[str, GroupMetadataValue] = TimelineDict(partition.registry)
        """Replayed: the latest GroupMetadata record of each classic group. A simple group has none."""
        self.groups: TimelineDict[str, ClassicGroup] = TimelineDict(partition.registry)
        """Replayed: which classic and simple groups exist. The groups themselves are not: see `ClassicGroup`."""
        self.foreign_groups: TimelineDict[str, str] = TimelineDict(partition.registry)
        """Replayed: the types of groups of other types in this log, by id. An id belongs to one group: it is not in
        `groups` too."""
        self._foreign_records: TimelineDict[bytes, str] = TimelineDict(partition.registry)
        """Replayed: the keys of all records of such groups, with the group's id."""
        self._foreign_members: TimelineDict[str, int] = TimelineDict(partition.registry)
        """Replayed: how many members such a group has; absent without any."""
        self.offsets = Offsets(partition.registry, config, topics)
        """Replayed."""
        self.rebalancer = Rebalancer(
            config,
            timers,
            self.groups,
            self.checkpoints,
            partition.write,
            clock.now_ms,
            clock.wall_ms,
            counters.completed_rebalances,
        )
        self.classic = ClassicProtocol(config, self.groups, self.rebalancer, partition.write, clock.wall_ms, new_uuid)
        self._config = config
        self._counters = counters
        self._timers = timers
        self._clock = clock
        self._expiration = TimerTask(self._expire)

    # -- what the runtime calls ----------------------------------------------------------------------------------

    def encode(self, record: GroupLogRecord) -> tuple[bytes, bytes | None]:
        """Key and value as they are appended."""
        return encode_record(record)

    def decode(self, key: bytes, value: bytes | None) -> GroupLogRecord:
        """The record that these bytes hold. Raises `UnknownRecordType` and `InvalidRequest`."""
        return decode_record(key, value)

    def on_loaded(self) -> None:
        """All records are replayed. Sessions of the members in the log start now."""
        for group in list(self.groups.values()):
            self.rebalancer.adopt(group)
        self._arm_expiration()
        log.debug("partition %d of __consumer_offsets has %d groups", self.partition.index, len(self.groups))

    def on_unloaded(self) -> None:
        """Another node leads: parked requests are answered with NOT_COORDINATOR."""
        self._timers.disarm(self._expiration)
        for group in list(self.groups.values()):
            self.rebalancer.end_now(group, ErrorCode.NOT_COORDINATOR)

    def on_topics_deleted(self, topics: Mapping[str, Uuid]) -> None:
        """Offsets of deleted topics are erased. Those of another topic of the same name stay."""
        records = self.offsets.tombstones_of_topics(topics)
        if records and (error := self.partition.write_in_parts(records).error) is not None:
            log.warning(
                "partition %d of __consumer_offsets: offsets of deleted topics stay: %s", self.partition.index, error
            )

    # -- replay --------------------------------------------------------------------------------------------------

    def replay(self, record: GroupLogRecord, offset: int, producer_id: int) -> None:
        """Apply one record."""
        if isinstance(record, OffsetRecord):
            self.offsets.replay(record, offset, producer_id)
            if record.value is not None and record.group_id not in self.groups:
                self._replay_simple_group(record.group_id)
        elif isinstance(record, GroupRecord):
            self._replay_group(record)
        else:
            self._replay_foreign(record)

    def on_transaction_end(self, producer_id: int, *, committed: bool) -> None:
        """Offsets of the producer's transaction are committed or dropped."""
        self.offsets.replay_marker(producer_id, committed=committed)

    def _replay_simple_group(self, group_id: str) -> None:
        """Offsets without membership make a group too: one without protocol and members."""
        if group_id not in self.foreign_groups:
            self.groups[group_id] = ClassicGroup(group_id, GroupState.EMPTY, state_timestamp_ms=self._clock.wall_ms())

    def _replay_group(self, record: GroupRecord) -> None:
        """A live group has just written this record, and equals it. Otherwise a group is made of the record."""
        group_id, value = record.group_id, record.value
        if value is None:
            self._remove(group_id, ErrorCode.UNKNOWN_MEMBER_ID)
            return
        self.checkpoints[group_id] = value
        self.foreign_groups.pop(group_id, None)
        if not self.partition.is_active:
            self.groups[group_id] = ClassicGroup.from_record(group_id, value)
        elif group_id not in self.groups:
            self.groups[group_id] = group = ClassicGroup.from_record(group_id, value)
            self.rebalancer.adopt(group)
        else:
            assignments = {stored.member_id: bytes(stored.assignment) for stored in value.members}
            assert self.groups[group_id].to_record(assignments) == value, f"group {group_id} differs from its record"

    def _replay_foreign(self, record: ForeignRecord) -> None:
        group_id, was_there = record.group_id, record.key in self._foreign_records
        if record.value is not None:
            self._foreign_records[record.key] = group_id
        elif was_there:
            del self._foreign_records[record.key]
        if record.is_member and was_there != (record.value is not None):
            members = self._foreign_members.get(group_id, 0) + (-1 if was_there else 1)
            if members:
                self._foreign_members[group_id] = members
            else:
                del self._foreign_members[group_id]
        if record.group_type is None:
            return
        if record.value is None:
            if self.foreign_groups.pop(group_id, None) is not None and group_id in self.offsets.by_group:
                self._replay_simple_group(group_id)
        else:
            self._remove(record.group_id, ErrorCode.REBALANCE_IN_PROGRESS)
            self.foreign_groups[record.group_id] = record.group_type

    def _remove(self, group_id: str, code: ErrorCode) -> None:
        """The classic group of that id is removed. `code` is for its parked requests: UNKNOWN_MEMBER_ID makes a client
        join without its member id, REBALANCE_IN_PROGRESS with it, since the group that replaces this one may have the
        member."""
        self.checkpoints.pop(group_id, None)
        group = self.groups.pop(group_id, None)
        if group is not None and self.partition.is_active:
            self.rebalancer.end_soon(group, code)

    # -- groups --------------------------------------------------------------------------------------------------

    def group(self, group_id: str) -> ClassicGroup:
        """Raises GROUP_ID_NOT_FOUND."""
        group = self.groups.get(group_id)
        if group is None:
            if group_id in self.foreign_groups:
                raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a classic group.")
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        return group

    def listed(self) -> Iterator[ListedGroup]:
        """All groups as ListGroups shows them. Of those of other types it is known whether they have members."""
        epoch = self.partition.committed_epoch()
        members = dict(self._foreign_members.items(epoch))
        foreign = dict(self.foreign_groups.items(epoch))
        for group_id, group in list(self.groups.items(epoch)):
            state, protocol_type = group.state.value, group.protocol_type or ""
            yield ListedGroup(group_id=group_id, protocol_type=protocol_type, group_state=state, group_type=GROUP_TYPE)
        for group_id, group_type in foreign.items():
            state = "Stable" if group_id in members else "Empty"
            yield ListedGroup(group_id=group_id, protocol_type=group_type, group_state=state, group_type=group_type)

    def may_end(self, group_id: str) -> bool:
        """Whether a group of another type can be ended here: it has no members, and no state elsewhere, as share groups
        have."""
        return self.foreign_groups[group_id] != "share" and group_id not in self._foreign_members

    def foreign_tombstones(self, group_id: str) -> list[GroupLogRecord]:
        """What ends a group of another type, that of the group itself last. Visits all records of such groups."""
        found = [decode_record(key, None) for key, owner in self._foreign_records.items() if owner == group_id]
        return sorted(found, key=lambda record: isinstance(record, ForeignRecord) and record.group_type is not None)

    def take_over(self, group_id: str, member_id: str) -> None:
        """End an empty group of another type, whose id a member of a classic group joins; its offsets stay. Raises
        `ApiError`, as Kafka answers."""
        if not self.may_end(group_id):
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if member_id:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        log.info("the empty %s group %s becomes a classic group", self.foreign_groups[group_id], group_id)
        outcome = self.partition.write_in_parts(self.foreign_tombstones(group_id))
        if outcome.error is not None:
            raise ApiError(write_error(outcome.error.code))

    def check_foreign_commit(self, group_id: str, generation: int) -> None:
        """Offsets of a group of another type are committed here while it has no members. Raises UNKNOWN_MEMBER_ID, and
        GROUP_ID_NOT_FOUND for a share group, which has no such offsets."""
        if self.foreign_groups.get(group_id) == "share":
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        if group_id in self.foreign_groups and (generation >= 0 or group_id in self._foreign_members):
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)

    def _arm_expiration(self) -> None:
        self._timers.arm(self._expiration, self._clock.now_ms() + self._config.retention_check_interval_ms)

    def _expire(self, now_ms: int) -> None:
        """Write tombstones for expired offsets, and for groups without offsets and members."""
        records: list[GroupLogRecord] = []
        expired = 0
        for group_id, group in list(self.groups.items()):
            before = len(records)
            nothing_left = self.offsets.expire(group, self._clock.wall_ms(), records)
            expired += len(records) - before
            if nothing_left and group.is_empty:
                records.append(GroupRecord(group_id, None))
        if expired:
            self._counters.offset_expirations.record(expired, now_ms)
        if records:
            outcome = self.partition.write_in_parts(records)
            if outcome.error is not None:
                log.warning(
                    "partition %d of __consumer_offsets: expired offsets stay until the next check: %s",
                    self.partition.index,
                    outcome.error,
                )
        self._arm_expiration()
