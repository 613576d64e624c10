"""Requests of one purpose to other nodes, whose responses are pending results.

A channel has a client for each address, and a task for each request under way. What a derived channel adds is whom a
request goes to, and whether it is sent again.

Invariant: whatever is begun is settled, also where it raises something unforeseen, and where the channel is closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from kalda.base.errors import ApiError, ErrorCode, as_api_error
from kalda.base.scheduling import Pending
from kalda.network.client.client import Reach, RpcClient, RpcPolicy

log = logging.getLogger("kalda.channel")

T = TypeVar("T")
Address = tuple[str, int]
MAX_CLIENTS = 256
"""Addresses that have a client; one more closes the client that was made first."""


class Exchanges:
    """What is under way: tasks of which each settles a pending result."""

    def __init__(self, limit: int = 1_000, code_at_end: ErrorCode = ErrorCode.NETWORK_EXCEPTION) -> None:
        """At most `limit` are under way. What is begun beyond it, or ends by `close`, fails with `code_at_end`."""
        self._limit = limit
        self._code_at_end = code_at_end
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_closed = False

    def begin(self, exchange: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> Pending[T]:
        """Run `exchange` with the arguments in a task. Settles with what it returns, or with the `ApiError` that it
        raises."""
        pending: Pending[T] = Pending()
        if self.is_closed or len(self._tasks) >= self._limit:
            pending.fail(ApiError(self._code_at_end, "no more requests are taken"))
            return pending
        task = asyncio.get_running_loop().create_task(_settle(pending, exchange, args))
        self._tasks.add(task)
        task.add_done_callback(partial(self._on_done, pending))
        return pending

    def _on_done(self, pending: Pending[Any], task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            pending.fail(ApiError(self._code_at_end, "the node is stopping"))

    async def close(self) -> None:
        """Begin nothing more; all that is under way fails."""
        self.is_closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _settle(pending: Pending[T], exchange: Callable[..., Coroutine[Any, Any, T]], args: tuple[Any, ...]) -> None:
    try:
        value = await exchange(*args)
    except ApiError as error:
        pending.fail(error)
    except Exception as error:
        log.exception("%s failed", getattr(exchange, "__qualname__", exchange))
        pending.fail(as_api_error(error))
    else:
        pending.complete(value)


class Channel(Exchanges):
    """The requests and the connections of one purpose."""

    def __init__(
        self,
        policy: RpcPolicy,
        reach: Reach,
        limit: int = 1_000,
        code_at_end: ErrorCode = ErrorCode.NETWORK_EXCEPTION,
    ) -> None:
        super().__init__(limit, code_at_end)
        self._policy = policy
        self._reach = reach
        self._clients: dict[Address, RpcClient] = {}
        """By address, before it is routed, in the order in which they were made."""

    def client(self, address: Address) -> RpcClient:
        """The client of that address."""
        client = self._clients.get(address)
        if client is None:
            if len(self._clients) >= MAX_CLIENTS:
                self.drop(next(iter(self._clients)))
            client = self._clients[address] = RpcClient(*address, self._policy, self._reach)
        return client

    def drop(self, address: Address) -> None:
        """Close the connection to an address, where there is one. Requests under way there fail with
        NETWORK_EXCEPTION; the next one connects anew."""
        client = self._clients.pop(address, None)
        if client is not None:
            client.close()

    async def close(self) -> None:
        """Send nothing more: requests under way fail, and connections are closed."""
        await super().close()
        for address in list(self._clients):
            self.drop(address)
