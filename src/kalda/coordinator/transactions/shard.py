"""One partition of `__transaction_state`: its transactional ids.

Replayed is the metadata of each id; a request computes the next metadata, and only the replay of its record changes
what is held. A record is applied when it is appended and counts when it is committed. Until then its id is pending,
and requests that would change it are answered with CONCURRENT_TRANSACTIONS; reads see the committed state. An id that
becomes CompleteCommit or CompleteAbort is not pending: the next transaction's records follow in the same log, so they
are committed after it or not at all.

When a prepared state is committed, whether this node has written it or loaded it, the markers of its partitions are
sent (`Markers`); when they are written, the complete state is appended. An append that fails is tried again, without
limit, for as long as this node leads.

Timed-out transactions are aborted, and unused ids deleted, by timers, in steps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from kalda.base.background import Steps
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.base.scheduling import Pending
from kalda.coordinator.partition import CoordinatorPartition
from kalda.coordinator.timers import CoordinatorTimer, EventClock, TimerTask
from kalda.coordinator.transactions.markers import Completion
from kalda.coordinator.transactions.metadata import (
    NO_PRODUCER_ID,
    NO_TIME,
    NO_TIMEOUT_MS,
    VERSION_2,
    TransactionConfig,
    TransactionMetadata,
    TransactionRecord,
    TransactionState,
    decode_record,
    encode_record,
)
from kalda.statemachine.timeline import TimelineDict, TimelineSet

log = logging.getLogger(__name__)

_IDS_A_STEP = 200
"""Ids that one step checks, and perhaps deletes: at most some 5 us each."""
_TOMBSTONE_BYTES = 256 * 1024
"""Keys in one batch of tombstones; an id may have 32 KiB."""
_FIRST_RETRY_MS = 20
_LAST_RETRY_MS = 1_000
_MAX_DOUBLINGS = 6


class Markers(Protocol):
    """Writes transaction markers to the leaders of partitions (`MarkerQueues`)."""

    def add(self, completion: Completion, now_ms: int) -> None:
        """Write the markers of a transaction, then call its `on_written`."""
        ...

    def drop_shard(self, shard: int) -> None:
        """Write no more markers of the shard's transactions."""
        ...


class ProducerIdSource(Protocol):
    """Gives out producer ids that no producer has had."""

    def take(self) -> int | Pending[int]:
        """A producer id, or a pending one. Raises `ApiError`, or fails with one."""
        ...


class TransactionShard:
    """The transactional ids of one partition, while this node coordinates it."""

    def __init__(
        self,
        partition: CoordinatorPartition[TransactionRecord],
        config: TransactionConfig,
        timers: CoordinatorTimer,
        clock: EventClock,
        markers: Markers,
        producer_ids: ProducerIdSource,
        transaction_version: Callable[[], int],
        rearm: Callable[[], None],
    ) -> None:
        """`transaction_version` is the finalized level of the feature. `rearm` is called when a timer was armed outside
        of a request."""
        self.partition = partition
        """What this shard writes with."""
        self.transactions: TimelineDict[str, TransactionMetadata] = TimelineDict(partition.registry)
        """Replayed: every transactional id."""
        self.ongoing: TimelineSet[str] = TimelineSet(partition.registry)
        """Replayed: the ids in the state Ongoing, so that timed-out ones are found among the open ones only."""
        self.prepared: TimelineSet[str] = TimelineSet(partition.registry)
        """Replayed: the ids in a prepared state, so that a load does not search all ids for them at its end."""
        self._deadlines: dict[str, tuple[int, int]] = {}
        """When ongoing transactions that have a timeout time out, after when they began: the one by the time of this
        node, which neither counts a stall nor jumps, the other as it is stored."""
        self.pending: dict[str, TransactionState] = {}
        """Ids with a write that waits for its commit, and the state it writes."""
        self.completing: dict[str, Completion] = {}
        """Ids in a prepared state that is committed, from then until the complete state is appended."""
        self._config = config
        self._timers = timers
        self._clock = clock
        self._markers = markers
        self._producer_ids = producer_ids
        self._transaction_version = transaction_version
        self._rearm = rearm
        self._aborting = TimerTask(self._abort_timed_out)
        self._expiring = TimerTask(self._expire)
        self._retrying = TimerTask(lambda _: self._write_completions())
        self._unwritten: dict[str, None] = {}
        """Ids whose markers are written, but whose complete state could not be appended, in order."""
        self._retries = 0
        """Attempts to append complete states that failed, in sequence."""

    # -- what the runtime calls ----------------------------------------------------------------------------------

    def encode(self, record: TransactionRecord) -> tuple[bytes, bytes | None]:
        """Key and value as they are appended."""
        return encode_record(record, self._transaction_version())

    def decode(self, key: bytes, value: bytes | None) -> TransactionRecord:
        """The record that these bytes hold. Raises `UnknownRecordType` and `InvalidRequest`."""
        return decode_record(key, value)

    def replay(self, record: TransactionRecord, offset: int, producer_id: int) -> None:
        """Apply a record."""
        transactional_id, metadata = record
        if metadata is None:
            self.transactions.pop(transactional_id, None)
            self._deadlines.pop(transactional_id, None)
            self.ongoing.discard(transactional_id)
            self.prepared.discard(transactional_id)
            return
        self.transactions[transactional_id] = metadata
        state = metadata.state
        if state is TransactionState.ONGOING:
            self.ongoing.add(transactional_id)
            self._keep_deadline(transactional_id, metadata)
        else:
            self.ongoing.discard(transactional_id)
            self._deadlines.pop(transactional_id, None)
        if state is TransactionState.PREPARE_COMMIT or state is TransactionState.PREPARE_ABORT:
            self.prepared.add(transactional_id)
        else:
            self.prepared.discard(transactional_id)

    def on_transaction_end(self, producer_id: int, *, committed: bool) -> None:
        """No transaction has records in `__transaction_state`."""

    def on_loaded(self) -> None:
        """All records are replayed: what a former coordinator has decided is completed."""
        now_ms = self._clock.now_ms()
        self._timers.arm(self._aborting, now_ms + self._config.abort_interval_ms)
        self._timers.arm(self._expiring, now_ms + self._config.expiration_interval_ms)
        prepared = list(self.prepared)
        log.log(
            logging.INFO if self.ongoing or prepared else logging.DEBUG,  # the runtime counts those without
            "partition %d of __transaction_state is loaded in epoch %d: %d transactional ids, %d open transactions, "
            "%d whose markers are to be written",
            self.partition.index,
            self.partition.leader_epoch,
            len(self.transactions),
            len(self.ongoing),
            len(prepared),
        )
        if not prepared:
            return
        # A prepared state may have been loaded from above the high watermark: its markers are sent when it is
        # committed, since another coordinator might never see it.
        self.partition.write([]).then(lambda _, error: self._complete_all(prepared) if error is None else None)

    def on_unloaded(self) -> None:
        """Another node leads, and completes what is prepared."""
        for timer in (self._aborting, self._expiring, self._retrying):
            self._timers.disarm(timer)
        self._markers.drop_shard(self.partition.index)
        completing, self.completing = self.completing, {}
        for completion in completing.values():
            for callback in completion.on_completed:
                callback()

    def on_topics_deleted(self, topics: Mapping[str, Uuid]) -> None:
        """Markers of deleted partitions are dropped where they are sent."""

    # -- writes --------------------------------------------------------------------------------------------------

    def committed(self, transactional_id: str) -> TransactionMetadata | None:
        """The state that is committed; None where the id has none."""
        return self.transactions.get(transactional_id, None, self.partition.committed_epoch())

    def write(self, transactional_id: str, metadata: TransactionMetadata) -> Pending[None]:
        """Append the next state; the id is pending until it is committed."""
        assert transactional_id not in self.pending, f"{transactional_id} has a write that waits for its commit"
        self.pending[transactional_id] = metadata.state
        outcome = self.partition.write([TransactionRecord(transactional_id, metadata)])

        def settled(_: None, __: ApiError | None) -> None:
            self.pending.pop(transactional_id, None)

        outcome.then(settled)
        return outcome

    def prepare(self, transactional_id: str, metadata: TransactionMetadata) -> Pending[None]:
        """Append a prepared state, and send the markers when it is committed."""
        outcome = self.write(transactional_id, metadata)
        outcome.then(lambda _, error: self._complete_all([transactional_id]) if error is None else None)
        return outcome

    def abort_and_fence(
        self, transactional_id: str, metadata: TransactionMetadata, next_producer_id: int
    ) -> Pending[None]:
        """Abort an open transaction in place of its producer, whose epoch is bumped. `next_producer_id` is set where
        `needs_next_id` demands it."""
        prepared = metadata.fenced().prepared(
            committed=False,
            client_version=self._transaction_version(),
            next_producer_id=next_producer_id,
            now_ms=self._clock.wall_ms(),
        )
        return self.prepare(transactional_id, prepared)

    def needs_next_id(self, metadata: TransactionMetadata) -> bool:
        """Whether a fence leads to a new producer id. In version 2 a client may continue with the epoch that it was
        fenced by, so that must not be the last one."""
        return metadata.is_epoch_exhausted and self._transaction_version() >= VERSION_2

    @property
    def unwritten(self) -> int:
        """Transactions whose markers are written, but whose complete state could not be appended yet."""
        return len(self._unwritten)

    # -- completion ----------------------------------------------------------------------------------------------

    def _complete_all(self, transactional_ids: list[str]) -> None:
        for transactional_id in transactional_ids:
            metadata = self.transactions.get(transactional_id)
            if not self.partition.is_active or metadata is None or not metadata.state.is_prepared:
                continue
            completion = self.completing[transactional_id] = Completion(
                self.partition.index,
                transactional_id,
                metadata.producer_id,
                metadata.producer_epoch,
                self.partition.leader_epoch,
                metadata.client_version,
                metadata.partitions,
                self._on_written,
                self._clock.now_ms(),
                committed=metadata.state is TransactionState.PREPARE_COMMIT,
            )
            self._markers.add(completion, self._clock.now_ms())

    def _on_written(self, transactional_id: str) -> None:
        """All markers of the transaction are written."""
        if not self.partition.is_active:
            return
        self._unwritten[transactional_id] = None
        if self._retries:
            return  # the timer is armed: the log refuses appends
        self._write_completions()

    def _write_completions(self) -> None:
        while self._unwritten:
            transactional_id = next(iter(self._unwritten))
            metadata = self.transactions[transactional_id]
            record = TransactionRecord(transactional_id, metadata.completed(self._clock.wall_ms()))
            outcome = self.partition.write([record])
            if outcome.error is not None and not self.partition.is_active:
                return
            if outcome.error is not None:
                self._retry_later(transactional_id, outcome.error)
                return
            self._retries = 0
            self._unwritten.pop(transactional_id, None)
            completion = self.completing.pop(transactional_id, None)
            for callback in () if completion is None else completion.on_completed:
                callback()

    def _retry_later(self, transactional_id: str, error: ApiError) -> None:
        delay_ms = min(_FIRST_RETRY_MS << min(self._retries, _MAX_DOUBLINGS), _LAST_RETRY_MS)
        if not self._retries:
            log.warning(
                "partition %d of __transaction_state: %d completed transactions cannot be recorded, among them %s; "
                "they are tried again: %s",
                self.partition.index,
                len(self._unwritten),
                transactional_id,
                error,
            )
        self._retries += 1
        self._timers.arm(self._retrying, self._clock.now_ms() + delay_ms)
        self._rearm()

    # -- timers --------------------------------------------------------------------------------------------------

    def _abort_timed_out(self, _now_ms: int) -> Steps[None]:
        """Abort transactions that are open for longer than their timeout."""
        for index, transactional_id in enumerate(list(self.ongoing), 1):
            if index % _IDS_A_STEP == 0:
                yield
            if not self.partition.is_active:
                return
            metadata = self.transactions.get(transactional_id)
            if metadata is None or transactional_id in self.pending:
                continue
            if not self._has_timed_out(transactional_id):
                continue
            log.info(
                "%s: its transaction is open since %d, for more than its timeout of %d ms, and is aborted",
                transactional_id,
                metadata.start_ms,
                metadata.timeout_ms,
            )
            error = self._abort(transactional_id)
            if error is not None:
                log.warning(
                    "%s: its timed-out transaction stays open until the next check: %s", transactional_id, error
                )
                break
            yield
        self._arm(self._aborting, self._config.abort_interval_ms)

    def _arm(self, timer: TimerTask, delay_ms: int) -> None:
        if self.partition.is_active:
            self._timers.arm(timer, self._clock.now_ms() + delay_ms)

    def _abort(self, transactional_id: str, next_producer_id: int = NO_PRODUCER_ID) -> ApiError | None:
        """Abort the transaction, now or when there is a producer id for it; the error where that is known to fail."""
        metadata = self.transactions.get(transactional_id)
        is_open = metadata is not None and metadata.state is TransactionState.ONGOING
        if metadata is None or not is_open or transactional_id in self.pending or not self.partition.is_active:
            return None  # it has ended while a producer id was requested
        if next_producer_id == NO_PRODUCER_ID and self.needs_next_id(metadata):
            try:
                taken = self._producer_ids.take()
            except ApiError as error:
                return error
            if isinstance(taken, Pending):
                taken.then(lambda got, _: None if got is None else self._abort_with(transactional_id, got))
                return None
            next_producer_id = taken
        return self.abort_and_fence(transactional_id, metadata, next_producer_id).error

    def _abort_with(self, transactional_id: str, next_producer_id: int) -> None:
        metadata = self.transactions.get(transactional_id)
        if metadata is not None and self._has_timed_out(transactional_id):
            self._abort(transactional_id, next_producer_id)

    def _keep_deadline(self, transactional_id: str, metadata: TransactionMetadata) -> None:
        """Replayed of an open transaction: where it has just begun, its timeout does. What has passed of it when this
        node began to coordinate the id is measured by the wall clock, as in Kafka."""
        began_ms, _ = self._deadlines.get(transactional_id, (NO_TIME, 0))
        if metadata.timeout_ms != NO_TIMEOUT_MS and began_ms != metadata.start_ms:
            left_ms = metadata.start_ms + metadata.timeout_ms - self._clock.wall_ms()
            deadline_ms = self._clock.now_ms() + min(left_ms, metadata.timeout_ms)
            self._deadlines[transactional_id] = metadata.start_ms, deadline_ms

    def _has_timed_out(self, transactional_id: str) -> bool:
        """Whether a transaction of the id is open for longer than its timeout."""
        deadline = self._deadlines.get(transactional_id)
        return deadline is not None and deadline[1] < self._clock.now_ms()

    def _expire(self, _now_ms: int) -> Steps[None]:
        """Delete ids that have not been used for long."""
        limit_ms = self._clock.wall_ms() - self._config.expiration_ms
        expired: list[str] = []
        size_bytes = 0
        for index, transactional_id in enumerate(list(self.transactions), 1):
            if self._has_expired(transactional_id, limit_ms):
                expired.append(transactional_id)
                size_bytes += len(transactional_id)
            if index % _IDS_A_STEP == 0 or size_bytes >= _TOMBSTONE_BYTES:
                self._delete(expired)
                expired, size_bytes = [], 0
                yield
                if not self.partition.is_active:
                    return
        self._delete(expired)
        self._arm(self._expiring, self._config.expiration_interval_ms)

    def _has_expired(self, transactional_id: str, limit_ms: int) -> bool:
        metadata = self.transactions.get(transactional_id)
        return (
            metadata is not None
            and transactional_id not in self.pending
            and metadata.state.may_expire
            and metadata.last_update_ms <= limit_ms
        )

    def _delete(self, transactional_ids: list[str]) -> None:
        if not transactional_ids:
            return
        for transactional_id in transactional_ids:
            self.pending[transactional_id] = TransactionState.DEAD

        def settled(_: None, error: ApiError | None) -> None:
            for transactional_id in transactional_ids:
                self.pending.pop(transactional_id, None)
            if error is not None and error.code is not ErrorCode.NOT_COORDINATOR:
                log.warning(
                    "partition %d of __transaction_state: %d expired transactional ids stay until the next check: %s",
                    self.partition.index,
                    len(transactional_ids),
                    error,
                )

        self.partition.write_in_parts([TransactionRecord(each, None) for each in transactional_ids]).then(settled)
