"""`bootstrap.resolve.timeout.ms` (KIP-909): clients whose bootstrap servers have no address."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kalda import Admin, Consumer, Producer, ShareConsumer, aio
from kalda.base.errors import ApiError, ErrorCode
from kalda.clientcore.connections.errors import UnresolvedBootstrap

UNRESOLVABLE = "a" * 64 + ".invalid:9092"
"""No host name has so long a part: it has no address, and nobody is asked for one."""


def of_producer(config: dict[str, Any]) -> None:
    with Producer(config) as producer:
        producer.partitions_for("t")


def of_send(config: dict[str, Any]) -> None:
    with Producer(config) as producer:
        producer.send("t", b"v").result(30)


def of_poll(config: dict[str, Any]) -> None:
    with Consumer({**config, "group.id": "g"}) as consumer:
        consumer.subscribe(["t"])
        consumer.poll(30)


def of_lookup(config: dict[str, Any]) -> None:
    with Consumer(config) as consumer:
        consumer.partitions_for("t")


def of_shared_poll(config: dict[str, Any]) -> None:
    with ShareConsumer({**config, "group.id": "g"}) as consumer:
        consumer.subscribe(["t"])
        consumer.poll(30)


def of_admin(config: dict[str, Any]) -> None:
    with Admin(config) as admin:
        admin.list_topics()


def of_aio_lookup(config: dict[str, Any]) -> None:
    async def look_up() -> None:
        async with aio.Consumer(config) as consumer:
            await consumer.partitions_for("t")

    asyncio.run(look_up())


@pytest.mark.parametrize("call", [of_producer, of_send, of_poll, of_lookup, of_shared_poll, of_admin, of_aio_lookup])
def test_a_client_fails_once_no_host_has_an_address_in_time(call: Callable[[dict[str, Any]], None]) -> None:
    config = {"bootstrap.servers": f"{UNRESOLVABLE},{UNRESOLVABLE}", "bootstrap.resolve.timeout.ms": 100}
    with pytest.raises(UnresolvedBootstrap, match=r"bootstrap.resolve.timeout.ms=100: cannot connect to aaa"):
        call(config)


def test_one_host_with_an_address_is_enough_though_nobody_listens() -> None:
    """The other limit is that of the call."""
    config = {"bootstrap.servers": f"{UNRESOLVABLE},127.0.0.1:1", "bootstrap.resolve.timeout.ms": 100}
    with Admin({**config, "reconnect.backoff.max.ms": 50}) as admin, pytest.raises(ApiError) as failed:
        admin.list_topics(timeout=0.4)
    assert failed.value.code is ErrorCode.REQUEST_TIMED_OUT


def test_without_the_time_calls_end_with_their_own() -> None:
    with Admin({"bootstrap.servers": UNRESOLVABLE}) as admin, pytest.raises(ApiError) as failed:
        admin.list_topics(timeout=0.2)
    assert failed.value.code is ErrorCode.REQUEST_TIMED_OUT
