"""The records of `__share_group_state`, and the key of a share partition out of its text.

A ShareSnapshot has all of a share partition's state; without a value it is a tombstone. A ShareUpdate adds to what the
snapshot before it has, and names it by its snapshot epoch. Both have the same fields in their keys.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol, cast

from kalda.base.errors import ApiError, InvalidRequest
from kalda.base.ids import uuid_from_text
from kalda.base.scheduling import Pending
from kalda.base.share_states import SharePartitionKey, StateBatch
from kalda.protocol.messages.share_records import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareSnapshotValueStateBatch,
    ShareUpdateKey,
    ShareUpdateValue,
    ShareUpdateValueStateBatch,
)
from kalda.protocol.notation import Buffer
from kalda.protocol.record_framing import (
    decode_coordinator_key,
    decode_coordinator_value,
    encode_coordinator_record,
)

_MODULE = "share_records"
_MAX_PARTITION = (1 << 31) - 1


def share_partition_key(text: str) -> SharePartitionKey:
    """The inverse of `coordinator_key`. Group ids may have colons. Raises `InvalidRequest`."""
    try:
        group_id, topic_id, partition = text.rsplit(":", 2)
        key = SharePartitionKey(group_id, uuid_from_text(topic_id), int(partition))
    except ValueError:
        raise InvalidRequest(f"Share coordinator key {text[:400]!r} is not groupId:topicId:partition") from None
    if not group_id.strip() or abs(key.partition) > _MAX_PARTITION:
        raise InvalidRequest(f"Share coordinator key {text[:400]!r} has no group id, or no number of a partition")
    return key


class ShareRecord(NamedTuple):
    """A snapshot or an update of a share partition's state; with no value its end."""

    key: SharePartitionKey
    value: ShareSnapshotValue | ShareUpdateValue | None


def encode_record(record: ShareRecord) -> tuple[bytes, bytes | None]:
    """Key and value as they are appended."""
    group_id, topic_id, partition = record.key
    cls = ShareUpdateKey if isinstance(record.value, ShareUpdateValue) else ShareSnapshotKey
    return encode_coordinator_record(cls(group_id=group_id, topic_id=topic_id, partition=partition), record.value)


def decode_record(key: Buffer, value: Buffer | None) -> ShareRecord:
    """The record that these bytes hold. Raises `UnknownRecordType` for a type or version of a later release, and
    `InvalidRequest` where the bytes, or what they hold, are malformed."""
    stored = cast(ShareSnapshotKey | ShareUpdateKey, decode_coordinator_key(_MODULE, key))
    found = SharePartitionKey(stored.group_id, stored.topic_id, stored.partition)
    if value is None:
        if isinstance(stored, ShareUpdateKey):
            raise InvalidRequest("a share update has no value")
        return ShareRecord(found, None)
    held = decode_coordinator_value(_MODULE, stored.RECORD_TYPE, value).record
    record = ShareRecord(found, cast(ShareSnapshotValue | ShareUpdateValue, held))
    check_batches(batches_of(record.value))
    return record


def batches_of(value: ShareSnapshotValue | ShareUpdateValue | None) -> list[StateBatch]:
    """The state batches of a record, as they are stored."""
    return [
        StateBatch(batch.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count)
        for batch in ([] if value is None else value.state_batches)
    ]


def check_batches(batches: list[StateBatch]) -> None:
    """Raises `InvalidRequest` where a batch ends before it begins."""
    for batch in batches:
        if not 0 <= batch.first_offset <= batch.last_offset:
            raise InvalidRequest(
                f"A state batch has the offsets {batch.first_offset} to {batch.last_offset}, which are no range."
            )


def snapshot_batches(batches: tuple[StateBatch, ...]) -> list[ShareSnapshotValueStateBatch]:
    """State batches, as a snapshot stores them."""
    return [
        ShareSnapshotValueStateBatch(
            first_offset=first, last_offset=last, delivery_state=delivery_state, delivery_count=count
        )
        for first, last, delivery_state, count in batches
    ]


def update_batches(batches: tuple[StateBatch, ...]) -> list[ShareUpdateValueStateBatch]:
    """State batches, as an update stores them."""
    return [
        ShareUpdateValueStateBatch(
            first_offset=first, last_offset=last, delivery_state=delivery_state, delivery_count=count
        )
        for first, last, delivery_state, count in batches
    ]


# What the group coordinator asks of the share coordinator: state of partitions begins, ends, and is summed up.


class StateSummary(NamedTuple):
    """How far a group is with a partition."""

    start_offset: int
    leader_epoch: int
    delivery_complete_count: int


class ShareStates(Protocol):
    """The share coordinator, wherever it is (`kalda.broker.channels.share_persister`). Nothing fails as a whole."""

    def initialize(
        self, offsets: Mapping[SharePartitionKey, int], state_epoch: int
    ) -> Pending[dict[SharePartitionKey, ApiError | None]]:
        """Begin the state of partitions, each at an offset; the error of each."""
        ...

    def delete(self, keys: Collection[SharePartitionKey]) -> Pending[dict[SharePartitionKey, ApiError | None]]:
        """End the state of partitions; the error of each."""
        ...

    def summarize(
        self, keys: Collection[SharePartitionKey]
    ) -> Pending[dict[SharePartitionKey, StateSummary | ApiError]]:
        """The state of partitions, or the error of each."""
        ...


class LatestOffsets(Protocol):
    """The ends of partitions, wherever they are led (`kalda.broker.handlers.share_coordinators`)."""

    def find(self, partitions: Collection[tuple[str, int]]) -> Pending[dict[tuple[str, int], int | ApiError]]:
        """The end that consumers see of each, or its error."""
        ...
