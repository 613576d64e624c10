"""The transaction coordinator: requests in, by transactional id to the shard of its partition, answers out.

Each method takes a decoded request and gives the response, or a `Pending` of it. Errors are in the response, in the
place where each API has them; none is raised. Older clients get INVALID_PRODUCER_EPOCH for PRODUCER_FENCED, which they
do not have.

The coordinator has no clock. Every call brings `now_ms`; after it the runtime's `next_deadline_ms` may be earlier.

InitProducerId: a request without an expected id and epoch is a new instance of the producer: it gets a new epoch, which
fences all instances before it. One with both continues after an error (KIP-360): it succeeds only while no other
instance has begun. An open transaction is aborted first, and the request is answered with CONCURRENT_TRANSACTIONS, so
its client comes again. The last epoch of a producer id is kept for such a fence; a producer that would get it gets a
new id.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import chain
from typing import NamedTuple, TypeVar

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TRANSACTIONS_TOPIC
from kalda.base.scheduling import Pending
from kalda.coordinator.answers import answer_after, write_error
from kalda.coordinator.partition import CoordinatorPartition
from kalda.coordinator.runtime import CoordinatorLog, CoordinatorRuntime
from kalda.coordinator.timers import TimerTask
from kalda.coordinator.transactions.markers import Completion
from kalda.coordinator.transactions.metadata import (
    MAX_EPOCH,
    NO_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMEOUT_MS,
    VERSION_2,
    Partitions,
    TransactionConfig,
    TransactionMetadata,
    TransactionRecord,
    TransactionState,
    is_epoch_exhausted,
)
from kalda.coordinator.transactions.shard import Markers, ProducerIdSource, TransactionShard
from kalda.protocol.access import Caller
from kalda.protocol.messages.transactions import (
    DescribeTransactionsResponseTopicData,
    DescribeTransactionsResponseTransactionState,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)

# EndTxn: whether a transaction may end, and how a repeated request is recognized.
#
# Version 1 clients end an open transaction with their current epoch. A repeated request finds the transaction
# complete; the same outcome succeeds again, the other one is INVALID_TXN_STATE.
#
# In version 2 the end bumps the epoch, so a repeated request has the epoch before the current one. The current epoch
# belongs to the next transaction, which may be aborted before it has a partition: its client cannot know whether a
# partition was added. "Retry" and "current" are the epoch of the request; "bump" succeeds and writes an abort:
#
#     state           abort, retry    abort, current   commit, retry   commit, current
#     Empty           fenced          bump             fenced          invalid state
#     CompleteAbort   success         bump             invalid state   invalid state
#     CompleteCommit  invalid state   bump             success         invalid state
#
# That is a retry only where version 2 has ended the latest transaction. Where version 1 has, the epoch was bumped by
# InitProducerId: the request is one of a producer that was replaced, and must not get the epoch of its successor.
#
# While the markers of the transaction are being written, every request is answered with CONCURRENT_TRANSACTIONS, as
# by Apache Kafka: the answer to EndTxn has given the client its next epoch, or its next producer id, with which it
# may abort the next transaction before its first partition is added.

_S = TransactionState


def refuse_end(
    metadata: TransactionMetadata, producer_id: int, epoch: int, client_version: int, *, committed: bool
) -> ErrorCode | None:
    """Why the transaction does not end now: an error, or NONE where it has ended already as the request demands. None
    where it ends now. The id has no write that waits for its commit."""
    if client_version >= VERSION_2:
        return _refuse_version_2(metadata, producer_id, epoch, committed=committed)
    if metadata.producer_id != producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if metadata.producer_epoch != epoch:
        return ErrorCode.PRODUCER_FENCED
    if metadata.state.is_prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if metadata.state is _S.ONGOING:
        return None
    if metadata.state is _complete(committed=committed):
        return ErrorCode.NONE
    return ErrorCode.INVALID_TXN_STATE


def _refuse_version_2(
    metadata: TransactionMetadata, producer_id: int, epoch: int, *, committed: bool
) -> ErrorCode | None:
    state = metadata.state
    if state.is_prepared:
        # Before the producer is checked: its client may have the id that is current when the markers are written.
        return ErrorCode.CONCURRENT_TRANSACTIONS
    is_current = epoch == metadata.producer_epoch
    retries_rotation = (
        metadata.previous_producer_id == producer_id != metadata.producer_id
        and epoch == MAX_EPOCH - 1
        and metadata.producer_epoch == 0
    )
    follows = producer_id == metadata.producer_id and epoch + 1 == metadata.producer_epoch
    is_retry = metadata.bumps_epochs and (retries_rotation or follows)
    if producer_id != metadata.producer_id and not retries_rotation:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if not is_current and not (state.is_complete and is_retry):
        return ErrorCode.PRODUCER_FENCED
    if state is _S.ONGOING:
        # A commit needs an epoch for its bump. Apache Kafka fails with this error too.
        return ErrorCode.UNKNOWN_SERVER_ERROR if committed and epoch == MAX_EPOCH else None
    if is_retry:
        return ErrorCode.NONE if state is _complete(committed=committed) else ErrorCode.INVALID_TXN_STATE
    return ErrorCode.INVALID_TXN_STATE if committed else None


def _complete(*, committed: bool) -> TransactionState:
    return _S.COMPLETE_COMMIT if committed else _S.COMPLETE_ABORT


class Expected(NamedTuple):
    """The producer id and epoch that a producer had before an error."""

    producer_id: int
    epoch: int


class Bump(NamedTuple):
    """The producer begins with `epoch`; `last_epoch` is remembered as the one before."""

    epoch: int
    last_epoch: int


class Rotate(NamedTuple):
    """The producer begins with epoch 0 of a new producer id."""

    last_epoch: int


class Fence(NamedTuple):
    """The open transaction is aborted first."""


def decide_init(metadata: TransactionMetadata, expected: Expected | None) -> Bump | Rotate | Fence | ErrorCode:
    """How the producer begins. The id has no write that waits for its commit."""
    if metadata.state.is_prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if expected is not None and not _is_its_producer(metadata, expected):
        return ErrorCode.PRODUCER_FENCED
    if metadata.state is TransactionState.ONGOING:
        return Fence()
    epoch, last_epoch = metadata.producer_epoch, metadata.last_epoch
    if metadata.is_epoch_exhausted and (expected is None or expected.epoch == epoch):
        return Rotate(NO_EPOCH if expected is None else epoch)
    if expected is None:
        return Bump(epoch + 1, NO_EPOCH)
    if epoch == NO_EPOCH or expected.epoch == epoch:
        return Bump(epoch + 1, epoch)
    if expected.epoch == last_epoch:
        # A repeated request whose answer was lost: a new instance would have reset `last_epoch`.
        return Bump(epoch, last_epoch)
    return ErrorCode.PRODUCER_FENCED


def _is_its_producer(metadata: TransactionMetadata, expected: Expected) -> bool:
    """Whether the expected producer id is the current one; or the one before it, from which a rotation was made that
    the client may not have learned of. An id that was just created has no producer yet."""
    return (
        metadata.producer_epoch == NO_EPOCH
        or expected.producer_id == metadata.producer_id
        or (expected.producer_id == metadata.previous_producer_id and is_epoch_exhausted(expected.epoch))
    )


log = logging.getLogger(__name__)

R = TypeVar("R")
_FIRST_INIT_THAT_FENCES = 4
_FIRST_END_THAT_FENCES = 2
_FIRST_END_OF_VERSION_2 = 5
_MAX_COMPLETION_MS = 100
"""Within this time after a transaction has ended, requests for the next one wait for its markers."""
_MAX_WAITING = 10
"""Requests that wait for the markers of one transaction."""


class TransactionCoordinator:
    """One broker's transaction coordinator: requests on the shards of its runtime."""

    def __init__(
        self,
        config: TransactionConfig,
        log: CoordinatorLog,
        markers: Markers,
        producer_ids: ProducerIdSource,
        transaction_version: Callable[[], int],
        partition_count: Callable[[], int],
        wall_ms: Callable[[], int] | None = None,
    ) -> None:
        """`transaction_version` is the finalized level of the feature, `partition_count` that of `__transaction_state`,
        0 while there is none. Timers go by the `now_ms` of each call; timestamps that are stored by `wall_ms`, or by
        `now_ms` too where it is None."""
        self.config = config
        self.rearm: Callable[[], None] = lambda: None
        """Called when the runtime's next deadline may be earlier, outside of a request."""
        self._producer_ids = producer_ids

        def make_shard(
            partition: CoordinatorPartition[TransactionRecord], runtime: CoordinatorRuntime[TransactionShard]
        ) -> TransactionShard:
            return TransactionShard(
                partition,
                config,
                runtime.timers,
                runtime,
                markers,
                producer_ids,
                transaction_version,
                lambda: self.rearm(),
            )

        self.runtime: CoordinatorRuntime[TransactionShard] = CoordinatorRuntime(
            TRANSACTIONS_TOPIC, make_shard, log, partition_count, config.write_timeout_ms, wall_ms
        )
        """Loads the shards, runs their timers, bounds their writes; what drives this coordinator drives the runtime."""

    # -- producer ids --------------------------------------------------------------------------------------------

    def init_producer_id(
        self, caller: Caller, request: InitProducerIdRequest, now_ms: int
    ) -> InitProducerIdResponse | Pending[InitProducerIdResponse]:
        """InitProducerId: a producer id and an epoch, which fences all earlier instances of a transactional id. Without
        a transactional id: a new producer id at epoch 0, also for an idempotent producer that has one (KIP-360)."""
        self.runtime.advance(now_ms)
        version = caller.api_version
        if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_EPOCH):
            return _init_failed(ErrorCode.INVALID_REQUEST, version)
        if request.transactional_id is None:
            return self._with_producer_id(
                lambda producer_id: InitProducerIdResponse(producer_id=producer_id, producer_epoch=0),
                lambda code: _init_failed(code, version),
            )
        code = self._refuse_init(request)
        if code is not None:
            return _init_failed(code, version)
        return self._init(request, version, None)

    def _refuse_init(self, request: InitProducerIdRequest) -> ErrorCode | None:
        """What is wrong with the request itself."""
        if not request.transactional_id:
            return ErrorCode.INVALID_REQUEST
        if request.enable2_pc and not self.config.two_phase_commit:
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        if request.keep_prepared_txn:
            return ErrorCode.UNSUPPORTED_VERSION
        # With two-phase commit the transaction never times out, and Apache Kafka ignores the timeout in the request.
        is_valid = request.enable2_pc or 0 < request.transaction_timeout_ms <= self.config.max_timeout_ms
        return None if is_valid else ErrorCode.INVALID_TRANSACTION_TIMEOUT

    def _init(
        self, request: InitProducerIdRequest, version: int, new_id: int | None
    ) -> InitProducerIdResponse | Pending[InitProducerIdResponse]:
        """`new_id` is a producer id for the case that one is needed; this is called again with one otherwise."""
        transactional_id = request.transactional_id
        assert transactional_id is not None
        timeout_ms = NO_TIMEOUT_MS if request.enable2_pc else request.transaction_timeout_ms

        def again(producer_id: int) -> InitProducerIdResponse | Pending[InitProducerIdResponse]:
            return self._init(request, version, producer_id)

        def failed(code: ErrorCode) -> InitProducerIdResponse:
            return _init_failed(code, version)

        try:
            shard = self._shard_of(transactional_id)
        except ApiError as error:
            return failed(error.code)
        if transactional_id in shard.pending:
            return failed(ErrorCode.CONCURRENT_TRANSACTIONS)
        wall_ms = self.runtime.wall_ms()
        metadata = shard.transactions.get(transactional_id)
        if metadata is None:
            if new_id is None:
                return self._with_producer_id(again, failed)
            metadata = TransactionMetadata(new_id, NO_EPOCH, timeout_ms)
        expected = None
        if request.producer_id != NO_PRODUCER_ID:
            expected = Expected(request.producer_id, request.producer_epoch)
        match decide_init(metadata, expected):
            case ErrorCode() as code:
                return failed(code)
            case Fence():
                needs_id = shard.needs_next_id(metadata)
                if needs_id and new_id is None:
                    return self._with_producer_id(again, failed)
                next_id = new_id if needs_id and new_id is not None else NO_PRODUCER_ID
                log.info("%s: its open transaction is aborted, because a producer begins anew", transactional_id)
                return answer_after(
                    self.runtime.in_time(shard.abort_and_fence(transactional_id, metadata, next_id)),
                    lambda error: failed(
                        ErrorCode.CONCURRENT_TRANSACTIONS if error is None else write_error(error.code)
                    ),
                )
            case Rotate(last_epoch):
                if new_id is None:
                    return self._with_producer_id(again, failed)
                begun = metadata.rotated(new_id, last_epoch, timeout_ms, wall_ms)
            case Bump(epoch, last_epoch):
                begun = metadata.initialized(epoch, last_epoch, timeout_ms, wall_ms)
        log.debug("%s: producer id %d, epoch %d", transactional_id, begun.producer_id, begun.producer_epoch)
        return answer_after(
            self.runtime.in_time(shard.write(transactional_id, begun)),
            lambda error: (
                InitProducerIdResponse(producer_id=begun.producer_id, producer_epoch=begun.producer_epoch)
                if error is None
                else failed(write_error(error.code))
            ),
        )

    def _with_producer_id(
        self, then: Callable[[int], R | Pending[R]], failed: Callable[[ErrorCode], R]
    ) -> R | Pending[R]:
        """`then(producer_id)` with a new one, at once or later."""
        try:
            taken = self._producer_ids.take()
        except ApiError as error:
            return failed(error.code)
        if not isinstance(taken, Pending):
            return then(taken)
        answer: Pending[R] = Pending()

        def settled(producer_id: int | None, error: ApiError | None) -> None:
            if producer_id is None:
                answer.complete(failed(ErrorCode.UNKNOWN_SERVER_ERROR if error is None else error.code))
                return
            result = then(producer_id)
            if isinstance(result, Pending):
                result.then(answer.settle)
            else:
                answer.complete(result)
            self.rearm()

        taken.then(settled)
        return answer

    # -- partitions ----------------------------------------------------------------------------------------------

    def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Partitions,
        client_version: int,
        *,
        may_wait: bool = True,
    ) -> ErrorCode | Pending[ErrorCode]:
        """Add partitions to the transaction, which begins with the first one. NONE when that is committed; at once
        where all of them are in it.

        Where the markers of the transaction before have just been sent, the request waits for them. Apache Kafka
        answers with CONCURRENT_TRANSACTIONS at once, and the client comes again after a pause."""
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        try:
            shard = self._shard_of(transactional_id)
        except ApiError as error:
            return error.code
        if transactional_id in shard.pending:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        metadata = shard.transactions.get(transactional_id)
        if metadata is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        # The answer to EndTxn has given the client its new id, which is current when the transaction is complete.
        is_next = epoch == 0 and metadata.next_producer_id == producer_id != NO_PRODUCER_ID
        if metadata.producer_id != producer_id and not is_next:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if metadata.producer_epoch != epoch and not is_next:
            return ErrorCode.PRODUCER_FENCED
        if metadata.state.is_prepared:
            completion = shard.completing.get(transactional_id)
            until_ms = None if completion is None or not may_wait else self._completes_until_ms(completion)
            if completion is None or until_ms is None:
                return ErrorCode.CONCURRENT_TRANSACTIONS
            return self._when_completed(
                completion,
                until_ms,
                lambda: self.add_partitions(
                    transactional_id, producer_id, epoch, partitions, client_version, may_wait=False
                ),
            )
        if metadata.state is TransactionState.ONGOING and metadata.holds_all(partitions):
            return ErrorCode.NONE
        added = metadata.with_partitions(partitions, client_version, self.runtime.wall_ms())
        return answer_after(
            self.runtime.in_time(shard.write(transactional_id, added)),
            lambda error: ErrorCode.NONE if error is None else write_error(error.code),
        )

    def verify_partitions(self, transactional_id: str, producer_id: int, epoch: int) -> TransactionMetadata | ErrorCode:
        """The open transaction of this producer, as it is committed; or why it has none to which records may be
        written."""
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        try:
            metadata = self._shard_of(transactional_id).committed(transactional_id)
        except ApiError as error:
            return error.code
        if metadata is None or metadata.producer_id != producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if metadata.producer_epoch != epoch:
            return ErrorCode.PRODUCER_FENCED
        if metadata.state.is_prepared:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        return metadata

    def _completes_until_ms(self, completion: Completion) -> int | None:
        """Until when the transaction may be expected to be complete; None where a marker has failed or is late. A
        request that waits delays all later answers on its connection, which other transactions may share."""
        if completion.failures or len(completion.on_completed) >= _MAX_WAITING:
            return None
        until_ms = completion.began_ms + _MAX_COMPLETION_MS
        return until_ms if until_ms > self.runtime.now_ms() else None

    def _when_completed(
        self, completion: Completion, until_ms: int, handle: Callable[[], R | Pending[R]]
    ) -> Pending[R]:
        """`handle()` when the transaction is complete, or at `until_ms`."""
        answer: Pending[R] = Pending()
        timer = TimerTask(lambda _: resume())

        def resume() -> None:
            self.runtime.timers.disarm(timer)
            if answer.done or is_resumed[0]:
                return
            is_resumed[0] = True
            result = handle()
            if isinstance(result, Pending):
                result.then(answer.settle)
            else:
                answer.complete(result)
            self.rearm()

        is_resumed = [False]
        completion.on_completed.append(resume)
        self.runtime.timers.arm(timer, until_ms)
        return answer

    # -- the end -------------------------------------------------------------------------------------------------

    def end_txn(self, caller: Caller, request: EndTxnRequest, now_ms: int) -> EndTxnResponse | Pending[EndTxnResponse]:
        """EndTxn: answered when the outcome is committed; the markers follow."""
        self.runtime.advance(now_ms)
        client_version = VERSION_2 if caller.api_version >= _FIRST_END_OF_VERSION_2 else 0
        return self._end(request, caller.api_version, client_version, None)

    def _end(
        self, request: EndTxnRequest, version: int, client_version: int, new_id: int | None
    ) -> EndTxnResponse | Pending[EndTxnResponse]:
        """`new_id` as in `_init`."""
        transactional_id = request.transactional_id

        def failed(code: ErrorCode) -> EndTxnResponse:
            if code is ErrorCode.PRODUCER_FENCED and version < _FIRST_END_THAT_FENCES:
                code = ErrorCode.INVALID_PRODUCER_EPOCH
            return EndTxnResponse(error_code=int(code))

        if not transactional_id:
            return failed(ErrorCode.INVALID_REQUEST)
        try:
            shard = self._shard_of(transactional_id)
        except ApiError as error:
            return failed(error.code)
        metadata = shard.transactions.get(transactional_id)
        if transactional_id in shard.pending:
            return failed(ErrorCode.CONCURRENT_TRANSACTIONS)
        if metadata is None:
            return failed(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        committed, is_version_2 = request.committed, client_version >= VERSION_2
        refusal = refuse_end(metadata, request.producer_id, request.producer_epoch, client_version, committed=committed)
        if refusal is ErrorCode.NONE:
            return _ended(metadata) if is_version_2 else EndTxnResponse()
        if refusal is not None:
            if refusal is ErrorCode.INVALID_TXN_STATE:
                outcome = "commit" if committed else "abort"
                log.debug("%s: a producer demands its %s in state %s", transactional_id, outcome, metadata.state.label)
            return failed(refusal)
        needs_id = is_version_2 and metadata.is_epoch_exhausted
        if needs_id and new_id is None:
            return self._with_producer_id(lambda got: self._end(request, version, client_version, got), failed)
        prepared = metadata.prepared(
            committed=committed,
            client_version=client_version,
            next_producer_id=new_id if needs_id and new_id is not None else NO_PRODUCER_ID,
            now_ms=self.runtime.wall_ms(),
        )
        return answer_after(
            self.runtime.in_time(shard.prepare(transactional_id, prepared)),
            lambda error: (
                failed(write_error(error.code))
                if error is not None
                else _ended(prepared)
                if is_version_2
                else EndTxnResponse()
            ),
        )

    # -- reading -------------------------------------------------------------------------------------------------

    def describe(self, transactional_id: str) -> DescribeTransactionsResponseTransactionState:
        """One id of DescribeTransactions. While markers are being written, it shows the partitions that lack theirs."""
        described = DescribeTransactionsResponseTransactionState(transactional_id=transactional_id)
        try:
            if not transactional_id:
                raise ApiError(ErrorCode.INVALID_REQUEST)
            shard = self._shard_of(transactional_id)
            metadata = shard.committed(transactional_id)
            if metadata is None:
                raise ApiError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        except ApiError as error:
            described.error_code = int(error.code)
            return described
        completion = shard.completing.get(transactional_id)
        partitions = metadata.partitions if completion is None else completion.remaining
        described.transaction_state = metadata.state.label
        described.transaction_timeout_ms = metadata.timeout_ms
        described.transaction_start_time_ms = metadata.start_ms
        described.producer_id = metadata.producer_id
        described.producer_epoch = metadata.producer_epoch
        described.topics = [
            DescribeTransactionsResponseTopicData(topic=topic, partitions=sorted(numbers))
            for topic, numbers in partitions.items()
        ]
        return described

    def transactions(self) -> Iterator[tuple[str, TransactionMetadata]]:
        """Every id that this node coordinates, as it is committed. Raises COORDINATOR_LOAD_IN_PROGRESS."""
        shards = list(self.runtime.active_shards())
        if self.runtime.is_loading or any(shard.partition.predecessor_hw_unknown for shard in shards):
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return chain.from_iterable(
            list(shard.transactions.items(shard.partition.committed_epoch())) for shard in shards
        )

    @property
    def unwritten(self) -> int:
        """Transactions whose markers are written, but whose complete state could not be appended yet."""
        return sum(shard.unwritten for shard in self.runtime.active_shards())

    # -- shards --------------------------------------------------------------------------------------------------

    def _shard_of(self, transactional_id: str) -> TransactionShard:
        """The shard of an id. Raises as `shard_for`; and COORDINATOR_LOAD_IN_PROGRESS until all that was loaded is
        committed: the former coordinator may have answered with any of it, or with none of its end."""
        shard = self.runtime.shard_for(transactional_id)
        if shard.partition.predecessor_hw_unknown:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return shard


def _init_failed(code: ErrorCode, version: int) -> InitProducerIdResponse:
    if code is ErrorCode.PRODUCER_FENCED and version < _FIRST_INIT_THAT_FENCES:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    return InitProducerIdResponse(error_code=int(code), producer_epoch=NO_EPOCH)


def _ended(metadata: TransactionMetadata) -> EndTxnResponse:
    """With the producer id and epoch of the next transaction, by version 2."""
    if metadata.next_producer_id != NO_PRODUCER_ID:
        return EndTxnResponse(producer_id=metadata.next_producer_id, producer_epoch=0)
    return EndTxnResponse(producer_id=metadata.producer_id, producer_epoch=metadata.producer_epoch)
