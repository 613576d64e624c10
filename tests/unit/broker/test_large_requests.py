"""Requests that name very many things: what is answered, and that others are served meanwhile."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
from all_rows import rows_of_brokers, rows_of_controllers
from by_hand import one_step_a_turn
from paper_connection import PaperConnection, read_answer

from kalda.base.background import run_to_end
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.pending import Pending
from kalda.broker.api_versions import Features
from kalda.broker.context import RequestContext
from kalda.broker.handlers.describe import DescribeHandlers
from kalda.broker.handlers.groups import GroupHandlers
from kalda.broker.handlers.markers import MarkerHandlers
from kalda.broker.handlers.tokens import TokenHandlers
from kalda.broker.large_requests import (
    CUTS,
    MAX_ELEMENTS_AT_ONCE,
    MAX_OTHER_ELEMENTS,
    MAX_REQUEST_ELEMENTS,
    PART_ITEMS,
    SMALL_ELEMENTS,
    Cut,
    free,
)
from kalda.broker.pipeline import RequestPipeline
from kalda.broker.rows import Authorization, Row
from kalda.metadata.delegation_tokens import DelegationToken
from kalda.network.connection import Connection
from kalda.protocol.apis import API, ApiKey, request_class
from kalda.protocol.framing import encode_response
from kalda.protocol.messages.admin import (
    ComponentData,
    DescribeClientQuotasRequest,
    FeatureUpdateKey,
    UpdateFeaturesRequest,
)
from kalda.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
    FetchResponse,
    FetchResponsePartitionData,
)
from kalda.protocol.messages.groups import LeaveGroupRequest, ListedGroup, ListGroupsRequest, MemberIdentity
from kalda.protocol.messages.metadata import ApiVersionsRequest
from kalda.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kalda.protocol.messages.security import (
    AlterUserScramCredentialsRequest,
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
    DescribeUserScramCredentialsRequest,
    ScramCredentialDeletion,
)
from kalda.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    DescribeProducersRequest,
    DescribeProducersRequestTopicRequest,
)
from kalda.protocol.notation import Request
from kalda.protocol.schema import WireField, WireStruct, is_flexible, wire_struct

ROWS = {row.key: row for row in (*rows_of_controllers(), *rows_of_brokers())}
CUT_APIS = [
    pytest.param(key, cut, id=f"{ApiKey(key).name}-{cut.asked[0]}")
    for key, cuts in CUTS.items()
    for cut in cuts
    if not cut.is_one_operation
]
OPERATIONS = [pytest.param(key, cuts[0], id=ApiKey(key).name) for key, cuts in CUTS.items() if cuts[0].is_one_operation]


class Bench:
    """One row, a connection, and turns of the loop that the test takes by hand."""

    def __init__(self, row: Row) -> None:
        self.turns: list[Callable[[], None]] = []
        self.pipeline = RequestPipeline([row], lambda: Features({}, {}, 0), one_step_a_turn(self.turns.append))
        self.connection = PaperConnection()

    def send(self, request: Request, version: int, connection: PaperConnection | None = None) -> Any:
        paper = connection or self.connection
        network: Connection = paper  # type: ignore[assignment]
        return self.pipeline.on_frame(network, paper.frame(request, version))

    def settle(self, answer: Any, between: Callable[[], None]) -> int:
        """Take turns until the answer is there; returns how many."""
        turns = 0
        while not answer.done:
            self.turns.pop(0)()
            between()
            turns += 1
        return turns


def large(key: int, cut: Cut, version: int, count: int) -> Request:
    """A request with `count` items in its deepest list, and three in each list above."""
    cls = request_class(key)
    flexible = is_flexible(cls, version)
    request = _filled(wire_struct(cls, version, flexible), version, cut.asked, count, 1)
    assert isinstance(request, Request)
    return request


def _filled(layout: WireStruct, version: int, path: tuple[str, ...], count: int, number: int) -> Any:
    values: dict[str, Any] = {}
    for field in layout.fields:
        if path and field.name == path[0]:
            size = 3 if len(path) > 1 else count
            values[field.name] = [_item(field, layout.flexible, version, path[1:], count, n) for n in range(size)]
        elif field.kind == "String" and not field.is_list and not field.nullable:
            values[field.name] = f"name-{number}"
        elif field.name in ("partition_index", "index", "partition"):
            values[field.name] = number
        elif field.name in ("acks", "timeout_ms"):
            values[field.name] = 1
    return layout.cls(**values)


def _item(field: WireField, flexible: bool, version: int, path: tuple[str, ...], count: int, number: int) -> Any:
    if field.struct is not None:
        return _filled(wire_struct(field.struct, version, flexible), version, path, count, number)
    return f"name-{number}" if field.kind == "String" else number


def version_with(key: int, cut: Cut) -> int:
    """The highest version whose request has the list."""
    cls = request_class(key)
    for version in range(API[key].highest_served(False), API[key].lowest - 1, -1):
        layout = wire_struct(cls, version, is_flexible(cls, version))
        if any(field.name == cut.asked[0] for field in layout.fields):
            return version
    raise AssertionError(f"no version of {ApiKey(key).name} has {cut.asked[0]}")


def count_of(items: list[Any], inner: tuple[str, ...]) -> int:
    """Items at all depths together."""
    return len(items) + sum(count_of(getattr(item, inner[0]) or [], inner[1:]) for item in items if inner)


def refusing(key: int, sizes: list[int], cut: Cut) -> Row:
    """A row whose handler gives each item the same error, and notes how many items it was called with."""
    row = ROWS[ApiKey(key)]

    def handler(context: RequestContext, request: Request) -> Any:
        sizes.append(count_of(getattr(request, cut.asked[0]), cut.asked[1:]))
        return row.failed(request, context.api_version, ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED))

    return row._replace(handler=handler, authorize=Authorization.ANYONE, in_parts=None, of_parts=None)


@pytest.mark.parametrize(
    ("key", "items", "largest"),
    [(ApiKey.LIST_OFFSETS, 1_100, 300), (ApiKey.DELETE_RECORDS, 60, 20), (ApiKey.DELETE_GROUPS, 600, 500)],
)
def test_items_that_take_long_are_handled_in_small_parts(key: ApiKey, items: int, largest: int) -> None:
    (cut,) = CUTS[key]
    sizes: list[int] = []
    bench = Bench(refusing(key, sizes, cut))
    answer = bench.send(large(key, cut, version_with(key, cut), items), version_with(key, cut))
    bench.settle(answer, lambda: None)
    assert max(sizes) <= largest + 1, "the partitions and their topic"


@pytest.mark.parametrize(("key", "cut"), CUT_APIS)
def test_others_are_served_between_the_steps_of_a_large_request(key: int, cut: Cut) -> None:
    sizes: list[int] = []
    row = refusing(key, sizes, cut)
    bench = Bench(row)
    version = version_with(key, cut)
    request = large(key, cut, version, 5_000)
    other = PaperConnection()
    ping = ApiVersionsRequest(client_software_name="c", client_software_version="1")
    served = 0

    def serve_another() -> None:
        nonlocal served
        assert read_answer(bench.send(ping, 4, other), ping, 4).error_code == ErrorCode.NONE
        served += 1

    answer = bench.send(request, version)
    assert isinstance(answer, Pending)
    assert not sizes, "nothing is handled in the turn that received the request"
    assert bench.connection.is_answered_alone
    turns = bench.settle(answer, serve_another)
    assert served == turns
    assert turns > len(sizes) >= 5
    assert max(sizes) <= cut.part_items + len(cut.asked)
    whole = row.failed(request, version, ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    assert whole is not None
    expected = read_answer(encode_response(77, whole, version), request, version)
    assert read_answer(answer, request, version) == expected


@pytest.mark.parametrize(
    "key",
    [ApiKey.PRODUCE, ApiKey.OFFSET_FETCH, ApiKey.WRITE_TXN_MARKERS, ApiKey.DESCRIBE_GROUPS, ApiKey.CREATE_TOPICS],
)
def test_memory_follows_the_bytes_of_the_answer(key: ApiKey) -> None:
    """Structs of all items would take ten times as much."""
    cut, count = CUTS[key][0], 12_000
    row = refusing(key, [], cut)
    bench = Bench(row)
    version = version_with(key, cut)
    request = large(key, cut, version, count if len(cut.asked) == 1 else count // 3 ** (len(cut.asked) - 1))
    frame = bench.connection.frame(request, version)
    bench.send(large(key, cut, version, 3_000), version)  # generates the functions
    while bench.turns:
        bench.turns.pop(0)()
    tracemalloc.start()
    answer: Any = bench.pipeline.on_frame(bench.connection, frame)  # type: ignore[arg-type]
    bench.settle(answer, lambda: None)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.3 * sum(map(len, answer.value)) + 800_000


@pytest.mark.parametrize(("key", "cut"), OPERATIONS)
def test_an_operation_on_too_many_items_is_refused_as_a_whole(key: int, cut: Cut) -> None:
    sizes: list[int] = []
    row = refusing(key, sizes, cut)
    bench = Bench(row)
    version = version_with(key, cut)
    count = 12_000 if len(cut.asked) == 1 else 4_000
    request = large(key, cut, version, count)
    answer = bench.send(request, version)
    assert bench.settle(answer, lambda: None) > 3
    assert not sizes
    error = ApiError(ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")
    refused = row.failed(request, version, error)
    assert refused is not None
    expected = read_answer(encode_response(77, refused, version), request, version)
    got = read_answer(answer, request, version)
    for response in (expected, got):
        getattr(response, cut.answered[0]).sort(key=repr)  # users are in order of their names, in each part
    assert got == expected


def test_an_operation_within_the_bound_is_handled_as_a_whole() -> None:
    sizes: list[int] = []
    [cut] = CUTS[ApiKey.CREATE_TOPICS]
    row = refusing(ApiKey.CREATE_TOPICS, sizes, cut)
    bench = Bench(row)
    request = large(ApiKey.CREATE_TOPICS, cut, 7, 3_000)
    answer = bench.send(request, 7)
    bench.settle(answer, lambda: None)
    assert sizes == [9_003]


def test_a_request_with_more_elements_than_any_client_sends_closes_its_connection() -> None:
    sizes: list[int] = []
    [cut] = CUTS[ApiKey.DESCRIBE_GROUPS]
    bench = Bench(refusing(ApiKey.DESCRIBE_GROUPS, sizes, cut))
    request = large(ApiKey.DESCRIBE_GROUPS, cut, 5, MAX_REQUEST_ELEMENTS + 1)
    answer = bench.send(request, 5)
    bench.settle(answer, lambda: None)
    assert answer.error is not None
    assert answer.error.code is ErrorCode.INVALID_REQUEST
    assert not sizes


def features(count: int) -> Request:
    return UpdateFeaturesRequest(feature_updates=[FeatureUpdateKey(feature=f"f-{n}") for n in range(count)])


def leaving(count: int) -> Request:
    return LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id=f"m-{n}") for n in range(count)])


def added_partitions(count: int) -> Request:
    topic = AddPartitionsToTxnTopic(name="t", partitions=list(range(count - 1)))
    return AddPartitionsToTxnRequest(v3_and_below_transactional_id="t", v3_and_below_topics=[topic])


def added_partitions_of_one(count: int) -> Request:
    topic = AddPartitionsToTxnTopic(name="t", partitions=list(range(count - 1)))
    return AddPartitionsToTxnRequest(transactions=[AddPartitionsToTxnTransaction(transactional_id="t", topics=[topic])])


def deleted_credentials(count: int) -> Request:
    return AlterUserScramCredentialsRequest(
        deletions=[ScramCredentialDeletion(name=f"u-{n}", mechanism=1) for n in range(count)]
    )


@pytest.mark.parametrize(
    ("make", "version", "bound"),
    [
        (features, 2, SMALL_ELEMENTS),
        (leaving, 5, MAX_ELEMENTS_AT_ONCE),
        (added_partitions, 3, MAX_OTHER_ELEMENTS),
        (added_partitions_of_one, 5, MAX_OTHER_ELEMENTS),
        (deleted_credentials, 0, 10_000),
    ],
)
def test_a_request_that_is_decoded_whole_has_fewer_elements(
    make: Callable[[int], Request], version: int, bound: int
) -> None:
    row = ROWS[ApiKey(make(1).API_KEY)]

    def handler(context: RequestContext, request: Request) -> Any:
        return row.failed(request, context.api_version, ApiError(ErrorCode.INVALID_REQUEST))

    for count, is_served in ((bound, True), (bound + 1, False)):
        request = make(count)
        bench = Bench(row._replace(handler=handler, authorize=Authorization.ANYONE))
        answer = bench.send(request, version)
        if isinstance(answer, Pending):
            bench.settle(answer, lambda: None)
            assert (answer.error is None) == is_served
        else:
            assert is_served


def test_a_small_request_is_answered_at_once() -> None:
    sizes: list[int] = []
    [cut] = CUTS[ApiKey.DESCRIBE_GROUPS]
    bench = Bench(refusing(ApiKey.DESCRIBE_GROUPS, sizes, cut))
    answer = bench.send(large(ApiKey.DESCRIBE_GROUPS, cut, 5, 4_000), 5)
    assert isinstance(answer, list)
    assert sizes == [4_000]
    assert not bench.turns


def test_parts_that_wait_are_joined_when_all_are_there() -> None:
    [cut] = CUTS[ApiKey.PRODUCE]
    waiting: list[tuple[Request, Pending[Any]]] = []

    def handler(context: RequestContext, request: ProduceRequest) -> Pending[Any]:
        waiting.append((request, Pending()))
        return waiting[-1][1]

    row = ROWS[ApiKey.PRODUCE]._replace(handler=handler, authorize=Authorization.ANYONE)
    bench = Bench(row)
    request = large(ApiKey.PRODUCE, cut, 12, 2_000)
    answer = bench.send(request, 12)
    while bench.turns:
        bench.turns.pop(0)()
    assert not answer.done
    error = ApiError(ErrorCode.REQUEST_TIMED_OUT)
    for part, pending in reversed(waiting):
        assert not answer.done
        pending.complete(row.failed(part, 12, error))
    while bench.turns:
        bench.turns.pop(0)()
    expected = row.failed(request, 12, error)
    assert expected is not None
    assert read_answer(answer, request, 12) == read_answer(encode_response(77, expected, 12), request, 12)


@pytest.mark.parametrize(("replica_id", "epoch", "parts"), [(-1, 0, 13), (-1, -1, 13), (-1, 7, 0), (5, 0, 1)])
def test_a_consumer_that_fetches_very_many_partitions_gets_no_session(replica_id: int, epoch: int, parts: int) -> None:
    handled: list[FetchRequest] = []

    def handler(context: RequestContext, request: FetchRequest) -> FetchResponse:
        handled.append(request)
        return FetchResponse(
            responses=[
                FetchableTopicResponse(
                    topic=topic.topic,
                    partitions=[
                        FetchResponsePartitionData(partition_index=each.partition) for each in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    bench = Bench(ROWS[ApiKey.FETCH]._replace(handler=handler, authorize=Authorization.ANYONE))
    asked = [FetchRequestFetchPartition(partition=index) for index in range(12_000)]
    request = FetchRequest(
        replica_id=replica_id,
        session_id=3,
        session_epoch=epoch,
        max_bytes=13_000,
        topics=[FetchRequestFetchTopic(topic="t", partitions=asked)],
    )
    answer = bench.send(request, 12)
    bench.settle(answer, lambda: None)
    if not parts:
        assert read_answer(answer, request, 12).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert not handled
        return
    [topic] = read_answer(answer, request, 12).responses
    assert [each.partition_index for each in topic.partitions] == list(range(12_000))
    if parts == 1:
        assert [(each.session_epoch, each.max_bytes) for each in handled] == [(epoch, 13_000)]
    else:
        assert len(handled) >= 12
        assert {each.session_epoch for each in handled} == {-1}
        assert sum(each.max_bytes for each in handled) <= 13_000


def test_a_fault_in_one_part_fails_that_part() -> None:
    [cut] = CUTS[ApiKey.DESCRIBE_GROUPS]
    parts: list[int] = []
    row = refusing(ApiKey.DESCRIBE_GROUPS, [], cut)

    def handler(context: RequestContext, request: Request) -> Any:
        parts.append(1)
        if len(parts) == 2:
            raise KeyError("a fault of the program")
        return row.handler(context, request)

    bench = Bench(row._replace(handler=handler))
    request = large(ApiKey.DESCRIBE_GROUPS, cut, 5, 5_000)
    answer = bench.send(request, 5)
    bench.settle(answer, lambda: None)
    codes = [group.error_code for group in read_answer(answer, request, 5).groups]
    assert codes.count(ErrorCode.UNKNOWN_SERVER_ERROR) == PART_ITEMS
    assert codes.count(ErrorCode.TOPIC_AUTHORIZATION_FAILED) == 5_000 - PART_ITEMS


def test_what_waits_is_abandoned_with_the_connection() -> None:
    [cut] = CUTS[ApiKey.PRODUCE]
    abandoned: list[int] = []

    def handler(context: RequestContext, request: ProduceRequest) -> Pending[Any]:
        pending: Pending[Any] = Pending()
        pending.on_abandoned = lambda: abandoned.append(1)
        return pending

    bench = Bench(ROWS[ApiKey.PRODUCE]._replace(handler=handler, authorize=Authorization.ANYONE))
    early = bench.send(large(ApiKey.PRODUCE, cut, 12, 2_000), 12)
    bench.turns.pop(0)()
    early.abandon()
    while bench.turns:
        bench.turns.pop(0)()
    assert not abandoned
    late = bench.send(large(ApiKey.PRODUCE, cut, 12, 2_000), 12)
    while bench.turns:
        bench.turns.pop(0)()
    late.abandon()
    assert len(abandoned) >= 6
    assert not bench.turns


def test_a_long_list_of_groups_is_made_in_steps() -> None:
    names = [f"group-{number}" for number in range(9_000)]
    coordinator = Mock()
    coordinator.list_groups.return_value = (ListedGroup(group_id=name) for name in names)
    [row] = [each for each in GroupHandlers(coordinator, Mock(), Mock()).rows() if each.key is ApiKey.LIST_GROUPS]
    bench = Bench(row)
    request = ListGroupsRequest()
    answer = bench.send(request, 5)
    assert isinstance(answer, Pending)
    assert bench.settle(answer, lambda: None) > len(names) // 2_000
    assert [group.group_id for group in read_answer(answer, request, 5).groups] == names


def test_tokens_are_described_in_steps() -> None:
    tokens = [DelegationToken(str(n), f"User:{n}", "User:r", ("User:a", "User:b"), 0, 1, 1) for n in range(1_200)]
    handlers = TokenHandlers(Mock(), "secret", lambda: tokens)
    context = Mock(api_version=3, header=Mock(correlation_id=1))
    owners = [DescribeDelegationTokenOwner(principal_type="User", principal_name=name) for name in ("7", "no", "b")]
    for wanted, count in (([], 0), (owners[:2], 1), (owners, 1_200)):
        request = DescribeDelegationTokenRequest(owners=wanted)
        assert len(list(handlers._describe(context, request))) >= 2, "turns"
        assert len(run_to_end(handlers._describe(context, request)).tokens) == count


def test_quotas_and_users_are_described_in_steps() -> None:
    names = [f"user-{number}" for number in range(2_500)]
    entities = {(("user", name),): {"consumer_byte_rate": 1.0} for name in names}
    scram = Mock(mechanisms_of=lambda name: [1], get=lambda mechanism, name: Mock(iterations=4_096))
    scram.users.return_value = names
    handlers = DescribeHandlers(Mock(image=Mock(client_quotas=Mock(entities=entities), scram=scram)))
    component = ComponentData(entity_type="user", match_type=2, match=None)
    for steps in (
        handlers.describe_client_quotas(Mock(), DescribeClientQuotasRequest(components=[component])),
        handlers.describe_user_scram_credentials(Mock(), DescribeUserScramCredentialsRequest(users=None)),
    ):
        assert next(steps) is None
        assert next(steps) is None
        described: Any = run_to_end(steps)
        assert len(described.entries if hasattr(described, "entries") else described.results) == len(names)


def test_a_partition_that_is_named_again_is_not_described_again() -> None:
    replicas = MagicMock()  # of logs without producers
    topic = DescribeProducersRequestTopicRequest(name="t", partition_indexes=[0, 0, 1])
    steps = MarkerHandlers(replicas, Mock()).describe_producers(Mock(), DescribeProducersRequest(topics=[topic]))
    partitions = run_to_end(steps).topics[0].partitions
    assert [each.error_code for each in partitions] == [0, ErrorCode.INVALID_REQUEST, 0]


def test_objects_are_dropped_in_steps() -> None:
    data = [TopicProduceData(partition_data=[PartitionProduceData() for _ in range(5_000)]) for _ in range(2)]
    left = [sum(len(topic.partition_data) for topic in data) for _ in free(data, ("partition_data",))]
    assert len(left) >= 4
    assert not data
