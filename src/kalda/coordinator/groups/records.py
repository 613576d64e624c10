"""The records of `__consumer_offsets` that the coordinator reads and writes, and their bytes.

There are three: an offset commit, a classic group's checkpoint, and a record of a group of another kind. A record
without a value is a tombstone.

Value versions are those that Apache Kafka 4.3 writes, so that it can take the log over: an offset commit is version
4 (the topic id is its tagged field), or 1 where the client set a retention time, since only that version has an
expiry; a group is version 3, the last before flexible versions, which older releases also read.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias, cast

from kalda.base.errors import ApiError, ErrorCode, InvalidRequest
from kalda.base.ids import ZERO_UUID, Uuid
from kalda.protocol.messages.group_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMetadataKey,
    GroupMetadataKey,
    GroupMetadataValue,
    LegacyOffsetCommitKey,
    LegacyOffsetCommitValue,
    OffsetCommitKey,
    OffsetCommitValue,
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupMemberMetadataKey,
    ShareGroupMetadataKey,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMetadataKey,
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMetadataKey,
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTopologyKey,
)
from kalda.protocol.notation import Buffer, RecordBody
from kalda.protocol.record_framing import (
    decode_coordinator_key,
    decode_coordinator_value,
    encode_coordinator_record,
)

OFFSET_VALUE_VERSION = 4
OFFSET_VALUE_VERSION_WITH_EXPIRY = 1
GROUP_VALUE_VERSION = 3
NO_EXPIRY = -1
_CONSUMER_KEYS: Final[frozenset[type[RecordBody]]] = frozenset(
    {
        ConsumerGroupCurrentMemberAssignmentKey,
        ConsumerGroupMemberMetadataKey,
        ConsumerGroupMetadataKey,
        ConsumerGroupPartitionMetadataKey,
        ConsumerGroupRegularExpressionKey,
        ConsumerGroupTargetAssignmentMemberKey,
        ConsumerGroupTargetAssignmentMetadataKey,
    }
)
"""The keys of records of consumer groups."""
SHARE_KEYS: Final[frozenset[type[RecordBody]]] = frozenset(
    {
        ShareGroupCurrentMemberAssignmentKey,
        ShareGroupMemberMetadataKey,
        ShareGroupMetadataKey,
        ShareGroupStatePartitionMetadataKey,
        ShareGroupTargetAssignmentMemberKey,
        ShareGroupTargetAssignmentMetadataKey,
    }
)
"""The keys of records of share groups."""
STREAMS_KEYS: Final[frozenset[type[RecordBody]]] = frozenset(
    {
        StreamsGroupCurrentMemberAssignmentKey,
        StreamsGroupMemberMetadataKey,
        StreamsGroupMetadataKey,
        StreamsGroupTargetAssignmentMemberKey,
        StreamsGroupTargetAssignmentMetadataKey,
        StreamsGroupTopologyKey,
    }
)
"""The keys of records of streams groups."""
_OF_KINDS: Final[frozenset[type[RecordBody]]] = _CONSUMER_KEYS | SHARE_KEYS | STREAMS_KEYS
"""Keys of records of all kinds of groups, beside the classic one."""
NO_LEADER_EPOCH = -1


class CommittedOffset(NamedTuple):
    """What was committed for a partition."""

    offset: int
    leader_epoch: int
    """Of the last record consumed, `NO_LEADER_EPOCH` where the client gave none."""
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int
    """By the client's own retention time (versions 2 to 4 of OffsetCommit), `NO_EXPIRY` without one."""
    topic_id: Uuid
    """Zero where the record that was read has none."""
    record_offset: int = -1
    """That of the record in `__consumer_offsets`, -1 before it is replayed."""


class OffsetRecord(NamedTuple):
    """A commit, or with no value its tombstone. Keyed by group, topic and partition."""

    group_id: str
    topic: str
    partition: int
    value: CommittedOffset | None


class GroupRecord(NamedTuple):
    """A classic group's checkpoint, or with no value its end."""

    group_id: str
    value: GroupMetadataValue | None


class KindRecord(NamedTuple):
    """A record of a group of another kind than the classic one."""

    group_id: str
    key: RecordBody
    value: RecordBody | None


GroupLogRecord: TypeAlias = OffsetRecord | GroupRecord | KindRecord


MAX_GROUP_BYTES = 16 * 1024 * 1024
"""What the members of a group may have in metadata and assignments. `max.message.bytes` allows 1 MB by default; to find
out that 95 MB are too many by encoding them would hold the event loop for half a second."""


def encode_record(record: GroupLogRecord) -> tuple[bytes, bytes | None]:
    """Key and value as they are appended. Raises `ApiError` for a group that is too large."""
    if type(record) is OffsetRecord:
        key = OffsetCommitKey(group=record.group_id, topic=record.topic, partition=record.partition)
        committed = record.value
        if committed is None:
            return encode_coordinator_record(key, None)
        value = OffsetCommitValue(
            offset=committed.offset,
            leader_epoch=committed.leader_epoch,
            metadata=committed.metadata,
            commit_timestamp=committed.commit_timestamp_ms,
            expire_timestamp=committed.expire_timestamp_ms,
            topic_id=committed.topic_id,
        )
        expires = committed.expire_timestamp_ms != NO_EXPIRY
        return encode_coordinator_record(
            key, value, OFFSET_VALUE_VERSION_WITH_EXPIRY if expires else OFFSET_VALUE_VERSION
        )
    if type(record) is GroupRecord:
        members = () if record.value is None else record.value.members
        if sum(len(each.subscription) + len(each.assignment) for each in members) > MAX_GROUP_BYTES:
            raise ApiError(
                ErrorCode.RECORD_LIST_TOO_LARGE, f"group {record.group_id} has more than {MAX_GROUP_BYTES} bytes"
            )
        return encode_coordinator_record(GroupMetadataKey(group=record.group_id), record.value, GROUP_VALUE_VERSION)
    kind = cast(KindRecord, record)
    return encode_coordinator_record(kind.key, kind.value)


def decode_record(key: Buffer, value: Buffer | None) -> GroupLogRecord:
    """The record that these bytes hold. Raises `UnknownRecordType` for a type or version of a later release, and
    `InvalidRequest` where the bytes, or what they hold, are malformed."""
    decoded_key = decode_coordinator_key("group_records", key)
    if isinstance(decoded_key, OffsetCommitKey | LegacyOffsetCommitKey):
        return OffsetRecord(
            decoded_key.group,
            decoded_key.topic,
            decoded_key.partition,
            None if value is None else _decode_offset(decoded_key.RECORD_TYPE, value),
        )
    if isinstance(decoded_key, GroupMetadataKey):
        return GroupRecord(decoded_key.group, None if value is None else _decode_group(value))
    group_id = getattr(decoded_key, "group_id", "")
    assert type(decoded_key) in _OF_KINDS, decoded_key
    body = None if value is None else decode_coordinator_value("group_records", decoded_key.RECORD_TYPE, value).record
    return KindRecord(group_id, decoded_key, body)


def _decode_group(value: Buffer) -> GroupMetadataValue:
    """A group cannot be made of a checkpoint whose members are not distinct."""
    group = cast(GroupMetadataValue, decode_coordinator_value("group_records", 2, value).record)
    members = group.members
    instances = [member.group_instance_id for member in members if member.group_instance_id is not None]
    if len({member.member_id for member in members}) < len(members) or len(set(instances)) < len(instances):
        raise InvalidRequest("a group has two members of one id")
    return group


def _decode_offset(record_type: int, value: Buffer) -> CommittedOffset:
    stored = decode_coordinator_value("group_records", record_type, value).record
    if isinstance(stored, LegacyOffsetCommitValue):
        return CommittedOffset(
            stored.offset, NO_LEADER_EPOCH, stored.metadata, stored.commit_timestamp, NO_EXPIRY, ZERO_UUID
        )
    assert isinstance(stored, OffsetCommitValue)
    return CommittedOffset(
        stored.offset,
        stored.leader_epoch,
        stored.metadata,
        stored.commit_timestamp,
        stored.expire_timestamp,
        stored.topic_id,
    )
