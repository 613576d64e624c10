"""What is under way in a channel ends, whatever happens, and so do its connections."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending
from kalda.network.client.client import MAX_CLIENTS, Channel, Exchanges, Reach, RpcPolicy


async def settled(pending: Pending[Any]) -> Any:
    """The value, or the code of the error."""
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    pending.then(lambda value, error: done.set_result(error.code if error else value))
    return await done


async def returns(value: Any) -> Any:
    if isinstance(value, Exception):
        raise value
    return value


def run(scenario: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await scenario

    asyncio.run(bounded())


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        ("response", "response"),
        (ApiError(ErrorCode.REQUEST_TIMED_OUT), ErrorCode.REQUEST_TIMED_OUT),
        (KeyError("a bug"), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_an_exchange_settles_with_what_it_returns_or_raises(outcome: Any, expected: Any) -> None:
    async def scenario() -> None:
        exchanges = Exchanges()
        assert await settled(exchanges.begin(returns, outcome)) == expected
        await exchanges.close()

    run(scenario())


def test_a_close_ends_what_is_under_way_and_what_has_not_begun() -> None:
    async def scenario() -> None:
        exchanges = Exchanges(code_at_end=ErrorCode.REQUEST_TIMED_OUT)
        under_way = exchanges.begin(asyncio.Event().wait)
        await asyncio.sleep(0)
        calls: list[str] = []
        not_begun = exchanges.begin(calls.append, "a call")  # type: ignore[arg-type]
        await exchanges.close()
        assert not calls
        late = exchanges.begin(returns, "response")
        for pending in (under_way, not_begun, late):
            assert pending.error is not None
            assert pending.error.code is ErrorCode.REQUEST_TIMED_OUT

    run(scenario())


def test_more_than_the_limit_fails_at_once() -> None:
    async def scenario() -> None:
        exchanges = Exchanges(limit=1)
        first = exchanges.begin(returns, "response")
        second = exchanges.begin(returns, "response")
        assert second.error is not None
        assert await settled(first) == "response"
        await asyncio.sleep(0)
        assert await settled(exchanges.begin(returns, "third")) == "third"

    run(scenario())


def test_the_number_of_clients_is_bounded() -> None:
    async def scenario() -> None:
        channel = Channel(RpcPolicy(), Reach(lambda: 0.5))
        clients = [channel.client(("127.0.0.1", port)) for port in range(1, MAX_CLIENTS + 2)]
        with pytest.raises(ApiError, match="closed"):
            clients[0].connected()
        assert channel.client(("127.0.0.1", 2)) is clients[1]
        await channel.close()
        with pytest.raises(ApiError, match="closed"):
            clients[1].connected()

    run(scenario())
