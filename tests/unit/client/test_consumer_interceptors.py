"""Interceptors of consumers: made, configured, asked, and closed; what they raise loses no record."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from kalda import Consumer, aio
from kalda.base.configs.definition import InvalidConfig
from kalda.base.ids import TopicPartition
from kalda.clientcore.consuming.subscription import OffsetAndEpoch

UNREACHABLE = "127.0.0.1:1"
RECORDS: Any = ["a", "b"]


class Failing:
    """Fails in each of its calls."""

    def on_consume(self, records: list[Any]) -> list[Any]:
        raise RuntimeError("mine")

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndEpoch]) -> None:
        raise RuntimeError("mine")

    def close(self) -> None:
        raise RuntimeError("mine")


class Reversing:
    """Notes its calls."""

    calls: list[object] = []

    def configure(self, configs: Mapping[str, object]) -> None:
        self.calls.append(configs["client.id"])

    def on_consume(self, records: list[Any]) -> list[Any]:
        return records[::-1]

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndEpoch]) -> None:
        self.calls.append(offsets)

    def close(self) -> None:
        self.calls.append("close")


@pytest.mark.parametrize("is_async", [False, True])
def test_they_are_asked_and_closed_and_one_that_fails_loses_no_record(is_async: bool) -> None:
    Reversing.calls = []
    keys: dict[str, Any] = {"bootstrap_servers": UNREACHABLE, "client_id": "c"}
    keys["interceptor_classes"] = [Failing(), Reversing]
    consumer: Any = (aio.Consumer if is_async else Consumer)(**keys)
    assert consumer._intercepted(RECORDS) == ["b", "a"]
    offsets = {TopicPartition("t", 0): OffsetAndEpoch(3)}
    consumer._intercept_commit(offsets)
    if is_async:
        asyncio.run(consumer.close(0))
    else:
        consumer.close(0)
    assert Reversing.calls == ["c", offsets, "close"]


@pytest.mark.parametrize("kind", [Consumer, aio.Consumer])
def test_the_name_of_a_class_is_refused(kind: Any) -> None:
    with pytest.raises(InvalidConfig, match=r"interceptor\.classes"):
        kind(bootstrap_servers=UNREACHABLE, interceptor_classes="com.example.Interceptor")
