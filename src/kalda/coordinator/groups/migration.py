"""A group with members turns from the classic protocol to that of KIP-848 and back, while it consumes.

    classic ──a member of the consumer protocol joins──▶ consumer ──only classic members are left──▶ classic

Both ways are one batch of records: what ends the group of the one kind, and what makes that of the other. A classic
group of generation n becomes a consumer group of epoch n, whose members have as target and as assignment what the
classic leader gave them; the member that joins raises the epoch. Back, the targets become the assignments of generation
n, and the group rebalances. `group.consumer.migration.policy` says which way is open; offsets stay either way.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

from kalda.assignors.consumer_protocol import (
    parse_assignment,
    parse_member_subscription,
    version_of,
    write_assignment,
)
from kalda.assignors.server_assignor import MemberPartitions
from kalda.base.errors import ApiError, ErrorCode, InvalidRequest
from kalda.base.ids import TopicPartition, Uuid
from kalda.base.scheduling import Pending
from kalda.coordinator.groups.classic_group import ClassicGroup, ClassicMember
from kalda.coordinator.groups.config import ConsumerSettings, GroupCoordinatorConfig
from kalda.coordinator.groups.consumer_group import ConsumerGroup, ConsumerMember
from kalda.coordinator.groups.rebalance import Rebalancer
from kalda.coordinator.groups.rebalance_history import Cause
from kalda.coordinator.groups.records import GroupLogRecord, GroupRecord
from kalda.coordinator.partition import CoordinatorPartition
from kalda.coordinator.timers import EventClock
from kalda.protocol.messages.group_records import ClassicMemberMetadata, ClassicProtocol

log = logging.getLogger(__name__)


class Migration:
    """Of the groups of one shard."""

    def __init__(
        self,
        partition: CoordinatorPartition[GroupLogRecord],
        config: GroupCoordinatorConfig,
        settings: ConsumerSettings,
        groups: Mapping[str, ClassicGroup],
        rebalancer: Rebalancer,
        clock: EventClock,
    ) -> None:
        """`groups` are the classic groups of the shard, by id."""
        self._partition = partition
        self._max_classic_size = config.max_group_size
        self._config = settings.config
        self._catalog = settings.catalog
        self._groups = groups
        self._rebalancer = rebalancer
        self._clock = clock

    # -- to a consumer group -------------------------------------------------------------------------------------

    def upgrade(self, group: ClassicGroup) -> list[GroupLogRecord]:
        """The records that make a consumer group of a classic group with members. Raises GROUP_ID_NOT_FOUND where the
        group cannot be upgraded."""
        refused = f"Cannot upgrade classic group {group.group_id} to consumer group because"
        if not self._config.allows_upgrade:
            raise _not_found(f"{refused} online upgrade is disabled.")
        if not group.uses_consumer_protocol:
            raise _not_found(f"{refused} the group does not use the consumer embedded protocol.")
        if len(group.members) > self._config.max_size:
            raise _not_found(f"{refused} the group size exceeds the consumer group maximum size.")
        try:
            members = [self._consumer_member(group, member) for member in group.members.values()]
        except InvalidRequest as error:
            log.warning("%s the embedded consumer protocol is malformed: %s", refused, error)
            raise _not_found(f"{refused} the embedded consumer protocol is malformed.") from error
        except _UserDataLost as error:
            raise _not_found(
                f"{refused} an unsupported custom assignor is in use. Please refer to the documentation or switch to a "
                "default assignor before re-attempting the upgrade."
            ) from error
        log.info("group %s: %d members of the classic group become a consumer group", group.group_id, len(members))
        return self._consumer_records(group, members)

    def _consumer_member(self, group: ClassicGroup, member: ClassicMember) -> ConsumerMember:
        """A member that has joined and never got an assignment has none."""
        assigned: dict[Uuid, dict[int, int]] = {}
        if member.assignment:
            partitions, user_data = parse_assignment(member.assignment)
            if user_data:
                raise _UserDataLost
            for name, partition in partitions:
                found = self._catalog.shape_of(name)
                if found is not None and partition < found[1].partitions:
                    assigned.setdefault(found[0], {})[partition] = group.generation
        # The subscription is the same whatever the protocol. A group in its first rebalance has not chosen one yet.
        subscriptions = dict(member.protocols)
        data = subscriptions.get(group.protocol_name or "", member.protocols[0][1])
        subscription = parse_member_subscription(data)
        return ConsumerMember(
            member.member_id,
            epoch=group.generation,
            previous_epoch=group.generation,
            instance_id=member.instance_id,
            rack=subscription.rack,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            client_id=member.client_id,
            client_host=member.client_host,
            topics=frozenset(subscription.topics),
            assigned=assigned,
            classic=classic_metadata(member.session_timeout_ms, member.protocols),
        )

    def _consumer_records(self, group: ClassicGroup, members: list[ConsumerMember]) -> list[GroupLogRecord]:
        made = ConsumerGroup(group.group_id, self._partition.registry)
        metadata_hash = self._catalog.hash_of({name for member in members for name in member.topics})
        return [
            GroupRecord(group.group_id, None),
            *map(made.member_record, members),
            made.epoch_record(group.generation, metadata_hash),
            *(
                made.target_record(member.member_id, {each: frozenset(held) for each, held in member.assigned.items()})
                for member in members
            ),
            made.target_epoch_record(group.generation, 0),
            *map(made.assignment_record, members),
        ]

    # -- to a classic group --------------------------------------------------------------------------------------

    def downgrade(self, group: ConsumerGroup, leaving: Collection[str], cause: Cause) -> Pending[None] | None:
        """Make a classic group of one that has only members of the classic protocol left without those in `leaving`,
        and let it rebalance. None, and nothing is done, where others are left, or no member, or that way is not open.
        `cause`: why they leave."""
        if not self.is_due(group, leaving):
            return None
        return self._to_classic(group, leaving, cause)

    def downgrade_replaced(self, group: ConsumerGroup) -> None:
        """As `downgrade`, where a static member of the classic protocol has just taken the place of the last one of the
        consumer protocol. It rebalances where the target is not of the group's epoch. Raises `ApiError`."""
        cause = None
        if group.epochs.assignment < group.epochs.group:
            cause = Cause("the last member of the consumer protocol was replaced")
        outcome = self._to_classic(group, (), cause) if self.is_due(group, ()) else None
        if outcome is not None and outcome.error is not None:
            raise outcome.error

    def is_due(self, group: ConsumerGroup, leaving: Collection[str]) -> bool:
        """Whether a group without the members in `leaving` becomes a classic group."""
        if group.classic_count < len(group.members) - len(leaving):
            return False
        left = [member for member_id, member in group.members.items() if member_id not in leaving]
        if not left or any(member.classic is None for member in left):
            return False
        if not self._config.allows_downgrade:
            log.info("group %s: stays a consumer group: online downgrade is disabled", group.group_id)
            return False
        if len(left) > self._max_classic_size:
            log.info("group %s: stays a consumer group: it has more members than group.max.size", group.group_id)
            return False
        return bool(_common_protocols(left))

    def _to_classic(self, group: ConsumerGroup, leaving: Collection[str], cause: Cause | None) -> Pending[None]:
        members = [
            self._classic_member(member, group.target(member_id))
            for member_id, member in group.members.items()
            if member_id not in leaving
        ]
        made = ClassicGroup.of_members(group.group_id, group.epochs.group, members, self._clock.wall_ms())
        outcome = self._partition.write([*group.tombstones(), GroupRecord(group.group_id, made.to_record())])
        if outcome.error is None:
            log.info("group %s: %d members of the consumer group are a classic group", group.group_id, len(members))
            live = self._groups[group.group_id]
            live.take_protocols(made)
            if cause is not None:
                self._rebalancer.prepare(live, cause)
        return outcome

    def _classic_member(self, member: ConsumerMember, target: MemberPartitions) -> ClassicMember:
        assert member.classic is not None
        protocols = tuple((each.name, bytes(each.metadata)) for each in member.classic.supported_protocols)
        return ClassicMember(
            member.member_id,
            instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            session_timeout_ms=member.classic.session_timeout_ms,
            protocols=protocols,
            assignment=self.encode_assignment(member, target),
        )

    def encode_assignment(self, member: ConsumerMember, partitions: Mapping[Uuid, Iterable[int]]) -> bytes:
        """Partitions as a member of the classic protocol reads them, in the version of its subscription. Topics that do
        not exist are left out."""
        assert member.classic is not None
        name_of = self._catalog.name_of
        named = [
            TopicPartition(name, partition)
            for topic_id, numbers in partitions.items()
            if (name := name_of(topic_id)) is not None
            for partition in sorted(numbers)
        ]
        try:
            version = version_of(member.classic.supported_protocols[0].metadata)
        except InvalidRequest:  # it came with the log of another coordinator, which has not read it
            version = 0
        return write_assignment(named, version)


class _UserDataLost(Exception):
    """An assignor's own bytes in an assignment would not survive."""


def classic_metadata(session_timeout_ms: int, protocols: Iterable[tuple[str, bytes]]) -> ClassicMemberMetadata:
    """What a consumer group keeps of a member of the classic protocol."""
    return ClassicMemberMetadata(
        session_timeout_ms=session_timeout_ms,
        supported_protocols=[ClassicProtocol(name=name, metadata=metadata) for name, metadata in protocols],
    )


def _common_protocols(members: Iterable[ConsumerMember]) -> set[str]:
    common: set[str] | None = None
    for member in members:
        assert member.classic is not None
        names = {protocol.name for protocol in member.classic.supported_protocols}
        common = names if common is None else common & names
    return common or set()


def _not_found(message: str) -> ApiError:
    log.info("%s", message)
    return ApiError(ErrorCode.GROUP_ID_NOT_FOUND, message)
