"""What requests are charged with: sizes, time, partitions; and what a client gets that has to pause."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from by_hand import one_step_a_turn
from paper_connection import PaperConnection, read_answer

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending
from kalda.base.sensors import QUANTILES, Sensors
from kalda.base.stats import MetricConfig
from kalda.broker.channels.forwarding import Forwarding, Unwrapping, envelope_failed
from kalda.broker.handlers.data import produce_failed
from kalda.broker.handlers.forwarded import create_topics_failed
from kalda.broker.handlers.shared import error_on_top, fetch_failed
from kalda.broker.requests.api_versions import Features
from kalda.broker.requests.context import RequestContext
from kalda.broker.requests.pipeline import RequestPipeline
from kalda.broker.requests.rows import Authorization, QuotaClass, Row
from kalda.broker.requests.throttling import ClientThrottle
from kalda.metadata.client_quotas import CLIENT_ID, IP, USER, QuotaEntity, quota_entity
from kalda.network.server.connection import Connection
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.brokers import EnvelopeRequest
from kalda.protocol.messages.groups import HeartbeatRequest, HeartbeatResponse
from kalda.protocol.messages.partitions import (
    FetchableTopicResponse,
    FetchRequest,
    FetchRequestReplicaState,
    FetchResponse,
    FetchResponsePartitionData,
    ProduceRequest,
    ProduceResponse,
)
from kalda.protocol.messages.topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from kalda.protocol.notation import Request
from kalda.quota.entities import MAX_INT
from kalda.quota.explanation import explain, usage
from kalda.quota.managers import QuotaManagers, Windows

ANYONE = Authorization.ANYONE
CLIENT = quota_entity({CLIENT_ID: "client"})
WINDOWS = Windows(lambda key: 11 if key.endswith("num") else 1)


class World:
    """A pipeline whose clocks the test moves, with rows that answer what the test says."""

    def __init__(self, *rows: Row) -> None:
        self.now_ms = 1_000_000
        self.busy_ns = 0
        self.managers = QuotaManagers(WINDOWS)
        self.throttle = ClientThrottle(self.managers, lambda: self.now_ms, lambda: self.busy_ns)
        self.turns: list[Callable[[], None]] = []
        self.pipeline = RequestPipeline(
            rows, lambda: Features({}, {}, 0), one_step_a_turn(self.turns.append), throttle=self.throttle
        )
        self.connection = PaperConnection("User:alice")

    def set(self, key: str, value: float | None, entity: QuotaEntity = CLIENT) -> None:
        if self.managers.update({entity: {key: value}}):
            self.pipeline.renew_routes()

    def send(self, request: Request, version: int) -> Any:
        network = cast(Connection, self.connection)
        return self.pipeline.on_frame(network, self.connection.frame(request, version))

    def ask(self, request: Request, version: int) -> Any:
        answer = self.send(request, version)
        while self.turns:
            self.turns.pop(0)()
        return read_answer(answer, request, version)

    def work(self, milliseconds: float) -> None:
        """The event loop is held for so long."""
        self.busy_ns += int(milliseconds * 1_000_000)


def produce_row(reply: Any) -> Row:
    return Row(ApiKey.PRODUCE, lambda context, request: reply(), produce_failed, ANYONE, QuotaClass.PRODUCE)


def test_a_produce_counts_by_the_size_of_its_frame() -> None:
    world = World(produce_row(ProduceResponse))
    request = ProduceRequest(acks=-1, transactional_id="x" * 10_000)
    assert world.ask(request, 11).throttle_time_ms == 0
    assert world.managers.produce.sensors == {}, "without a quota nothing is recorded"
    world.set("producer_byte_rate", 500.0)
    size = len(world.connection.frame(request, 11))
    assert size > 10_000
    expected_ms = round((size / 10 - 500) / 500 * 10_000)
    assert world.ask(request, 11).throttle_time_ms == expected_ms
    assert world.connection.mutes == [expected_ms]
    world.set("producer_byte_rate", None)
    assert world.ask(request, 11).throttle_time_ms == 0
    assert world.connection.mutes == [expected_ms]


def test_a_produce_without_acks_is_muted_by_its_size_alone() -> None:
    world = World(produce_row(lambda: None))
    world.set("producer_byte_rate", 100.0)
    world.set("request_percentage", 0.001)
    assert world.send(ProduceRequest(acks=0, transactional_id="x" * 2_000), 11) is None
    [pause_ms] = world.connection.mutes
    assert pause_ms > 9_000, "the pause for request time would be a second at most"
    world.set("producer_byte_rate", None)
    world.send(ProduceRequest(acks=0), 11)
    assert world.connection.mutes == [pause_ms]
    assert world.managers.request.sensors == {}


def test_a_request_counts_by_the_time_for_which_it_holds_the_loop() -> None:
    late: Pending[HeartbeatResponse] = Pending()
    world = World()

    def heartbeat(context: RequestContext, request: HeartbeatRequest) -> Any:
        world.work(30)
        return late if request.group_id == "late" else HeartbeatResponse()

    world.pipeline = RequestPipeline(
        [Row(ApiKey.HEARTBEAT, heartbeat, error_on_top, ANYONE)],
        lambda: Features({}, {}, 0),
        one_step_a_turn(world.turns.append),
        throttle=world.throttle,
    )
    world.set("request_percentage", 10.0)
    world.pipeline.renew_routes()
    assert world.ask(HeartbeatRequest(group_id="g"), 4).throttle_time_ms == 0
    answer = world.send(HeartbeatRequest(group_id="late"), 4)
    world.work(10_000)  # for others, while this one waits
    late.complete(HeartbeatResponse())
    assert read_answer(answer, HeartbeatRequest(), 4).throttle_time_ms == 0
    [sensors] = world.managers.request.sensors.values()
    assert sensors.metric.total(world.now_ms) == pytest.approx(6.0), "60 ms are 6 percent of a second"
    world.work(0)
    for _ in range(40):
        pause_ms = world.ask(HeartbeatRequest(group_id="g"), 4).throttle_time_ms
    assert pause_ms == 1_000, "one window at most"
    assert world.connection.mutes[-1] == 1_000


def test_of_a_request_in_steps_the_steps_count_and_not_the_time_between_them() -> None:
    late: Pending[HeartbeatResponse] = Pending()
    world: World

    def heartbeat(context: RequestContext, request: HeartbeatRequest) -> Any:
        for _ in range(3):
            world.work(10)
            yield
        return late

    world = World(Row(ApiKey.HEARTBEAT, heartbeat, error_on_top, ANYONE))
    world.set("request_percentage", 10.0)
    answer = world.send(HeartbeatRequest(group_id="g"), 4)
    while world.turns:
        world.work(1_000)  # for others
        world.turns.pop(0)()
    late.complete(HeartbeatResponse())
    world.work(1_000)
    world.turns.pop(0)()
    assert read_answer(answer, HeartbeatRequest(), 4).throttle_time_ms == 0
    [sensors] = world.managers.request.sensors.values()
    assert sensors.metric.total(world.now_ms) == pytest.approx(3.0), "30 ms are 3 percent of a second"


def fetched(size: int, session_id: int = 7) -> FetchResponse:
    data = FetchResponsePartitionData(partition_index=0, records=bytes(size))
    return FetchResponse(session_id=session_id, responses=[FetchableTopicResponse(topic="t", partitions=[data])])


def fetch_world(size: int) -> World:
    def fetch(context: RequestContext, request: FetchRequest) -> FetchResponse:
        return fetched(min(size, request.max_bytes))

    throttled = Row(
        ApiKey.FETCH,
        fetch,
        fetch_failed,
        ANYONE,
        QuotaClass.FETCH,
        throttled=lambda request, response: FetchResponse(session_id=3),
    )
    return World(throttled)


def test_a_fetch_that_is_throttled_has_no_records_and_is_not_counted() -> None:
    world = fetch_world(8_000)
    world.set("consumer_byte_rate", 1_000.0)
    request = FetchRequest(max_bytes=1 << 20)
    answer = world.send(request, 11)
    assert len(read_answer(answer, request, 11).responses) == 1
    [sensors] = world.managers.fetch.sensors.values()
    counted = sensors.metric.total(world.now_ms)
    assert counted == len(b"".join(answer)), "the size before the frame, which has as many bytes as the header"
    second = world.ask(request, 11)
    assert (second.session_id, second.responses) == (3, [])
    assert second.throttle_time_ms == world.connection.mutes[-1] > 0
    assert sensors.metric.total(world.now_ms) == counted, "its bytes are taken back"
    world.now_ms += 12_000
    assert len(world.ask(request, 11).responses) == 1


def test_a_fetch_gets_at_most_what_its_client_may_have_without_a_pause() -> None:
    world = fetch_world(1 << 30)
    world.set("consumer_byte_rate", 100.0)
    response = world.ask(FetchRequest(max_bytes=1 << 20, min_bytes=1 << 19), 11)
    # The records fill the allowance, the fields around them exceed it a little.
    assert response.throttle_time_ms < 1_000
    [sensors] = world.managers.fetch.sensors.values()
    assert sensors.most_at_once == 1_000


def test_followers_are_exempt() -> None:
    world = fetch_world(1_000_000)
    world.set("consumer_byte_rate", 1.0)
    world.set("request_percentage", 0.001)
    request = FetchRequest(max_bytes=1 << 20, replica_id=2)
    assert world.ask(request, 11).throttle_time_ms == 0
    request = FetchRequest(max_bytes=1 << 20, replica_state=FetchRequestReplicaState(replica_id=2))
    assert len(world.ask(request, 15).responses) == 1
    assert (world.connection.mutes, world.managers.fetch.sensors) == ([], {})


def test_the_time_of_a_fetch_pauses_its_client_unless_it_is_a_follower() -> None:
    def fetch(context: RequestContext, request: FetchRequest) -> FetchResponse:
        world.work(2_000)
        return fetched(100)

    row = Row(ApiKey.FETCH, fetch, fetch_failed, ANYONE, QuotaClass.FETCH, throttled=lambda *_: FetchResponse())
    world = World(row)
    world.set("request_percentage", 10.0)
    assert world.ask(FetchRequest(replica_id=2), 11).throttle_time_ms == 0
    assert (world.connection.mutes, world.managers.request.sensors) == ([], {})
    assert world.managers.request.exempt.total(world.now_ms) == pytest.approx(200.0)
    response = world.ask(FetchRequest(), 11)
    assert (response.throttle_time_ms, response.responses) == (1_000, []), "one window at most, without records"
    assert world.connection.mutes == [1_000]
    [sensors] = world.managers.request.sensors.values()
    assert sensors.requests == 1
    assert sensors.metric.total(world.now_ms) == pytest.approx(200.0)
    assert sensors.made_pauses().throttle_time.measure(world.now_ms) == 1_000


# -- mutations


def create_world() -> World:
    def create(context: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
        for topic in request.topics:
            context.charge_partitions(topic.num_partitions)
        return CreateTopicsResponse()

    mutation = QuotaClass.CONTROLLER_MUTATION
    return World(Row(ApiKey.CREATE_TOPICS, create, create_topics_failed, ANYONE, mutation, True))


def create(partitions: int) -> CreateTopicsRequest:
    return CreateTopicsRequest(topics=[CreatableTopic(name="t", num_partitions=partitions)])


def test_old_clients_are_throttled_and_new_ones_refused() -> None:
    world = create_world()
    assert world.ask(create(1_000_000), 5).throttle_time_ms == 0
    world.set("controller_mutation_rate", 10.0)
    assert world.ask(create(150), 5).throttle_time_ms == 4_000, "110 tokens, less 150, at 10 a second"
    answer = world.ask(create(1), 6)
    assert (answer.topics[0].error_code, answer.throttle_time_ms) == (ErrorCode.THROTTLING_QUOTA_EXCEEDED, 4_000)
    world.now_ms += 4_000
    assert world.ask(create(50), 6).throttle_time_ms == 0, "a strict request is served while the bucket is not below 0"
    assert world.ask(create(1), 6).throttle_time_ms == 5_000
    assert world.connection.mutes == [4_000, 4_000, 5_000]


def test_mutations_of_a_forwarded_request_are_charged_at_the_controller_and_muted_at_the_broker() -> None:
    controller = create_world()
    rows = [row for row in controller.pipeline._rows.values() if row.key is ApiKey.CREATE_TOPICS]
    unwrapping = Unwrapping(rows, lambda context: controller.pipeline.answer(context))
    controller.pipeline._rows[ApiKey.ENVELOPE] = Row(
        ApiKey.ENVELOPE, unwrapping.unwrap, envelope_failed, ANYONE, QuotaClass.EXEMPT
    )
    controller.pipeline._versions[ApiKey.ENVELOPE] = range(1)
    controller.set("controller_mutation_rate", 10.0)

    def to_controller(envelope: EnvelopeRequest, timeout_ms: int | None) -> Pending[Any]:
        pending: Pending[Any] = Pending()
        pending.complete(controller.ask(envelope, 0))
        return pending

    forward = Forwarding(cast(Any, SimpleNamespace(send=to_controller)), lambda: 0).forward
    broker = World(
        Row(ApiKey.CREATE_TOPICS, forward, create_topics_failed, ANYONE, QuotaClass.CONTROLLER_MUTATION, True)
    )
    broker.set("controller_mutation_rate", 10.0)
    for version in (5, 7):
        answer = broker.ask(create(150), version)
        assert answer.throttle_time_ms == broker.connection.mutes[-1] == 4_000
    assert controller.connection.mutes == []
    assert broker.managers.mutations.sensors == {} or not any(
        each.requests for each in broker.managers.mutations.sensors.values()
    )
    [sensors] = controller.managers.mutations.sensors.values()
    assert (dict(sensors.tags), sensors.requests) == ({"user": "", "client-id": "client"}, 1)


@pytest.mark.parametrize(("key", "waits"), [("controller_mutation_rate", True), ("producer_byte_rate", False)])
def test_a_request_behind_one_that_is_forwarded_waits_for_its_pause(key: str, waits: bool) -> None:
    """All requests of one write would reach the controller before the first pause otherwise."""
    late: Pending[CreateTopicsResponse] = Pending()
    mutation = QuotaClass.CONTROLLER_MUTATION
    world = World(Row(ApiKey.CREATE_TOPICS, lambda *_: late, create_topics_failed, ANYONE, mutation, True))
    world.set(key, 10.0)
    world.send(create(1), 6)
    assert world.connection.is_answered_alone is waits


# -- what is reported


def test_a_throttled_client_is_logged_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    world = World(produce_row(ProduceResponse))
    world.set("producer_byte_rate", 1.0)
    with caplog.at_level(logging.INFO, "kalda.quotas"):
        for _ in range(25):
            world.ask(ProduceRequest(acks=-1), 11)
            world.now_ms += 100
    lines = [line for line in caplog.messages if "pause" in line]
    assert len(lines) == 3
    assert lines[0].startswith("producer_byte_rate of client-id client: rate ")


def test_lines_about_throttled_clients_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """Clients make up their ids."""
    world = World(produce_row(ProduceResponse))
    world.set("producer_byte_rate", 0.001, quota_entity({CLIENT_ID: None}))
    produce, now_ms = world.managers.produce, world.now_ms
    with caplog.at_level(logging.INFO, "kalda.quotas"):
        for second in (0, 1_000):
            for number in range(1_000):
                assert produce.record("User:a", f"made-up-{number}", 1e6, now_ms + second)
    lines = [line for line in caplog.messages if "pause" in line]
    assert len(lines) == 200
    assert [line for line in lines if line.endswith("(900 lines of other clients were left out)")] == [lines[100]]


def test_what_very_many_clients_use_is_listed_in_turns() -> None:
    world = World(produce_row(ProduceResponse))
    world.set("producer_byte_rate", 1e6, quota_entity({CLIENT_ID: None}))
    for number in range(3_500):
        world.managers.produce.record("User:a", f"id {number}", number, world.now_ms)
    rows = list(usage(world.managers, world.now_ms, at_most=3))
    assert rows.count(None) >= 4
    assert [row["tags"]["client-id"] for row in rows if row is not None] == ["id 3499", "id 3498", "id 3497"]


def test_an_explanation_shows_names_on_one_line() -> None:
    world = World(produce_row(ProduceResponse))
    world.set("producer_byte_rate", 1.0, quota_entity({CLIENT_ID: None}))
    [produce, *_] = explain(world.managers, "u\x1b[2J", "c\nd" * 10_000, world.now_ms)["quotas"]
    assert produce["shared_by"].isprintable()
    assert len(produce["shared_by"]) < 200


def test_names_in_logs_are_short_and_of_one_line(caplog: pytest.LogCaptureFixture) -> None:
    managers = QuotaManagers(WINDOWS)
    with caplog.at_level(logging.INFO, "kalda.quotas"):
        managers.update({quota_entity({CLIENT_ID: "a\nb\x1b[31m" + "c" * 32_000}): {"producer_byte_rate": 5.0}})
        managers.update({quota_entity({USER: f"u{n}"}): {"producer_byte_rate": 5.0} for n in range(1_000)})
    assert len(caplog.messages) == 2
    assert caplog.messages[0].startswith("producer_byte_rate of client id 'a\\nb\\x1b[31mcc")
    assert len(caplog.messages[0]) < 200
    assert caplog.messages[1] == "quotas of 1000 entities have changed"


def test_metrics_have_kafkas_names() -> None:
    world = World(produce_row(ProduceResponse))
    world.set("producer_byte_rate", 0.1, quota_entity({USER: "alice"}))
    world.ask(ProduceRequest(acks=-1), 11)
    sensors = Sensors()
    sensors.add_source(world.throttle.measured)
    pauses = "kafka.network:type=RequestMetrics,name=ThrottleTimeMs,request=Produce"
    found = {str(name): sensor.measure(world.now_ms) for name, sensor in sensors.everything()}
    assert set(found) == {
        "kafka.server:type=Produce,name=byte-rate,user=alice,client-id=",
        "kafka.server:type=Produce,name=throttle-time,user=alice,client-id=",
        "kafka.server:type=Request,name=exempt-request-time",
        *(f"{pauses},quantile={quantile}" for quantile in QUANTILES),
    }
    pause_ms = world.connection.mutes[0]
    assert pause_ms <= found[f"{pauses},quantile=1.0"] <= 1.25 * pause_ms
    assert found["kafka.server:type=Produce,name=throttle-time,user=alice,client-id="] == world.connection.mutes[0]


def test_a_throttle_is_explained() -> None:
    world = World(produce_row(ProduceResponse))
    world.set("producer_byte_rate", 0.5, quota_entity({USER: None}))
    world.set("producer_byte_rate", 5.0, quota_entity({CLIENT_ID: None}))
    world.ask(ProduceRequest(acks=-1), 11)
    [produce, fetch, *_] = explain(world.managers, "alice", "client", world.now_ms)["quotas"]
    assert [step["limit"] for step in produce["steps"]] == [None, None, None, None, None, 0.5, None, 5.0]
    assert [step["step"] for step in produce["steps"] if step["counts"]] == [6]
    assert (produce["entity"], produce["shared_by"]) == ("the default user", "all clients of user alice")
    [decision] = produce["decisions"]
    assert (decision["bound"], decision["window_ms"]) == (0.5, 10_000)
    observed = decision["observed"]
    assert decision["throttle_ms"] == round((observed - 0.5) / 0.5 * 10_000) == produce["throttle_ms"]
    assert produce["needed"] == observed
    assert fetch["used"] is False
    [row] = filter(None, usage(world.managers, world.now_ms))
    assert (row["quota"], row["tags"]) == ("producer_byte_rate", {"user": "alice", "client-id": ""})


@pytest.mark.parametrize("limit", [5e-324, 1e308, float("inf")])
def test_limits_at_the_ends_of_a_double_are_applied_and_explained(limit: float) -> None:
    """The controller accepts them for percentages and mutations, as Kafka's."""
    managers = QuotaManagers(WINDOWS)
    kinds = ("request_percentage", "controller_mutation_rate")
    managers.update({CLIENT: dict.fromkeys(kinds, limit)})
    is_small = limit < 1
    for now_ms in (1_000_000, 1_000_000, 1_020_000):
        assert managers.request.record("User:a", "client", 1e9, now_ms) == (1_000 if is_small else 0)
        charge = managers.mutations.charge_of("User:a", "client", now_ms, strict=False)
        charge.record(100, now_ms)
        assert charge.throttle_ms(now_ms) == (MAX_INT if is_small else 0)
    shown = json.dumps([explain(managers, "a", "client", 1_020_003), *usage(managers, 1_020_003)], allow_nan=False)
    assert json.loads(shown)


def test_quotas_of_addresses_and_unknown_keys(caplog: pytest.LogCaptureFixture) -> None:
    managers = QuotaManagers(WINDOWS)
    seen: list[tuple[str | None, float | None]] = []

    def on_ip_rate(address: str | None, rate: float | None) -> None:
        if address == "a.host":
            raise ValueError(address)
        seen.append((address, rate))

    managers.on_ip_rate = on_ip_rate
    changes: dict[QuotaEntity, dict[str, float | None]] = {
        quota_entity({IP: None}): {"connection_creation_rate": 5.0},
        quota_entity({IP: "10.0.0.1"}): {"connection_creation_rate": None, "other": 1.0},
        quota_entity({IP: "a.host"}): {"connection_creation_rate": 1.0},
        quota_entity({USER: "u"}): {"unheard_of": 1.0},
    }
    assert managers.update(changes) is False
    assert seen == [(None, 5.0), ("10.0.0.1", None)]
    assert len([line for line in caplog.messages if "has no effect" in line]) == 3


def test_the_windows_are_those_of_the_configuration() -> None:
    windows = Windows({f"{prefix}quota.window.{key}": number for number, (prefix, key) in enumerate(
        (prefix, key)
        for prefix in ("", "controller.", "replication.", "alter.log.dirs.replication.")
        for key in ("num", "size.seconds")
    )}.__getitem__)  # fmt: skip
    assert windows.client == MetricConfig(1_000, 0)
    assert windows.controller == MetricConfig(3_000, 2)
    assert windows.replication == MetricConfig(5_000, 4)
    assert windows.alter_log_dirs == MetricConfig(7_000, 6)


def test_an_error_of_a_charged_request_is_charged_too() -> None:
    def fail() -> ProduceResponse:
        raise ApiError(ErrorCode.INVALID_REQUIRED_ACKS)

    world = World(produce_row(fail))
    world.set("producer_byte_rate", 0.1)
    assert world.ask(ProduceRequest(acks=3), 11).throttle_time_ms == world.connection.mutes[0] > 0
