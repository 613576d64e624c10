"""The stages of the request pipeline: in which order they run, and what each does to the answer and the connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any

import pytest
from by_hand import one_step_a_turn
from paper_connection import CORRELATION_ID, PaperConnection, read_answer

from kalda.base.errors import ApiError, ErrorCode, InvalidRequest
from kalda.base.scheduling import Pending
from kalda.base.stats import MetricConfig
from kalda.broker.channels.forwarding import Unwrapping, encode_principal, envelope_failed
from kalda.broker.handlers.data import produce_failed
from kalda.broker.handlers.forwarded import create_topics_failed
from kalda.broker.handlers.groups import join_group_failed
from kalda.broker.handlers.metadata import metadata_failed
from kalda.broker.handlers.shared import error_on_top, fetch_failed
from kalda.broker.requests.api_versions import Features, NodeIdentity
from kalda.broker.requests.context import Encoded, RequestContext
from kalda.broker.requests.pipeline import Handler, RequestPipeline
from kalda.broker.requests.rows import Authorization, QuotaClass, Row, on_group
from kalda.broker.requests.throttling import ClientThrottle
from kalda.broker.system_clock import SystemClock
from kalda.network.server.connection import Answer, Connection
from kalda.network.server.server import Server
from kalda.protocol.access import READ_GROUP, Caller
from kalda.protocol.apis import ApiKey
from kalda.protocol.framing import encode_request, encode_response
from kalda.protocol.messages.brokers import EnvelopeRequest
from kalda.protocol.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from kalda.protocol.messages.metadata import ApiVersionsRequest, MetadataRequest, MetadataResponse
from kalda.protocol.messages.partitions import FetchRequest, FetchResponse, ProduceRequest
from kalda.protocol.messages.security import AclOperation, AclResourceType
from kalda.protocol.messages.topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from kalda.protocol.notation import Request
from kalda.quota.client_quotas import RequestQuotas
from kalda.quota.managers import QuotaManagers, Windows

ANYONE = Authorization.ANYONE
HEARTBEAT = HeartbeatRequest(group_id="g", member_id="m")


def features() -> Features:
    return Features({}, {}, 0)


class Quotas(RequestQuotas):
    """Has every client pause for the same time, and records who was charged."""

    def __init__(self, pause_ms: int) -> None:
        super().__init__(MetricConfig(1_000, 2))
        self.is_enabled = True
        self.pause_ms = pause_ms
        self.charged: list[str] = []

    def record(self, principal: str, client_id: str, value: float, now_ms: int) -> int:
        self.charged.append(principal)
        return self.pause_ms


class Throttle(ClientThrottle):
    """Charges every request the same, by its time or, where that does not count, its bytes."""

    def __init__(self, pause_ms: int) -> None:
        managers = QuotaManagers(Windows(lambda key: 1))
        super().__init__(managers, lambda: 0, lambda: 0)
        self.quotas = managers.request = Quotas(pause_ms)
        managers.produce = self.quotas
        self.partitions: list[tuple[str, int]] = []

    @property
    def charged(self) -> list[str]:
        """The principals of the requests that were charged."""
        return self.quotas.charged

    def mutations_of(self, context: RequestContext) -> Callable[[Caller, int], None]:
        return lambda caller, count: self.partitions.append((caller.principal, count))


class Bench:
    """A pipeline, connections to it, and turns of the loop that the test takes by hand."""

    def __init__(self, *rows: Row, throttle: Throttle | None = None, authorizer: Any = None, node: Any = None) -> None:
        self.turns: list[Callable[[], None]] = []
        self.pipeline = RequestPipeline(
            rows, features, one_step_a_turn(self.turns.append), throttle=throttle, authorizer=authorizer, node=node
        )
        self.connection = PaperConnection()

    def send(self, request: Request, version: int, connection: PaperConnection | None = None) -> Answer:
        paper = connection or self.connection
        network: Connection = paper  # type: ignore[assignment]
        return self.pipeline.on_frame(network, paper.frame(request, version))

    def ask(self, request: Request, version: int, connection: PaperConnection | None = None) -> Any:
        return read_answer(self.send(request, version, connection), request, version)

    def take_turn(self) -> None:
        self.turns.pop(0)()

    def settle(self) -> None:
        """Take turns until nothing is left to do."""
        while self.turns:
            self.take_turn()


def heartbeats(handler: Handler, authorize: Any = ANYONE, quota: QuotaClass = QuotaClass.REQUEST) -> Row:
    return Row(ApiKey.HEARTBEAT, handler, error_on_top, authorize, quota)


# -- the caller


def test_a_context_is_the_caller() -> None:
    seen: list[RequestContext] = []

    def handler(context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
        seen.append(context)
        return HeartbeatResponse()

    bench = Bench(heartbeats(handler))
    bench.ask(HEARTBEAT, 3)
    [context] = seen
    assert isinstance(context, Caller)
    assert (context.principal, context.client_host, context.client_id) == ("User:ANONYMOUS", "10.1.2.3", "client")
    assert (context.listener_name, context.api_version) == ("PLAINTEXT", 3)
    assert (context.forwarded_by, context.authorizer, context.charge) == (None, None, None)
    assert context.allows_on_cluster(AclOperation.ALTER)


# -- authorize, then handle


class Rights:
    def __init__(self, *groups: str) -> None:
        self.groups = groups

    def allows(
        self,
        caller: Caller,
        operation: AclOperation,
        resource: AclResourceType,
        name: str,
        logs_denial: bool = True,
        references: int = 1,
    ) -> bool:
        return name in self.groups

    def allows_on_any(self, caller: Caller, operation: AclOperation, resource: AclResourceType) -> bool:
        return False


def test_a_handler_is_called_only_for_allowed_requests() -> None:
    handled: list[str] = []

    def handler(context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
        handled.append(request.group_id)
        return HeartbeatResponse()

    bench = Bench(heartbeats(handler, on_group(READ_GROUP)), authorizer=Rights("mine"))
    assert bench.ask(HeartbeatRequest(group_id="mine"), 4).error_code == ErrorCode.NONE
    assert bench.ask(HeartbeatRequest(group_id="yours"), 4).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert handled == ["mine"]


def test_a_handler_that_filters_items_has_the_authorizer() -> None:
    def handler(context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
        allowed = context.allows(AclOperation.READ, AclResourceType.GROUP, request.group_id)
        return HeartbeatResponse(error_code=0 if allowed else 30)

    bench = Bench(heartbeats(handler, Authorization.PER_ITEM), authorizer=Rights("mine"))
    assert bench.ask(HeartbeatRequest(group_id="mine"), 4).error_code == 0
    assert bench.ask(HeartbeatRequest(group_id="yours"), 4).error_code == 30


# -- failures


def test_a_version_that_is_not_served() -> None:
    bench = Bench(heartbeats(lambda context, request: HeartbeatResponse()))
    with pytest.raises(InvalidRequest, match="not served on listener PLAINTEXT"):
        bench.send(ListGroupsRequest(), 0)
    old = ApiVersionsRequest()
    frame = bench.connection.frame(old, 4)
    frame[2:4] = (99).to_bytes(2, "big")
    network: Connection = bench.connection  # type: ignore[assignment]
    response = read_answer(bench.pipeline.on_frame(network, frame), old, 0)
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize(
    ("meant", "error"),
    [
        (("a", 1), ErrorCode.NONE),
        ((None, -1), ErrorCode.NONE),
        ((None, 2), ErrorCode.INVALID_REQUEST),
        (("b", 1), ErrorCode.REBOOTSTRAP_REQUIRED),
        (("a", 2), ErrorCode.REBOOTSTRAP_REQUIRED),
        (("a", -2), ErrorCode.REBOOTSTRAP_REQUIRED),
        (("a", -1), ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_client_that_means_another_node_is_answered_so(meant: tuple[str | None, int], error: ErrorCode) -> None:
    cluster_id, node_id = meant
    request = ApiVersionsRequest(
        client_software_name="c", client_software_version="1", cluster_id=cluster_id, node_id=node_id
    )
    assert Bench(node=NodeIdentity("a", 1)).ask(request, 5).error_code == error
    unchecked = ErrorCode.NONE if error is ErrorCode.REBOOTSTRAP_REQUIRED else error
    assert Bench().ask(request, 5).error_code == unchecked, "a listener that does not check"


@pytest.mark.parametrize("is_late", [False, True])
def test_a_failed_request_of_a_producer_that_expects_no_response_closes(is_late: bool) -> None:
    """A response would be taken for that of a later request."""
    pending: Pending[Any] = Pending()

    def handler(context: RequestContext, request: ProduceRequest) -> Pending[Any]:
        if is_late:
            return pending
        raise ApiError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)

    bench = Bench(Row(ApiKey.PRODUCE, handler, produce_failed, ANYONE, QuotaClass.PRODUCE))
    request = ProduceRequest(acks=0, transactional_id="t")
    answer = bench.send(request, 11)
    if is_late:
        pending.fail(ApiError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND))
    assert read_answer(answer, request, 11) is None
    assert bench.connection.is_closed


# -- charge


REPLIES: dict[str, Callable[[], Any]] = {
    "at once": lambda: HeartbeatResponse(error_code=25),
    "failed": lambda: ApiError(ErrorCode.UNKNOWN_MEMBER_ID),
    "settled": lambda: settled(HeartbeatResponse(error_code=25)),
    "failed later": lambda: failed_later(ApiError(ErrorCode.UNKNOWN_MEMBER_ID)),
    "in steps": lambda: stepped(HeartbeatResponse(error_code=25)),
}


def settled(value: Any) -> Pending[Any]:
    pending: Pending[Any] = Pending()
    pending.complete(value)
    return pending


def failed_later(error: ApiError) -> Pending[Any]:
    pending: Pending[Any] = Pending()
    pending.fail(error)
    return pending


def stepped(value: Any) -> Generator[None, None, Any]:
    yield
    return value


def replying(make: Callable[[], Any]) -> Handler:
    def handler(context: RequestContext, request: Any) -> Any:
        reply = make()
        if isinstance(reply, ApiError):
            raise reply
        return reply

    return handler


@pytest.mark.parametrize("kind", REPLIES)
@pytest.mark.parametrize("version", [0, 1, 4])
def test_a_client_over_its_quota_is_answered_and_muted(kind: str, version: int) -> None:
    """The answer is there at once, with the throttle time where its version has the field."""
    throttle = Throttle(250)
    bench = Bench(heartbeats(replying(REPLIES[kind])), throttle=throttle)
    other = PaperConnection()
    answer = bench.send(HEARTBEAT, version)
    while bench.turns:
        bench.take_turn()
    response = read_answer(answer, HEARTBEAT, version)
    assert (response.error_code, response.throttle_time_ms) == (25, 250 if version >= 1 else 0)
    assert bench.connection.mutes == [250]
    assert other.mutes == []
    assert throttle.charged == ["User:ANONYMOUS"]


@pytest.mark.parametrize("kind", [*REPLIES, "settled with steps", "steps that wait"])
def test_error_codes_of_every_kind_of_reply_are_counted(kind: str) -> None:
    replies = {
        **REPLIES,
        "settled with steps": lambda: settled(stepped(HeartbeatResponse(error_code=25))),
        "steps that wait": lambda: stepped(settled(HeartbeatResponse(error_code=25))),
    }
    bench = Bench(heartbeats(replying(replies[kind])))
    bench.pipeline.errors = counts = {}
    answer = bench.send(HEARTBEAT, 4)
    bench.settle()
    assert read_answer(answer, HEARTBEAT, 4).error_code == 25
    assert counts == {ApiKey.HEARTBEAT: {25: 1}}


@pytest.mark.parametrize("kind", REPLIES)
def test_a_client_within_its_quota_is_not_muted(kind: str) -> None:
    throttle = Throttle(0)
    bench = Bench(heartbeats(replying(REPLIES[kind])), throttle=throttle)
    answer = bench.send(HEARTBEAT, 4)
    while bench.turns:
        bench.take_turn()
    assert read_answer(answer, HEARTBEAT, 4).throttle_time_ms == 0
    assert (len(throttle.charged), bench.connection.mutes) == (1, [])


def test_a_request_without_an_answer_is_charged() -> None:
    throttle = Throttle(10)
    row = Row(ApiKey.PRODUCE, lambda context, request: None, produce_failed, ANYONE, QuotaClass.PRODUCE)
    bench = Bench(row, throttle=throttle)
    assert bench.send(ProduceRequest(acks=0), 11) is None
    assert bench.connection.mutes == [10]
    assert throttle.charged == ["User:ANONYMOUS"]


@pytest.mark.parametrize("is_late", [False, True])
def test_an_encoded_answer_is_charged_in_a_copy(is_late: bool) -> None:
    throttle = Throttle(10)
    encoded = Encoded(encode_response(77, MetadataResponse(), 12))
    reply = settled(encoded) if is_late else encoded
    row = Row(ApiKey.METADATA, lambda context, request: reply, metadata_failed, ANYONE)
    bench = Bench(row, throttle=throttle)
    before = b"".join(encoded.buffers)  # type: ignore[arg-type]
    assert bench.ask(MetadataRequest(), 12).throttle_time_ms == 10
    assert bench.connection.mutes == [10]
    assert b"".join(encoded.buffers) == before, "others may get the same bytes"  # type: ignore[arg-type]


def test_an_answer_that_is_made_after_the_earlier_ones_is_charged_then() -> None:
    throttle = Throttle(10)
    earlier: Pending[None] = Pending()
    encoded = Encoded(encode_response(77, MetadataResponse(), 12))
    row = Row(ApiKey.METADATA, lambda context, request: earlier.and_then(lambda _: encoded), metadata_failed, ANYONE)
    bench = Bench(row, throttle=throttle)
    answer = bench.send(MetadataRequest(), 12)
    assert throttle.charged == []
    earlier.complete(None)
    read_answer(answer, MetadataRequest(), 12)
    assert bench.connection.mutes == [10]


def test_requests_between_nodes_are_not_charged() -> None:
    throttle = Throttle(10)
    row = heartbeats(lambda context, request: HeartbeatResponse(), quota=QuotaClass.EXEMPT)
    bench = Bench(row, throttle=throttle)
    assert bench.ask(HEARTBEAT, 4).throttle_time_ms == 0
    assert (throttle.charged, bench.connection.mutes) == ([], [])


# -- envelopes


def test_a_request_out_of_an_envelope() -> None:
    """Its client is its caller. It is charged at the broker that forwarded it, but its partitions are charged here."""
    seen: list[RequestContext] = []

    def create(context: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
        seen.append(context)
        context.charge_partitions(3)
        return CreateTopicsResponse()

    throttle = Throttle(500)
    pipeline: RequestPipeline
    mutation = QuotaClass.CONTROLLER_MUTATION
    rows = [Row(ApiKey.CREATE_TOPICS, create, create_topics_failed, Authorization.PER_ITEM, mutation, True)]
    unwrapping = Unwrapping(rows, lambda context: pipeline.answer(context))
    rows.append(Row(ApiKey.ENVELOPE, unwrapping.unwrap, envelope_failed, ANYONE, QuotaClass.EXEMPT))
    rows.append(heartbeats(lambda context, request: HeartbeatResponse()))
    bench = Bench(*rows, throttle=throttle)
    pipeline = bench.pipeline
    broker = PaperConnection("User:broker-1", "CONTROLLER")

    def envelope(inner: Request, version: int, address: bytes = bytes((10, 0, 0, 9))) -> EnvelopeRequest:
        data = b"".join(encode_request(inner, version, 5, "alices-tool"))
        return EnvelopeRequest(
            request_data=data, request_principal=encode_principal("User:alice"), client_host_address=address
        )

    create_request = CreateTopicsRequest(topics=[CreatableTopic(name="orders")])
    answer = bench.ask(envelope(create_request, 7), 0, broker)
    assert (answer.error_code, answer.response_data is None) == (ErrorCode.NONE, False)
    [context] = seen
    assert (context.principal, context.forwarded_by) == ("User:alice", "User:broker-1")
    assert (context.client_host, context.client_id) == ("10.0.0.9", "alices-tool")
    assert throttle.partitions == [("User:alice", 3)]
    assert broker.mutes == []
    # An envelope holds forwarded APIs only, and an address.
    assert bench.ask(envelope(HEARTBEAT, 4), 0, broker).error_code == ErrorCode.INVALID_REQUEST
    with pytest.raises(InvalidRequest, match="address of 3 bytes"):
        bench.send(envelope(create_request, 7, b"abc"), 0, broker)


def test_partitions_are_charged_only_where_there_is_a_throttle() -> None:
    seen: list[RequestContext] = []

    def create(context: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
        seen.append(context)
        return CreateTopicsResponse()

    mutation = QuotaClass.CONTROLLER_MUTATION
    row = Row(ApiKey.CREATE_TOPICS, create, create_topics_failed, ANYONE, mutation)
    Bench(row).ask(CreateTopicsRequest(), 7)
    Bench(row, throttle=Throttle(0)).ask(CreateTopicsRequest(), 7)
    assert [context.charge is None for context in seen] == [True, False]


# -- steps


def counting(steps: int, done: list[int]) -> Handler:
    """Lists groups in so many steps, which are recorded."""

    def handler(context: RequestContext, request: ListGroupsRequest) -> Generator[None, None, ListGroupsResponse]:
        for step in range(steps):
            done.append(step)
            if step < steps - 1:
                yield
        return ListGroupsResponse(error_code=steps)

    return handler


def lists(handler: Handler) -> Row:
    return Row(ApiKey.LIST_GROUPS, handler, error_on_top, ANYONE, has_large_answer=True)


LIST = ListGroupsRequest()


def test_one_step_takes_no_turn() -> None:
    bench = Bench(lists(counting(1, [])))
    answer = bench.send(LIST, 5)
    assert isinstance(answer, list)
    assert read_answer(answer, LIST, 5).error_code == 1
    assert (bench.turns, bench.connection.is_answered_alone) == ([], False)


def test_other_requests_are_answered_between_steps() -> None:
    done: list[int] = []
    bench = Bench(lists(counting(3, done)), heartbeats(lambda context, request: HeartbeatResponse()))
    other = PaperConnection()
    answer = bench.send(LIST, 5)
    assert bench.connection.is_answered_alone
    for steps in (1, 2):
        assert done == list(range(steps))
        assert bench.ask(HEARTBEAT, 4, other).error_code == 0
        bench.take_turn()
    assert done == [0, 1, 2]
    bench.settle()
    assert read_answer(answer, LIST, 5).error_code == 3


def test_members_of_a_large_group_are_answered_in_turns_and_in_order() -> None:
    joins: list[Pending[JoinGroupResponse]] = []

    def park(context: RequestContext, request: JoinGroupRequest) -> Pending[JoinGroupResponse]:
        joins.append(Pending())
        return joins[-1]

    bench = Bench(Row(ApiKey.JOIN_GROUP, park, join_group_failed, ANYONE))
    answers = [bench.send(JoinGroupRequest(group_id="g"), 9) for _ in range(500)]
    for each in joins:
        each.complete(JoinGroupResponse())
    for count in (1, 2, 3):
        done = [each for each in answers if isinstance(each, Pending) and each.done]
        assert done == answers[:count], "every answer uses up a turn"
        bench.take_turn()
    bench.settle()
    assert all(isinstance(each, Pending) and each.error is None and each.done for each in answers)


def test_an_answer_in_steps_waits_for_room() -> None:
    done: list[int] = []
    bench = Bench(lists(counting(3, done)), heartbeats(lambda context, request: HeartbeatResponse()))
    bench.connection.has_room = False
    assert isinstance(bench.send(LIST, 5), Pending)
    assert (done, bench.turns) == ([0], [])
    assert bench.ask(HEARTBEAT, 4).error_code == 0, "others need none"


def test_a_fetch_never_waits_for_room() -> None:
    def handler(context: RequestContext, request: FetchRequest) -> Generator[None, None, FetchResponse]:
        yield
        return FetchResponse()

    bench = Bench(Row(ApiKey.FETCH, handler, fetch_failed, ANYONE))
    bench.connection.has_room = False
    answer = bench.send(FetchRequest(), 12)
    bench.settle()
    assert read_answer(answer, FetchRequest(), 12).error_code == 0


def test_a_response_that_was_made_in_steps_is_encoded_in_steps() -> None:
    names = [f"group-{number}" for number in range(9_000)]

    def handler(context: RequestContext, request: ListGroupsRequest) -> Generator[None, None, ListGroupsResponse]:
        yield
        return ListGroupsResponse(groups=[ListedGroup(group_id=name) for name in names])

    bench = Bench(lists(handler))
    answer = bench.send(LIST, 5)
    turns = 0
    while bench.turns:
        bench.take_turn()
        turns += 1
    assert turns > len(names) // 2_000
    assert [group.group_id for group in read_answer(answer, LIST, 5).groups] == names


def test_two_slow_requests_take_turns() -> None:
    first, second = [-1], [-1]
    handlers = [counting(3, first), counting(3, second)]
    bench = Bench(lists(lambda context, request: handlers.pop(0)(context, request)))
    answers = [bench.send(LIST, 5), bench.send(LIST, 5, PaperConnection())]
    while bench.turns:
        bench.take_turn()
        assert abs(first[-1] - second[-1]) <= 1
    assert [read_answer(answer, LIST, 5).error_code for answer in answers] == [3, 3]


def test_a_client_that_hangs_up_ends_the_steps() -> None:
    done: list[int] = []
    closed: list[bool] = []

    def handler(context: RequestContext, request: ListGroupsRequest) -> Generator[None, None, ListGroupsResponse]:
        try:
            while True:
                done.append(len(done))
                yield
        finally:
            closed.append(True)

    bench = Bench(lists(handler))
    answer = bench.send(LIST, 5)
    bench.take_turn()
    assert isinstance(answer, Pending)
    answer.abandon()
    assert closed == [True]
    while bench.turns:
        bench.take_turn()
    assert (done, answer.done) == ([0, 1], False)


@pytest.mark.parametrize("at", [0, 1])
def test_an_error_in_a_step_fails_the_request(at: int) -> None:
    def handler(context: RequestContext, request: ListGroupsRequest) -> Generator[None, None, ListGroupsResponse]:
        for _ in range(at):
            yield
        raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    bench = Bench(lists(handler))
    answer = bench.send(LIST, 5)
    while bench.turns:
        bench.take_turn()
    assert read_answer(answer, LIST, 5).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_a_fault_in_a_later_step_fails_the_request(caplog: pytest.LogCaptureFixture) -> None:
    """It must not leave the request unanswered, nor stop the steps of others."""

    def faulty(context: RequestContext, request: ListGroupsRequest) -> Generator[None, None, ListGroupsResponse]:
        yield
        raise RuntimeError("broken step")

    handlers: list[Handler] = [faulty, counting(2, [])]
    bench = Bench(lists(lambda context, request: handlers.pop(0)(context, request)))
    answers = [bench.send(LIST, 5), bench.send(LIST, 5, PaperConnection())]
    while bench.turns:
        bench.take_turn()
    codes = [read_answer(answer, LIST, 5).error_code for answer in answers]
    assert codes == [ErrorCode.UNKNOWN_SERVER_ERROR, 2]
    assert "broken step" in caplog.text


# -- faults of the program: the client gets UNKNOWN_SERVER_ERROR, as from Apache Kafka, and the connection stays open


class _Unencodable:
    """A value that no encoder takes."""


def _raising(context: RequestContext, request: ListGroupsRequest) -> Any:
    raise RuntimeError("broken handler")


def _raising_in_first_step(context: RequestContext, request: ListGroupsRequest) -> Generator[None, None, Any]:
    raise RuntimeError("broken handler")
    yield


def _without_encoding(context: RequestContext, request: ListGroupsRequest) -> Any:
    return ListGroupsResponse(error_code=_Unencodable())  # type: ignore[arg-type]


def _late_without_encoding(context: RequestContext, request: ListGroupsRequest) -> Any:
    late: Pending[ListGroupsResponse] = Pending()
    late.complete(_without_encoding(context, request))
    return late


def _raising_after_earlier(context: RequestContext, request: ListGroupsRequest) -> Any:
    earlier: Pending[None] = Pending()
    made = earlier.and_then(lambda _: Encoded([bytes(1 // (request is None))]))
    earlier.complete(None)
    return made


@pytest.mark.parametrize("is_charged", [False, True])
@pytest.mark.parametrize(
    "handler",
    [_raising, _raising_in_first_step, _without_encoding, _late_without_encoding, _raising_after_earlier],
)
def test_a_fault_is_answered_with_the_error_of_the_api(
    handler: Handler, is_charged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(lists(handler), throttle=Throttle(0) if is_charged else None)
    assert bench.ask(LIST, 5).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert not bench.connection.is_closed
    [line] = caplog.records
    assert "LIST_GROUPS of" in line.message or "ListGroups of" in line.message
    assert line.exc_info is not None, "the cause is logged"


def test_a_fault_where_no_answer_is_expected_closes_the_connection() -> None:
    bench = Bench(Row(ApiKey.PRODUCE, _raising, produce_failed, ANYONE))
    assert not bench.send(ProduceRequest(acks=0), 9)
    assert bench.connection.is_closed


def test_the_same_fault_again_and_again_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(lists(_raising))
    now_s = 100.0
    bench.pipeline._faults._now_s = lambda: now_s
    for _ in range(1_000):
        assert bench.ask(LIST, 5).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert len(caplog.records) == 1
    now_s += 2
    bench.ask(LIST, 5)
    assert "999 more requests" in caplog.records[-1].message


# -- over sockets


def test_a_throttled_connection_waits_while_another_is_served() -> None:
    class OnlyGreedy(Quotas):
        def record(self, principal: str, client_id: str, value: float, now_ms: int) -> int:
            return 3_600_000 if client_id == "greedy" else 0

    async def ask(streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], client_id: str, times: int) -> Any:
        """Send the request so many times, and read one answer."""
        reader, writer = streams
        body = b"".join(encode_request(HEARTBEAT, 4, CORRELATION_ID, client_id))
        writer.write((len(body).to_bytes(4, "big") + body) * times)
        size = int.from_bytes(await reader.readexactly(4), "big")
        return read_answer([await reader.readexactly(size)], HEARTBEAT, 4)

    async def scenario() -> None:
        throttle = Throttle(0)
        throttle.managers.request = OnlyGreedy(0)
        row = heartbeats(lambda context, request: HeartbeatResponse())
        pipeline = RequestPipeline(
            [row], features, one_step_a_turn(asyncio.get_running_loop().call_soon), throttle=throttle
        )
        server = Server(SystemClock())
        listener = await server.listen("PLAINTEXT", "127.0.0.1", 0, pipeline.on_frame)
        greedy = await asyncio.open_connection("127.0.0.1", listener.port)
        modest = await asyncio.open_connection("127.0.0.1", listener.port)
        assert (await ask(greedy, "greedy", 2)).throttle_time_ms == 3_600_000
        for _ in range(3):
            assert (await ask(modest, "modest", 1)).throttle_time_ms == 0
        assert [each.requests for each in server.connections.values()] == [1, 3]
        await server.stop()
        assert await greedy[0].read() == b"", "the second request of the muted connection has no answer"

    async def bounded() -> None:
        async with asyncio.timeout(30):
            await scenario()

    asyncio.run(bounded())


def test_a_fault_behind_a_late_reply_does_not_reach_the_one_that_settles_it() -> None:
    late: Pending[HeartbeatResponse] = Pending()

    def failed(request: HeartbeatRequest, version: int, error: ApiError) -> HeartbeatResponse:
        raise KeyError("a fault of the program")

    bench = Bench(Row(ApiKey.HEARTBEAT, lambda context, request: late, failed, ANYONE))
    answer = bench.send(HEARTBEAT, 3)
    assert isinstance(answer, Pending)
    late.fail(ApiError(ErrorCode.REQUEST_TIMED_OUT))
    assert answer.error is not None
    assert answer.error.code is ErrorCode.UNKNOWN_SERVER_ERROR
