"""One partition of `__consumer_offsets`: its groups and offsets.

Replayed in full are the offsets, which groups exist, and each classic group's checkpoint, the value of its latest
GroupMetadata record: a handler computes records, and only their replay changes these, whether the record comes from
the log or has just been appended.

A group has one of several kinds, and an id belongs to one group. A kind has its records and their replay, its
heartbeats, its timers and its descriptions in files of its own: classic groups are in `groups`, those of KIP-848 in
`consumers`, share groups in `shares`, streams groups in `streams`. What all kinds have in common is decided here: which
kind an id has, who may take it over, offsets, the end of a group.

A classic group itself (`ClassicGroup`) is made from its checkpoint, when the partition is loaded or when its first
record is replayed. From then on requests change it: in a rebalance it runs ahead of its checkpoint, and it comes back
to it, as a new checkpoint, when it is Stable or Empty again. A record that removes the group, or gives its id to a
group of another type, ends it: its parked requests are answered, and its timers disarmed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from kalda.base.background import Steps
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid, UuidSource
from kalda.coordinator.answers import write_error
from kalda.coordinator.groups.classic_group import GROUP_TYPE, ClassicGroup, GroupState
from kalda.coordinator.groups.classic_members import ClassicMembers
from kalda.coordinator.groups.classic_protocol import ClassicProtocol
from kalda.coordinator.groups.config import (
    ConsumerSettings,
    GroupCoordinatorConfig,
    GroupCounters,
    ShareGroupSettings,
    StreamsSettings,
)
from kalda.coordinator.groups.consumer_group import ConsumerGroup, ConsumerGroups
from kalda.coordinator.groups.consumer_protocol import ConsumerProtocol
from kalda.coordinator.groups.kind_protocol import KindGroups
from kalda.coordinator.groups.migration import Migration
from kalda.coordinator.groups.offsets import KnownTopics, Offsets
from kalda.coordinator.groups.rebalance import Rebalancer
from kalda.coordinator.groups.rebalance_history import RebalanceHistory
from kalda.coordinator.groups.records import (
    SHARE_KEYS,
    STREAMS_KEYS,
    GroupLogRecord,
    GroupRecord,
    KindRecord,
    OffsetRecord,
    decode_record,
    encode_record,
)
from kalda.coordinator.groups.share_group import ShareGroups
from kalda.coordinator.groups.share_protocol import ShareProtocol
from kalda.coordinator.groups.streams.group import StreamsGroup, StreamsGroups
from kalda.coordinator.groups.streams.protocol import StreamsProtocol
from kalda.coordinator.partition import CoordinatorPartition
from kalda.coordinator.runtime import CoordinatorRuntime
from kalda.coordinator.timers import CoordinatorTimer, EventClock, TimerTask
from kalda.protocol.messages.group_records import GroupMetadataValue
from kalda.protocol.messages.groups import ListedGroup
from kalda.statemachine.timeline import LATEST, TimelineDict

log = logging.getLogger(__name__)

_CHECKED_A_STEP = 500
"""Groups and offsets that one step checks for expiry, and perhaps deletes; all of one group are in one step."""


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
        history: RebalanceHistory,
        consumers: ConsumerSettings,
        shares: ShareGroupSettings,
        streams: StreamsSettings,
    ) -> None:
        self.partition = partition
        """What this shard writes with."""
        self.checkpoints: TimelineDict[str, GroupMetadataValue] = TimelineDict(partition.registry)
        """Replayed: the latest GroupMetadata record of each classic group. A simple group has none."""
        self.groups: TimelineDict[str, ClassicGroup] = TimelineDict(partition.registry)
        """Replayed: which classic and simple groups exist. The groups themselves are not: see `ClassicGroup`."""
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
            history,
        )
        self._migration = Migration(partition, config, consumers, self.groups, self.rebalancer, clock)
        self.consumers = ConsumerGroups(
            partition, consumers, timers, clock.now_ms, self._migration.downgrade, history, self._has_group
        )
        """Replayed: the consumer groups."""
        self.consumer_protocol = ConsumerProtocol(
            partition,
            self.consumers,
            consumers,
            timers,
            clock,
            new_uuid,
            counters.consumer_rebalances,
            self._ending_for_consumers,
        )
        self._classic = ClassicProtocol(config, self.groups, self.rebalancer, partition.write, clock, new_uuid)
        self._classic_members = ClassicMembers(
            partition, self.consumers, self.consumer_protocol, self._migration, consumers, new_uuid
        )
        self.shares = ShareGroups(partition, shares, timers, clock, history, self._has_group)
        """Replayed: the share groups."""
        self.share_protocol = ShareProtocol(partition, self.shares, shares, timers, clock, counters.share_rebalances)
        self.streams = StreamsGroups(partition, streams, timers, clock.now_ms, history, self._has_group)
        """Replayed: the streams groups."""
        self.streams_protocol = StreamsProtocol(
            partition, self.streams, streams, timers, clock, counters.streams_rebalances
        )
        self._kinds: tuple[KindGroups[Any], ...] = (self.consumers, self.shares, self.streams)
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
        for kind in self._kinds:
            kind.on_loaded()
        self._arm_expiration()
        log.debug("partition %d of __consumer_offsets has %d groups", self.partition.index, len(self.groups))

    def on_unloaded(self) -> None:
        """Another node leads: parked requests are answered with NOT_COORDINATOR."""
        self._timers.disarm(self._expiration)
        for group in list(self.groups.values()):
            self.rebalancer.end_now(group, ErrorCode.NOT_COORDINATOR)
        for kind in self._kinds:
            kind.on_unloaded()

    def on_topics_changed(self, names: frozenset[str]) -> None:
        """Topics were made, deleted or changed: groups that read one refresh with the next heartbeat."""
        for kind in self._kinds:
            kind.on_topics_changed(names)

    def on_topics_deleted(self, topics: Mapping[str, Uuid]) -> None:
        """Offsets of deleted topics are erased. Those of another topic of the same name stay."""
        records = [*self.offsets.tombstones_of_topics(topics), *self.shares.records_of_deleted_topics(topics)]
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
            self._replay_kind(record)

    def on_transaction_end(self, producer_id: int, *, committed: bool) -> None:
        """Offsets of the producer's transaction are committed or dropped."""
        self.offsets.replay_marker(producer_id, committed=committed)

    def _replay_simple_group(self, group_id: str) -> None:
        """Offsets without membership make a group too: one without protocol and members."""
        if not self.is_of_other_kind(group_id):
            self.groups[group_id] = ClassicGroup(group_id, GroupState.EMPTY, state_timestamp_ms=self._clock.wall_ms())

    def _replay_group(self, record: GroupRecord) -> None:
        """A live group has just written this record, and equals it. Otherwise a group is made of the record."""
        group_id, value = record.group_id, record.value
        if value is None:
            self._remove(group_id)
            return
        self.checkpoints[group_id] = value
        for kind in self._kinds:
            kind.discard(group_id)
        if not self.partition.is_active:
            self.groups[group_id] = ClassicGroup.from_record(group_id, value)
        elif group_id not in self.groups or (value.members and self.groups[group_id].protocol_type is None):
            # Also where it had no members yet: what was left of the offsets of a group of another kind.
            self.groups[group_id] = group = ClassicGroup.from_record(group_id, value)
            self.rebalancer.adopt(group)
        else:
            assignments = {stored.member_id: bytes(stored.assignment) for stored in value.members}
            assert self.groups[group_id].to_record(assignments) == value, f"group {group_id} differs from its record"

    def _replay_kind(self, record: KindRecord) -> None:
        """A record of a group of another kind; one that makes the group ends whatever had its id."""
        group_id, key = record.group_id, type(record.key)
        kind: KindGroups[Any] = self.consumers
        if key in SHARE_KEYS:
            kind = self.shares
        elif key in STREAMS_KEYS:
            kind = self.streams
        existed = group_id in kind.groups
        kind.replay(record)
        exists = group_id in kind.groups
        if exists and not existed:
            self._remove(group_id)
            for other in self._kinds:
                if other is not kind:
                    other.discard(group_id)
        elif existed and not exists and group_id in self.offsets.by_group:
            self._replay_simple_group(group_id)

    def _remove(self, group_id: str) -> None:
        """The classic group of that id is removed."""
        self.checkpoints.pop(group_id, None)
        group = self.groups.pop(group_id, None)
        if group is not None and self.partition.is_active:
            self.rebalancer.end_soon(group, lambda: self._removal_code(group_id))

    def _removal_code(self, group_id: str) -> ErrorCode:
        """What the parked requests of a removed group are answered with: UNKNOWN_MEMBER_ID makes a client join without
        its member id, REBALANCE_IN_PROGRESS with it, since the group that has replaced this one may have the member."""
        return ErrorCode.REBALANCE_IN_PROGRESS if self.is_of_other_kind(group_id) else ErrorCode.UNKNOWN_MEMBER_ID

    # -- groups --------------------------------------------------------------------------------------------------

    def group(self, group_id: str) -> ClassicGroup:
        """Raises GROUP_ID_NOT_FOUND."""
        group = self.groups.get(group_id)
        if group is None:
            if self.is_of_other_kind(group_id):
                raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a classic group.")
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        return group

    def is_of_other_kind(self, group_id: str) -> bool:
        """Whether a group that is no classic one has the id."""
        return any(group_id in kind.groups for kind in self._kinds)

    def _has_group(self, group_id: str, epoch: int) -> bool:
        return any(
            groups.get(group_id, None, epoch) is not None
            for groups in (self.groups, *(kind.groups for kind in self._kinds))
        )

    def has_other_than_share(self, group_id: str) -> bool:
        """Whether a group of another kind than share groups has the id."""
        return any(group_id in groups for groups in (self.groups, self.consumers.groups, self.streams.groups))

    def listed(self) -> Iterator[ListedGroup]:
        """All groups as ListGroups shows them."""
        epoch = self.partition.committed_epoch()
        for group_id, group in list(self.groups.items(epoch)):
            state, protocol_type = group.state.value, group.protocol_type or ""
            yield ListedGroup(group_id=group_id, protocol_type=protocol_type, group_state=state, group_type=GROUP_TYPE)
        for kind in self._kinds:
            for group_id, other in list(kind.groups.items(epoch)):
                state = other.state(epoch).value
                yield ListedGroup(group_id=group_id, protocol_type=kind.kind, group_state=state, group_type=kind.kind)

    def member_group(self, group_id: str) -> ClassicGroup | ConsumerGroup | StreamsGroup | None:
        """The group whose members commit offsets under this id; None without one."""
        return self.groups.get(group_id) or self.consumers.groups.get(group_id) or self.streams.groups.get(group_id)

    def epoch_group(self, group_id: str, epoch: int = LATEST) -> ConsumerGroup | StreamsGroup | None:
        """The group that fences offsets by the epochs of its members, at an epoch of the timeline; None without one."""
        return self.consumers.groups.get(group_id, None, epoch) or self.streams.groups.get(group_id, None, epoch)

    def ending(self, group_id: str) -> list[GroupLogRecord]:
        """What ends a group of any kind, its own record last; its offsets stay. Raises NON_EMPTY_GROUP, and
        GROUP_ID_NOT_FOUND."""
        group = self.groups.get(group_id)
        if group is not None:
            group.check_deletable()
            return [GroupRecord(group_id, None)]
        for kind in self._kinds:
            other = kind.groups.get(group_id)
            if other is not None:
                other.check_deletable()
                return list(other.tombstones())
        raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")

    def classic_protocol(self, group_id: str) -> ClassicProtocol | ClassicMembers:
        """What handles the requests of the classic protocol for a group: other than for classic groups, for consumer
        groups that have members."""
        group = self.consumers.groups.get(group_id)
        return self._classic if group is None or group.is_empty else self._classic_members

    def end_for_classic(self, group_id: str, member_id: str) -> None:
        """End an empty group of another kind, whose id a member of a classic group joins; its offsets stay. Nothing is
        done where no group of another kind has the id, and where members of the classic protocol may join it. Raises
        `ApiError`, as Kafka answers."""
        consumers = self.consumers.groups.get(group_id)
        if not self.is_of_other_kind(group_id):
            return
        if consumers is not None and not consumers.is_empty:
            return
        try:
            if group_id in self.shares.groups:
                raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)  # it has state elsewhere
            records = self.ending(group_id)
        except ApiError:
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL) from None
        if member_id:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        log.info("the empty group %s becomes a classic group", group_id)
        outcome = self.partition.write_in_parts(records)
        if outcome.error is not None:
            raise ApiError(write_error(outcome.error.code))

    def _ending_for_consumers(self, group_id: str) -> list[GroupLogRecord]:
        """What ends a group whose id a member of a consumer group joins, an empty classic one, or makes a consumer
        group of it. A simple group, which has no record, ends by itself."""
        group = self.groups.get(group_id)
        if group is None:
            if self.is_of_other_kind(group_id):
                raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
            return []
        if not group.is_empty:
            return self._migration.upgrade(group)
        log.info("the empty classic group %s becomes a consumer group", group_id)
        return [GroupRecord(group_id, None)] if group_id in self.checkpoints else []

    def ending_for_streams(self, group_id: str) -> list[GroupLogRecord] | None:
        """What ends a group whose id a member of a streams group joins, an empty classic one; None where another group
        has the id. A simple group, which has no record, ends by itself."""
        group = self.groups.get(group_id)
        if group is None:
            is_other = group_id in self.consumers.groups or group_id in self.shares.groups
            return None if is_other else []
        if not group.is_empty:
            return None
        return [GroupRecord(group_id, None)] if group_id in self.checkpoints else []

    def check_no_share_group(self, group_id: str) -> None:
        """Raises GROUP_ID_NOT_FOUND: a share group has no such offsets."""
        if group_id in self.shares.groups:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")

    def _arm_expiration(self) -> None:
        self._timers.arm(self._expiration, self._clock.now_ms() + self._config.retention_check_interval_ms)

    def _expire(self, now_ms: int) -> Steps[None]:
        """Write tombstones for expired offsets, and for groups without offsets and members. Those of one group are
        written together. A fault in one group holds up no other: what is left of its offsets is tried in the next
        pass."""
        records: list[GroupLogRecord] = []
        checked = 0
        for group_id in [*self.groups, *self.consumers.groups, *self.streams.groups]:
            group = self.member_group(group_id)
            if group is None:
                continue
            checked += 1 + len(self.offsets.by_group.get(group_id, ()))
            found: list[GroupLogRecord] = []
            try:
                nothing_left = self.offsets.expire(group, self._clock.wall_ms(), found)
                if nothing_left and group.is_empty:
                    found += self.ending(group_id)
            except Exception:
                log.exception("the offsets of group %s could not be expired", group_id)
                continue
            records += found
            if checked >= _CHECKED_A_STEP:
                if not self._delete(records, now_ms):
                    break
                records, checked = [], 0
                yield
                if not self.partition.is_active:
                    return
        else:
            self._delete(records, now_ms)
        self._arm_expiration()

    def _delete(self, tombstones: list[GroupLogRecord], now_ms: int) -> bool:
        """Whether what has expired could be written."""
        if not tombstones:
            return True
        self._counters.offset_expirations.record(sum(isinstance(each, OffsetRecord) for each in tombstones), now_ms)
        error = self.partition.write_in_parts(tombstones).error
        if error is not None:
            log.warning(
                "partition %d of __consumer_offsets: expired offsets stay until the next check: %s",
                self.partition.index,
                error,
            )
        return error is None


def shard_of(runtime: CoordinatorRuntime[GroupShard], group_id: str, *, may_be_empty: bool = False) -> GroupShard:
    """The loaded shard of a group. Old clients that only store offsets use the empty id (KIP-289)."""
    if not group_id and not may_be_empty:
        raise ApiError(ErrorCode.INVALID_GROUP_ID)
    return runtime.shard_for(group_id)
