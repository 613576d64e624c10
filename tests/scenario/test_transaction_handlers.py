"""The APIs of the transaction coordinator through the request pipeline: shapes, rights, and requests that are large."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from by_hand import one_step_a_turn
from paper_connection import PaperConnection, read_answer
from transactions_world import World

from kalda.base.errors import ErrorCode
from kalda.base.scheduling import Pending
from kalda.broker.handlers.transactions import TransactionHandlers
from kalda.broker.requests.api_versions import Features
from kalda.broker.requests.pipeline import RequestPipeline
from kalda.protocol.access import Caller
from kalda.protocol.apis import API, ApiKey
from kalda.protocol.messages.security import AclOperation, AclResourceType
from kalda.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
)
from kalda.protocol.notation import Request

Denied = tuple[AclOperation, AclResourceType, str]


class Denying:
    """Allows all but some."""

    def __init__(self, *denied: Denied) -> None:
        self.denied = denied

    def allows(
        self,
        caller: Caller,
        operation: AclOperation,
        resource: AclResourceType,
        name: str,
        logs_denial: bool = True,
        references: int = 1,
    ) -> bool:
        return (operation, resource, name) not in self.denied

    def allows_on_any(self, caller: Caller, operation: AclOperation, resource: AclResourceType) -> bool:
        return True


class Clock:
    def __init__(self, world: World) -> None:
        self.world = world

    def mono_ms(self) -> int:
        return self.world.now

    def wall_ms(self) -> int:
        return self.world.now


class Broker:
    """A coordinator behind the pipeline; turns of the loop are taken by hand."""

    def __init__(self, *denied: Denied, version: int = 2) -> None:
        self.world = World(version=version)
        self.turns: list[Callable[[], None]] = []
        self.steps = 0
        self.handled = 0
        self.handlers = TransactionHandlers(
            self.world.coordinator,
            Clock(self.world),  # type: ignore[arg-type]
            lambda topic, partition: (topic, partition) in self.world.leaders,
            lambda: 50,
            self._on_handled,
        )
        self.pipeline = RequestPipeline(
            self.handlers.rows(),
            lambda: Features({}, {}, 0),
            one_step_a_turn(self.turns.append),
            unstable_versions=True,
            authorizer=Denying(*denied),
        )

    def _on_handled(self) -> None:
        self.handled += 1

    def ask(self, request: Request, version: int) -> Any:
        connection = PaperConnection()
        answer = self.pipeline.on_frame(connection, connection.frame(request, version))  # type: ignore[arg-type]
        self.steps = 0
        while isinstance(answer, Pending) and not answer.done and self.turns:
            self.turns.pop(0)()
            self.steps += 1
        return read_answer(answer, request, version)

    def add(self, producer: tuple[int, int], version: int, *topics: tuple[str, list[int]], **more: Any) -> Any:
        """The codes by topic and partition."""
        named = [AddPartitionsToTxnTopic(name=name, partitions=numbers) for name, numbers in topics]
        if version < 4:
            request = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id="t",
                v3_and_below_producer_id=producer[0],
                v3_and_below_producer_epoch=producer[1],
                v3_and_below_topics=named,
            )
        else:
            transaction = AddPartitionsToTxnTransaction(
                transactional_id="t", producer_id=producer[0], producer_epoch=producer[1], topics=named, **more
            )
            request = AddPartitionsToTxnRequest(transactions=[transaction])
        response = self.ask(request, version)
        if response.error_code:
            return ErrorCode(response.error_code).name
        results = response.results_by_topic_v3_and_below
        if version >= 4:
            results = response.results_by_transaction[0].topic_results
        return {
            (topic.name, each.partition_index): ErrorCode(each.partition_error_code).name
            for topic in results
            for each in topic.results_by_partition
        }


def test_every_version_of_every_api_is_answered() -> None:
    broker = Broker()
    requests = {
        ApiKey.INIT_PRODUCER_ID: InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=60_000),
        ApiKey.ADD_PARTITIONS_TO_TXN: AddPartitionsToTxnRequest(),
        ApiKey.ADD_OFFSETS_TO_TXN: AddOffsetsToTxnRequest(transactional_id="t", producer_id=7),
        ApiKey.END_TXN: EndTxnRequest(transactional_id="t", producer_id=7),
        ApiKey.DESCRIBE_TRANSACTIONS: DescribeTransactionsRequest(transactional_ids=["t"]),
        ApiKey.LIST_TRANSACTIONS: ListTransactionsRequest(),
    }
    assert {row.key for row in broker.handlers.rows()} == set(requests)
    for key, request in requests.items():
        for version in range(API[key].lowest, API[key].highest + 1):
            assert broker.ask(request, version) is not None


@pytest.mark.parametrize("version", range(6))
def test_all_partitions_are_added_or_none(version: int) -> None:
    broker = Broker()
    producer = broker.world.producer()
    assert broker.add(producer, version, ("orders", [0, 3]), ("nope", [0])) == {
        ("orders", 0): "OPERATION_NOT_ATTEMPTED",
        ("orders", 3): "UNKNOWN_TOPIC_OR_PARTITION",
        ("nope", 0): "UNKNOWN_TOPIC_OR_PARTITION",
    }
    assert broker.world.label() == "Empty"
    assert broker.add(producer, version, ("orders", [0, 2])) == {("orders", 0): "NONE", ("orders", 2): "NONE"}
    assert broker.world.state().partitions == {"orders": frozenset((0, 2))}
    assert broker.world.state().client_version == (2 if version == 5 else 0)
    fenced = {("orders", 0): "INVALID_PRODUCER_EPOCH" if version < 2 else "PRODUCER_FENCED"}
    assert broker.add((producer[0], 7), version, ("orders", [0])) == fenced


@pytest.mark.parametrize("version", [4, 5])
def test_verification_changes_nothing(version: int) -> None:
    broker = Broker()
    producer = broker.world.producer()
    broker.add(producer, 3, ("orders", [1]))
    appends = broker.world.log.appends
    assert broker.add(producer, version, ("orders", [0, 1]), verify_only=True) == {
        ("orders", 0): "TRANSACTION_ABORTABLE",
        ("orders", 1): "NONE",
    }
    assert broker.add((7, 0), version, ("orders", [1]), verify_only=True) == {
        ("orders", 1): "INVALID_PRODUCER_ID_MAPPING"
    }
    assert broker.world.log.appends == appends


def test_a_broker_asks_for_several_transactions_at_once() -> None:
    """Each has its own result; the answer comes when all are known."""
    broker = Broker()
    broker.world.producer("a")
    broker.world.producer("b")
    topics = [AddPartitionsToTxnTopic(name="orders", partitions=[0])]

    def transaction(name: str, producer_id: int, **more: Any) -> AddPartitionsToTxnTransaction:
        return AddPartitionsToTxnTransaction(transactional_id=name, producer_id=producer_id, topics=topics, **more)

    request = AddPartitionsToTxnRequest(
        transactions=[transaction("a", 1000), transaction("b", 1001, verify_only=True), transaction("c", 1002)]
    )
    broker.world.log.replicated = False
    pending = broker.handlers.add_partitions_of_broker(request)
    assert isinstance(pending, Pending)
    assert not pending.done
    broker.world.replicate()
    assert pending.value is not None
    assert [
        (each.transactional_id, ErrorCode(each.topic_results[0].results_by_partition[0].partition_error_code).name)
        for each in pending.value.results_by_transaction
    ] == [("a", "NONE"), ("b", "TRANSACTION_ABORTABLE"), ("c", "INVALID_PRODUCER_ID_MAPPING")]


def test_rights_of_clients_and_brokers() -> None:
    """A client needs each topic, and never an internal one. A broker needs the cluster, and no topic."""
    write = AclOperation.WRITE
    broker = Broker((write, AclResourceType.TOPIC, "secret"))
    broker.world.leaders["secret", 0] = broker.world.leaders["__consumer_offsets", 0] = 0
    producer = broker.world.producer()
    assert broker.add(producer, 3, ("orders", [0]), ("secret", [0]), ("__consumer_offsets", [0])) == {
        ("orders", 0): "OPERATION_NOT_ATTEMPTED",
        ("secret", 0): "TOPIC_AUTHORIZATION_FAILED",
        ("__consumer_offsets", 0): "TOPIC_AUTHORIZATION_FAILED",
    }
    assert set(broker.add(producer, 5, ("secret", [0]), ("__consumer_offsets", [0])).values()) == {"NONE"}

    broker = Broker(
        (write, AclResourceType.TRANSACTIONAL_ID, "t"),
        (AclOperation.CLUSTER_ACTION, AclResourceType.CLUSTER, "kafka-cluster"),
    )
    assert set(broker.add((1, 0), 3, ("orders", [0])).values()) == {"TRANSACTIONAL_ID_AUTHORIZATION_FAILED"}
    assert broker.add((1, 0), 4, ("orders", [0])) == "CLUSTER_AUTHORIZATION_FAILED"


def test_two_phase_commit_needs_a_right_of_its_own() -> None:
    broker = Broker((AclOperation.TWO_PHASE_COMMIT, AclResourceType.TRANSACTIONAL_ID, "t"))
    request = InitProducerIdRequest(transactional_id="t", enable2_pc=True)
    response = broker.ask(request, 6)
    assert ErrorCode(response.error_code) is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


@pytest.mark.parametrize("version", range(5))
def test_offsets_of_a_group_are_a_partition_of_the_transaction(version: int) -> None:
    broker = Broker()
    producer = broker.world.producer()
    request = AddOffsetsToTxnRequest(
        transactional_id="t", producer_id=producer[0], producer_epoch=producer[1], group_id="group"
    )
    assert broker.ask(request, version).error_code == 0
    ((topic, numbers),) = broker.world.state().partitions.items()
    assert (topic, len(numbers)) == ("__consumer_offsets", 1)
    request.producer_epoch += 1
    code = ErrorCode(broker.ask(request, version).error_code)
    assert code is (ErrorCode.INVALID_PRODUCER_EPOCH if version < 2 else ErrorCode.PRODUCER_FENCED)


def test_description_hides_what_the_caller_may_not_see() -> None:
    describe = AclOperation.DESCRIBE
    broker = Broker((describe, AclResourceType.TOPIC, "secret"), (describe, AclResourceType.TRANSACTIONAL_ID, "hidden"))
    broker.world.leaders["secret", 0] = 0
    producer = broker.world.producer()
    broker.world.begin(producer, 0, 2)
    broker.world.begin(producer, 0, topic="secret")
    broker.world.producer("hidden")
    response = broker.ask(DescribeTransactionsRequest(transactional_ids=["t", "hidden", "nope", "", "t"]), 0)
    shown, hidden, unknown, empty, again = response.transaction_states
    assert (ErrorCode(again.error_code), again.topics) == (ErrorCode.INVALID_REQUEST, [])
    assert [(topic.topic, topic.partitions) for topic in shown.topics] == [("orders", [0, 2])]
    assert (shown.transaction_state, shown.producer_id, shown.transaction_timeout_ms) == ("Ongoing", 1000, 60_000)
    assert ErrorCode(hidden.error_code) is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert ErrorCode(unknown.error_code) is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert ErrorCode(empty.error_code) is ErrorCode.INVALID_REQUEST
    listed = broker.ask(ListTransactionsRequest(), 2)
    assert [each.transactional_id for each in listed.transaction_states] == ["t"]


def test_filters_of_the_list() -> None:
    broker = Broker()
    world = broker.world
    for name in ("a-1", "a-2", "b-1"):
        producer = world.producer(name)
        if name != "a-2":
            world.begin(producer, transactional_id=name)
        world.now += 10_000

    def listed(**filters: Any) -> Any:
        response = broker.ask(ListTransactionsRequest(**filters), 2)
        if response.error_code:
            return ErrorCode(response.error_code).name
        return [each.transactional_id for each in response.transaction_states], response.unknown_state_filters

    assert listed() == (["a-1", "a-2", "b-1"], [])
    assert listed(state_filters=["Ongoing"]) == (["a-1", "b-1"], [])
    assert listed(state_filters=["Nope"]) == ([], ["Nope"])
    assert listed(producer_id_filters=[1001, 1002]) == (["a-2", "b-1"], [])
    assert listed(duration_filter=20_000) == (["a-1", "a-2"], []), "an id without a start counts as very old, as there"
    assert listed(transactional_id_pattern="a-.") == (["a-1", "a-2"], [])
    assert listed(transactional_id_pattern="a") == ([], [])
    for pattern in ("(", "(?=a)", "(a)\\1"):
        assert listed(transactional_id_pattern=pattern) == "INVALID_REGULAR_EXPRESSION"
    assert listed(transactional_id_pattern="(.?){150}y") == ([], [])
    assert listed(state_filters=["Ongoing"], producer_id_filters=[1000], transactional_id_pattern=".*1") == (
        ["a-1"],
        [],
    )
    world.elect()
    world.runtime.on_elected(0, world.epoch + 1, world.now)
    broker.handlers._coordinator = world.coordinator
    assert listed() == "COORDINATOR_LOAD_IN_PROGRESS"


def test_an_id_that_is_too_long_for_a_pattern_is_listed() -> None:
    """It is not matched, which would hold the loop; and lists of other ids do not fail for it."""
    broker = Broker()
    long = "x" * 5_000
    for transactional_id in (long, "xy", "z"):
        broker.world.producer(transactional_id)
    for pattern, found in (("x*", {long}), ("(.?){150}y", {long, "xy"})):
        response = broker.ask(ListTransactionsRequest(transactional_id_pattern=pattern), 2)
        assert {each.transactional_id for each in response.transaction_states} == found


# -- large requests


def test_a_list_of_very_many_ids_is_made_in_steps() -> None:
    broker = Broker()
    for index in range(6_000):
        broker.world.producer(f"t{index}")
    response = broker.ask(ListTransactionsRequest(transactional_id_pattern="t.*"), 2)
    assert len(response.transaction_states) == 6_000
    assert broker.steps > 6


def test_very_many_partitions_are_added_in_steps_and_at_once() -> None:
    """One transaction is one change: all partitions are in it, or none."""
    broker = Broker()
    numbers = list(range(19_000))
    broker.world.leaders = {("orders", number): 0 for number in numbers}
    producer = broker.world.producer()
    appends = broker.world.log.appends
    codes = broker.add(producer, 3, ("orders", numbers))
    assert set(codes.values()) == {"NONE"}
    assert len(codes) == 19_000
    assert broker.steps > 100, "the response is made in steps, too"
    assert broker.world.log.appends == appends + 1
    assert len(broker.world.state().partitions["orders"]) == 19_000
    refused = broker.add(producer, 3, ("orders", [*numbers, 19_000]))
    assert refused["orders", 19_000] == "UNKNOWN_TOPIC_OR_PARTITION"
    assert refused["orders", 7] == "OPERATION_NOT_ATTEMPTED"
    assert broker.steps > 100


def test_a_transaction_that_no_batch_can_hold_is_refused() -> None:
    """As in Apache Kafka: a record above max.message.bytes is an error of the server."""
    broker = Broker()
    names = [f"{index:06}".ljust(249, "x") for index in range(4_500)]
    broker.world.leaders = {(name, 0): 0 for name in names}
    producer = broker.world.producer()
    codes = broker.add(producer, 3, *[(name, [0]) for name in names])
    assert set(codes.values()) == {"UNKNOWN_SERVER_ERROR"}
    assert broker.world.label() == "Empty"


def test_very_many_transactions_in_one_request_take_steps() -> None:
    broker = Broker()
    topics = [AddPartitionsToTxnTopic(name="orders", partitions=[0])]
    request = AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnTransaction(transactional_id=f"t{index}", producer_id=index, topics=topics)
            for index in range(5_000)
        ]
    )
    response = broker.ask(request, 5)
    assert len(response.results_by_transaction) == 5_000
    assert broker.steps > 5


def test_ids_of_32_kib() -> None:
    broker = Broker()
    name = "ü" * 16_000
    request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
    assert broker.ask(request, 5).producer_id == 1000
    assert (
        broker.ask(DescribeTransactionsRequest(transactional_ids=[name]), 0).transaction_states[0].producer_id == 1000
    )
    broker.world.elect()
    assert broker.world.label(name) == "Empty"
