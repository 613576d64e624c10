"""A producer's transactions: the requests in their order, and what follows from each error."""

from __future__ import annotations

from typing import Any

import pytest

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.clientcore.producing.producer_errors import (
    AbortableTransactionError,
    FatalTransactionError,
    ProducerFencedError,
    TransactionMisconfiguredError,
)
from kalda.clientcore.producing.transaction_manager import GroupMember, TransactionManager, TransactionState
from kalda.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from kalda.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
V1, V2 = 1, 2


class Coordinator:
    """Answers the requests of a manager. `errors` by request class: the codes of the next answers; None: no answer."""

    def __init__(self, version: int) -> None:
        self.manager = TransactionManager("tx", 9_000)
        self.manager.on_features(1, version)
        self.version = version
        self.sent: list[Any] = []
        self.errors: dict[type, list[ErrorCode | None]] = {}
        self.producer = (7, 0)
        self.now_ms = 0

    def run(self, *, has_batches: bool = False) -> list[str]:
        """Answer until nothing is sent any more; the names of the requests."""
        names = []
        for _ in range(50):
            self.now_ms = max(self.now_ms, self.manager.retry_at_ms)
            outgoing = self.manager.next_request(self.now_ms, has_batches=has_batches)
            if outgoing is None:
                return names
            request = outgoing.request
            self.sent.append(outgoing)
            names.append(type(request).__name__.removesuffix("Request"))
            codes = self.errors.get(type(request), [])
            code = codes.pop(0) if codes else ErrorCode.NONE
            if code is None:
                self.manager.on_failure(ErrorCode.NETWORK_EXCEPTION, "cut", self.now_ms)
            else:
                self.manager.on_response(self.answer(request, code), self.now_ms)
        raise AssertionError(f"it never ends: {names}")

    def answer(self, request: Any, code: ErrorCode) -> Any:
        match request:
            case FindCoordinatorRequest():
                return FindCoordinatorResponse(error_code=code, node_id=3 if request.key_type else 4)
            case InitProducerIdRequest():
                if request.producer_id >= 0:
                    self.producer = (7, self.producer[1] + 1)
                return InitProducerIdResponse(
                    error_code=code, producer_id=self.producer[0], producer_epoch=self.producer[1]
                )
            case AddPartitionsToTxnRequest():
                topics = [
                    AddPartitionsToTxnTopicResult(
                        name=topic.name,
                        results_by_partition=[
                            AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code)
                            for index in topic.partitions
                        ],
                    )
                    for topic in request.v3_and_below_topics
                ]
                return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)
            case AddOffsetsToTxnRequest():
                return AddOffsetsToTxnResponse(error_code=code)
            case TxnOffsetCommitRequest():
                partition = TxnOffsetCommitResponsePartition(partition_index=0, error_code=code)
                return TxnOffsetCommitResponse(topics=[TxnOffsetCommitResponseTopic(name="t", partitions=[partition])])
            case EndTxnRequest():
                if self.version < V2:
                    return EndTxnResponse(error_code=code)
                if not code:
                    self.producer = (7, self.producer[1] + 1)
                return EndTxnResponse(error_code=code, producer_id=self.producer[0], producer_epoch=self.producer[1])
        raise AssertionError(request)


def ready(version: int) -> Coordinator:
    coordinator = Coordinator(version)
    coordinator.manager.initialize()
    assert coordinator.run() == ["FindCoordinator", "InitProducerId"]
    assert coordinator.manager.state is TransactionState.READY
    return coordinator


def in_transaction(version: int, *partitions: TopicPartition) -> Coordinator:
    coordinator = ready(version)
    coordinator.manager.begin()
    for partition in partitions:
        coordinator.manager.add_partition(partition)
    coordinator.run()
    return coordinator


def test_version_1_adds_partitions_and_groups() -> None:
    coordinator = ready(V1)
    manager = coordinator.manager
    manager.begin()
    manager.add_partition(A)
    manager.add_partition(B)
    assert not manager.is_writable(A)
    assert coordinator.run() == ["AddPartitionsToTxn"]
    assert manager.is_writable(A)
    assert manager.number(A, 3) == (7, 0, 0)
    assert manager.number(A, 1) == (7, 0, 3)
    manager.send_offsets("g", {A: 5}, GroupMember(2, "m", "i"))
    assert coordinator.run() == ["AddOffsetsToTxn", "FindCoordinator", "TxnOffsetCommit"]
    commit = coordinator.sent[-1]
    assert (commit.node_id, commit.max_version) == (4, 4)
    assert (
        commit.request.generation_id_or_member_epoch,
        commit.request.member_id,
        commit.request.group_instance_id,
    ) == (2, "m", "i")
    manager.begin_commit()
    assert coordinator.run() == ["EndTxn"]
    assert (coordinator.sent[-1].request.committed, coordinator.sent[-1].max_version) == (True, 4)
    assert manager.state is TransactionState.READY
    assert manager.is_idle
    manager.begin()
    manager.add_partition(A)
    coordinator.run()
    assert manager.number(A, 1) == (7, 0, 4)


def test_version_2_adds_nothing_and_takes_the_next_epoch() -> None:
    coordinator = in_transaction(V2, A)
    manager = coordinator.manager
    assert manager.is_writable(A)
    assert manager.number(A, 3) == (7, 0, 0)
    manager.send_offsets("g", {A: 5})
    assert coordinator.run() == ["FindCoordinator", "TxnOffsetCommit"]
    assert coordinator.sent[-1].max_version == 5
    manager.begin_commit()
    assert coordinator.run() == ["EndTxn"]
    manager.begin()
    manager.add_partition(A)
    assert manager.number(A, 1) == (7, 1, 0)


def test_offsets_are_committed_with_their_texts() -> None:
    coordinator = in_transaction(V2, A)
    coordinator.manager.send_offsets("g", {A: 5, B: 6}, texts={B: "batch 3"})
    coordinator.run()
    (topic,) = coordinator.sent[-1].request.topics
    found = [(each.committed_offset, each.committed_metadata) for each in topic.partitions]
    assert found == [(5, ""), (6, "batch 3")]


def test_a_transaction_without_records_needs_no_request() -> None:
    coordinator = in_transaction(V2)
    coordinator.manager.begin_commit()
    assert coordinator.run() == []
    assert coordinator.manager.state is TransactionState.READY


def test_a_commit_waits_for_batches() -> None:
    coordinator = in_transaction(V2, A)
    coordinator.manager.begin_commit()
    assert coordinator.run(has_batches=True) == []
    assert coordinator.run() == ["EndTxn"]


@pytest.mark.parametrize("version", [V1, V2])
def test_retriable_errors_are_retried(version: int) -> None:
    coordinator = Coordinator(version)
    manager = coordinator.manager
    coordinator.errors = {
        FindCoordinatorRequest: [ErrorCode.COORDINATOR_NOT_AVAILABLE],
        InitProducerIdRequest: [None, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS],
        AddPartitionsToTxnRequest: [ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_COORDINATOR],
        TxnOffsetCommitRequest: [ErrorCode.NOT_COORDINATOR, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
        EndTxnRequest: [None, ErrorCode.NOT_COORDINATOR, ErrorCode.CONCURRENT_TRANSACTIONS],
    }
    manager.initialize()
    coordinator.run()
    manager.begin()
    manager.add_partition(A)
    manager.send_offsets("g", {A: 5})
    coordinator.run()
    manager.begin_commit()
    names = coordinator.run()
    assert names == ["EndTxn", "FindCoordinator", "EndTxn", "FindCoordinator", "EndTxn", "EndTxn"]
    assert manager.state is TransactionState.READY
    assert coordinator.now_ms > 0, "attempts have pauses between them"


def test_pauses_grow_and_are_short_while_markers_are_written() -> None:
    coordinator = Coordinator(V2)
    manager = coordinator.manager
    manager.initialize()
    pauses = []
    for code in [ErrorCode.CONCURRENT_TRANSACTIONS, *[ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 5]:
        for _ in range(2):
            outgoing = manager.next_request(coordinator.now_ms)
            if outgoing is not None and isinstance(outgoing.request, InitProducerIdRequest):
                break
            assert outgoing is not None
            manager.on_response(coordinator.answer(outgoing.request, ErrorCode.NONE), coordinator.now_ms)
        manager.on_response(InitProducerIdResponse(error_code=code), coordinator.now_ms)
        pauses.append(manager.retry_at_ms - coordinator.now_ms)
        assert manager.next_request(manager.retry_at_ms - 1) is None
        coordinator.now_ms = manager.retry_at_ms
    assert pauses == [20, 200, 400, 800, 1_000, 1_000]


@pytest.mark.parametrize("version", [V1, V2])
def test_a_failed_batch_needs_an_abort_and_a_new_epoch(version: int) -> None:
    """Version 1 raises the epoch by InitProducerId, so that a delayed copy of the batch is fenced."""
    coordinator = in_transaction(version, A)
    manager = coordinator.manager
    manager.on_batch_failed(ErrorCode.REQUEST_TIMED_OUT, "t-0")
    with pytest.raises(AbortableTransactionError, match="t-0"):
        manager.begin_commit()
    with pytest.raises(AbortableTransactionError):
        manager.add_partition(B)
    assert not manager.is_writable(A)
    assert coordinator.run() == []
    manager.begin_abort()
    assert coordinator.run() == (["EndTxn", "InitProducerId"] if version == V1 else ["EndTxn"])
    assert (manager.producer_epoch, manager.state) == (1, TransactionState.READY)
    if version == V1:
        request = coordinator.sent[-1].request
        assert (request.producer_id, request.producer_epoch) == (7, 0)
    manager.begin()


@pytest.mark.parametrize("code", [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH])
@pytest.mark.parametrize("request_class", [InitProducerIdRequest, AddPartitionsToTxnRequest, EndTxnRequest])
def test_a_fenced_producer_can_do_nothing_more(code: ErrorCode, request_class: type) -> None:
    coordinator = Coordinator(V1)
    coordinator.errors = {request_class: [code]}
    manager = coordinator.manager
    manager.initialize()
    coordinator.run()
    if request_class is not InitProducerIdRequest:
        manager.begin()
        manager.add_partition(A)
        coordinator.run()
    if request_class is EndTxnRequest:
        manager.begin_commit()
        coordinator.run()
    assert manager.is_idle
    for call in (manager.check, manager.begin, manager.begin_abort, manager.begin_commit):
        with pytest.raises(ProducerFencedError, match="newer producer"):
            call()
    assert coordinator.run() == []


def test_other_fatal_errors() -> None:
    coordinator = in_transaction(V2, A)
    coordinator.manager.on_batch_failed(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "no")
    with pytest.raises(TransactionMisconfiguredError):
        coordinator.manager.check()
    coordinator = Coordinator(V2)
    coordinator.errors = {InitProducerIdRequest: [ErrorCode.INVALID_TRANSACTION_TIMEOUT]}
    coordinator.manager.initialize()
    coordinator.run()
    with pytest.raises(TransactionMisconfiguredError):
        coordinator.manager.check()


def test_a_peer_without_the_api_is_fatal() -> None:
    manager = TransactionManager("tx")
    manager.initialize()
    assert manager.next_request(0) is not None
    manager.on_failure(ErrorCode.UNSUPPORTED_VERSION, "no such API", 0)
    with pytest.raises(TransactionMisconfiguredError):
        manager.check()


@pytest.mark.parametrize(
    "code",
    [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID,
     ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.TRANSACTION_ABORTABLE],
)  # fmt: skip
def test_offsets_of_a_removed_member_need_an_abort(code: ErrorCode) -> None:
    coordinator = in_transaction(V2)
    manager = coordinator.manager
    coordinator.errors = {TxnOffsetCommitRequest: [code]}
    manager.send_offsets("g", {A: 1})
    coordinator.run()
    with pytest.raises(AbortableTransactionError) as raised:
        manager.begin_commit()
    assert raised.value.code is code
    manager.begin_abort()
    assert coordinator.run() == ["EndTxn"]
    assert manager.state is TransactionState.READY


def test_a_partition_that_is_refused_needs_an_abort() -> None:
    coordinator = ready(V1)
    coordinator.errors = {AddPartitionsToTxnRequest: [ErrorCode.TOPIC_AUTHORIZATION_FAILED]}
    coordinator.manager.begin()
    coordinator.manager.add_partition(A)
    coordinator.run()
    with pytest.raises(AbortableTransactionError, match="t-0"):
        coordinator.manager.check()


@pytest.mark.parametrize("request_class", [AddPartitionsToTxnRequest, AddOffsetsToTxnRequest, EndTxnRequest, None])
def test_a_producer_id_that_the_coordinator_has_forgotten_is_fatal(request_class: type | None) -> None:
    coordinator = in_transaction(V1, A)
    manager = coordinator.manager
    if request_class is None:
        manager.on_batch_failed(ErrorCode.INVALID_PRODUCER_ID_MAPPING, "t-0")
    else:
        coordinator.errors = {request_class: [ErrorCode.INVALID_PRODUCER_ID_MAPPING]}
        manager.add_partition(B)
        manager.send_offsets("g", {A: 1})
        coordinator.run()
        if request_class is EndTxnRequest:
            manager.begin_commit()
            coordinator.run()
    for call in (manager.check, manager.begin_abort, manager.begin_commit):
        with pytest.raises(FatalTransactionError) as raised:
            call()
        assert raised.value.code is ErrorCode.INVALID_PRODUCER_ID_MAPPING


DENIED = [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED]


@pytest.mark.parametrize("code", DENIED)
@pytest.mark.parametrize("request_class", [FindCoordinatorRequest, InitProducerIdRequest])
def test_a_producer_without_the_right_goes_on_when_it_has_it(code: ErrorCode, request_class: type) -> None:
    coordinator = Coordinator(V2)
    manager = coordinator.manager
    coordinator.errors = {request_class: [code]}
    manager.initialize()
    coordinator.run()
    assert manager.is_idle
    with pytest.raises(ApiError, match="INVALID_TXN_STATE"):
        manager.check_open()
    for call in (manager.check, manager.begin):
        with pytest.raises(ApiError) as raised:
            call()
        assert raised.value.code is code
        assert not isinstance(raised.value, FatalTransactionError)
    manager.initialize()
    coordinator.run()
    manager.check()
    manager.begin()


@pytest.mark.parametrize("code", DENIED)
def test_a_right_that_was_lost_before_the_next_epoch_may_come_back(code: ErrorCode) -> None:
    coordinator = in_transaction(V1, A)
    manager = coordinator.manager
    coordinator.errors = {InitProducerIdRequest: [code]}
    manager.on_batch_failed(ErrorCode.REQUEST_TIMED_OUT, "t-0")
    manager.begin_abort()
    assert coordinator.run() == ["EndTxn", "InitProducerId"]
    with pytest.raises(ApiError) as raised:
        manager.check()
    assert raised.value.code is code
    manager.initialize()
    assert coordinator.run() == ["InitProducerId"]
    manager.begin()


def test_a_commit_that_has_to_be_aborted() -> None:
    coordinator = in_transaction(V2, A)
    manager = coordinator.manager
    coordinator.errors = {EndTxnRequest: [ErrorCode.TRANSACTION_ABORTABLE]}
    manager.begin_commit()
    coordinator.run()
    with pytest.raises(AbortableTransactionError):
        manager.check()
    manager.begin_abort()
    assert coordinator.run() == ["EndTxn"]
    assert not coordinator.sent[-1].request.committed


def test_an_abort_that_is_refused_is_fatal() -> None:
    coordinator = in_transaction(V2, A)
    coordinator.errors = {EndTxnRequest: [ErrorCode.TRANSACTION_ABORTABLE]}
    coordinator.manager.begin_abort()
    coordinator.run()
    with pytest.raises(FatalTransactionError):
        coordinator.manager.check()


def test_an_abort_makes_requests_in_flight_void() -> None:
    coordinator = in_transaction(V1, A)
    manager = coordinator.manager
    manager.send_offsets("g", {A: 1})
    outgoing = manager.next_request(0)
    assert outgoing is not None
    manager.begin_abort()
    manager.on_response(AddOffsetsToTxnResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED), 0)
    assert coordinator.run() == ["EndTxn"]
    assert manager.state is TransactionState.READY


@pytest.mark.parametrize("code", [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.INVALID_PRODUCER_EPOCH])
@pytest.mark.parametrize("of_offsets", [ErrorCode.NONE, ErrorCode.NOT_COORDINATOR, ErrorCode.UNKNOWN_MEMBER_ID])
def test_a_batch_fails_while_offsets_are_in_flight(code: ErrorCode, of_offsets: ErrorCode) -> None:
    """The offsets of the failed transaction are given up: their answer belongs to nothing that still waits."""
    coordinator = in_transaction(V2, A)
    manager = coordinator.manager
    manager.send_offsets("g", {A: 1})
    while not isinstance((outgoing := manager.next_request(0)).request, TxnOffsetCommitRequest):
        manager.on_response(coordinator.answer(outgoing.request, ErrorCode.NONE), 0)
    manager.on_batch_failed(code, "t-0")
    manager.on_response(coordinator.answer(outgoing.request, of_offsets), 0)
    with pytest.raises(AbortableTransactionError) as raised:
        manager.begin_commit()
    assert raised.value.code is code
    manager.begin_abort()
    assert coordinator.run() == ["EndTxn"]
    assert manager.state is TransactionState.READY


def test_an_upgrade_takes_effect_with_the_next_transaction_and_a_new_epoch() -> None:
    coordinator = in_transaction(V1, A)
    manager = coordinator.manager
    manager.on_features(2, V2)
    assert not manager.is_v2
    manager.begin_commit()
    assert coordinator.run() == ["EndTxn", "InitProducerId"]
    assert coordinator.sent[-2].max_version == 4
    manager.begin()
    assert manager.is_v2
    assert manager.producer_epoch == 1


def test_a_downgrade_takes_effect_with_the_next_transaction() -> None:
    coordinator = in_transaction(V2, A)
    manager = coordinator.manager
    manager.on_features(2, V1)
    manager.on_features(1, V2)  # an older answer
    manager.begin_commit()
    assert coordinator.run() == ["EndTxn"]
    assert coordinator.sent[-1].max_version is None
    manager.begin()
    assert not manager.is_v2


def test_calls_in_the_wrong_state_are_refused() -> None:
    manager = TransactionManager("tx")
    for call in (manager.begin, manager.begin_commit, manager.begin_abort):
        with pytest.raises(ApiError, match="uninitialized") as raised:
            call()
        assert raised.value.code is ErrorCode.INVALID_TXN_STATE
    manager = in_transaction(V2, A).manager
    with pytest.raises(ApiError, match="in transaction"):
        manager.begin()


def test_a_call_after_a_timeout_continues() -> None:
    coordinator = in_transaction(V2, A)
    manager = coordinator.manager
    manager.begin_commit()
    manager.begin_commit()
    assert coordinator.run() == ["EndTxn"]
    manager.begin()
    manager.add_partition(A)
    manager.begin_abort()
    manager.begin_abort()
    assert coordinator.run() == ["EndTxn"]


def test_a_failed_first_initialization_is_repeated_after_an_abort() -> None:
    coordinator = Coordinator(V2)
    manager = coordinator.manager
    coordinator.errors = {InitProducerIdRequest: [ErrorCode.TRANSACTION_ABORTABLE]}
    manager.initialize()
    coordinator.run()
    manager.begin_abort()
    assert coordinator.run() == ["InitProducerId"]
    assert (manager.state, manager.producer_id) == (TransactionState.READY, 7)


@pytest.mark.parametrize("what", ["partition", "offsets"])
def test_before_version_2_an_abort_before_anything_was_sent_needs_no_request(what: str) -> None:
    """The coordinator would refuse to end a transaction to which nothing was added: a fatal error."""
    coordinator = ready(V1)
    manager = coordinator.manager
    manager.begin()
    if what == "partition":
        manager.add_partition(A)
    else:
        manager.send_offsets("g", {A: 1})
    manager.begin_abort()
    assert coordinator.run() == []
    assert manager.state is TransactionState.READY


@pytest.mark.parametrize(("was_sent", "ends"), [(True, ["FindCoordinator", "EndTxn"]), (False, [])])
def test_before_version_2_what_could_not_be_sent_has_not_started_the_transaction(
    was_sent: bool, ends: list[str]
) -> None:
    coordinator = ready(V1)
    manager = coordinator.manager
    manager.begin()
    manager.add_partition(A)
    assert manager.next_request(0) is not None
    manager.on_failure(ErrorCode.NETWORK_EXCEPTION, "cut", 0, was_sent=was_sent)
    manager.begin_abort()
    assert coordinator.run() == ends
    assert manager.state is TransactionState.READY
