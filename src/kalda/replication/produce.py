"""The produce path: append the records, then wait for the in-sync replicas where the request asks for that.

With acks=1 the answer is due as soon as the leader's log has the records, and has flushed them where the topic asks for
flushes; with acks=all (-1) when the high watermark has passed them. After the request's timeout the answer is
REQUEST_TIMED_OUT; the records stay, and the retry of an idempotent producer is answered as their duplicate.

A request of many partitions is handled in steps, with others served in between. Logs that have not been opened yet are
opened by a job first. The first batch of a transaction in a partition waits until the transaction's coordinator has
verified it (`verification.py`). Between the steps leaders may change: the leader epoch of each append is kept, and
checked before the wait for replicas begins. A driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

from kalda.base.background import Steps
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import INTERNAL_TOPICS, TopicPartition, Uuid
from kalda.base.scheduling import Jobs, Pending
from kalda.protocol.messages.partitions import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceResponseLeaderIdAndEpoch,
    TopicProduceData,
    TopicProduceResponse,
)
from kalda.protocol.notation import maker
from kalda.records.batch import HEADER_SIZE
from kalda.records.validation import Inspection, InspectionUnfinished, RecordsRefused
from kalda.replication.counters import NO_PRODUCE_FAILURES, DelayedOperation
from kalda.replication.partition import Partition
from kalda.replication.verification import ClientSupport, Errors, TransactionVerifier, produce_error
from kalda.replication.waiters import OffsetWaiter
from kalda.storage.log.producer_state import Verification
from kalda.storage.log.snapshot_jobs import open_logs

if TYPE_CHECKING:
    from kalda.replication.replica_manager import ReplicaManager
    from kalda.storage.log.log import Log

ALL = -1
_PARTITIONS_A_STEP = 30
"""An append takes some 30 us."""
_DEFERRED_A_STEP = 100
"""What one job, or one verification, is for. The rest waits for the next one."""
_WRITABLE = (memoryview, bytearray)
_ATTRIBUTES_AT = 22
"""The low byte of a batch's attributes."""
_WITHOUT_LOG_START = frozenset(
    (
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    )
)
"""Refusals without a look at the log: Kafka's answers to them have no log start offset."""
_CODEC_BITS = 7
_ZSTD = 4
_TRANSACTIONAL = 0x10
_producer_fields = Struct(">qhi").unpack_from
_PRODUCER_AT = 43
"""Producer id, epoch and base sequence of a batch."""
_response = maker(ProduceResponse)
_topic_response = maker(TopicProduceResponse, "name", "topic_id")
_appended = maker(PartitionProduceResponse, "index", "base_offset", "log_append_time_ms", "log_start_offset")


class Transaction(NamedTuple):
    """The transaction that a request names."""

    transactional_id: str
    support: ClientSupport
    verifier: TransactionVerifier


class _Deferred(NamedTuple):
    """Records of one partition that are appended later: after a job that opens their log, or checks them; or when their
    transaction has been verified."""

    topic: str
    answer: TopicProduceResponse
    data: PartitionProduceData
    cold_log: Log | None = None
    inspection: Inspection | None = None
    verification: Verification | None = None
    """The guard for the append, where one is needed."""
    is_verified: bool = False


class Produce:
    """One produce request. When it has run, `failed` says whether the records of any partition were refused."""

    __slots__ = (
        "_acks",
        "_add_leader_endpoints",
        "_answers",
        "_checked_bits",
        "_deferred",
        "_epochs",
        "_is_satisfied",
        "_manager",
        "_now_ms",
        "_refuses_internal",
        "_required",
        "_retry_until_ms",
        "_transaction",
        "_unnamed",
        "_unverified",
        "_zstd",
        "failed",
        "response",
    )

    def __init__(
        self,
        manager: ReplicaManager,
        acks: int,
        now_ms: int,
        zstd: bool,
        add_leader_endpoints: Callable[[ProduceResponse], None] | None,
        transaction: Transaction | None = None,
        by_id: bool = False,
        refuses_internal_topics: bool = False,
    ) -> None:
        self._unnamed = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        """The error of topics without a name."""
        self._refuses_internal = refuses_internal_topics
        self._zstd = zstd
        """Whether the request's version allows zstd."""
        self._transaction = transaction
        """None where the request names none: then no batch may be transactional."""
        self._checked_bits = _TRANSACTIONAL if zstd else _TRANSACTIONAL | _ZSTD
        """Attributes of batches that `_check_attributes` has to see. A batch without them costs this one comparison."""
        self._unverified: list[_Deferred] | None = None
        """What is appended when its transaction has been verified; None: nothing so far."""
        self._retry_until_ms = -1
        """Until when a verification is tried again that finds the former transaction not completed; -1: none has
        begun."""
        self._add_leader_endpoints = add_leader_endpoints
        self._manager = manager
        self._acks = acks
        self._is_satisfied: Callable[[Partition, int], bool] = (
            Partition.is_committed if acks == ALL else Partition.is_durable
        )
        """Whether the records of a partition below an offset are where `acks` asks for them."""
        self._now_ms = now_ms
        self._deferred: list[_Deferred] | None = None
        """What is appended after a job; None: nothing so far."""
        self._required: dict[Partition, int] = {}
        """Partitions whose records are not committed, or not durable, yet: the offset below which they have to be."""
        self._epochs: dict[Partition, int] = {}
        """The leader epochs in which these records were appended."""
        self._answers: dict[Partition, list[PartitionProduceResponse]] = {}
        """Answers of these partitions: errors replace them where the wait ends badly."""
        self.response = _response()
        self.failed = False

    def append(
        self,
        topic: str,
        answer: TopicProduceResponse,
        data: PartitionProduceData,
        deferred: _Deferred | None = None,
    ) -> None:
        """Append one partition's records, and add the outcome to `answer`; or defer them. `deferred` is what a job has
        been done for."""
        partition = None
        try:
            partition = self._manager.partitions.get((topic, data.index))
            if partition is None:
                raise ApiError(self._manager.missing_code(topic, None, data.index))
            if partition.log.cold and deferred is None:
                self._defer(_Deferred(topic, answer, data, partition.log, None))
                return
            counters = partition.topic_counters
            if deferred is None or deferred.cold_log is not None:
                counters.produce_requests.value += 1
            records = data.records
            if not records:
                raise ApiError(
                    ErrorCode.INVALID_RECORD, f"Produce request for {topic}-{data.index} has no record batch"
                )
            assert isinstance(records, _WRITABLE), "a frame is writable memory"
            if self._manager.refused.notes:
                self._manager.refused.check(partition, records, self._now_ms)
            if len(records) > _ATTRIBUTES_AT and records[_ATTRIBUTES_AT] & self._checked_bits:
                guard = (
                    self._check_attributes(partition, records) if deferred is None or not deferred.is_verified else None
                )
                if guard is not None:
                    if self._unverified is None:
                        self._unverified = []
                    self._unverified.append(_Deferred(topic, answer, data, verification=guard))
                    return
            if deferred is None:
                info = partition.append(records, self._acks, self._now_ms)
            else:
                info = partition.append(
                    records,
                    self._acks,
                    self._now_ms,
                    inspection=deferred.inspection,
                    verification=deferred.verification,
                )
        except ApiError as error:
            if partition is not None:
                self._manager.counters.on_refused(partition.topic_counters, error, len(data.records or b""))
            self._manager.refused.note(topic, data.index, data.records, error, self._now_ms)
            self.refuse(answer, data.index, error, partition)
            return
        except InspectionUnfinished as unfinished:
            again = _Deferred(topic, answer, data) if deferred is None else deferred._replace(cold_log=None)
            self._defer(again._replace(inspection=unfinished.inspection))
            return
        first_offset, last_offset, _, log_append_time_ms, log_start_offset, size_bytes, _ = info
        end = last_offset + 1
        counters.bytes_in.value += size_bytes
        counters.messages_in.value += end - first_offset
        result = _appended(data.index, first_offset, log_append_time_ms, log_start_offset)
        answer.partition_responses.append(result)
        if not self._is_satisfied(partition, end):
            self._required[partition] = max(end, self._required.get(partition, 0))
            self._epochs.setdefault(partition, partition.leader_epoch)
            self._answers.setdefault(partition, []).append(result)

    def run(self, topics: list[TopicProduceData], names: list[str]) -> Produce:
        """Append the records of a request. `names` are the topics' names, in order; empty where an id is unknown. Of a
        partition that is named twice, the last records count."""
        for topic, name in zip(topics, names, strict=True):
            answer = _topic_response(name, topic.topic_id)
            self.response.responses.append(answer)
            self._append_some(name, topic.topic_id, answer, _last_named(topic))
        return self

    def run_in_steps(self, topics: list[TopicProduceData], names: list[str]) -> Steps[Produce]:
        """As `run`, with others served in between."""
        left = _PARTITIONS_A_STEP
        for topic, name in zip(topics, names, strict=True):
            answer = _topic_response(name, topic.topic_id)
            self.response.responses.append(answer)
            partitions = _last_named(topic)
            at = 0
            while at < len(partitions):
                if not left:
                    yield
                    left = _PARTITIONS_A_STEP
                some = partitions[at : at + left]
                self._append_some(name, topic.topic_id, answer, some)
                at += len(some)
                left -= len(some)
        self._recheck()
        return self

    def _append_some(
        self, topic: str, topic_id: Uuid, answer: TopicProduceResponse, some: Iterable[PartitionProduceData]
    ) -> None:
        """Append the records of these partitions of a topic."""
        for data in some:
            if not topic:
                error = ApiError(self._unnamed)
                self._manager.refused.note(topic_id, data.index, data.records, error, self._now_ms)
                self.refuse(answer, data.index, error)
            elif self._refuses_internal and topic in INTERNAL_TOPICS:
                self.refuse_internal(topic, answer, data.index)
            else:
                self.append(topic, answer, data)

    def _defer(self, deferred: _Deferred) -> None:
        if self._deferred is None:
            self._deferred = []
        self._deferred.append(deferred)

    def _check_attributes(self, partition: Partition, records: memoryview | bytearray) -> Verification | None:
        """Raise for a codec or a transaction that the request may not have. The guard where the transaction has to be
        verified before the append, None where it need not."""
        attributes = records[_ATTRIBUTES_AT]
        if not self._zstd and attributes & _CODEC_BITS == _ZSTD:
            raise ApiError(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs version 7 of the produce request or a later one"
            )
        if not attributes & _TRANSACTIONAL:
            return None
        transaction = self._transaction
        if transaction is None:
            raise ApiError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        support = transaction.support
        if len(records) < HEADER_SIZE or not transaction.verifier.applies_to(support):
            return None
        producer_id, epoch, sequence = _producer_of(records)
        if producer_id < 0:
            return None  # no producer, so no transaction, whatever the attributes are
        return partition.start_verification(
            producer_id, sequence, epoch, self._now_ms, supports_epoch_bump=support.adds
        )

    @property
    def is_deferred(self) -> bool:
        """Whether some records are appended later, which `finish` leads to: their logs are not open, they are too many
        to be checked at once, or their transaction has to be verified. The next request of the connection must not be
        handled before."""
        return bool(self._deferred or self._unverified)

    def _verify(self, timeout_ms: int) -> Pending[ProduceResponse]:
        """Have the transaction verified, and append what waits for that, or some of it; then `finish`."""
        assert self._unverified, "there is something to verify"
        waiting, self._unverified = self._unverified[:_DEFERRED_A_STEP], self._unverified[_DEFERRED_A_STEP:]
        assert self._transaction is not None, "only the batches of a request that names a transaction are verified"
        transactional_id, support, verifier = self._transaction
        partitions = [TopicPartition(each.topic, each.data.index) for each in waiting]
        producer_id, epoch, _ = _producer_of(waiting[0].data.records)
        answer: Pending[ProduceResponse] = Pending()
        if self._retry_until_ms < 0:
            self._retry_until_ms = verifier.mono_ms() + verifier.retry_max_ms

        def verify_again() -> None:
            self._recheck()
            for each in waiting:
                self.append(each.topic, each.answer, each.data, each)
            self._go_on(answer, timeout_ms)

        def on_verified(errors: Errors | None, _: ApiError | None) -> None:
            assert errors is not None, "a verification completes"
            if (
                support.adds
                and ErrorCode.CONCURRENT_TRANSACTIONS in errors.values()
                and verifier.mono_ms() < self._retry_until_ms
            ):
                self._manager.timers.call_later_ms(verifier.retry_backoff_ms, verify_again)
                return
            self._recheck()
            for at, each in zip(partitions, waiting, strict=True):
                code = errors.get(at)
                if code is None:
                    self.append(each.topic, each.answer, each.data, each._replace(is_verified=True))
                else:
                    partition = self._manager.find(*at)
                    self.refuse(each.answer, each.data.index, produce_error(code, support), partition)
            self._go_on(answer, timeout_ms)

        verifier.verify(transactional_id, producer_id, epoch, partitions, support).then(on_verified)
        return answer

    def _append_deferred(self, timeout_ms: int) -> Pending[ProduceResponse]:
        """Open logs and check records on a thread, and append what was deferred, or some of it; then `finish`."""
        assert self._deferred, "there is something to append"
        deferred, self._deferred = self._deferred[:_DEFERRED_A_STEP], self._deferred[_DEFERRED_A_STEP:]
        inspections = [each.inspection for each in deferred if each.inspection is not None]

        def append(_: None) -> ProduceResponse | Pending[ProduceResponse]:
            self._recheck()
            for each in deferred:
                self.append(each.topic, each.answer, each.data, each)
            return self._outcome(timeout_ms)

        jobs, cold = self._manager.jobs, [each.cold_log for each in deferred if each.cold_log is not None]
        return open_logs(jobs, cold).and_then(lambda _: _inspect(jobs, inspections)).and_then(append)

    def _outcome(self, timeout_ms: int) -> ProduceResponse | Pending[ProduceResponse]:
        """As `finish`, also of a request that waits for no replica."""
        return self.finish(timeout_ms) if self._acks or self.is_deferred else self.response

    def _go_on(self, pending: Pending[ProduceResponse], timeout_ms: int) -> None:
        """Settle `pending` as `finish` does now."""
        done = self._outcome(timeout_ms)
        if isinstance(done, Pending):
            pending.on_abandoned = done.abandon
            done.then(pending.settle)
        else:
            pending.complete(done)

    def _recheck(self) -> None:
        """Others were served since records were appended: these may be committed or durable by now. Where this broker
        does not lead a partition in that leader epoch any more, other records may be at their offsets."""
        for partition, end in list(self._required.items()):
            if not partition.is_leader or partition.leader_epoch != self._epochs[partition]:
                del self._required[partition], self._epochs[partition]
                self._fail(self._answers.pop(partition), self._lost_code(partition), partition)
            elif self._is_satisfied(partition, end):
                del self._required[partition]

    def _lost_code(self, partition: Partition) -> ErrorCode:
        if self._manager.find(*partition.topic_partition) is not partition:
            return self._manager.missing_code(partition.topic_partition.topic, None, partition.topic_partition[1])
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    def finish(self, timeout_ms: int) -> ProduceResponse | Pending[ProduceResponse]:
        """The response, now or when the records of every partition are committed or durable, as `acks` asks."""
        if self._unverified:
            return self._verify(timeout_ms)
        if self._deferred:
            return self._append_deferred(timeout_ms)
        if not self._required:
            return self._final_response() if self.failed else self.response
        pending: Pending[ProduceResponse] = Pending()
        waiter = OffsetWaiter(
            DelayedOperation.PRODUCE, self._required, self._is_satisfied, lambda: self._on_complete(waiter, pending)
        )
        pending.on_abandoned = waiter.stop
        waiter.wait(list(self._required), self._manager.timers, timeout_ms)
        return pending

    def _on_complete(self, waiter: OffsetWaiter, pending: Pending[ProduceResponse]) -> None:
        for partition in waiter.unsatisfied:
            code = ErrorCode.REQUEST_TIMED_OUT if partition.is_leader else self._lost_code(partition)
            if code is ErrorCode.REQUEST_TIMED_OUT:
                self._manager.counters.produce_expirations.value += 1
            self._fail(self._answers[partition], code, partition)
        if self._acks == ALL:
            for partition, answers in self._answers.items():
                if partition not in waiter.unsatisfied and not partition.has_enough_replicas:
                    self._fail(answers, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, partition)
        pending.complete(self._final_response())

    def _fail(self, answers: list[PartitionProduceResponse], code: ErrorCode, partition: Partition) -> None:
        """Replace answers, none of which has been sent, by an error."""
        self.failed = True
        for answer in answers:
            _fill_error(answer, ApiError(code), partition)

    def refuse(
        self, answer: TopicProduceResponse, index: int, error: ApiError, partition: Partition | None = None
    ) -> None:
        """Add to `answer` the error for which one partition's records are not appended."""
        self.failed = True
        if partition is None:
            self._manager.counters.produce_requests.value += 1
        elif error.code not in NO_PRODUCE_FAILURES:
            partition.topic_counters.failed_produce_requests.value += 1
        result = PartitionProduceResponse(index=index)
        _fill_error(result, error, partition)
        answer.partition_responses.append(result)

    def refuse_internal(self, topic: str, answer: TopicProduceResponse, index: int) -> None:
        """Add to `answer` the refusal of records for a topic of coordinators. As in Kafka, a partition that does not
        exist is reported as such."""
        code = ErrorCode.INVALID_TOPIC_EXCEPTION
        if (topic, index) not in self._manager.partitions:
            missing_code = self._manager.missing_code(topic, None, index)
            if missing_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                code = missing_code
        self.refuse(answer, index, ApiError(code))

    def _final_response(self) -> ProduceResponse:
        response = self.response
        if self.failed:
            if self._add_leader_endpoints is None:
                for topic in response.responses:
                    for result in topic.partition_responses:
                        result.current_leader = ProduceResponseLeaderIdAndEpoch()
            else:
                self._add_leader_endpoints(response)
        return response


def begin(
    manager: ReplicaManager,
    request: ProduceRequest,
    now_ms: int,
    *,
    zstd: bool = True,
    by_id: bool = False,
    refuses_internal_topics: bool = False,
    add_leader_endpoints: Callable[[ProduceResponse], None] | None = None,
    transaction: Transaction | None = None,
) -> Produce:
    """A request of which nothing is appended yet.

    `zstd`: whether the request's version allows that codec (KIP-110). `by_id`: whether it names topics by id.
    `refuses_internal_topics`: whether records for the topics of coordinators get INVALID_TOPIC_EXCEPTION.
    `add_leader_endpoints` adds the addresses of new leaders to a response that names some (KIP-951); None where the
    request's version has no field for them. `transaction` is what the request names. Raises `ApiError` where the whole
    request is refused.
    """
    if transaction is not None:
        _check_one_producer(request)
    return Produce(
        manager, request.acks, now_ms, zstd, add_leader_endpoints, transaction, by_id, refuses_internal_topics
    )


def run(manager: ReplicaManager, request: ProduceRequest, names: list[str], now_ms: int, **options: Any) -> Produce:
    """Append the records of a request at once. `options` are those of `begin`, `names` those of `Produce.run`."""
    return begin(manager, request, now_ms, **options).run(request.topic_data, names)


def is_long(request: ProduceRequest) -> bool:
    """Whether a request has so many partitions that it is handled in steps."""
    topics = request.topic_data
    if len(topics) == 1:
        return len(topics[0].partition_data) > _PARTITIONS_A_STEP
    return sum(len(topic.partition_data) for topic in topics) > _PARTITIONS_A_STEP


def _last_named(topic: TopicProduceData) -> list[PartitionProduceData]:
    """The partitions of a topic, each once."""
    partitions = topic.partition_data
    return partitions if len(partitions) < 2 else list({data.index: data for data in partitions}.values())


def has_transactional_records(request: ProduceRequest) -> bool:
    """Whether any batch of the request is of a transaction."""
    for topic in request.topic_data:
        for data in topic.partition_data:
            records = data.records
            if (
                isinstance(records, _WRITABLE)
                and len(records) > _ATTRIBUTES_AT
                and records[_ATTRIBUTES_AT] & _TRANSACTIONAL
            ):
                return True
    return False


def _inspect(jobs: Jobs, inspections: list[Inspection]) -> Pending[None]:
    """Finish the checks of records on a thread; settled at once where there are none."""
    inspected: Pending[None] = Pending()
    if not inspections:
        inspected.complete(None)
        return inspected

    def work() -> None:
        for inspection in inspections:
            with suppress(RecordsRefused):  # raised again when the batch is appended
                inspection.run()

    def finish(_: None, error: BaseException | None) -> None:
        if error is None:
            inspected.complete(None)
        else:
            inspected.fail(ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)))

    jobs.run(work, finish)
    return inspected


def _producer_of(records: object) -> tuple[int, int, int]:
    """Producer id, epoch and base sequence of the batch at the start of the records."""
    assert isinstance(records, _WRITABLE), "a frame is writable memory"
    producer_id, epoch, sequence = _producer_fields(records, _PRODUCER_AT)
    return producer_id, epoch, sequence


def _check_one_producer(request: ProduceRequest) -> None:
    """Raise where the transactional batches are of several producers: one transaction is verified."""
    found: tuple[int, int] | None = None
    for topic in request.topic_data:
        for data in topic.partition_data:
            records = data.records
            if not isinstance(records, _WRITABLE) or len(records) < HEADER_SIZE:
                continue
            if records[_ATTRIBUTES_AT] & _TRANSACTIONAL:
                producer = _producer_of(records)[:2]
                if producer[0] < 0:
                    continue
                if found is not None and producer != found:
                    raise ApiError(
                        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
                        "Transactional records contained more than one producer ID",
                    )
                found = producer


def _fill_error(result: PartitionProduceResponse, error: ApiError, partition: Partition | None) -> None:
    result.error_code = error.code
    result.error_message = error.message or None
    result.base_offset = -1
    result.log_append_time_ms = -1
    has_log_start = partition is not None and error.code not in _WITHOUT_LOG_START
    result.log_start_offset = partition.log.log_start_offset if partition is not None and has_log_start else -1
    if isinstance(error, RecordsRefused):
        result.record_errors = [
            BatchIndexAndErrorMessage(batch_index=each.batch_index, batch_index_error_message=each.message)
            for each in error.record_errors
        ]
    if error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER and partition is not None:
        result.current_leader = ProduceResponseLeaderIdAndEpoch(
            leader_id=partition.leader_id, leader_epoch=partition.leader_epoch
        )
