"""The quorum's requests on the network: one client for each address, made with the first request.

The machine has at most one request under way to each destination, so there is no queue to bound. A request that meets
an error fails, whatever the error is: the machine sends nothing more to a destination whose request never ends. When to
try again is the machine's decision. Where a connection broke, the address is probed at once: if
the process of the leader is dead, the quorum need not wait for the timeout. The log names an address that does not
answer once, and once more when it answers again. That is a warning, except where the address refuses connections: each
orderly stop of a controller looks like this to the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.pending import Pending
from kalda.broker.quorum.raft_driver import ConnectionRefused
from kalda.network.client import RpcClient
from kalda.network.deadlines import timeout
from kalda.protocol.notation import Request
from kalda.raft.values import Destination

log = logging.getLogger("kalda.quorum")

MAX_UNDER_WAY = 1_000
"""Requests; more fail at once."""
MAX_CLIENTS = 256
"""Addresses that have a client; one more closes the client that was made first."""


class RaftChannel:
    """`send` is the driver's `SendRpc`."""

    def __init__(
        self,
        client_of: Callable[[str, int], RpcClient],
        is_refused: Callable[[str, int], Awaitable[bool]] | None = None,
    ) -> None:
        """`client_of(host, port)` makes a client for a controller listener. `is_refused(host, port)` probes an address;
        None: no address is probed, so no replica is reported dead."""
        self._client_of = client_of
        self._is_refused = is_refused
        self._clients: dict[tuple[str, int], RpcClient] = {}
        """By host and port, in the order in which they were made."""
        self._silent: set[tuple[str, int]] = set()
        """Addresses that did not answer the last request. Each was logged when it was added."""
        self._tasks: set[asyncio.Task[None]] = set()
        """One for each request under way."""
        self._closed = False

    def send(self, destination: Destination, request: Request, timeout_ms: int) -> Pending[Any]:
        """The response. Fails with an `ApiError`, among others where no response came within the timeout; that is
        `ConnectionRefused` where the address refuses connections."""
        pending: Pending[Any] = Pending()
        if self._closed or len(self._tasks) >= MAX_UNDER_WAY:
            pending.fail(ApiError(ErrorCode.NETWORK_EXCEPTION, "the channel takes no requests"))
            return pending
        client = self._client(destination.host, destination.port)
        task = asyncio.get_running_loop().create_task(self._exchange(client, request, timeout_ms, pending))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return pending

    def _client(self, host: str, port: int) -> RpcClient:
        client = self._clients.get((host, port))
        if client is None:
            if len(self._clients) >= MAX_CLIENTS:
                oldest = next(iter(self._clients))
                self._clients.pop(oldest).close()
                self._silent.discard(oldest)
            client = self._clients[host, port] = self._client_of(host, port)
        return client

    async def _exchange(self, client: RpcClient, request: Request, timeout_ms: int, pending: Pending[Any]) -> None:
        try:
            async with timeout(timeout_ms / 1000):
                response = await client.request(request, timeout_ms=timeout_ms)
        except ApiError as error:
            await self._fail(client, pending, error)
        except TimeoutError:
            self._mark_silent(client, f"no answer within {timeout_ms} ms")
            pending.fail(ApiError(ErrorCode.REQUEST_TIMED_OUT, f"no answer from {client.host}:{client.port}"))
        except ValueError as error:
            # The version that the other side supports cannot carry a field of the request.
            pending.fail(ApiError(ErrorCode.UNSUPPORTED_VERSION, str(error)))
        except asyncio.CancelledError:
            pending.fail(ApiError(ErrorCode.NETWORK_EXCEPTION, "the node is stopping"))
        except Exception as error:
            log.exception("a request to the controller at %s:%d failed", client.host, client.port)
            pending.fail(ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{client.host}:{client.port}: {error!r}"))
        else:
            if getattr(response, "error_code", 0) == ErrorCode.INCONSISTENT_CLUSTER_ID:
                self._mark_silent(client, "it is of another cluster [INCONSISTENT_CLUSTER_ID]")
            else:
                self._mark_answering(client)
            pending.complete(response)

    async def _fail(self, client: RpcClient, pending: Pending[Any], error: ApiError) -> None:
        """Fail the request; where its connection broke, after a probe of the address."""
        why = error.message or error.code.name
        level = logging.WARNING
        try:
            if (
                error.code is ErrorCode.NETWORK_EXCEPTION
                and self._is_refused is not None
                and await self._is_refused(client.host, client.port)
            ):
                error = ConnectionRefused(f"{client.host}:{client.port} refuses connections")
                why, level = "it refuses connections, so no process runs there", logging.INFO
        except Exception:
            log.exception("the address %s:%d could not be probed", client.host, client.port)
        finally:
            if error.code is not ErrorCode.UNSUPPORTED_VERSION:  # which an older controller may answer
                self._mark_silent(client, why, level)
            pending.fail(error)

    def _mark_silent(self, client: RpcClient, why: str, level: int = logging.WARNING) -> None:
        if (client.host, client.port) not in self._silent and not self._closed:
            self._silent.add((client.host, client.port))
            log.log(level, "no answer from the controller at %s:%d: %s", client.host, client.port, why)

    def _mark_answering(self, client: RpcClient) -> None:
        if (client.host, client.port) in self._silent:
            self._silent.discard((client.host, client.port))
            log.info("the controller at %s:%d answers now", client.host, client.port)

    async def close(self) -> None:
        """Close every connection; whatever is under way fails."""
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for client in self._clients.values():
            client.close()
        self._clients.clear()
