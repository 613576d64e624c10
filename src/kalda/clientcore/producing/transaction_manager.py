"""The producer's side of transactions, as a machine: which request to a coordinator comes next, and what may be done.

States and errors are those of Kafka's producer. In versions 0 and 1 of transactions (`transaction.version`), a
partition is added by AddPartitionsToTxn before its first batch, and a group by AddOffsetsToTxn before its offsets. In
version 2 (KIP-890) brokers add both implicitly, and EndTxn answers with the epoch of the next transaction. The version
is fixed for the length of a transaction.

The shell calls `next_request` and sends it, then calls `on_response` or `on_failure`; only one request is in flight.
A batch is numbered by `number` when its partition `is_writable`, and its outcome is given to `on_batch_failed` where it
cannot be retried. After `begin_commit`, EndTxn follows when the shell has no batch without an outcome. With nothing in
flight, `is_idle` means that the last call of the application has been completed.

After an error that needs an abort, nothing is sent before `begin_abort`. Where the outcome of a batch is unknown in
versions 0 and 1, an epoch bump by InitProducerId follows the abort (KIP-360), so that a delayed batch of this
transaction is not appended to the next one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from enum import Enum
from itertools import islice
from typing import Any, NamedTuple, NoReturn

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.clientcore.connections.errors import Backoff, refused
from kalda.clientcore.connections.requests import MAX_FIND_COORDINATOR
from kalda.clientcore.producing.idempotence import DENIED
from kalda.clientcore.producing.producer_errors import (
    FENCED,
    AbortableTransactionError,
    FatalTransactionError,
    fatal,
)
from kalda.protocol.messages.groups import CoordinatorType, FindCoordinatorRequest
from kalda.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from kalda.protocol.naming import MAX_PARTITIONS_NAMED
from kalda.protocol.notation import Request
from kalda.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, advance_sequence

MAX_PRODUCE_BEFORE_V2 = 11
"""A Produce of version 12 or later adds its partitions to the transaction (KIP-890)."""
_MAX_ADD_PARTITIONS = 3
"""The last version for clients; later ones are for the verification by brokers."""
_MAX_END_BEFORE_V2 = 4
_MAX_OFFSET_COMMIT_BEFORE_V2, _MAX_OFFSET_COMMIT = 4, 5
"""Of TxnOffsetCommit; later versions name topics by their ids, which the producer need not have (KIP-1319)."""
_MAX_INIT, _TWO_PHASE_INIT = 5, 6
"""Of InitProducerId: without two-phase commit, and with it (KIP-939)."""
_TRANSACTIONS_V2 = 2
_CONCURRENT_RETRY_MS = 20
"""The coordinator is writing the markers of the last transaction, which takes milliseconds."""
_DEFAULT_BACKOFF = Backoff(100, 1_000, lambda: 0.5)


class TransactionState(Enum):
    """The states of Kafka's TransactionManager."""

    UNINITIALIZED = "uninitialized"
    INITIALIZING = "initializing"
    READY = "ready"
    IN_TRANSACTION = "in transaction"
    PREPARED = "prepared"
    """An external coordinator decides what becomes of the transaction (KIP-939); its records are written."""
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE_ERROR = "abortable error"
    FATAL_ERROR = "fatal error"


_NEXT_STATES = {
    TransactionState.UNINITIALIZED: (TransactionState.INITIALIZING,),
    TransactionState.INITIALIZING: (
        TransactionState.READY,
        TransactionState.PREPARED,
        TransactionState.ABORTABLE_ERROR,
        TransactionState.UNINITIALIZED,
    ),
    TransactionState.READY: (TransactionState.IN_TRANSACTION, TransactionState.INITIALIZING),
    TransactionState.IN_TRANSACTION: (
        TransactionState.PREPARED,
        TransactionState.COMMITTING,
        TransactionState.ABORTING,
        TransactionState.ABORTABLE_ERROR,
    ),
    TransactionState.PREPARED: (TransactionState.COMMITTING, TransactionState.ABORTING),
    TransactionState.COMMITTING: (
        TransactionState.READY,
        TransactionState.INITIALIZING,
        TransactionState.ABORTABLE_ERROR,
    ),
    TransactionState.ABORTING: (
        TransactionState.READY,
        TransactionState.INITIALIZING,
        TransactionState.ABORTABLE_ERROR,
    ),
    TransactionState.ABORTABLE_ERROR: (TransactionState.ABORTING,),
    TransactionState.FATAL_ERROR: (),
}
"""Every state may be followed by FATAL_ERROR too."""


class PreparedTxnState(NamedTuple):
    """A prepared transaction, as an external coordinator keeps it: its text is that of Kafka's class of this name."""

    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_PRODUCER_EPOCH

    @property
    def has_transaction(self) -> bool:
        """Whether there is one."""
        return self.producer_id != NO_PRODUCER_ID

    def __str__(self) -> str:
        return f"{self.producer_id}:{self.epoch}" if self.has_transaction else ""


class TransactionRequest(NamedTuple):
    """A request to send to `node_id`; None: to any broker."""

    node_id: int | None
    request: Request
    max_version: int | None
    version: int | None = None
    """The only version that has what the request says."""


class Stamp(NamedTuple):
    """What the header of a batch gets."""

    producer_id: int
    producer_epoch: int
    base_sequence: int


class GroupMember(NamedTuple):
    """The member that has read the input (KIP-447), which fences one that the group has removed."""

    generation_id: int = -1
    member_id: str = ""
    instance_id: str | None = None


class _Offsets(NamedTuple):
    group_id: str
    offsets: Mapping[TopicPartition, int]
    member: GroupMember
    texts: Mapping[TopicPartition, str]
    """What is committed with an offset; a partition without a text has an empty one."""


class TransactionManager:
    """One transactional id. Time is milliseconds of any monotonic clock."""

    def __init__(
        self,
        transactional_id: str,
        transaction_timeout_ms: int = 60_000,
        backoff: Backoff = _DEFAULT_BACKOFF,
        *,
        is_two_phase: bool = False,
    ) -> None:
        """`is_two_phase`: transactions never expire, and may be prepared (`transaction.two.phase.commit.enable`)."""
        self.transactional_id = transactional_id
        self.state = TransactionState.UNINITIALIZED
        self.error: ApiError | None = None
        """Why the state is ABORTABLE_ERROR or FATAL_ERROR, or why it is UNINITIALIZED again."""
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = NO_PRODUCER_EPOCH
        self.prepared = PreparedTxnState()
        """The transaction that is PREPARED."""
        self._is_two_phase = is_two_phase
        self._keeps_prepared = False
        """The next InitProducerId is to leave a prepared transaction open."""
        self.is_v2 = False
        """Whether the current transaction is of version 2."""
        self._timeout_ms = transaction_timeout_ms
        self._backoff = backoff
        self._finalized_version = 0
        """The newest finalized transaction.version."""
        self._version = 0
        """The transaction.version of the next transaction; taken over when a transaction begins to end."""
        self._features_epoch = -1
        self._coordinators: dict[tuple[CoordinatorType, str], int] = {}
        """Node ids, by kind and key."""
        self._in_flight: TransactionRequest | None = None
        self._retries = 0
        """Failed attempts in a row."""
        self._retry_at_ms = 0
        self._new_partitions: dict[TopicPartition, None] = {}
        """Partitions that AddPartitionsToTxn has not added, in their order; never any in version 2."""
        self._partitions: set[TopicPartition] = set()
        """Partitions of the transaction that batches may be sent to."""
        self._offsets: deque[_Offsets] = deque()
        """Offsets that TxnOffsetCommit has not written."""
        self._added_groups: set[str] = set()
        """Groups that AddOffsetsToTxn has added."""
        self._is_started = False
        """Whether the coordinator may hold this transaction as ongoing, so that EndTxn is needed: before version 2 it
        refuses to end one to which nothing was added."""
        self._was_started = False
        """`_is_started` before the request in flight."""
        self._bump_required = False
        """InitProducerId has to raise the epoch after the abort."""
        self._sequences: dict[TopicPartition, int] = {}
        """The sequence number of each partition's next batch in this epoch."""

    # -- what the application calls

    def initialize(self, keep_prepared_txn: bool = False) -> None:
        """Begin to get a producer id and to fence earlier producers. A second call after a timeout continues, one after
        an error of authorization begins again. With `keep_prepared_txn` a transaction that an earlier producer has
        prepared is taken over; else it is aborted."""
        if keep_prepared_txn:
            self._require_two_phase("keep a prepared transaction")
        if self.state is not TransactionState.INITIALIZING:
            self._move(TransactionState.INITIALIZING, "initialize")
            self.error = None
            self._keeps_prepared = keep_prepared_txn

    def prepare(self) -> PreparedTxnState:
        """All records and offsets of the transaction are written: from now on it can only be ended. Returns what names
        it."""
        self._require_two_phase("prepare a transaction")
        self._expect_transaction("prepare")
        self._move(TransactionState.PREPARED, "prepare")
        self.prepared = PreparedTxnState(self.producer_id, self.producer_epoch)
        return self.prepared

    def _require_two_phase(self, what: str) -> None:
        if not self._is_two_phase:
            raise ApiError(
                ErrorCode.INVALID_TXN_STATE, f"cannot {what}: set transaction.two.phase.commit.enable to true"
            )

    def begin(self) -> None:
        """Begin a transaction."""
        self._move(TransactionState.IN_TRANSACTION, "begin a transaction")
        self.is_v2 = self._version >= _TRANSACTIONS_V2

    def check_open(self) -> None:
        """Raises where no transaction is open that takes records."""
        self._expect_transaction("send")

    def add_partition(self, partition: TopicPartition) -> None:
        """Make a partition part of the transaction; batches may be sent when it `is_writable`."""
        self._expect_transaction("send")
        if partition in self._partitions or partition in self._new_partitions:
            return
        if self.is_v2:
            self._is_started = True  # its first batch adds it
            self._partitions.add(partition)
        else:
            self._new_partitions[partition] = None

    def is_writable(self, partition: TopicPartition) -> bool:
        """Whether a batch may be sent to this partition now."""
        return partition in self._partitions and self.state in (
            TransactionState.IN_TRANSACTION,
            TransactionState.COMMITTING,
        )

    def number(self, partition: TopicPartition, records_count: int) -> Stamp:
        """Producer id, epoch and sequence of the partition's next batch."""
        assert partition in self._partitions, f"{partition} is part of the transaction"
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = advance_sequence(sequence, records_count)
        return Stamp(self.producer_id, self.producer_epoch, sequence)

    def send_offsets(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, int],
        member: GroupMember | None = None,
        texts: Mapping[TopicPartition, str] | None = None,
    ) -> None:
        """Commit a group's offsets as a part of the transaction, with a text for some of them."""
        self._expect_transaction("send offsets")
        if offsets:
            self._is_started |= self.is_v2
        left = iter(offsets.items())
        while some := dict(islice(left, MAX_PARTITIONS_NAMED)):
            self._offsets.append(_Offsets(group_id, some, member or GroupMember(), dict(texts or {})))

    def begin_commit(self) -> None:
        """Commit, when all offsets are written and the shell has no batch left. A second call after a timeout
        continues."""
        if self.state is TransactionState.COMMITTING:
            return
        if self.state is not TransactionState.PREPARED:
            self._expect_transaction("commit")
        self._move(TransactionState.COMMITTING, "commit")
        self._take_version()

    def begin_abort(self) -> None:
        """Abort. The shell drops the batches that are not sent; the outcome of those in flight does not matter.

        A second call after a timeout continues."""
        if self.state is TransactionState.ABORTING:
            return
        if self.state is TransactionState.FATAL_ERROR:
            self._raise_error()
        self._move(TransactionState.ABORTING, "abort")
        self.error = None
        self._new_partitions.clear()
        self._offsets.clear()
        self._take_version()

    @property
    def has_transaction(self) -> bool:
        """Whether a transaction is open, or is being ended."""
        return self.state in (
            TransactionState.IN_TRANSACTION,
            TransactionState.COMMITTING,
            TransactionState.ABORTING,
            TransactionState.ABORTABLE_ERROR,
        )

    @property
    def is_idle(self) -> bool:
        """Whether everything that the application has called is completed, or cannot be because of `error`."""
        if self.state in (
            TransactionState.ABORTABLE_ERROR,
            TransactionState.FATAL_ERROR,
            TransactionState.READY,
            TransactionState.PREPARED,
            TransactionState.UNINITIALIZED,
        ):
            return self._in_flight is None
        return (
            self.state is TransactionState.IN_TRANSACTION
            and self._in_flight is None
            and not self._new_partitions
            and not self._offsets
        )

    def check(self) -> None:
        """Raises `AbortableTransactionError` or `FatalTransactionError` where the state is one of an error."""
        if self.error is not None:
            self._raise_error()

    # -- what the shell calls

    def on_features(self, epoch: int, transaction_version: int) -> None:
        """The finalized transaction.version, from ApiVersions. It applies to transactions that begin later."""
        if epoch > self._features_epoch:
            self._features_epoch, self._finalized_version = epoch, transaction_version

    def on_batch_failed(self, code: ErrorCode, message: str) -> None:
        """A batch cannot be written, or its answer did not come in time."""
        if self.state not in (TransactionState.IN_TRANSACTION, TransactionState.COMMITTING):
            return
        if code in _FATAL_FOR_BATCHES:
            self._fail(fatal(code, message))
            return
        if code.retriable or code is ErrorCode.INVALID_TXN_STATE:
            # An application that sees a code which may pass repeats the call, and its records would be written twice.
            code, message = ErrorCode.TRANSACTION_ABORTABLE, f"{message} ({code.name})"
        self._bump_required = self._bump_required or not self.is_v2
        self._fail(AbortableTransactionError(code, message))

    def on_send_failed(self, code: ErrorCode, message: str) -> None:
        """A record of the open transaction got into no batch: a commit would leave it out."""
        if self.state is TransactionState.IN_TRANSACTION:
            self.on_batch_failed(code, f"a record could not be sent: {message}")

    def next_request(self, now_ms: int, *, has_batches: bool = False) -> TransactionRequest | None:
        """The next request, if it is time for one. `has_batches`: some batches have no outcome yet, so the transaction
        cannot be committed."""
        if self._in_flight is not None or now_ms < self._retry_at_ms:
            return None
        self._in_flight = outgoing = self._choose(has_batches)
        if outgoing is not None and isinstance(outgoing.request, _STARTS):
            self._was_started, self._is_started = self._is_started, True
        return outgoing

    @property
    def retry_at_ms(self) -> int:
        """`next_request` returns None before this time."""
        return self._retry_at_ms

    def on_response(self, response: Any, now_ms: int) -> None:
        """The response to the request in flight."""
        sent, self._in_flight = self._in_flight, None
        assert sent is not None, "a response has a request"
        if self.state in _GIVEN_UP and isinstance(sent.request, _MADE_VOID_BY_ABORT):
            return
        match sent.request:
            case FindCoordinatorRequest():
                self._on_coordinator(sent.request, response, now_ms)
            case InitProducerIdRequest():
                self._on_initialized(response, now_ms)
            case AddPartitionsToTxnRequest():
                self._on_partitions(response, now_ms)
            case AddOffsetsToTxnRequest():
                self._on_group(sent.request, response, now_ms)
            case TxnOffsetCommitRequest():
                self._on_offsets(sent.request, response, now_ms)
            case EndTxnRequest():
                self._on_ended(response, now_ms)
            case _:
                raise AssertionError(f"{sent.request} is no request of transactions")

    def on_failure(self, code: ErrorCode, message: str, now_ms: int, *, was_sent: bool = True) -> None:
        """The request in flight has no response: the connection broke, the time has passed, or it could not be sent.
        The coordinator is looked up again, and the request is repeated."""
        sent, self._in_flight = self._in_flight, None
        assert sent is not None, "a failure has a request"
        if not was_sent and isinstance(sent.request, _STARTS):
            self._is_started = self._was_started
        if code is ErrorCode.UNSUPPORTED_VERSION:
            self._fail(fatal(code, message))
            return
        for key in [key for key, node_id in self._coordinators.items() if node_id == sent.node_id]:
            del self._coordinators[key]
        self._retry(now_ms)

    # -- requests

    def _choose(self, has_batches: bool) -> TransactionRequest | None:
        match self.state:
            case TransactionState.INITIALIZING:
                outgoing = self._to_coordinator(self._init_request(), _MAX_INIT)
                if self._is_two_phase and isinstance(outgoing.request, InitProducerIdRequest):
                    return outgoing._replace(max_version=None, version=_TWO_PHASE_INIT)
                return outgoing
            case TransactionState.IN_TRANSACTION | TransactionState.COMMITTING:
                if self._new_partitions:
                    return self._to_coordinator(self._add_partitions_request(), _MAX_ADD_PARTITIONS)
                if self._offsets:
                    return self._offsets_request(self._offsets[0])
                if self.state is TransactionState.COMMITTING and not has_batches:
                    return self._end()
            case TransactionState.ABORTING:
                return self._end()
        return None

    def _end(self) -> TransactionRequest | None:
        """EndTxn, unless the coordinator has no transaction to end."""
        if not self._is_started:
            self._complete()
            return self._choose(False)  # InitProducerId, where a new epoch is needed
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            committed=self.state is TransactionState.COMMITTING,
        )
        return self._to_coordinator(request, None if self.is_v2 else _MAX_END_BEFORE_V2)

    def _to_coordinator(
        self,
        request: Request,
        max_version: int | None,
        kind: CoordinatorType = CoordinatorType.TRANSACTION,
        key: str | None = None,
    ) -> TransactionRequest:
        """The request, or a lookup of its coordinator."""
        key = self.transactional_id if key is None else key
        node_id = self._coordinators.get((kind, key))
        if node_id is None:
            return TransactionRequest(None, FindCoordinatorRequest(key=key, key_type=kind), MAX_FIND_COORDINATOR)
        return TransactionRequest(node_id, request, max_version)

    def _init_request(self) -> InitProducerIdRequest:
        """With producer id and epoch where the epoch is to be raised: another producer's epoch is not."""
        return InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self._timeout_ms,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            enable2_pc=self._is_two_phase,
            keep_prepared_txn=self._keeps_prepared,
        )

    def _add_partitions_request(self) -> AddPartitionsToTxnRequest:
        topics: dict[str, AddPartitionsToTxnTopic] = {}
        for name, index in islice(self._new_partitions, MAX_PARTITIONS_NAMED):
            topics.setdefault(name, AddPartitionsToTxnTopic(name=name)).partitions.append(index)
        return AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.producer_epoch,
            v3_and_below_topics=list(topics.values()),
        )

    def _offsets_request(self, one: _Offsets) -> TransactionRequest:
        if not self.is_v2 and one.group_id not in self._added_groups:
            request = AddOffsetsToTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                group_id=one.group_id,
            )
            return self._to_coordinator(request, None)
        topics: dict[str, TxnOffsetCommitRequestTopic] = {}
        for (name, index), offset in one.offsets.items():
            topics.setdefault(name, TxnOffsetCommitRequestTopic(name=name)).partitions.append(
                TxnOffsetCommitRequestPartition(
                    partition_index=index,
                    committed_offset=offset,
                    committed_metadata=one.texts.get(TopicPartition(name, index), ""),
                )
            )
        commit = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=one.group_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            generation_id_or_member_epoch=one.member.generation_id,
            member_id=one.member.member_id,
            group_instance_id=one.member.instance_id,
            topics=list(topics.values()),
        )
        max_version = _MAX_OFFSET_COMMIT if self.is_v2 else _MAX_OFFSET_COMMIT_BEFORE_V2
        return self._to_coordinator(commit, max_version, CoordinatorType.GROUP, one.group_id)

    # -- responses

    def _on_coordinator(self, request: FindCoordinatorRequest, response: Any, now_ms: int) -> None:
        code, kind = ErrorCode(response.error_code), CoordinatorType(request.key_type)
        if code is ErrorCode.NONE:
            self._retries = 0
            self._coordinators[kind, request.key] = response.node_id
        elif code.retriable:
            self._retry(now_ms)
        elif code is ErrorCode.GROUP_AUTHORIZATION_FAILED:
            self._fail(AbortableTransactionError(code, f"group {request.key!r}"))
        elif code in DENIED and self.state is TransactionState.INITIALIZING:
            self._deny(code)
        else:
            self._fail(fatal(code, f"the coordinator of {request.key!r} was not found"))

    def _on_initialized(self, response: Any, now_ms: int) -> None:
        code = ErrorCode(response.error_code)
        if code is ErrorCode.NONE:
            self._set_producer(response.producer_id, response.producer_epoch)
            self._bump_required = False
            self._retries = 0
            self._version = self._finalized_version
            self._on_ready(response)
        elif not self._retried(code, now_ms):
            if code is ErrorCode.TRANSACTION_ABORTABLE:
                self._fail(AbortableTransactionError(code, "InitProducerId"))
            elif code in DENIED:
                self._deny(code)
            else:
                self._fail(fatal(code, "InitProducerId"))

    def _on_ready(self, response: Any) -> None:
        ongoing = PreparedTxnState(response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch)
        was_kept, self._keeps_prepared = self._keeps_prepared and ongoing.has_transaction, False
        if not was_kept:
            self._move(TransactionState.READY, "be ready")
            return
        self._move(TransactionState.PREPARED, "take the prepared transaction over")
        self.prepared, self._is_started = ongoing, True
        self.is_v2 = self._version >= _TRANSACTIONS_V2

    def _on_partitions(self, response: Any, now_ms: int) -> None:
        failures: dict[ErrorCode, TopicPartition] = {}
        for topic in response.results_by_topic_v3_and_below:
            for result in topic.results_by_partition:
                partition = TopicPartition(topic.name, result.partition_index)
                code = ErrorCode(result.partition_error_code)
                if code is ErrorCode.NONE:
                    self._new_partitions.pop(partition, None)
                    self._partitions.add(partition)
                else:
                    failures[code] = partition
        if len(failures) > 1:  # the error of another partition is why this one was not attempted
            failures.pop(ErrorCode.OPERATION_NOT_ATTEMPTED, None)
        final = [code for code in failures if not code.retriable]
        if not failures:
            self._retries = 0
        elif not final:
            self._retried(next(iter(failures)), now_ms)
        else:
            self._fail_request(final[0], f"partition {failures[final[0]]} cannot be added to the transaction")

    def _on_group(self, request: AddOffsetsToTxnRequest, response: Any, now_ms: int) -> None:
        code = ErrorCode(response.error_code)
        if code is ErrorCode.NONE:
            self._retries = 0
            self._added_groups.add(request.group_id)
        elif not self._retried(code, now_ms):
            self._fail_request(code, f"group {request.group_id!r} cannot be added to the transaction")

    def _on_offsets(self, request: TxnOffsetCommitRequest, response: Any, now_ms: int) -> None:
        codes = {
            ErrorCode(p.error_code): f"{topic.name}-{p.partition_index}"
            for topic in response.topics
            for p in topic.partitions
            if p.error_code
        }
        final = [code for code in codes if not code.retriable]
        if not codes:
            self._retries = 0
            self._offsets.popleft()
        elif final:
            self._fail_request(final[0], f"group {request.group_id!r}: the offset of {codes[final[0]]} is refused")
        else:
            self._retried(next(iter(codes)), now_ms, (CoordinatorType.GROUP, request.group_id))

    def _on_ended(self, response: Any, now_ms: int) -> None:
        code = ErrorCode(response.error_code)
        if code is ErrorCode.NONE:
            self._retries = 0
            if self.is_v2 and response.producer_id != NO_PRODUCER_ID:
                self._set_producer(response.producer_id, response.producer_epoch)
            self._complete()
        elif not self._retried(code, now_ms):
            self._fail_request(code, f"the transaction cannot be {self.state.value.replace('ing', 'ed')}")

    # -- state

    def _deny(self, code: ErrorCode) -> None:
        """The producer gets no producer id, until `initialize` is called when it has the right."""
        self._move(TransactionState.UNINITIALIZED, "fail")
        self.error = refused(code, f"transactional id {self.transactional_id!r}")

    def _fail_request(self, code: ErrorCode, message: str) -> None:
        """A request within a transaction was refused by an error that is not retriable."""
        if code is ErrorCode.UNKNOWN_PRODUCER_ID:
            self._bump_required = self._bump_required or not self.is_v2
        elif code in FENCED or code in _FATAL_IN_TRANSACTION:
            self._fail(fatal(code, message))
            return
        self._fail(AbortableTransactionError(code, message))

    def _fail(self, error: ApiError) -> None:
        if self.state is TransactionState.FATAL_ERROR:
            return
        if isinstance(error, FatalTransactionError):
            self.state = TransactionState.FATAL_ERROR
        elif self.state is TransactionState.ABORTING:  # the abort itself is refused: another one would be too
            error = FatalTransactionError(error.code, error.message)
            self.state = TransactionState.FATAL_ERROR
        elif self.state is not TransactionState.ABORTABLE_ERROR:
            self._move(TransactionState.ABORTABLE_ERROR, "fail")
        else:
            return  # the first error is the one to report
        self.error = error
        self._new_partitions.clear()
        self._offsets.clear()

    def _retried(self, code: ErrorCode, now_ms: int, coordinator: tuple[CoordinatorType, str] | None = None) -> bool:
        """Whether the error is retriable; then the request will be repeated, at another coordinator where the error
        means that this one is none."""
        if not code.retriable:
            return False
        if code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            self._coordinators.pop(coordinator or (CoordinatorType.TRANSACTION, self.transactional_id), None)
        self._retry(now_ms, _CONCURRENT_RETRY_MS if code is ErrorCode.CONCURRENT_TRANSACTIONS else None)
        return True

    def _retry(self, now_ms: int, longest_ms: int | None = None) -> None:
        self._retries += 1
        pause_ms = self._backoff.pause_ms(self._retries)
        self._retry_at_ms = now_ms + (pause_ms if longest_ms is None else min(pause_ms, longest_ms))

    def _set_producer(self, producer_id: int, producer_epoch: int) -> None:
        if (producer_id, producer_epoch) != (self.producer_id, self.producer_epoch):
            self._sequences.clear()
        self.producer_id, self.producer_epoch = producer_id, producer_epoch

    def _take_version(self) -> None:
        """The next transaction has the newest version. The first one of version 2 needs a new epoch: a delayed batch of
        an earlier transaction would be added to it implicitly."""
        if self._version < _TRANSACTIONS_V2 <= self._finalized_version:
            self._bump_required = True
        self._version = self._finalized_version

    def _complete(self) -> None:
        """The transaction has ended; a new epoch may be needed before the next one."""
        self._partitions.clear()
        self._new_partitions.clear()
        self._added_groups.clear()
        self._is_started = False
        self.prepared = PreparedTxnState()
        needs_producer_id = self._bump_required or self.producer_id == NO_PRODUCER_ID
        self._move(TransactionState.INITIALIZING if needs_producer_id else TransactionState.READY, "end")

    def _expect_transaction(self, what: str) -> None:
        if self.state is not TransactionState.UNINITIALIZED:
            self.check()
        if self.state is not TransactionState.IN_TRANSACTION:
            raise ApiError(
                ErrorCode.INVALID_TXN_STATE, f"cannot {what}: the producer is {self.state.value}; begin a transaction"
            )

    def _move(self, state: TransactionState, what: str) -> None:
        if state not in _NEXT_STATES[self.state]:
            self.check()
            raise ApiError(ErrorCode.INVALID_TXN_STATE, f"cannot {what}: the producer is {self.state.value}")
        self.state = state

    def _raise_error(self) -> NoReturn:
        assert self.error is not None, "a state of an error has one"
        raise self.error


_FATAL_IN_TRANSACTION = frozenset(
    (
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.UNSUPPORTED_VERSION,
    )
)
"""Besides `FENCED`: errors of requests within a transaction after which the producer cannot go on."""
_FATAL_FOR_BATCHES = frozenset(
    (
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_VERSION,
    )
)
_STARTS = (AddPartitionsToTxnRequest, AddOffsetsToTxnRequest)
"""Requests that make a transaction an ongoing one before version 2."""
_MADE_VOID_BY_ABORT = (AddPartitionsToTxnRequest, AddOffsetsToTxnRequest, TxnOffsetCommitRequest)
"""Requests whose outcome does not matter where the transaction is aborted meanwhile, or has failed and can only be
aborted. An error that fences the producer is answered to EndTxn too."""
_GIVEN_UP = (TransactionState.ABORTING, TransactionState.ABORTABLE_ERROR, TransactionState.FATAL_ERROR)
