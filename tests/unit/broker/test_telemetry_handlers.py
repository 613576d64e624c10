"""Pushes of metrics while many of them come at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from by_hand import HandJobs

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.base.scheduling import Pending
from kalda.broker.handlers.telemetry import MAX_DECODING, Decoded, Pauses, TelemetryHandlers, _decode
from kalda.broker.requests.context import RequestContext
from kalda.protocol.messages.admin import PushTelemetryRequest
from kalda.telemetry.client_instances import Client, ClientInstance, ClientInstances
from kalda.telemetry.otlp import DataPoint, MetricKind, encode

METRICS = encode([DataPoint("m", MetricKind.GAUGE, 1.0, 0)])


class Sink:
    def __init__(self) -> None:
        self.taken: list[Decoded] = []

    def take(self, instance: ClientInstance, push: Decoded) -> None:
        self.taken.append(push)


def test_pushes_are_decoded_one_after_the_other() -> None:
    """Each thread that decodes would delay the event loop."""
    numbers = iter(range(1_000, 2_000))
    instances = ClientInstances(lambda: Uuid(next(numbers).to_bytes(16, "big")), 1 << 20)
    jobs, sink = HandJobs(), Sink()
    jobs.hold_jobs = True
    handlers = TelemetryHandlers(
        1,
        instances,
        1 << 20,
        "json",
        sink,
        jobs,
        lambda: 0,
        makes_series=True,
        now_ns=lambda: 0,
        pause_thread=lambda pause_ms: None,
    )

    def push(number: int, metrics: bytes = METRICS) -> Pending[Any]:
        instance = instances.get(Uuid(bytes(16)), Client(number, "c", "s", "1", "h", 1), 0)
        connection = SimpleNamespace(id=number, client_software_name="s", client_software_version="1", peer_port=1)
        context = SimpleNamespace(connection=connection, client_id="c", client_host="h", principal="User:a")
        request = PushTelemetryRequest(
            client_instance_id=instance.id, subscription_id=instance.subscription_id, metrics=metrics
        )
        answer = handlers.push(cast(RequestContext, context), request)
        assert isinstance(answer, Pending)
        return answer

    answers = [push(number, b"\x07" if number == 1 else METRICS) for number in range(MAX_DECODING)]
    assert len(jobs.waiting) == 1
    with pytest.raises(ApiError) as refused:
        push(MAX_DECODING)
    assert refused.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    for number, answer in enumerate(answers):
        assert not answer.done
        assert len(jobs.waiting) == 1
        jobs.waiting.pop(0)()
        assert answer.value is not None
        assert answer.value.error_code == (ErrorCode.INVALID_RECORD if number == 1 else ErrorCode.NONE)
    assert [len(each.series) for each in sink.taken] == [1] * (MAX_DECODING - 1)
    push(MAX_DECODING)
    assert len(jobs.waiting) == 1


def test_decoding_pauses_half_a_millisecond_after_fifty_microseconds() -> None:
    clock, paused = [0], list[float]()
    pauses = Pauses(lambda: clock[0], paused.append)
    for _ in range(100):
        clock[0] += 10_000
        pauses()
    assert paused == [0.5] * 20


def test_every_stage_of_decoding_pauses() -> None:
    points = [DataPoint(f"m{number}", MetricKind.GAUGE, 1.0, 1) for number in range(1_000)]
    calls: list[int] = []
    decoded = _decode(
        encode(points),
        0,
        (Uuid(bytes(16)), Client(1, "c", "s", "1", "h", 1), "User:a", 1),
        "json",
        True,
        lambda: calls.append(1),
        is_terminating=False,
    )
    assert len(decoded.records) == len(decoded.series) == 1_000
    assert len(calls) > 2_000 + 1_000 // 16
