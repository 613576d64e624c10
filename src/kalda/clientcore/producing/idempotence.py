"""Sequence numbers of an idempotent producer (KIP-98), and what repairs them after a failure (KIP-360).

A producer has an id and an epoch; each batch of a partition has the sequence number of its first record, set when it is
drained, and the broker accepts a batch only behind the one before it. So a batch that is sent again is not written
twice, and no batch is written before an earlier one.

    next_request(now)             InitProducerId, while there is no producer id
    number(batch)                 the first batch of a queue gets its number, where it may be sent now
    on_acked, on_failed           a batch is done
    may_retry(batch, ...)         whether an error of the sequence is worth another attempt

Where a gap in a partition's sequence cannot be closed, the epoch is incremented (without a request; a new id is fetched
after the last epoch), and the partition's batches in flight are numbered from 0 in the new epoch.

Invariants: batches of a partition in flight are in the order of their sequence numbers, at most five; a batch keeps its
number through all of its retries unless the partition's sequence begins anew.
"""

from __future__ import annotations

import logging
from typing import Protocol

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.clientcore.connections.errors import refused
from kalda.clientcore.producing.producer_batch import ProducerBatch
from kalda.protocol.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from kalda.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, advance_sequence

log = logging.getLogger(__name__)
DENIED = frozenset((ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
"""Errors of InitProducerId that end with a right: the producer goes on then."""
_LAST_EPOCH = 2**15 - 1
_NO_TIMEOUT_MS = 2**31 - 1


class Numbering(Protocol):
    """What the accumulator asks of idempotence, or of transactions."""

    def number(self, first: ProducerBatch) -> bool:
        """Give the first batch of a partition's queue its sequence number, unless it has one. False: it may not be
        sent now."""
        ...

    def admit(self, partition: TopicPartition) -> None:
        """A record is about to be appended. Raises `ApiError` where that is not allowed now."""
        ...

    @property
    def is_completing(self) -> bool:
        """A transaction is being ended: send all batches now."""
        ...


class _Sequence:
    """One partition's."""

    __slots__ = ("epoch", "in_flight", "last_acked", "last_acked_offset", "next", "producer_id")

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.next = 0
        """The number of the next new batch."""
        self.last_acked = -1
        """The last sequence number that the broker has acknowledged; -1: none."""
        self.last_acked_offset = -1
        self.in_flight: list[ProducerBatch] = []
        """Numbered batches that are not done, in the order of their numbers; those that wait for a retry included."""


class Idempotence:
    """The sequence numbers of one producer."""

    is_transactional = False

    def __init__(self) -> None:
        self.producer_id = NO_PRODUCER_ID
        self.epoch = NO_PRODUCER_EPOCH
        self.fatal_error: ApiError | None = None
        """The producer may not write at all."""
        self._denied: ApiError | None = None
        """The last request for a producer id was not authorized. The next one may be."""
        self._sequences: dict[TopicPartition, _Sequence] = {}
        self._unresolved: dict[TopicPartition, int] = {}
        """Partitions where it is not known whether a batch was written, with the number after it."""
        self._to_rewrite: set[TopicPartition] = set()
        """Partitions whose sequence begins anew with the next epoch."""
        self._bump_requested = False
        self._init_in_flight = False

    @property
    def is_completing(self) -> bool:
        """Never: there is no transaction."""
        return False

    @property
    def has_producer_id(self) -> bool:
        """Whether batches can be numbered."""
        return self.producer_id != NO_PRODUCER_ID

    @property
    def max_produce_version(self) -> int | None:
        """The highest version of Produce to use; None: any."""
        return None

    def admit(self, partition: TopicPartition) -> None:
        """Any record may be appended at any time."""

    # -- the producer's id

    @property
    def needs_request(self) -> bool:
        """Whether there is no producer id, and no request for one in flight."""
        return not self.has_producer_id and not self._init_in_flight and self.fatal_error is None

    def next_request(self) -> InitProducerIdRequest | None:
        """The request for a producer id, where one is needed."""
        if not self.needs_request:
            return None
        self._init_in_flight = True
        return InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=_NO_TIMEOUT_MS)

    def on_producer_id(self, response: InitProducerIdResponse | None) -> bool:
        """The response to `next_request`, or None. False: it has to be sent again, after a pause."""
        self._init_in_flight = False
        if response is None:
            return False
        code = ErrorCode(response.error_code)
        if code is ErrorCode.NONE:
            self.producer_id, self.epoch = response.producer_id, response.producer_epoch
            log.debug("producer id %d, epoch %d", self.producer_id, self.epoch)
            return True
        if code.retriable:
            return False
        error = refused(code, "the cluster gives this producer no producer id")
        if code in DENIED:
            self._denied = error
        else:
            self.fatal_error = error
        return True

    def take_refusal(self) -> ApiError | None:
        """Why the batches that wait for a producer id cannot be sent."""
        denied, self._denied = self._denied, None
        return self.fatal_error or denied

    def _request_bump(self, partition: TopicPartition) -> None:
        self._bump_requested = True
        self._to_rewrite.add(partition)

    def run(self) -> None:
        """Resolve what can be resolved, and increment the epoch where that was found necessary."""
        if self._unresolved:
            self._resolve()
        if not self._bump_requested:
            return
        self._bump_requested = False
        if self.epoch == _LAST_EPOCH:
            self.producer_id, self.epoch = NO_PRODUCER_ID, NO_PRODUCER_EPOCH
        else:
            self.epoch += 1
        for partition in self._to_rewrite:
            self._begin_anew(partition)
            self._unresolved.pop(partition, None)
        self._to_rewrite.clear()

    def _resolve(self) -> None:
        for partition in list(self._unresolved):
            sequence = self._sequences[partition]
            if not sequence.in_flight:
                if not self._is_next(sequence, sequence.next):
                    log.info("%s: the last batches may not have been written: the epoch is incremented", partition)
                    self._request_bump(partition)
                del self._unresolved[partition]

    def _begin_anew(self, partition: TopicPartition) -> None:
        """Number the partition's batches in flight from 0 on, in the current epoch."""
        sequence = self._sequences[partition]
        sequence.producer_id, sequence.epoch = self.producer_id, self.epoch
        sequence.next, sequence.last_acked = 0, -1
        for batch in sequence.in_flight:
            batch.set_producer(self.producer_id, self.epoch, sequence.next, self.is_transactional)
            batch.sequence_was_reset = True
            sequence.next = advance_sequence(sequence.next, batch.count)
        if not self.has_producer_id:
            # Numbered when the new id is known: without one they must not be sent.
            for batch in sequence.in_flight:
                batch.base_sequence = NO_SEQUENCE
            sequence.in_flight.clear()
            sequence.next = 0

    # -- draining

    def number(self, first: ProducerBatch) -> bool:
        """Give the first batch of a partition's queue its sequence number, unless it has one. False: it may not be
        sent now."""
        producer_id, epoch, partition = self.producer_id, self.epoch, first.topic_partition
        if producer_id == NO_PRODUCER_ID or self.fatal_error is not None:
            return False
        sequence = self._sequences.get(partition)
        if sequence is None:
            sequence = self._sequences[partition] = _Sequence(producer_id, epoch)
        in_flight = sequence.in_flight
        if first.base_sequence != NO_SEQUENCE:
            # A batch that is sent again goes alone, after all those before it are done.
            return not in_flight or in_flight[0] is first
        is_stale = sequence.epoch != epoch or sequence.producer_id != producer_id
        # A first batch of the new epoch must not be written before those of the old one.
        if partition in self._unresolved or (in_flight and (is_stale or in_flight[0].in_retry)):
            return False
        if is_stale:
            sequence.producer_id, sequence.epoch = producer_id, epoch
            sequence.next, sequence.last_acked = 0, -1
        first.set_producer(producer_id, epoch, sequence.next, self.is_transactional)
        sequence.next = advance_sequence(sequence.next, first.count)
        in_flight.append(first)
        return True

    # -- results

    def on_acked(self, batch: ProducerBatch, base_offset: int) -> None:
        """The batch is in the log."""
        sequence = self._sequences[batch.topic_partition]
        if batch.producer_id == sequence.producer_id and batch.producer_epoch == sequence.epoch:
            last = batch.last_sequence
            if last > sequence.last_acked:
                sequence.last_acked = last
        last_offset = base_offset + batch.count - 1
        if base_offset >= 0 and last_offset > sequence.last_acked_offset:
            sequence.last_acked_offset = last_offset
        self._remove(sequence, batch)

    def on_failed(self, batch: ProducerBatch, code: ErrorCode, was_surely_refused: bool) -> None:
        """The batch has failed for good. `was_surely_refused`: the broker has answered, and has not written it."""
        sequence = self._sequences.get(batch.topic_partition)
        if sequence is None or not batch.has_sequence:
            return
        self._remove(sequence, batch)
        if code is ErrorCode.UNKNOWN_PRODUCER_ID:
            sequence.next, sequence.last_acked = 0, -1
        elif code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER or was_surely_refused:
            self._request_bump(batch.topic_partition)

    def on_split(self, batch: ProducerBatch, parts: list[ProducerBatch]) -> None:
        """The batch was too large. Its parts get its numbers: the broker has not written it."""
        sequence = self._sequences.get(batch.topic_partition)
        if sequence is None or not batch.has_sequence:
            return
        number = batch.base_sequence
        for part in parts:
            part.set_producer(batch.producer_id, batch.producer_epoch, number, batch.is_transactional)
            number = advance_sequence(number, part.count)
        at = sequence.in_flight.index(batch)
        sequence.in_flight[at : at + 1] = parts

    def on_expired(self, batch: ProducerBatch) -> None:
        """The batch's time is over, and it may have been written: nothing new is sent to the partition until the
        batches in flight show whether it was."""
        sequence = self._sequences.get(batch.topic_partition)
        if sequence is None or not batch.has_sequence:
            return
        self._remove(sequence, batch)
        after = advance_sequence(batch.last_sequence, 1)
        self._unresolved[batch.topic_partition] = max(after, self._unresolved.get(batch.topic_partition, 0))

    def may_retry(self, batch: ProducerBatch, code: ErrorCode, log_start_offset: int) -> bool:
        """Whether an error of the sequence may be mended by sending the batch again; may request a new epoch."""
        partition = batch.topic_partition
        sequence = self._sequences.get(partition)
        if sequence is None:
            return False
        if code is ErrorCode.UNKNOWN_PRODUCER_ID:
            if log_start_offset >= 0 and not batch.sequence_was_reset:
                self._request_bump(partition)
            return True
        if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            unresolved = self._unresolved.get(partition)
            is_next = self._is_next(sequence, batch.base_sequence)
            if unresolved is None and (batch.sequence_was_reset or not is_next):
                return True
            if unresolved is None or batch.base_sequence == unresolved:
                self._request_bump(partition)
            return True
        return False

    def _is_next(self, sequence: _Sequence, number: int) -> bool:
        return number == (0 if sequence.last_acked < 0 else advance_sequence(sequence.last_acked, 1))

    @staticmethod
    def _remove(sequence: _Sequence, batch: ProducerBatch) -> None:
        if batch in sequence.in_flight:
            sequence.in_flight.remove(batch)
