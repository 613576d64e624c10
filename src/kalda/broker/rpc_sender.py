"""Sends the quorum's requests: one connection a destination, each answer a `Pending`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.pending import Pending
from kalda.network.client import RpcClient
from kalda.protocol.notation import Request
from kalda.raft.values import Destination

_MAX_CLIENTS = 256


class RpcSender:
    """The `SendRpc` of the quorum's driver."""

    def __init__(self, client_id: str, connect_timeout_ms: int, rng: Callable[[], float]) -> None:
        """`rng` gives numbers from 0 to 1, for the backoff."""
        self._client_id = client_id
        self._connect_timeout_ms = connect_timeout_ms
        self._rng = rng
        self._clients: dict[tuple[str, int], RpcClient] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, destination: Destination, request: Request, timeout_ms: int) -> Pending[Any]:
        """The response, or the `ApiError` that none came."""
        pending: Pending[Any] = Pending()
        task = asyncio.get_running_loop().create_task(self._send(destination, request, timeout_ms, pending))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return pending

    async def _send(self, destination: Destination, request: Request, timeout_ms: int, pending: Pending[Any]) -> None:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                response = await self._client(destination).request(request, timeout_ms=timeout_ms)
        except TimeoutError:
            pending.fail(ApiError(ErrorCode.REQUEST_TIMED_OUT, f"no answer from {destination.host}:{destination.port}"))
        except ApiError as error:
            pending.fail(error)
        except asyncio.CancelledError:
            pending.fail(ApiError(ErrorCode.NETWORK_EXCEPTION, "the node is stopping"))
        else:
            pending.complete(response)

    def _client(self, destination: Destination) -> RpcClient:
        address = (destination.host, destination.port)
        client = self._clients.get(address)
        if client is None:
            if len(self._clients) >= _MAX_CLIENTS:
                self._clients.pop(next(iter(self._clients))).close()
            client = self._clients[address] = RpcClient(
                *address,
                rng=self._rng,
                client_id=self._client_id,
                connect_timeout_ms=self._connect_timeout_ms,
            )
        return client

    async def close(self) -> None:
        """Give up on whatever is under way."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for client in self._clients.values():
            client.close()
