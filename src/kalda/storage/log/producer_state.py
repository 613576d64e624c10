"""The producers of a log: sequences for idempotence, open transactions for isolation (KIP-98, KIP-890).

Per producer id: its epoch, its last five batches (a producer has at most five in flight, so a retried one is always
among them), and where its open transaction began. Sequences are checked in the leader, when a client's batch comes;
replicas apply what the leader has appended.

Transactions: the last stable offset is not above the first offset of an open one. Nor is it above that of a completed
one before the marker is below the high watermark ("unreplicated"), because a new leader may not have the marker.
Snapshots do not have those. So the producers are read from a snapshot below the high watermark, and the batches after
it, where a marker above the high watermark is in the log.

Invariants: `map_end_offset` is the offset up to which batches have been applied; a snapshot file holds the state at
exactly its offset; the keys of `_ongoing` are first offsets, in rising order.

A log may have millions of producers. What takes time for each of them is not done at once: `freeze` sets the state
aside for a job that writes it to a snapshot, and `expire` goes on where it stopped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heappop, heappush
from itertools import islice
from typing import NamedTuple, Protocol

from kalda.base.disk import Buffer
from kalda.base.errors import ApiError, CorruptRecord, ErrorCode
from kalda.protocol.messages.log_records import EndTxnMarker
from kalda.records.batch import MAX_INT32, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, BatchHeader
from kalda.records.control import ControlType, read_control_batch
from kalda.storage.log.txn_index import AbortedTxn, TxnIndex
from kalda.storage.values import AppendOrigin

# How many producer ids the logs of a node hold together: at `kalda.producer.ids.max` the oldest make room.
#
# A log holds about half a kilobyte for each producer that has written to it, until it expires: any client may send
# batches with as many producer ids as it likes. Apache Kafka has no limit, and runs out of memory.
#
# Above the limit a client's first batch of a new id releases ids of the log that has most of them, those first that
# have written to it least lately: they expire earlier than `producer.id.expiration.ms`. So who writes with very many
# ids releases its own. A producer whose id was released goes on with any sequence, as after its expiry. Ids with an
# open transaction are never released. Only where nothing can be released is the batch refused, with POLICY_VIOLATION:
# clients report that error and its message to the application for this batch and go on, where an epoch error would
# have them request new epochs or ids again and again, and a retriable one would keep the message from the
# application. Replicas and transaction markers are never refused, so the ids held may exceed the limit.

log = logging.getLogger("kalda.logs")

_GRANTED_AT_ONCE = 10_000
"""New ids between two counts over all logs."""
_REFUSED_AT_ONCE = 1_000
"""Refusals between two counts, unless some ids are released."""
_LOGS_AT_ONCE = 10
"""So many logs are asked to release ids after a count, those with most ids first."""


class Producers(Protocol):
    """Those of one log."""

    @property
    def log_name(self) -> str: ...

    @property
    def held(self) -> int: ...

    def release_oldest(self) -> int:
        """Release some ids, if there are any without an open transaction; how many."""
        ...


class ProducerIdLimit:
    """One node's. Belongs to the thread of the logs."""

    __slots__ = ("_free", "_logs", "_refusals", "limit")

    def __init__(self, limit: int, logs: Callable[[], Iterable[Producers]]) -> None:
        """`logs` returns the producers of each log."""
        self.limit = limit
        self._logs = logs
        self._free = 0
        """New ids that may be taken before the next count."""
        self._refusals = 0
        """New ids that were refused since the last count; 0: the next one is counted for first."""

    def check(self, producer_id: int, log_name: str) -> None:
        """A client's batch has a new id. Raises POLICY_VIOLATION where the logs hold too many, and can release none."""
        if self._free <= 0 and self._refusals % _REFUSED_AT_ONCE == 0:
            self._recount()
        if self._free > 0:
            self._free -= 1
            return
        self._refusals += 1
        raise ApiError(
            ErrorCode.POLICY_VIOLATION,
            f"producer id {producer_id} is new in {log_name}, and the logs of this broker hold kalda.producer.ids.max="
            f"{self.limit} producer ids already, all with an open transaction or being written to a snapshot: raise "
            "that limit, or send the batch again later",
        )

    def on_released(self) -> None:
        """Some ids have expired, or their log was deleted."""
        self._free = self._refusals = 0

    def _recount(self) -> None:
        logs = sorted(self._logs(), key=lambda each: each.held, reverse=True)
        held = sum(each.held for each in logs)
        free = self.limit - held
        if free <= 0:
            for each in logs[:_LOGS_AT_ONCE]:
                free += (released := each.release_oldest())
                if released:
                    log.warning(
                        "the logs hold %d producer ids, kalda.producer.ids.max is %d: %s releases %d, the oldest first",
                        held,
                        self.limit,
                        each.log_name,
                        released,
                    )
                if free > 0:
                    break
        self._free = min(_GRANTED_AT_ONCE, free)
        if self._free > 0:
            self._refusals = 0
        elif not self._refusals:
            log.warning(
                "the logs hold %d producer ids, kalda.producer.ids.max is %d, and none can be released: batches of new "
                "producer ids are refused",
                held,
                self.limit,
            )


MAX_BATCHES = 5
MAX_EPOCH = 2**15 - 1
_LATE_BUFFER_MS = 5 * 60 * 1000
_EXPIRED_A_CALL = 2_000
"""Producers that one call of `expire` checks: less than a millisecond."""
_RELEASED_A_CALL = 20_000
"""Producers of which one call of `release_oldest` drops half: some milliseconds."""


class BatchMetadata(NamedTuple):
    """One of the last five batches of a producer."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        first = self.last_sequence - self.offset_delta
        return first if first >= 0 or self.last_sequence < 0 else first + MAX_INT32 + 1

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class ProducerState:
    """One producer."""

    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_timestamp", "producer_id", "txn_first_offset")

    def __init__(
        self,
        producer_id: int,
        epoch: int = NO_PRODUCER_EPOCH,
        coordinator_epoch: int = -1,
        last_timestamp: int = -1,
        txn_first_offset: int = -1,
        batches: tuple[BatchMetadata, ...] = (),
    ) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        """The largest producer epoch that was appended."""
        self.coordinator_epoch = coordinator_epoch
        """Of the last marker; -1 for none."""
        self.last_timestamp = last_timestamp
        """Of the last batch or marker: the producer expires `producer.id.expiration.ms` after it."""
        self.txn_first_offset = txn_first_offset
        """Where its open transaction began; -1 where none is open."""
        self.batches = list(batches)
        """Its last data batches of this epoch, at most `MAX_BATCHES`, oldest first."""

    def copy(self) -> ProducerState:
        """Another one with the same values."""
        return ProducerState(
            self.producer_id,
            self.epoch,
            self.coordinator_epoch,
            self.last_timestamp,
            self.txn_first_offset,
            tuple(self.batches),
        )

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_data_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else -1

    @property
    def last_offset_delta(self) -> int:
        return self.batches[-1].offset_delta if self.batches else 0

    def take_epoch(self, epoch: int) -> None:
        """A new epoch begins with sequence 0: the batches of the old one are dropped."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches.clear()

    def add_batch(self, epoch: int, batch: BatchMetadata) -> None:
        self.take_epoch(epoch)
        if len(self.batches) == MAX_BATCHES:
            del self.batches[0]
        self.batches.append(batch)
        self.last_timestamp = batch.timestamp

    def duplicate_of(self, epoch: int, first_sequence: int, last_sequence: int) -> BatchMetadata | None:
        if epoch == self.epoch:
            for batch in self.batches:
                if batch.last_sequence == last_sequence and batch.first_sequence == first_sequence:
                    return batch
        return None


class Marker(NamedTuple):
    """The end of a transaction, from its control record."""

    commit: bool
    coordinator_epoch: int
    timestamp: int


def read_marker(buf: Buffer, header: BatchHeader) -> Marker | None:
    """The marker in the control batch `buf`; None where it holds another control record, or has been cleaned empty."""
    if not header.records_count or not header.is_transactional:
        return None
    record = read_control_batch(buf, 0, header)[0]
    if record.type not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    assert isinstance(record.message, EndTxnMarker)
    return Marker(record.type is ControlType.COMMIT, record.message.coordinator_epoch, record.timestamp)


class CompletedTxn(NamedTuple):
    """A transaction whose marker is being appended."""

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool


class Verification:
    """A transactional append that waits for its coordinator to confirm that the partition is in the transaction.

    It is valid for one append: the producer's next transactional batch or marker ends it, except a marker of version 2
    with its own epoch."""

    __slots__ = ("epoch", "lowest_sequence", "supports_epoch_bump", "timestamp")

    def __init__(self, timestamp: int, sequence: int, epoch: int, supports_epoch_bump: bool) -> None:
        self.timestamp = timestamp
        """When it was made."""
        self.lowest_sequence = sequence
        """The first batch of the transaction here must have it: a later one that overtakes that batch is refused."""
        self.epoch = epoch
        self.supports_epoch_bump = supports_epoch_bump


class ProducerStates:
    """All producers of one log."""

    __slots__ = (
        "_frozen",
        "_ongoing",
        "_states",
        "_to_expire",
        "_unreplicated",
        "_verifications",
        "limit",
        "log_name",
        "map_end_offset",
        "snapshot_offset",
    )

    def __init__(self, log_name: str, start_offset: int = 0) -> None:
        self.log_name = log_name
        """For messages."""
        self.limit: ProducerIdLimit | None = None
        """Counts new producer ids of clients, and may refuse them; None: nothing does."""
        self._states: dict[int, ProducerState] = {}
        """By producer id. While `_frozen` is set: those that have changed since."""
        self._frozen: dict[int, ProducerState] | None = None
        """By producer id, while a job writes them to a snapshot: nothing changes this mapping or its values until
        `thaw`. None: no such job is under way."""
        self._to_expire: Iterator[int] | None = None
        """Producer ids that the next call of `expire` begins with; None: all of them."""
        self._ongoing: dict[int, int] = {}
        """Open transactions: first offset to producer id."""
        self._unreplicated: list[tuple[int, int]] = []
        """A heap of transactions that have ended, with at least those above the high watermark: first offset, and the
        marker's. A recovery may put very many here before the high watermark is known."""
        self._verifications: dict[int, Verification] = {}
        """By producer id. Not part of snapshots: after a start they are made anew."""
        self.map_end_offset = start_offset
        """Up to where batches have been applied."""
        self.snapshot_offset = start_offset
        """The offset of the latest snapshot that was written or loaded."""

    def __len__(self) -> int:
        frozen = self._frozen
        if frozen is None:
            return len(self._states)
        return len(frozen) + sum(producer_id not in frozen for producer_id in self._states)

    def __iter__(self) -> Iterator[ProducerState]:
        yield from self._states.values()
        for producer_id, state in (self._frozen or {}).items():
            if producer_id not in self._states:
                yield state

    @property
    def held(self) -> int:
        """Producer ids that take up memory: those with a state, and those whose transaction is being verified. While a
        snapshot is being written, some may count twice."""
        return len(self._states) + len(self._frozen or ()) + len(self._verifications)

    def get(self, producer_id: int) -> ProducerState | None:
        """Its state, not to be changed."""
        state = self._states.get(producer_id)
        return state if state is not None or self._frozen is None else self._frozen.get(producer_id)

    def _to_change(self, producer_id: int) -> ProducerState:
        """Its state, a new one where there is none."""
        state = self._states.get(producer_id)
        if state is None:
            frozen = None if self._frozen is None else self._frozen.get(producer_id)
            state = self._states[producer_id] = ProducerState(producer_id) if frozen is None else frozen.copy()
        return state

    def load(self, states: list[ProducerState], offset: int) -> None:
        """Replace everything by the state at `offset`, from a snapshot."""
        self.clear(offset)
        self._states = {state.producer_id: state for state in states}
        open_ones = [(state.txn_first_offset, state.producer_id) for state in states if state.txn_first_offset >= 0]
        self._ongoing = dict(sorted(open_ones))

    def clear(self, offset: int, undecided_from: int | None = None) -> None:
        """Drop everything: there is no producer as of `offset`. With `undecided_from`, they are to be read again, and
        until then the records from there on may be of open transactions."""
        self._states = {}
        self._frozen = self._to_expire = None
        self._ongoing.clear()
        if undecided_from is not None:
            self._ongoing[undecided_from] = NO_PRODUCER_ID
        self._unreplicated.clear()
        self.map_end_offset = self.snapshot_offset = offset

    def adopt(self, other: ProducerStates) -> None:
        """Replace everything by what `other` has, which is not used any more."""
        self.clear(other.map_end_offset)
        self._states, self._ongoing, self._unreplicated = other._states, other._ongoing, other._unreplicated
        self.snapshot_offset = other.snapshot_offset

    # Snapshots

    @property
    def is_frozen(self) -> bool:
        """Whether a job writes a snapshot."""
        return self._frozen is not None

    def freeze(self) -> Mapping[int, ProducerState]:
        """The producers as they are now, which stay like that until `thaw`: for a job that writes them to a file."""
        self._frozen = self._states if self._frozen is None else self._frozen | self._states
        self._states = {}
        return self._frozen

    def thaw(self, frozen: Mapping[int, ProducerState]) -> None:
        """The job is done with what `freeze` returned."""
        if self._frozen is frozen:  # otherwise the log was truncated meanwhile, or is being closed
            self._frozen.update(self._states)
            self._states, self._frozen = self._frozen, None

    # Checking

    def admit(self, header: BatchHeader, guard: Verification | None, verify: bool) -> BatchMetadata | None:
        """Check a client's batch. Returns the batch of which it is a duplicate, None where it is to be appended. Raises
        as `check_data` and `check_transactional`."""
        state = self._states.get(header.producer_id)
        if state is None:
            state = self.get(header.producer_id)
            if state is None and self.limit is not None and header.producer_id not in self._verifications:
                self.limit.check(header.producer_id, self.log_name)
        if state is not None and state.batches:
            epoch, sequence = header.producer_epoch, header.base_sequence
            if (
                epoch == state.epoch
                and sequence == state.batches[-1].last_sequence + 1
                and (not self._verifications or header.producer_id not in self._verifications)
                and header.is_transactional == (state.txn_first_offset >= 0)
            ):
                return None  # the usual case: the next batch of a producer, in no transaction or in the open one
            duplicate = state.duplicate_of(epoch, sequence, header.last_sequence)
            if duplicate is not None:
                return duplicate
        if header.is_transactional:
            self.check_transactional(header, guard, verify)
        self.check_data(header, AppendOrigin.CLIENT)
        return None

    def check_data(self, header: BatchHeader, origin: AppendOrigin) -> None:
        """Raise unless this batch may follow what its producer wrote before."""
        if origin is AppendOrigin.REPLICATION:
            return
        producer_id, epoch = header.producer_id, header.producer_epoch
        state = self.get(producer_id)
        if state is not None:
            self._check_epoch(state, epoch)
        if origin is AppendOrigin.CLIENT:
            self._check_sequence(state, producer_id, epoch, header.base_sequence)
        if state is not None and state.txn_first_offset >= 0 and not header.is_transactional:
            raise ApiError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {producer_id} has an open transaction in {self.log_name}: its writes must be part of it",
            )

    def _check_epoch(self, state: ProducerState, epoch: int) -> None:
        if epoch < state.epoch:
            raise ApiError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"epoch {epoch} of producer {state.producer_id} in {self.log_name} is older than the last one seen, "
                f"{state.epoch}",
            )

    def _check_sequence(self, state: ProducerState | None, producer_id: int, epoch: int, sequence: int) -> None:
        verification = self._verifications.get(producer_id)
        if verification is not None:
            fresh = state is None or not state.batches
            if verification.supports_epoch_bump and sequence != 0 and fresh:
                self._out_of_order(producer_id, sequence, "the first batch of a new epoch must have sequence 0")
            if sequence > verification.lowest_sequence:
                lowest = verification.lowest_sequence
                self._out_of_order(producer_id, sequence, f"sequence {lowest} is still being verified")
        if state is None or state.epoch == NO_PRODUCER_EPOCH:
            # No batch of it is remembered, perhaps because retention deleted them: any sequence may come first.
            return
        if epoch != state.epoch:
            if sequence != 0:
                self._out_of_order(producer_id, sequence, f"epoch {epoch} is new and must start with sequence 0")
            return
        last = state.last_sequence
        if sequence != last + 1 and not (sequence == 0 and last == MAX_INT32):
            self._out_of_order(producer_id, sequence, f"the last sequence was {last}")

    def _out_of_order(self, producer_id: int, sequence: int, why: str) -> None:
        raise ApiError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"sequence {sequence} of producer {producer_id} in {self.log_name} is out of order: {why}",
        )

    def check_marker(self, header: BatchHeader, marker: Marker, origin: AppendOrigin, transaction_version: int) -> None:
        """Raise unless this marker may end its producer's transaction.

        Under transaction version 2 the coordinator bumps the epoch with every marker, so a marker with an equal epoch
        is a late one of another transaction; but where no transaction is open, it is a retry and harmless (KIP-890).
        """
        state = self.get(header.producer_id)
        if state is None or origin is AppendOrigin.REPLICATION:
            return
        epoch = header.producer_epoch
        if transaction_version < 2:
            self._check_epoch(state, epoch)
        elif epoch <= state.epoch:
            retried = epoch == state.epoch and (state.txn_first_offset < 0 or epoch == MAX_EPOCH)
            if not retried:
                raise ApiError(
                    ErrorCode.INVALID_PRODUCER_EPOCH,
                    f"the marker's epoch {epoch} of producer {state.producer_id} in {self.log_name} is not newer than "
                    f"{state.epoch}",
                )
        if marker.coordinator_epoch < state.coordinator_epoch:
            raise ApiError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"coordinator epoch {marker.coordinator_epoch} of producer {state.producer_id} in {self.log_name} is "
                f"older than {state.coordinator_epoch}",
            )

    # Applying

    def apply_data(self, header: BatchHeader) -> bool:
        """A batch of records has been appended; True where it began a transaction."""
        producer_id = header.producer_id
        state = self._states.get(producer_id)
        if state is None:
            state = self._to_change(producer_id)
        last_offset = header.base_offset + header.last_offset_delta
        state.add_batch(
            header.producer_epoch,
            BatchMetadata(header.last_sequence, last_offset, header.last_offset_delta, header.max_timestamp),
        )
        if header.is_transactional:
            if self._verifications:
                self._verifications.pop(producer_id, None)
            if state.txn_first_offset < 0:
                state.txn_first_offset = header.base_offset
                self._ongoing[header.base_offset] = producer_id
                return True
        return False

    def apply_marker(self, header: BatchHeader, marker: Marker) -> CompletedTxn | None:
        """A marker has been appended; the transaction that it ended, where one with records was open."""
        producer_id = header.producer_id
        state = self._to_change(producer_id)
        completed = None
        if state.txn_first_offset >= 0:
            completed = CompletedTxn(producer_id, state.txn_first_offset, header.base_offset, not marker.commit)
        state.take_epoch(header.producer_epoch)
        state.coordinator_epoch = marker.coordinator_epoch
        state.last_timestamp = marker.timestamp
        state.txn_first_offset = -1
        self._end_verification(header)
        return completed

    def _end_verification(self, marker: BatchHeader) -> None:
        """A transaction has ended: an append that was verified for it is refused from now on. Under transaction version
        2 the marker has the epoch of the producer's next transaction, which may be being verified already: that
        verification stays."""
        found = self._verifications.get(marker.producer_id)
        if found is not None and not (found.supports_epoch_bump and marker.producer_epoch == found.epoch):
            del self._verifications[marker.producer_id]

    def replay(self, header: BatchHeader, buf: Buffer | None, txn_index: TxnIndex | None) -> None:
        """Apply a batch that is in the log. `buf` holds it whole where it is a control batch.

        An aborted transaction that it ends goes to `txn_index`, where one is given.
        """
        if header.producer_id < 0:
            pass
        elif not header.is_control:
            self.apply_data(header)
        elif (marker := read_marker(buf if buf is not None else b"", header)) is not None:
            completed = self.apply_marker(header, marker)
            if completed is not None:
                self.finish(completed, txn_index)
        self.map_end_offset = header.next_offset

    def finish(self, completed: CompletedTxn, txn_index: TxnIndex | None) -> None:
        """The marker of `completed` is in the log: add an aborted one to `txn_index`, then `complete` it."""
        if completed.aborted and txn_index is not None:
            producer_id, first_offset, last_offset, _ = completed
            txn_index.append(AbortedTxn(producer_id, first_offset, last_offset, self.stable_offset_with(completed)))
        self.complete(completed)

    def stable_offset_with(self, completed: CompletedTxn) -> int:
        """The last stable offset once `completed` is replicated: for its entry in the transaction index."""
        for first_offset, producer_id in self._ongoing.items():
            if producer_id != completed.producer_id:
                return first_offset
        return completed.last_offset + 1

    def complete(self, completed: CompletedTxn) -> None:
        """It has ended, but the last stable offset stays below it until its marker is replicated."""
        if self._ongoing.pop(completed.first_offset, None) is None:
            raise CorruptRecord(f"{self.log_name} ends a transaction at {completed.first_offset} that it never began")
        heappush(self._unreplicated, (completed.first_offset, completed.last_offset))

    def on_high_watermark(self, high_watermark: int) -> None:
        """Markers below it are replicated."""
        unreplicated = self._unreplicated
        while unreplicated and unreplicated[0][1] < high_watermark:
            heappop(unreplicated)

    def on_log_start_offset(self, offset: int) -> None:
        """Records below were deleted: drop the transactions that ended there."""
        self.on_high_watermark(offset)
        self.map_end_offset = max(self.map_end_offset, offset)

    @property
    def first_unstable_offset(self) -> int | None:
        """Where the oldest transaction began that is open, or whose marker is not replicated yet."""
        first = next(iter(self._ongoing), None)
        if self._unreplicated and (first is None or self._unreplicated[0][0] < first):
            return self._unreplicated[0][0]
        return first

    @property
    def has_open_transactions(self) -> bool:
        return bool(self._ongoing)

    def has_late_transaction(self, now_ms: int, max_timeout_ms: int) -> bool:
        """Whether the oldest open transaction has had no batch for so long that its coordinator has ended it, had it
        been one of that coordinator's: it may be hanging (KIP-664)."""
        oldest = next(iter(self._ongoing.values()), NO_PRODUCER_ID)
        state = self.get(oldest)
        return (
            state is not None
            and state.last_timestamp > 0
            and now_ms - state.last_timestamp > max_timeout_ms + _LATE_BUFFER_MS
        )

    def release_oldest(self) -> int:
        """Drop the older half of some producers without an open transaction, by the offset of their last batch; how
        many. None while a snapshot is written. Those that stay are last in line for the next call, so that calls get to
        all of them, and none takes long."""
        if self._frozen is not None:
            return 0
        states = self._states
        if not states:
            stale = list(islice(self._verifications, _RELEASED_A_CALL))
            for producer_id in stale[: (len(stale) + 1) // 2]:
                del self._verifications[producer_id]
            return (len(stale) + 1) // 2
        some = list(islice(states.values(), _RELEASED_A_CALL))
        closed = [state for state in some if state.txn_first_offset < 0]
        closed.sort(key=lambda state: state.last_data_offset)
        oldest = closed[: (len(closed) + 1) // 2]
        for state in oldest:
            del states[state.producer_id]
        for state in some:
            if state.producer_id in states:
                states[state.producer_id] = states.pop(state.producer_id)
        return len(oldest)

    # Verification (KIP-890, part 1)

    def verify(
        self, producer_id: int, sequence: int, epoch: int, now_ms: int, supports_epoch_bump: bool
    ) -> Verification | None:
        """The guard that the append must be given, for an append to a transaction that must first be verified with its
        coordinator; None where it need not, as the transaction is open here. Raises INVALID_PRODUCER_EPOCH.
        """
        state = self.get(producer_id)
        if state is not None:
            self._check_epoch(state, epoch)
            if state.txn_first_offset >= 0 and epoch == state.epoch:
                return None
        found = self._verifications.get(producer_id)
        if found is None:
            if state is None and self.limit is not None:
                self.limit.check(producer_id, self.log_name)
            found = self._verifications[producer_id] = Verification(now_ms, sequence, epoch, supports_epoch_bump)
        elif epoch > found.epoch:
            found.epoch, found.lowest_sequence = epoch, sequence
        elif sequence < found.lowest_sequence and epoch == found.epoch:
            found.lowest_sequence = sequence
        return found

    def check_transactional(self, header: BatchHeader, guard: Verification | None, verify: bool) -> None:
        """Raise for a batch of a transaction that is not open here, where its epoch is fenced or, with `verify`, where
        it comes without the guard that its verification gave."""
        state = self.get(header.producer_id)
        if state is not None:
            if state.txn_first_offset >= 0 and state.epoch == header.producer_epoch:
                return
            self._check_epoch(state, header.producer_epoch)
        if verify and (guard is None or self._verifications.get(header.producer_id) is not guard):
            raise ApiError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} has no verified transaction in {self.log_name}",
            )

    # Expiry

    def expire(self, now_ms: int, expiration_ms: int) -> int | None:
        """Drop producers without a batch for `expiration_ms` and without an open transaction; the number that this call
        dropped. None where another call is needed for the rest."""
        if self._frozen is not None:
            return 0  # the next walk over the logs finds them
        if self._to_expire is None:
            stale = [pid for pid, found in self._verifications.items() if now_ms - found.timestamp >= expiration_ms]
            for producer_id in stale:
                del self._verifications[producer_id]
            self._to_expire = iter(list(self._states))
        states, dropped, checked = self._states, 0, 0
        for producer_id in islice(self._to_expire, _EXPIRED_A_CALL):
            checked += 1
            state = states.get(producer_id)
            if state is None or state.txn_first_offset >= 0 or now_ms - state.last_timestamp < expiration_ms:
                continue
            del states[producer_id]
            dropped += 1
        if dropped and self.limit is not None:
            self.limit.on_released()
        if checked == _EXPIRED_A_CALL:
            return None
        self._to_expire = None
        return dropped
