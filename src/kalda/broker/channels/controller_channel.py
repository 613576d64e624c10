"""Requests to the active controller, on whichever node it is.

A request is sent to the leader of the quorum. It is sent again, until its deadline, when the response is NOT_CONTROLLER
or the like, when the connection breaks, and, to the new leader, when the quorum has one. So controllers may process a
request twice. A process that is both broker and controller uses its own listener as well: the path is the same between
nodes and within one.

A request that reaches its deadline fails alone: the connection stays open, and a late response is dropped. A connection
that breaks without a sign, as where a firewall drops packets, is found by its silence: it is closed when requests wait
on it and no byte arrives for `silence_ms`.

A broker has several channels: one for its registration and heartbeats, one for what it requests for itself, and others
beside that one (`beside`) for requests of clients. A response to another
request may take long, and responses on a connection keep the order of the requests: a heartbeat behind it would be
late. Heartbeats are regular and are answered at once, so their channel has a short `silence_ms`. Where it finds its
connection silent, and a new one to the same controller is answered, the path may have broken: `on_path_broken` is
called a little later, so that the connection of the other channel is not waited for either. Where the controller was
only slow, bytes have arrived on the other connection by then.

Not obvious:

- A connection to the controller that breaks may leave a request processed twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.pending import Pending
from kalda.network.addresses import AddressIndex
from kalda.network.client import RpcConnection
from kalda.network.deadlines import timeout
from kalda.protocol.notation import Request

if TYPE_CHECKING:
    from kalda.network.client_security import ClientSecurity

log = logging.getLogger("kalda.channel")

Address = tuple[str, int]
_RETRY_MS = 20
"""Before a request is sent again for the first time; doubled each time, up to `_MAX_RETRY_MS`."""
_MAX_RETRY_MS = 200
_CONNECT_TIMEOUT_MS = 2_000
"""The versions of the controller have to arrive within as long again."""
_PATH_CHECK_S = 0.5
"""After the first response over a new connection: responses on other connections have arrived by then, if they can."""
_MAX_REQUESTS = 10_000
"""Under way at a time; more fail at once."""
_TRY_AGAIN = frozenset(
    (
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.BROKER_NOT_AVAILABLE,
    )
)
_LOGIN_FAILED = frozenset(
    (ErrorCode.SASL_AUTHENTICATION_FAILED, ErrorCode.UNSUPPORTED_SASL_MECHANISM, ErrorCode.ILLEGAL_SASL_STATE)
)


class ControllerChannel:
    """One connection, to the active controller."""

    def __init__(
        self,
        address: Callable[[], Address | None],
        client_id: str,
        request_timeout_ms: int,
        silence_ms: int | None = None,
        on_path_broken: Callable[[], None] | None = None,
        security: ClientSecurity | None = None,
    ) -> None:
        """`address()` is the listener of the active controller; None while the quorum has no leader.
        `request_timeout_ms` is for requests that have no timeout of their own, and `silence_ms` where that is None.
        `security`: None for plain text."""
        self._security = security
        self._address = address
        self._client_id = client_id
        self._timeout_ms = request_timeout_ms
        self._silence_ms = request_timeout_ms if silence_ms is None else silence_ms
        self._on_path_broken = on_path_broken
        self._silent_address: Address | None = None
        """Where the last connection was silent; None once a request was answered since."""
        self._path_check: asyncio.TimerHandle | None = None
        """Calls `on_path_broken`."""
        self._connection: RpcConnection | None = None
        """None before the first request, and after a change of the controller. May be closed by the controller."""
        self._connected_to: Address | None = None
        """The address of the last connection that was tried."""
        self._first = AddressIndex()
        """Of `_connected_to`."""
        self._connecting = asyncio.Lock()
        """Held while a connection is made, so that all requests share it."""
        self._tasks: set[asyncio.Task[None]] = set()
        """One for each request that is not answered."""
        self._controller_changed = asyncio.Event()
        """Set when another node becomes the active controller. It wakes the requests that wait to be sent again, of
        which the first clears it."""
        self._closed = False
        self._beside: list[ControllerChannel] = []
        """Channels that follow this one to another controller, and are closed with it."""

    def beside(self, client_id: str) -> ControllerChannel:
        """Another connection to the active controller, for requests whose responses may take long: those on one
        connection keep the order of the requests. It connects at its first request, and is closed with this channel."""
        channel = ControllerChannel(
            self._address, client_id, self._timeout_ms, self._silence_ms, security=self._security
        )
        self._beside.append(channel)
        return channel

    def send(self, request: Request, timeout_ms: int | None = None) -> Pending[Any]:
        """The controller's response. Fails with REQUEST_TIMED_OUT when none came in time, and also where this node
        stops or has too many requests under way: clients get the error of a forwarded request, and retry this one."""
        pending: Pending[Any] = Pending()
        if self._closed or len(self._tasks) >= _MAX_REQUESTS:
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
            self._disconnect()
            self._controller_changed.set()
        for channel in self._beside:
            channel.on_controller_change()

    def drop_silent_connection(self, silence_ms: int) -> None:
        """Close the connection if no byte has arrived on it for so long. Requests that wait on it are sent again."""
        for channel in self._beside:
            channel.drop_silent_connection(silence_ms)
        connection = self._connection
        if connection is None or connection.closed.is_set():
            return
        if asyncio.get_running_loop().time() - connection.heard_at >= silence_ms / 1000:
            log.info(
                "%s: no byte came from the controller for %d ms, while it answered on another connection: "
                "connecting anew",
                self._client_id,
                silence_ms,
            )
            self._disconnect()

    async def close(self) -> None:
        """Fail all requests under way, and close the connection."""
        self._closed = True
        for channel in self._beside:
            await channel.close()
        if self._path_check is not None:
            self._path_check.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._connection is not None:
            self._connection.close()

    async def _send(self, request: Request, timeout_ms: int, pending: Pending[Any]) -> None:
        try:
            async with timeout(timeout_ms / 1000):
                response = await self._until_answered(request, timeout_ms)
        except TimeoutError:
            pending.fail(ApiError(ErrorCode.REQUEST_TIMED_OUT, f"no controller answered within {timeout_ms} ms"))
        except ApiError as error:
            pending.fail(error)
        except ValueError as error:
            # The version that the controller supports cannot carry a field of the request.
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
                try:
                    response = await connection.request(request, timeout_ms=timeout_ms)
                finally:
                    if connection.was_silent:
                        self._note_silence(connection)
                self._note_answer()
            except ApiError as error:
                if error.code not in _TRY_AGAIN:
                    raise
                log.debug("%s: %s; trying again in %d ms", type(request).__name__, error, retry_ms)
            else:
                if getattr(response, "error_code", 0) not in _TRY_AGAIN:
                    return response
                # The connection stays open: other requests on it may be processed already, and would be sent again.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(retry_ms / 1000):
                    await self._controller_changed.wait()
                    self._controller_changed.clear()
            retry_ms = min(retry_ms * 2, _MAX_RETRY_MS)

    async def _connect(self) -> RpcConnection:
        async with self._connecting:
            address = self._address()
            if address is None:
                raise ApiError(ErrorCode.BROKER_NOT_AVAILABLE, "no controller is active")
            connection = self._connection
            if connection is not None and not connection.closed.is_set() and address == self._connected_to:
                return connection
            self._disconnect()
            if address != self._connected_to:
                self._first = AddressIndex()
            self._connected_to = address
            self._connection = await self._new_connection(address)
            return self._connection

    async def _new_connection(self, address: Address) -> RpcConnection:
        try:
            async with timeout(2 * _CONNECT_TIMEOUT_MS / 1000):
                return await RpcConnection.connect(
                    *address,
                    client_id=self._client_id,
                    timeout_ms=self._timeout_ms,
                    connect_timeout_ms=_CONNECT_TIMEOUT_MS,
                    security=self._security,
                    negotiate=True,
                    silence_ms=self._silence_ms,
                    first=self._first,
                )
        except ApiError as error:
            if error.code not in _LOGIN_FAILED:
                raise
            # Credentials of nodes may be altered one node after the other, so a later attempt may succeed.
            log.warning("%s: no login to the controller at %s:%d: %s", self._client_id, *address, error.message)
            raise ApiError(ErrorCode.NETWORK_EXCEPTION, error.message) from error
        except TimeoutError:
            raise ApiError(ErrorCode.NETWORK_EXCEPTION, "the controller does not list its versions") from None

    def _note_silence(self, connection: RpcConnection) -> None:
        """A request failed because its connection was silent."""
        if self._silent_address is None and self._connected_to is not None:
            self._silent_address = self._connected_to
            log.warning(
                "%s: no byte came from the controller at %s:%d for %d ms: connecting anew",
                self._client_id,
                *self._connected_to,
                self._silence_ms,
            )

    def _note_answer(self) -> None:
        """A request was answered."""
        silent_address, self._silent_address = self._silent_address, None
        if silent_address is not None and silent_address == self._connected_to and self._on_path_broken is not None:
            self._path_check = asyncio.get_running_loop().call_later(_PATH_CHECK_S, self._on_path_broken)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None
