"""Requests that arrive before the node can answer them."""

from __future__ import annotations

from typing import Any

import pytest

from kalda.base.errors import ApiError, ErrorCode, InvalidRequest
from kalda.base.scheduling import Pending
from kalda.broker.process.listeners import Gate
from kalda.network.server.connection import Answer, Connection

CONNECTION: Any = "a connection"


def frame(text: str) -> memoryview:
    return memoryview(bytearray(text.encode()))


def waiting(gate: Gate, text: str) -> Pending[Any]:
    answer = gate(CONNECTION, frame(text))
    assert isinstance(answer, Pending)
    assert not answer.done
    return answer


def test_requests_are_answered_in_order_when_the_gate_opens() -> None:
    gate, handled = Gate(), []

    def handler(connection: Connection, request: memoryview) -> Answer:
        handled.append(bytes(request))
        return [bytes(request)]

    first, second = waiting(gate, "a"), waiting(gate, "b")
    gate.open(handler)
    assert handled == [b"a", b"b"]
    assert (first.value, second.value) == ([b"a"], [b"b"])
    assert gate(CONNECTION, frame("c")) == [b"c"]


def test_a_request_whose_connection_has_ended_is_dropped() -> None:
    gate, handled = Gate(), []

    def handler(connection: Connection, request: memoryview) -> Answer:
        handled.append(bytes(request))
        return []

    for _ in range(1_000):
        waiting(gate, "gone").abandon()
    assert not gate._waiting, "clients that connect again and again take no memory"
    waiting(gate, "here")
    gate.open(handler)
    assert handled == [b"here"]


def test_what_waits_behind_the_gate_is_abandoned_with_its_connection() -> None:
    gate, abandoned = Gate(), []
    inner: Pending[Any] = Pending()
    inner.on_abandoned = lambda: abandoned.append(1)
    outer = waiting(gate, "a")
    gate.open(lambda connection, request: inner)
    outer.abandon()
    assert abandoned == [1]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KeyError("a fault of the program"), ErrorCode.UNKNOWN_SERVER_ERROR),
        (InvalidRequest("garbage"), ErrorCode.INVALID_REQUEST),
        (ApiError(ErrorCode.NOT_CONTROLLER), ErrorCode.NOT_CONTROLLER),
    ],
)
def test_a_request_that_fails_harms_no_other(error: Exception, code: ErrorCode) -> None:
    """The gate opens during the start of the node."""
    gate = Gate()

    def handler(connection: Connection, request: memoryview) -> Answer:
        if bytes(request) == b"bad":
            raise error
        return [b"fine"]

    bad, good = waiting(gate, "bad"), waiting(gate, "good")
    gate.open(handler)
    assert bad.error is not None
    assert bad.error.code is code
    assert good.value == [b"fine"]
