"""Subscriptions of clients, and when they may push: as Apache Kafka's own classes decide, and what is bounded here."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from kalda.base.background import run_to_end
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import ZERO_UUID, Uuid, uuid_from_text
from kalda.telemetry import client_instances
from kalda.telemetry.client_instances import ACCEPTED_CODECS, Client, ClientInstances

GOLDEN = Path(__file__).parents[2] / "golden" / "telemetry" / "client_metrics.txt.gz"
ALL = {"metrics": "*", "interval.ms": "1000"}


def client(connection_id: int = 1, client_id: str = "c", port: int = 40_000) -> Client:
    return Client(connection_id, client_id, "apache-kafka-java", "4.3.1", "10.1.2.3", port)


def uuid(number: int) -> Uuid:
    return Uuid((number + 1_000).to_bytes(16, "big"))


class Ids:
    def __init__(self) -> None:
        self.last = 0

    def __call__(self) -> Uuid:
        self.last += 1
        return uuid(self.last)


def instances(**subscriptions: dict[str, str]) -> ClientInstances:
    made = ClientInstances(Ids(), 1_000)
    for name, configs in subscriptions.items():
        assert made.set_subscription(name, configs) is None
    return made


def push(
    made: ClientInstances, number: int, now_ms: int, *, subscription_id: int | None = None, terminating: bool = False
) -> ErrorCode:
    """The outcome of a push, by default under the client's own subscription id."""
    if subscription_id is None:
        found = made._instances.get(uuid(number))
        subscription_id = 0 if found is None else found.subscription_id
    try:
        instance = made.push(
            uuid(number),
            client(number),
            now_ms,
            subscription_id=subscription_id,
            is_terminating=terminating,
            codec=0,
            size_bytes=10,
        )
    except ApiError as error:
        return error.code
    made.finish_push(instance, ErrorCode.NONE)
    return ErrorCode.NONE


class Replay:
    """Answers the operations of the golden file, in its notation."""

    def __init__(self) -> None:
        self.made = ClientInstances(Ids(), 1_000)
        self.received: dict[str, int] = {}

    def answer(self, line: str) -> str:
        kind, *fields = line.split("\t")
        if kind == "S":
            pairs = [each.split("=", 1) for each in fields[1:] if each]
            assert self.made.set_subscription(fields[0], dict(pairs)) is None
            return "ok"
        if kind == "D":
            self.made.disconnected(int(fields[0][1:]))
            return "ok"
        return self.get(fields) if kind == "G" else self.push(fields)

    def get(self, fields: list[str]) -> str:
        now, instance_id, who = int(fields[0]), fields[1], self.who(fields)
        try:
            instance = self.made.get(uuid_from_text(instance_id), who, now)
        except ApiError as error:
            return f"{int(error.code)}\t0\t0\t\t[]\t0\tfalse"
        self.received[instance_id] = instance.subscription_id
        codecs = str(list(map(int, ACCEPTED_CODECS)))
        metrics = ",".join(instance.metrics)
        return f"0\t{instance.subscription_id}\t{instance.interval_ms}\t{metrics}\t{codecs}\t1000\ttrue"

    def push(self, fields: list[str]) -> str:
        now, instance_id, who = int(fields[0]), fields[1], self.who(fields)
        kind, terminating, codec, size = fields[7], fields[8] == "1", int(fields[9]), int(fields[10])
        try:
            instance = self.made.push(
                uuid_from_text(instance_id),
                who,
                now,
                subscription_id=12345 if kind == "bad" else self.received.get(instance_id, 0),
                is_terminating=terminating,
                codec=codec,
                size_bytes=size,
            )
        except ApiError as error:
            return f"{int(error.code)}\t0"
        outcome = ErrorCode.INVALID_RECORD if codec and size else ErrorCode.NONE  # the bytes are zeros
        self.made.finish_push(instance, outcome)
        return f"{int(outcome)}\t0"

    def who(self, fields: list[str]) -> Client:
        connection, client_id, software, version, port = fields[2:7]
        return Client(int(connection[1:]), client_id, software, version, "10.1.2.3", int(port))


def test_the_same_answers_as_apache_kafka() -> None:
    lines = gzip.decompress(GOLDEN.read_bytes()).decode().splitlines()
    replay = Replay()
    for number, (operation, expected) in enumerate(zip(lines[::2], lines[1::2], strict=True)):
        assert f"= {replay.answer(operation)}" == expected, f"operation {number}: {operation}"


def test_a_client_without_an_id_gets_one_and_an_unmatched_one_has_nothing_to_push() -> None:
    made = instances(a={"metrics": "org.apache.kafka.", "match": "client_id=other"})
    instance = made.get(ZERO_UUID, client(), 0)
    assert (instance.id, instance.metrics, instance.interval_ms) == (uuid(1), (), 300_000)


def test_reserved_ids_are_refused() -> None:
    made = instances()
    with pytest.raises(ApiError) as refused:
        made.push(ZERO_UUID, client(), 0, subscription_id=0, is_terminating=False, codec=0, size_bytes=0)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert len(made) == 0


def test_a_changed_subscription_reaches_the_client_before_its_interval_ends() -> None:
    made = instances(a=ALL)
    first = made.get(uuid(1), client(1), 0).subscription_id
    assert push(made, 1, 100) is ErrorCode.NONE
    made.set_subscription("a", {"metrics": "x.", "interval.ms": "1000"})
    assert push(made, 1, 1_200, subscription_id=first) is ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    assert made.get(uuid(1), client(1), 1_201).metrics == ("x.",)
    assert push(made, 1, 1_202) is ErrorCode.THROTTLING_QUOTA_EXCEEDED, "the refused push has counted"
    assert push(made, 1, 2_200) is ErrorCode.NONE
    assert made.unknown_subscriptions == 1


def test_a_subscription_that_cannot_be_read_is_not_used() -> None:
    made = instances(a=ALL)
    assert made.set_subscription("a", {"interval.ms": "soon"}) is not None
    assert made.get(uuid(1), client(), 0).metrics == ()
    assert made.set_subscription("a", {"metrics": "*", "match": "client_id=(?<kind>c).*|x"}) is None, (
        "a group of Java's"
    )
    assert made.get(uuid(2), client(), 0).metrics == ("*",)


def test_no_pattern_takes_long_to_match() -> None:
    made = instances()
    assert made.set_subscription("a", {"metrics": "*", "match": "client_id=(.*a){25}"}) is None
    assert made.get(uuid(1), client()._replace(client_id="a" * 24 + "b" * 200), 0).metrics == ()
    assert made.get(uuid(2), client()._replace(client_id="ba" * 25, connection_id=2), 0).metrics == ("*",)
    assert made.set_subscription("a", {"metrics": "*", "match": "client_id=(?=a)b"}) is not None


def test_instances_are_bounded_and_the_least_recently_used_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_instances, "MAX_INSTANCES", 3)
    made = instances(a=ALL)
    removed: list[Uuid] = []
    made.on_removed = removed.append
    for number in (1, 2, 3):
        made.get(uuid(number), client(number), 0)
    push(made, 1, 1)
    made.get(uuid(4), client(4), 2)
    assert removed == [uuid(2)]
    assert (len(made), made.evicted) == (3, 1)


def test_a_connection_has_one_client_however_many_ids_it_makes_up() -> None:
    made = instances(a=ALL)
    for number in range(100):
        made.get(uuid(number), client(7), number)
    assert len(made) == 1
    made.disconnected(7)
    made.disconnected(7)
    assert len(made) == 0
    assert not made._by_connection


def test_a_client_that_moves_to_another_connection_stays_when_the_first_one_ends() -> None:
    made = instances(a=ALL)
    made.get(uuid(1), client(1), 0)
    made.get(uuid(1), client(2), 5_000)
    made.disconnected(1)
    assert uuid(1) in made
    made.disconnected(2)
    assert uuid(1) not in made


def test_silent_instances_expire() -> None:
    made = instances(a={"metrics": "*", "interval.ms": "30000"})
    made.get(uuid(1), client(1), 0)
    made.get(uuid(2), client(2), 50_000)
    run_to_end(made.expire(89_999))
    assert len(made) == 2
    run_to_end(made.expire(90_000))
    assert list(made._instances) == [uuid(2)]


def test_the_terminating_push_is_the_last_and_need_not_wait() -> None:
    made = instances(a=ALL)
    made.get(uuid(1), client(1), 0)
    assert push(made, 1, 1) is ErrorCode.NONE
    assert push(made, 1, 2) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert push(made, 1, 3, terminating=True) is ErrorCode.NONE
    assert push(made, 1, 5_000) is ErrorCode.INVALID_REQUEST
    assert made.throttled == 1
