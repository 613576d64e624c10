"""Requests to the active controller, wherever it is.

The quorum says who leads; a request goes there, and again when the answer is "not me" or none at all, until its
deadline. When the quorum says that somebody else leads, whatever the old one has not answered goes to the new one.
In a process that is both broker and controller it still goes over the controller's listener: one path,
the same between nodes and within one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.pending import Pending
from kalda.network.client import RpcConnection
from kalda.protocol.notation import Request

log = logging.getLogger("kalda.channel")

Address = tuple[str, int]
_RETRY_MS = 20
_MAX_RETRY_MS = 200
_CONNECT_TIMEOUT_MS = 2_000
_MAX_WAITING = 10_000
_TRY_ELSEWHERE = frozenset(
    (
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.BROKER_NOT_AVAILABLE,
    )
)


class ControllerChannel:
    """One connection to whoever is the active controller."""

    def __init__(self, address: Callable[[], Address | None], client_id: str, request_timeout_ms: int) -> None:
        """`address()` is where the active controller listens, None while nobody leads."""
        self._address = address
        self._client_id = client_id
        self._timeout_ms = request_timeout_ms
        self._connection: RpcConnection | None = None
        self._connected_to: Address | None = None
        self._connecting = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._moved = asyncio.Event()
        self._closed = False

    def send(self, request: Request, timeout_ms: int | None = None) -> Pending[Any]:
        """The controller's response. Fails with REQUEST_TIMED_OUT when none came in time, and when none will come as
        this node stops or is asked for too much: clients are told, and that is something that they try again."""
        pending: Pending[Any] = Pending()
        if self._closed or len(self._tasks) >= _MAX_WAITING:
            pending.fail(ApiError(ErrorCode.REQUEST_TIMED_OUT, "the channel to the controller takes no requests"))
            return pending
        task = asyncio.get_running_loop().create_task(self._send(request, timeout_ms or self._timeout_ms, pending))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return pending

    def on_controller_change(self) -> None:
        """Called whenever another node may be the active controller. Requests that the former one has not answered are
        sent to the new one."""
        address = self._address()
        if address is not None and address != self._connected_to:
            self._forget()
            self._moved.set()

    async def close(self) -> None:
        """Give up on whatever is under way."""
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._connection is not None:
            self._connection.close()

    async def _send(self, request: Request, timeout_ms: int, pending: Pending[Any]) -> None:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                response = await self._until_answered(request, timeout_ms)
        except TimeoutError:
            pending.fail(ApiError(ErrorCode.REQUEST_TIMED_OUT, f"no controller answered within {timeout_ms} ms"))
        except ApiError as error:
            pending.fail(error)
        except ValueError as error:
            # What must be said cannot be said in the version that the controller speaks.
            pending.fail(ApiError(ErrorCode.UNSUPPORTED_VERSION, str(error)))
        except asyncio.CancelledError:
            pending.fail(ApiError(ErrorCode.REQUEST_TIMED_OUT, "the node is stopping"))
        else:
            pending.complete(response)

    async def _until_answered(self, request: Request, timeout_ms: int) -> Any:
        retry_ms = _RETRY_MS
        while True:
            try:
                connection = await self._connect()
                response = await connection.request(request, timeout_ms=timeout_ms)
            except ApiError as error:
                if error.code not in _TRY_ELSEWHERE:
                    raise
                log.debug("%s: %s; trying again in %d ms", type(request).__name__, error, retry_ms)
            else:
                if getattr(response, "error_code", 0) not in _TRY_ELSEWHERE:
                    return response
                # Others' requests may wait on the connection, and be done: one that is sent again is done twice.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(retry_ms / 1000):
                    await self._moved.wait()
                    self._moved.clear()
            retry_ms = min(retry_ms * 2, _MAX_RETRY_MS)

    async def _connect(self) -> RpcConnection:
        async with self._connecting:
            address = self._address()
            if address is None:
                raise ApiError(ErrorCode.BROKER_NOT_AVAILABLE, "no controller is active")
            connection = self._connection
            if connection is not None and not connection.closed.is_set() and address == self._connected_to:
                return connection
            self._forget()
            self._connected_to = address
            self._connection = await RpcConnection.connect(
                *address,
                client_id=self._client_id,
                timeout_ms=self._timeout_ms,
                connect_timeout_ms=_CONNECT_TIMEOUT_MS,
                negotiate=True,
            )
            return self._connection

    def _forget(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None
