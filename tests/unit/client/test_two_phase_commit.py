"""Transactions on which an external coordinator decides (KIP-939), as far as a producer has to do with them."""

from __future__ import annotations

from typing import Any

import pytest
from either_producer import KINDS, TIMEOUT_S, Used, begun
from scripted_broker import TransactionalBroker

from kalda.base.configs.definition import InvalidConfig
from kalda.base.configs.producer import producer_config
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.clientcore.producing.producer_errors import FatalTransactionError
from kalda.clientcore.producing.transaction_manager import PreparedTxnState, TransactionManager, TransactionState
from kalda.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from kalda.protocol.messages.transactions import (
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)


class World:
    """A manager and its coordinator, of transactions of version 2."""

    def __init__(self, ongoing: tuple[int, int] = (-1, -1), *, is_two_phase: bool = True) -> None:
        self.manager = TransactionManager("tx", 9_000, is_two_phase=is_two_phase)
        self.manager.on_features(1, 2)
        self.ongoing = ongoing
        self.code = ErrorCode.NONE
        self.sent: list[Any] = []
        self.versions: list[int | None] = []

    def run(self) -> None:
        while (outgoing := self.manager.next_request(0)) is not None:
            request = outgoing.request
            if isinstance(request, FindCoordinatorRequest):
                self.manager.on_response(FindCoordinatorResponse(node_id=4), 0)
                continue
            self.sent.append(request)
            self.versions.append(outgoing.version)
            if isinstance(request, InitProducerIdRequest):
                kept = self.ongoing if request.keep_prepared_txn else (-1, -1)
                answer = InitProducerIdResponse(error_code=self.code, producer_id=7, producer_epoch=3)
                answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch = kept
                self.manager.on_response(answer, 0)
            else:
                self.manager.on_response(EndTxnResponse(producer_id=7, producer_epoch=4), 0)

    def initialized(self, **options: bool) -> World:
        self.manager.initialize(**options)
        self.run()
        return self

    def with_record(self) -> World:
        self.manager.begin()
        self.manager.add_partition(TopicPartition("t", 0))
        return self


def test_the_coordinator_is_asked_for_transactions_that_do_not_expire() -> None:
    world = World().initialized()
    (request,) = world.sent
    assert (request.enable2_pc, request.keep_prepared_txn) == (True, False)
    assert world.versions == [6]
    without = World(is_two_phase=False).initialized()
    assert (without.sent[0].enable2_pc, without.versions) == (False, [None])


@pytest.mark.parametrize("commits", [True, False])
def test_a_prepared_transaction_can_only_be_ended(commits: bool) -> None:
    world = World().initialized().with_record()
    manager = world.manager
    assert manager.prepare() == manager.prepared == PreparedTxnState(7, 3)
    for call in (
        manager.begin,
        manager.prepare,
        lambda: manager.add_partition(TopicPartition("t", 1)),
        manager.check_open,
    ):
        with pytest.raises(ApiError) as refused:
            call()
        assert refused.value.code is ErrorCode.INVALID_TXN_STATE
    assert manager.is_idle
    assert not manager.has_transaction, "the end of the producer leaves it open"
    (manager.begin_commit if commits else manager.begin_abort)()
    world.run()
    assert isinstance(world.sent[-1], EndTxnRequest)
    assert world.sent[-1].committed is commits
    assert (manager.state, manager.prepared.has_transaction) == (TransactionState.READY, False)


def test_the_transaction_of_an_earlier_producer_is_kept_and_committed() -> None:
    world = World(ongoing=(7, 2)).initialized(keep_prepared_txn=True)
    manager = world.manager
    assert (manager.state, manager.prepared) == (TransactionState.PREPARED, PreparedTxnState(7, 2))
    manager.begin_commit()
    world.run()
    end = world.sent[-1]
    assert (end.producer_id, end.producer_epoch, end.committed) == (7, 3, True)
    assert manager.state is TransactionState.READY


def test_without_one_that_is_prepared_the_producer_is_ready() -> None:
    assert World().initialized(keep_prepared_txn=True).manager.state is TransactionState.READY
    assert World(ongoing=(7, 2)).initialized().manager.state is TransactionState.READY, "it was not asked for"


def test_a_coordinator_that_keeps_none_says_so() -> None:
    world = World()
    world.code = ErrorCode.UNSUPPORTED_VERSION
    world.initialized(keep_prepared_txn=True)
    with pytest.raises(FatalTransactionError) as refused:
        world.manager.check()
    assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION


def test_the_configuration_has_to_allow_it() -> None:
    world = World(is_two_phase=False)
    with pytest.raises(ApiError, match=r"transaction\.two\.phase\.commit\.enable"):
        world.manager.initialize(keep_prepared_txn=True)
    world.initialized().with_record()
    with pytest.raises(ApiError, match=r"transaction\.two\.phase\.commit\.enable"):
        world.manager.prepare()


def test_the_key_excludes_a_timeout() -> None:
    given = {"bootstrap.servers": "h:1", "transactional.id": "x", "transaction.two.phase.commit.enable": True}
    assert producer_config(given, {}).two_phase_commit
    with pytest.raises(InvalidConfig, match=r"Cannot set transaction\.timeout\.ms when transaction\.two\.phase"):
        producer_config({**given, "transaction.timeout.ms": 1_000}, {})


@pytest.mark.parametrize(("text", "state"), [("", PreparedTxnState()), ("7:3", PreparedTxnState(7, 3))])
def test_the_text_of_a_prepared_transaction(text: str, state: PreparedTxnState) -> None:
    assert str(state) == text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["", "7:3"])
def test_a_transaction_that_is_not_prepared_is_not_completed(kind: type[Used], text: str) -> None:
    """Else it would be committed, or aborted, for the name of another one."""
    with TransactionalBroker() as broker:
        used = begun(kind(broker))
        with pytest.raises(ApiError, match="nothing is prepared") as refused:
            used.call("complete_transaction", text, TIMEOUT_S)
        assert refused.value.code is ErrorCode.INVALID_TXN_STATE
        assert broker.outcomes == []
        used.call("commit_transaction", TIMEOUT_S)
        used.close()
        assert broker.outcomes == [True]
