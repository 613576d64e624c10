"""Requests that name the topic "", which no topic has, where the node has an authorizer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from data_path_world import World

from kalda.base.errors import ErrorCode
from kalda.base.ids import Uuid
from kalda.broker.handlers.data import DataHandlers
from kalda.protocol.access import Caller
from kalda.protocol.messages.partitions import (
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)


class Decides:
    """An authorizer that allows all, or nothing."""

    version = 0
    allowed: tuple[()] = ()

    def __init__(self, answer: bool) -> None:
        self._answer = answer

    def allows(self, *_: Any) -> bool:
        return self._answer


def broker(version: int, may: bool) -> tuple[DataHandlers, Any]:
    """Handlers of a broker that knows no topic, and who sends a request."""
    world = World()
    clock: Any = SimpleNamespace(wall_ms=lambda: world.now_ms, mono_ms=lambda: world.now_ms)
    metadata: Any = SimpleNamespace(topic_name=lambda topic_id: None, broker_entries=lambda listener: [])
    caller = _Caller(version, authorizer=Decides(may), client_host="10.0.0.1")  # type: ignore[arg-type]
    caller.connection = SimpleNamespace(answer_alone=lambda: None)
    return DataHandlers(world.replicas, metadata, world.sessions, clock, world.verifier), caller


class _Caller(Caller):
    connection: Any


def codes(answer: Any) -> list[int]:
    partitions = "partition_responses" if hasattr(answer.responses[0], "partition_responses") else "partitions"
    return [each.error_code for topic in answer.responses for each in getattr(topic, partitions)]


@pytest.mark.parametrize(
    ("version", "topic_id", "may", "code"),
    [
        (3, Uuid(bytes(16)), False, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (12, Uuid(bytes(16)), False, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (12, Uuid(bytes(16)), True, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (13, Uuid(b"?" * 16), False, ErrorCode.UNKNOWN_TOPIC_ID),
        (13, Uuid(bytes(16)), False, ErrorCode.UNKNOWN_TOPIC_ID),
    ],
)
def test_what_produce_answers(version: int, topic_id: Uuid, may: bool, code: ErrorCode) -> None:
    handlers, context = broker(version, may)
    data = TopicProduceData(name="", topic_id=topic_id, partition_data=[PartitionProduceData(index=0, records=b"")])
    produce = handlers._authorized(handlers.produce)
    assert codes(produce(context, ProduceRequest(acks=1, timeout_ms=100, topic_data=[data]))) == [code]


@pytest.mark.parametrize(
    ("version", "may", "code"),
    [
        (4, False, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (12, False, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (12, True, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (13, False, ErrorCode.UNKNOWN_TOPIC_ID),
    ],
)
def test_what_fetch_answers(version: int, may: bool, code: ErrorCode) -> None:
    handlers, context = broker(version, may)
    topic_id = Uuid(b"?" * 16) if version >= 13 else Uuid(bytes(16))
    asked = [FetchRequestFetchPartition(partition=0, partition_max_bytes=100)]
    topic = FetchRequestFetchTopic(topic="", topic_id=topic_id, partitions=asked)
    assert codes(handlers.fetch(context, FetchRequest(max_wait_ms=0, topics=[topic]))) == [code]
