"""Produce within transactions: what is verified, what waits, and which error a client of each version gets."""

from __future__ import annotations

from typing import Any

import pytest
from data_handlers import handler
from data_path_world import SELF, Assigned, World

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending
from kalda.protocol.messages.partitions import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from kalda.protocol.messages.transactions import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from kalda.records.builder import build_batch
from kalda.replication import produce
from kalda.replication.markers import append_marker
from kalda.replication.verification import ClientSupport
from kalda.storage.values import TransactionEnd

At = tuple[str, int]
LEGACY, ABORTABLE, ADDS = ClientSupport.LEGACY, ClientSupport.ABORTABLE, ClientSupport.IMPLICIT_ADD


class TxnWorld(World):
    """Partitions that take verified transactions only, and a coordinator that the test answers for."""

    def __init__(self) -> None:
        super().__init__()
        self.verifies = True

    def send(
        self,
        *at: At,
        producer: tuple[int, int] = (7, 0),
        sequence: int = 0,
        support: ClientSupport = ABORTABLE,
        name: str | None = "t",
        acks: int = -1,
        transactional: bool = True,
        batches: list[bytearray] | None = None,
    ) -> dict[At, str] | Pending[ProduceResponse]:
        """One batch to each partition: the errors, or what is pending."""
        made = batches or [
            build_batch(
                [(self.now_ms, b"k", b"v", ())],
                producer_id=producer[0],
                producer_epoch=producer[1],
                base_sequence=sequence,
                is_transactional=transactional,
            )
            for _ in at
        ]
        request = ProduceRequest(
            transactional_id=name,
            acks=acks,
            timeout_ms=1000,
            topic_data=[
                TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=index, records=batch)])
                for (topic, index), batch in zip(at, made, strict=True)
            ],
        )
        transaction = None if name is None else produce.Transaction(name, support, self.verifier)
        names = [topic for topic, _ in at]
        done = produce.run(self.replicas, request, names, self.now_ms, transaction=transaction).finish(1000)
        return done if isinstance(done, Pending) else errors_of(done)

    def answer(self, *codes: ErrorCode, at: int = -1) -> None:
        """The coordinator's response to a request, by default the last one; the last code is that of all others."""
        _, request, pending = self.asked[at]
        pending.complete(response_to(request, list(codes) or [ErrorCode.NONE]))

    def end(self, topic: str = "a", *, producer: tuple[int, int] = (7, 0), version: int = 0) -> None:
        partition = self.replicas.get(topic, 0)
        append_marker(partition, TransactionEnd(*producer, True, 0, version), self.now_ms)


def errors_of(response: ProduceResponse) -> dict[At, str]:
    return {
        (topic.name, each.index): ErrorCode(each.error_code).name
        for topic in response.responses
        for each in topic.partition_responses
    }


def settled(done: dict[At, str] | Pending[ProduceResponse]) -> dict[At, str]:
    assert isinstance(done, Pending), "the transaction has to be verified"
    assert done.done, "the answer waits"
    assert done.value is not None, done.error
    return errors_of(done.value)


def response_to(request: AddPartitionsToTxnRequest, codes: list[ErrorCode]) -> AddPartitionsToTxnResponse:
    left = iter(codes)
    return AddPartitionsToTxnResponse(
        results_by_transaction=[
            AddPartitionsToTxnResult(
                transactional_id=each.transactional_id,
                topic_results=[
                    AddPartitionsToTxnTopicResult(
                        name=topic.name,
                        results_by_partition=[
                            AddPartitionsToTxnPartitionResult(
                                partition_index=index, partition_error_code=next(left, codes[-1])
                            )
                            for index in topic.partitions
                        ],
                    )
                    for topic in each.topics
                ],
            )
            for each in request.transactions
        ]
    )


def test_the_first_batch_waits_for_the_coordinator_and_the_others_do_not() -> None:
    world = TxnWorld()
    log = world.assign("a").log
    done = world.send(("a", 0))
    [(broker, request, _)] = world.asked
    [sent] = request.transactions
    assert (broker, sent.transactional_id, sent.producer_id, sent.verify_only) == (9, "t", 7, True)
    assert log.log_end_offset == 0
    world.answer()
    assert settled(done) == {("a", 0): "NONE"}
    assert world.send(("a", 0), sequence=1) == {("a", 0): "NONE"}
    assert len(world.asked) == 1
    world.end()
    assert isinstance(world.send(("a", 0), sequence=2), Pending), "the next transaction is another one"


def test_the_partitions_of_a_request_are_verified_together() -> None:
    world = TxnWorld()
    for name in ("a", "b", "c"):
        world.assign(name)
    opened = world.send(("a", 0))
    world.answer()
    settled(opened)
    done = world.send(("a", 0), ("b", 0), ("c", 0), sequence=1)
    topics = world.asked[-1][1].transactions[0].topics
    assert [(topic.name, topic.partitions) for topic in topics] == [("b", [0]), ("c", [0])]
    world.answer(ErrorCode.NONE, ErrorCode.INVALID_TXN_STATE)
    assert settled(done) == {("a", 0): "NONE", ("b", 0): "NONE", ("c", 0): "INVALID_TXN_STATE"}
    assert world.replicas.get("c", 0).log.log_end_offset == 0


def test_an_append_after_the_marker_of_its_transaction_is_refused() -> None:
    """It would begin a transaction that nobody ends (KIP-890)."""
    world = TxnWorld()
    log = world.assign("a").log
    late = world.send(("a", 0))
    world.end()
    world.answer()
    assert settled(late) == {("a", 0): "INVALID_TXN_STATE"}
    assert log.first_unstable_offset is None


def test_a_marker_of_version_2_leaves_the_next_transaction_verified() -> None:
    """The producer begins the next transaction, in its new epoch, before the markers of the last one are written."""
    world = TxnWorld()
    log = world.assign("a").log
    first = world.send(("a", 0), support=ADDS)
    world.answer()
    settled(first)
    following = world.send(("a", 0), producer=(7, 1), support=ADDS)
    world.end(producer=(7, 1), version=2)
    world.answer()
    assert settled(following) == {("a", 0): "NONE"}
    assert log.first_unstable_offset == 2


def test_clients_of_version_2_have_their_partitions_added() -> None:
    world = TxnWorld()
    world.assign("a")
    world.verifier.is_enabled = False
    done = world.send(("a", 0), support=ADDS)
    assert not world.asked[-1][1].transactions[0].verify_only
    world.answer()
    assert settled(done) == {("a", 0): "NONE"}


def test_without_verification_nothing_waits() -> None:
    world = TxnWorld()
    world.assign("a").log.verify_transactions = False
    world.verifier.is_enabled = False
    assert world.send(("a", 0), support=ABORTABLE) == {("a", 0): "NONE"}
    assert not world.asked


@pytest.mark.parametrize(
    ("code", "support", "expected"),
    [
        (ErrorCode.INVALID_TXN_STATE, LEGACY, "INVALID_TXN_STATE"),
        (ErrorCode.TRANSACTION_ABORTABLE, LEGACY, "INVALID_TXN_STATE"),
        (ErrorCode.TRANSACTION_ABORTABLE, ABORTABLE, "TRANSACTION_ABORTABLE"),
        (ErrorCode.TRANSACTION_ABORTABLE, ADDS, "TRANSACTION_ABORTABLE"),
        (ErrorCode.PRODUCER_FENCED, ADDS, "INVALID_PRODUCER_EPOCH"),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, LEGACY, "INVALID_PRODUCER_ID_MAPPING"),
        (ErrorCode.CONCURRENT_TRANSACTIONS, LEGACY, "NOT_ENOUGH_REPLICAS"),
        (ErrorCode.CONCURRENT_TRANSACTIONS, ABORTABLE, "NOT_ENOUGH_REPLICAS"),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ADDS, "NOT_ENOUGH_REPLICAS"),
        (ErrorCode.NOT_COORDINATOR, ADDS, "NOT_ENOUGH_REPLICAS"),
        (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ADDS, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
    ],
)
def test_errors_are_those_that_clients_of_the_version_handle(
    code: ErrorCode, support: ClientSupport, expected: str
) -> None:
    world = TxnWorld()
    world.assign("a")
    done = world.send(("a", 0), support=support)
    world.answer(code)
    assert settled(done) == {("a", 0): expected}


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ErrorCode.NETWORK_EXCEPTION, "NOT_ENOUGH_REPLICAS"),
        (ErrorCode.BROKER_NOT_AVAILABLE, "NOT_ENOUGH_REPLICAS"),
        (ErrorCode.REQUEST_TIMED_OUT, "NOT_ENOUGH_REPLICAS"),
    ],
)
def test_a_coordinator_that_cannot_be_asked_makes_the_client_retry(error: ErrorCode, expected: str) -> None:
    world = TxnWorld()
    world.assign("a")
    done = world.send(("a", 0))
    world.asked[-1][2].fail(ApiError(error))
    assert settled(done) == {("a", 0): expected}
    again = world.send(("a", 0))
    world.answer()
    assert settled(again) == {("a", 0): "NONE"}


def test_a_coordinator_that_cannot_verify_is_not_asked_to() -> None:
    world = TxnWorld()
    world.assign("a")
    done = world.send(("a", 0))
    world.asked[-1][2].fail(ApiError(ErrorCode.UNSUPPORTED_VERSION))
    assert settled(done) == {("a", 0): "NONE"}


def test_no_coordinator_is_no_transaction() -> None:
    world = TxnWorld()
    world.assign("a")
    world.coordinator = None
    assert settled(world.send(("a", 0))) == {("a", 0): "NOT_ENOUGH_REPLICAS"}
    assert not world.asked


def test_a_transaction_that_is_being_completed_is_tried_again_for_a_while() -> None:
    """A producer of version 2 sends the first batch of the next transaction while markers are being written."""
    world = TxnWorld()
    world.assign("a")
    done = world.send(("a", 0), support=ADDS)
    world.answer(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert len(world.asked) == 1
    world.advance(20)
    assert len(world.asked) == 2
    world.answer()
    assert settled(done) == {("a", 0): "NONE"}

    done = world.send(("a", 0), producer=(8, 0), support=ADDS, name="u")
    for _ in range(5):
        world.answer(ErrorCode.CONCURRENT_TRANSACTIONS)
        world.advance(20)
    world.answer(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert settled(done) == {("a", 0): "CONCURRENT_TRANSACTIONS"}


def test_leadership_that_is_lost_meanwhile_is_an_error() -> None:
    world = TxnWorld()
    partition = world.assign("a")
    done = world.send(("a", 0))
    partition.become_follower(2, 1, 1, (SELF, 2), (SELF, 2))
    world.answer()
    assert settled(done) == {("a", 0): "NOT_LEADER_OR_FOLLOWER"}


def test_partitions_that_are_not_led_are_not_verified() -> None:
    world = TxnWorld()
    world.assign("a", 0, Assigned(2, 0, (SELF, 2), (SELF, 2)))
    assert world.send(("a", 0)) == {("a", 0): "NOT_LEADER_OR_FOLLOWER"}
    assert not world.asked


# -- what is refused without a verification


def test_an_old_epoch_is_refused_before_it_is_verified() -> None:
    world = TxnWorld()
    world.assign("a")
    settle = world.send(("a", 0), producer=(7, 3))
    world.answer()
    settled(settle)
    assert world.send(("a", 0), producer=(7, 2)) == {("a", 0): "INVALID_PRODUCER_EPOCH"}


def test_batches_of_a_transaction_need_a_transactional_id() -> None:
    world = TxnWorld()
    world.assign("a")
    assert world.send(("a", 0), name=None) == {("a", 0): "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"}
    assert world.send(("a", 0), transactional=False) == {("a", 0): "NONE"}, "the reverse is allowed"


def test_a_batch_outside_of_the_open_transaction_is_refused() -> None:
    world = TxnWorld()
    world.assign("a")
    opened = world.send(("a", 0))
    world.answer()
    settled(opened)
    assert world.send(("a", 0), sequence=1, transactional=False) == {("a", 0): "INVALID_TXN_STATE"}


def test_a_request_has_batches_of_one_producer() -> None:
    world = TxnWorld()
    world.assign("a")
    world.assign("b")
    rows: list[Any] = [(0, b"k", b"v", ())]
    batches = [
        build_batch(rows, producer_id=each, producer_epoch=0, base_sequence=0, is_transactional=True) for each in (7, 8)
    ]
    with pytest.raises(ApiError, match="more than one producer ID"):
        world.send(("a", 0), ("b", 0), batches=batches)
    assert world.replicas.get("a", 0).log.log_end_offset == 0


def test_a_higher_sequence_does_not_overtake_one_that_is_being_verified() -> None:
    world = TxnWorld()
    world.assign("a")
    first, second = world.send(("a", 0), sequence=0), world.send(("a", 0), sequence=1)
    world.answer(ErrorCode.NOT_COORDINATOR, at=0)
    world.answer(at=1)
    assert settled(first) == {("a", 0): "NOT_ENOUGH_REPLICAS"}
    assert settled(second) == {("a", 0): "OUT_OF_ORDER_SEQUENCE_NUMBER"}


# -- requests of one connection


def test_later_requests_of_the_connection_wait() -> None:
    """Otherwise they would overtake the batch that is being verified."""
    world = TxnWorld()
    world.assign("a")
    handlers, context, connection = handler(world)
    batch = build_batch(
        [(world.now_ms, b"k", b"v", ())], producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    data = [PartitionProduceData(index=0, records=batch)]
    request = ProduceRequest(
        transactional_id="t", acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name="a", partition_data=data)]
    )
    done = handlers.produce(context, request)
    assert connection.calls == ["alone"]
    world.answer()
    assert isinstance(done, Pending)
    assert done.done


# -- requests to one coordinator


def test_transactions_of_one_coordinator_share_requests_when_many_are_under_way() -> None:
    world = TxnWorld()
    world.assign("a")
    waiting = [world.send(("a", 0), producer=(each, 0), name=f"t{each}") for each in range(20)]
    assert [len(request.transactions) for _, request, _ in world.asked] == [1] * 5
    world.answer(at=0)
    assert len(world.asked[-1][1].transactions) == 15
    for at in range(1, len(world.asked)):
        world.answer(at=at)
    assert [settled(each) for each in waiting] == [{("a", 0): "NONE"}] * 20


def test_an_id_is_in_one_request_at_a_time() -> None:
    world = TxnWorld()
    for name in ("a", "b", "c"):
        world.assign(name)
    first, second, third = (world.send((name, 0)) for name in ("a", "b", "c"))
    assert len(world.asked) == 1
    world.answer()
    assert settled(first) == {("a", 0): "NONE"}
    assert [topic.name for topic in world.asked[1][1].transactions[0].topics] == ["b", "c"]
    world.answer(ErrorCode.NONE, ErrorCode.INVALID_TXN_STATE)
    assert settled(second) == {("b", 0): "NONE"}
    assert settled(third) == {("c", 0): "INVALID_TXN_STATE"}


def test_a_queued_verification_of_an_older_epoch_is_fenced() -> None:
    world = TxnWorld()
    for name in ("a", "b", "c"):
        world.assign(name)
    world.send(("a", 0))
    old = world.send(("b", 0), producer=(7, 1))
    new = world.send(("c", 0), producer=(7, 2))
    assert settled(old) == {("b", 0): "INVALID_PRODUCER_EPOCH"}
    assert settled(world.send(("b", 0), producer=(7, 1))) == {("b", 0): "INVALID_PRODUCER_EPOCH"}
    world.answer()
    world.answer()
    assert settled(new) == {("c", 0): "NONE"}


def test_the_coordinator_may_be_this_broker() -> None:
    world = TxnWorld()
    world.assign("a")
    world.coordinator = SELF
    world.verifier.local = lambda request: response_to(request, [ErrorCode.NONE])
    assert settled(world.send(("a", 0))) == {("a", 0): "NONE"}
    assert not world.asked


@pytest.mark.parametrize(
    "response",
    [
        AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        AddPartitionsToTxnResponse(),
        AddPartitionsToTxnResponse(results_by_transaction=[AddPartitionsToTxnResult(transactional_id="other")]),
    ],
)
def test_a_coordinator_that_confirms_nothing_has_not_confirmed(response: AddPartitionsToTxnResponse) -> None:
    world = TxnWorld()
    world.assign("a")
    done = world.send(("a", 0))
    world.asked[-1][2].complete(response)
    assert settled(done)["a", 0] in ("INVALID_TXN_STATE", "NOT_ENOUGH_REPLICAS")
    assert world.replicas.get("a", 0).log.log_end_offset == 0
