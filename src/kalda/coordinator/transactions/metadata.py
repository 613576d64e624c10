"""What is stored of one transactional id: its state, which state may follow which, and the transitions.

    Empty ──▶ Ongoing ──▶ PrepareCommit ──▶ CompleteCommit
                 │  └─────▶ PrepareAbort ───▶ CompleteAbort
                 └▶ PrepareEpochFence ─▲

From both Complete states the next transaction begins (Ongoing), or the producer is initialized anew (Empty). A client
of transactions version 2 may abort what has no partition yet, from Empty and both Complete states. An id that expires
becomes Dead. PrepareEpochFence lasts for one decision, in which the epoch is bumped and the abort begins; neither it
nor Dead is ever in a record.

A `TransactionMetadata` is a value. A transition makes the next value and checks that the new state may follow the old
one; a transition that may not is a fault of this program, and an assertion. Whether a client may demand a transition is
decided before, by `initializing` and `ending`.

Invariants: `partitions` is empty in the states Empty, CompleteCommit and CompleteAbort. `next_producer_id` is set only
in prepared states of version 2. This program writes `MAX_EPOCH` only in prepared states, and, before version 2, for an
abort that fenced the last usable epoch; so there is always an epoch left by which a producer can be fenced. Releases of
Apache Kafka before 4.3 may have left open transactions with `MAX_EPOCH` in the log: these are aborted with that epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from kalda.base.allocation import new_tuple
from kalda.base.errors import InvalidRequest
from kalda.protocol.messages.transaction_records import PartitionsSchema, TransactionLogKey, TransactionLogValue
from kalda.protocol.notation import Buffer
from kalda.protocol.record_framing import (
    decode_coordinator_key,
    decode_coordinator_value,
    encode_coordinator_record,
)


class TransactionState(IntEnum):
    """The number is that of the records of `__transaction_state`."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """The name in DescribeTransactions and ListTransactions."""
        return _LABELS[self]

    @property
    def is_prepared(self) -> bool:
        """The outcome is decided, and markers are being written."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_complete(self) -> bool:
        return self in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)

    @property
    def may_expire(self) -> bool:
        """No transaction is open, so the id is deleted when it has not been used for long."""
        return self is TransactionState.EMPTY or self.is_complete


_LABELS = {state: "".join(word.capitalize() for word in state.name.split("_")) for state in TransactionState}
STATE_BY_LABEL: Mapping[str, TransactionState] = MappingProxyType({label: state for state, label in _LABELS.items()})

_S = TransactionState
VALID_PREVIOUS: Mapping[TransactionState, frozenset[TransactionState]] = MappingProxyType(
    {
        _S.EMPTY: frozenset((_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT)),
        _S.ONGOING: frozenset((_S.ONGOING, _S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT)),
        _S.PREPARE_COMMIT: frozenset((_S.ONGOING,)),
        _S.PREPARE_ABORT: frozenset(
            (_S.ONGOING, _S.PREPARE_EPOCH_FENCE, _S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT)
        ),
        _S.COMPLETE_COMMIT: frozenset((_S.PREPARE_COMMIT,)),
        _S.COMPLETE_ABORT: frozenset((_S.PREPARE_ABORT,)),
        _S.DEAD: frozenset((_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT)),
        _S.PREPARE_EPOCH_FENCE: frozenset((_S.ONGOING,)),
    }
)
"""For each state those that it may follow, as in Apache Kafka."""


NO_PRODUCER_ID = -1
NO_EPOCH = -1
NO_TIME = -1
MAX_EPOCH = (1 << 15) - 1
NO_TIMEOUT_MS = (1 << 31) - 1
"""The timeout of a transaction with two-phase commit: it never times out."""
VERSION_1 = 1
"""From this transaction.version on, records are flexible (value version 1)."""
VERSION_2 = 2
"""From this version on, the epoch is bumped at the end of each transaction (KIP-890)."""

Partitions = Mapping[str, frozenset[int]]
NO_PARTITIONS: Partitions = MappingProxyType({})
"""Shared by all transactions without partitions."""


def is_epoch_exhausted(epoch: int) -> bool:
    """Whether no client may get a higher epoch of the same producer id. `MAX_EPOCH` is kept for fencing."""
    return epoch >= MAX_EPOCH - 1


class TransactionMetadata(NamedTuple):
    """The state of a transactional id. Never modified."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: Partitions = NO_PARTITIONS
    """Partition numbers by topic: where the transaction has, or may have, records."""
    start_ms: int = NO_TIME
    """When the first partition was added."""
    last_update_ms: int = NO_TIME
    previous_producer_id: int = NO_PRODUCER_ID
    """The producer id before the latest transition; another one than `producer_id` only after a rotation."""
    next_producer_id: int = NO_PRODUCER_ID
    """The id that the producer continues with when the transaction is complete, because epochs are exhausted."""
    last_epoch: int = NO_EPOCH
    """The epoch before the latest bump, where its producer may retry the request that bumped it. Not in records: after
    a load it is `NO_EPOCH`, and such a retry is fenced."""
    client_version: int = 0
    """The transaction.version that the latest transition was made with."""

    @property
    def is_epoch_exhausted(self) -> bool:
        return is_epoch_exhausted(self.producer_epoch)

    @property
    def bumps_epochs(self) -> bool:
        return self.client_version >= VERSION_2

    def holds(self, topic: str, partition: int) -> bool:
        """Whether the partition is in the transaction."""
        return partition in self.partitions.get(topic, ())

    def holds_all(self, partitions: Partitions) -> bool:
        """Whether all of them are in the transaction."""
        mine = self.partitions
        return all(topic in mine and added <= mine[topic] for topic, added in partitions.items())

    # -- transitions ---------------------------------------------------------------------------------------------

    def initialized(self, epoch: int, last_epoch: int, timeout_ms: int, now_ms: int) -> TransactionMetadata:
        """The producer begins, or continues after an error, with `epoch` of the same producer id."""
        assert epoch in (self.producer_epoch, self.producer_epoch + 1), "an epoch is bumped by one"
        return self._emptied(self.producer_id, epoch, last_epoch, timeout_ms, now_ms)

    def rotated(self, producer_id: int, last_epoch: int, timeout_ms: int, now_ms: int) -> TransactionMetadata:
        """The producer begins with epoch 0 of a new producer id: the epochs of the former one are exhausted."""
        return self._emptied(producer_id, 0, last_epoch, timeout_ms, now_ms)

    def _emptied(
        self, producer_id: int, epoch: int, last_epoch: int, timeout_ms: int, now_ms: int
    ) -> TransactionMetadata:
        return self._to(
            TransactionState.EMPTY,
            producer_id=producer_id,
            producer_epoch=epoch,
            last_epoch=last_epoch,
            timeout_ms=timeout_ms,
            partitions=NO_PARTITIONS,
            start_ms=NO_TIME,
            last_update_ms=now_ms,
        )

    def with_partitions(self, added: Partitions, client_version: int, now_ms: int) -> TransactionMetadata:
        """Partitions are added; the first ones begin the transaction."""
        begins = self.state is not TransactionState.ONGOING
        merged = dict(self.partitions)
        for topic, partitions in added.items():
            mine = merged.get(topic)
            merged[topic] = partitions if mine is None else mine | partitions
        return self._to(
            TransactionState.ONGOING,
            partitions=merged,
            start_ms=now_ms if begins else self.start_ms,
            last_update_ms=now_ms,
            client_version=client_version,
        )

    def fenced(self) -> TransactionMetadata:
        """The coordinator ends an open transaction in place of its producer; an abort follows at once."""
        return self._to(TransactionState.PREPARE_EPOCH_FENCE)

    def prepared(
        self, *, committed: bool, client_version: int, next_producer_id: int, now_ms: int
    ) -> TransactionMetadata:
        """The outcome is decided. In version 2 the epoch is bumped, which fences the producer's late records; where no
        epoch is left, only an abort is possible."""
        is_fence = self.state is TransactionState.PREPARE_EPOCH_FENCE
        bump = (client_version >= VERSION_2 or is_fence) and (committed or self.producer_epoch < MAX_EPOCH)
        if client_version >= VERSION_2:
            last_epoch = self.producer_epoch
        else:
            last_epoch = NO_EPOCH if is_fence else self.last_epoch
        begins = not self.partitions and self.state not in (
            TransactionState.ONGOING,
            TransactionState.PREPARE_EPOCH_FENCE,
        )
        assert self.producer_epoch + bump <= MAX_EPOCH, f"the epoch {self.producer_epoch} cannot be bumped"
        return self._to(
            TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT,
            producer_epoch=self.producer_epoch + bump,
            last_epoch=last_epoch,
            start_ms=now_ms if begins else self.start_ms,
            last_update_ms=now_ms,
            next_producer_id=next_producer_id,
            client_version=client_version,
        )

    def completed(self, now_ms: int) -> TransactionMetadata:
        """All markers are written. Where a new producer id was handed to the client, it takes the place of the old."""
        is_commit = self.state is TransactionState.PREPARE_COMMIT
        rotates = self.bumps_epochs and self.next_producer_id != NO_PRODUCER_ID
        return self._to(
            TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT,
            producer_id=self.next_producer_id if rotates else self.producer_id,
            producer_epoch=0 if rotates else self.producer_epoch,
            next_producer_id=NO_PRODUCER_ID,
            partitions=NO_PARTITIONS,
            last_update_ms=now_ms,
        )

    def _to(self, state: TransactionState, **changes: Any) -> TransactionMetadata:
        assert self.state in VALID_PREVIOUS[state], f"{state.label} does not follow {self.state.label}"
        return self._replace(state=state, previous_producer_id=self.producer_id, **changes)


# The records of `__transaction_state`, and their bytes.
#
# A value has version 0, or the flexible version 1 where transaction.version is 1 or more when it is written; both are
# read at any level. A record without a value is a tombstone: the id has expired.
#
# From version 1 on a value has the previous and the next producer id. By them a coordinator that takes over
# recognizes a client of version 2 that got a new producer id when the epochs of its former one were exhausted.

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


_DAY_MS = 86_400_000


class TransactionConfig(NamedTuple):
    """The broker configs of the transaction coordinator.

    Values of the broker keys named beside each field, with Kafka's defaults.
    """

    max_timeout_ms: int = 900_000  # transaction.max.timeout.ms
    abort_interval_ms: int = 10_000  # transaction.abort.timed.out.transaction.cleanup.interval.ms
    expiration_ms: int = 7 * _DAY_MS  # transactional.id.expiration.ms
    expiration_interval_ms: int = 3_600_000  # transaction.remove.expired.transaction.cleanup.interval.ms
    two_phase_commit: bool = False  # transaction.two.phase.commit.enable
    write_timeout_ms: int = 30_000  # request.timeout.ms

    @classmethod
    def from_properties(cls, values: Mapping[str, Any]) -> TransactionConfig:
        """From parsed broker configs; keys that are absent keep Kafka's defaults."""
        default = cls()

        def value(key: str, fallback: int) -> int:
            return int(values.get(key, fallback))

        return cls(
            max_timeout_ms=value("transaction.max.timeout.ms", default.max_timeout_ms),
            abort_interval_ms=value(
                "transaction.abort.timed.out.transaction.cleanup.interval.ms", default.abort_interval_ms
            ),
            expiration_ms=value("transactional.id.expiration.ms", default.expiration_ms),
            expiration_interval_ms=value(
                "transaction.remove.expired.transaction.cleanup.interval.ms", default.expiration_interval_ms
            ),
            two_phase_commit=bool(values.get("transaction.two.phase.commit.enable", default.two_phase_commit)),
            write_timeout_ms=value("request.timeout.ms", default.write_timeout_ms),
        )
