"""The records of `__transaction_state`, and their bytes.

A value has version 0, or the flexible version 1 where transaction.version is 1 or more when it is written; both are
read at any level. A record without a value is a tombstone: the id has expired.

From version 1 on a value has the previous and the next producer id. By them a coordinator that takes over recognizes a
client of version 2 that got a new producer id when the epochs of its former one were exhausted.
"""

from __future__ import annotations

from typing import NamedTuple, cast

from kalda.base.allocation import new_tuple
from kalda.base.errors import InvalidRequest
from kalda.coordinator.transactions.metadata import (
    NO_EPOCH,
    NO_PARTITIONS,
    VERSION_1,
    Partitions,
    TransactionMetadata,
    TransactionState,
)
from kalda.protocol.messages.transaction_records import PartitionsSchema, TransactionLogKey, TransactionLogValue
from kalda.protocol.notation import Buffer
from kalda.protocol.record_framing import (
    decode_coordinator_key,
    decode_coordinator_value,
    encode_coordinator_record,
)

_MODULE = "transaction_records"
_NEVER_STORED = (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE)
_STORED = {int(state): state for state in TransactionState if state not in _NEVER_STORED}


class TransactionRecord(NamedTuple):
    """The state of a transactional id, or with no value its end."""

    transactional_id: str
    value: TransactionMetadata | None


def encode_record(record: TransactionRecord, transaction_version: int) -> tuple[bytes, bytes | None]:
    """Key and value as they are appended at a level of transaction.version."""
    key = TransactionLogKey(transactional_id=record.transactional_id)
    metadata = record.value
    if metadata is None:
        return encode_coordinator_record(key, None)
    value = TransactionLogValue(
        producer_id=metadata.producer_id,
        producer_epoch=metadata.producer_epoch,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_status=metadata.state,
        transaction_partitions=None if metadata.state is TransactionState.EMPTY else _to_schema(metadata.partitions),
        transaction_last_update_timestamp_ms=metadata.last_update_ms,
        transaction_start_timestamp_ms=metadata.start_ms,
    )
    if transaction_version < VERSION_1:
        return encode_coordinator_record(key, value, 0)
    value.previous_producer_id = metadata.previous_producer_id
    value.next_producer_id = metadata.next_producer_id
    value.client_transaction_version = metadata.client_version
    return encode_coordinator_record(key, value, 1)


def decode_record(key: Buffer, value: Buffer | None) -> TransactionRecord:
    """The record that these bytes hold. Raises `UnknownRecordType` for a type or version of a later release, and
    `InvalidRequest` where the bytes, or what they hold, are malformed."""
    transactional_id = cast(TransactionLogKey, decode_coordinator_key(_MODULE, key)).transactional_id
    if value is None:
        return TransactionRecord(transactional_id, None)
    stored = cast(TransactionLogValue, decode_coordinator_value(_MODULE, 0, value).record)
    state = _STORED.get(stored.transaction_status)
    if state is None:
        raise InvalidRequest(f"a transaction has the state {stored.transaction_status}, which is never stored")
    partitions = stored.transaction_partitions
    if partitions and state is not TransactionState.EMPTY:
        held: Partitions = _from_schema(partitions)
    else:
        held = NO_PARTITIONS
    # In the order of the fields: a coordinator that takes over decodes 100,000 records before it serves.
    metadata = new_tuple(
        TransactionMetadata,
        (
            stored.producer_id,
            stored.producer_epoch,
            stored.transaction_timeout_ms,
            state,
            held,
            stored.transaction_start_timestamp_ms,
            stored.transaction_last_update_timestamp_ms,
            stored.previous_producer_id,
            stored.next_producer_id,
            NO_EPOCH,
            stored.client_transaction_version,
        ),
    )
    return new_tuple(TransactionRecord, (transactional_id, metadata))


def _to_schema(partitions: Partitions) -> list[PartitionsSchema]:
    return [PartitionsSchema(topic=topic, partition_ids=sorted(held)) for topic, held in partitions.items()]


def _from_schema(topics: list[PartitionsSchema]) -> Partitions:
    held: dict[str, frozenset[int]] = {}
    for each in topics:
        numbers = frozenset(each.partition_ids)
        held[each.topic] = held[each.topic] | numbers if each.topic in held else numbers
    return held
