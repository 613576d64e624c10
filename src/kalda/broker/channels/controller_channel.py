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
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending
from kalda.network.client.channel import Address, Channel
from kalda.network.client.client import Reach, RpcClient, RpcPolicy, timeout
from kalda.protocol.notation import Request

log = logging.getLogger("kalda.channel")

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


class ControllerChannel(Channel):
    """One connection, to the active controller."""

    def __init__(
        self,
        address: Callable[[], Address | None],
        client_id: str,
        request_timeout_ms: int,
        reach: Reach,
        silence_ms: int | None = None,
        on_path_broken: Callable[[], None] | None = None,
    ) -> None:
        """`address()` is the listener of the active controller; None while the quorum has no leader.
        `request_timeout_ms` is for requests that have no timeout of their own, and `silence_ms` where that is None."""
        policy = RpcPolicy(
            client_id=client_id,
            timeout_ms=request_timeout_ms,
            connect_timeout_ms=_CONNECT_TIMEOUT_MS,
            setup_timeout_ms=2 * _CONNECT_TIMEOUT_MS,
            backoff_ms=0,  # each request has its own pause
            silence_ms=request_timeout_ms if silence_ms is None else silence_ms,
        )
        super().__init__(policy, reach, _MAX_REQUESTS, ErrorCode.REQUEST_TIMED_OUT)
        self._address = address
        self._on_path_broken = on_path_broken
        self._silent: RpcClient | None = None
        """The client whose connection was silent; None once a request was answered since."""
        self._path_check: asyncio.TimerHandle | None = None
        """Calls `on_path_broken`."""
        self._controller: Address | None = None
        """Where the last request was sent to; None before the first."""
        self._controller_changed = asyncio.Event()
        """Set when another node becomes the active controller. It wakes the requests that wait to be sent again, of
        which the first clears it."""
        self._beside: list[ControllerChannel] = []
        """Channels that follow this one to another controller, and are closed with it."""

    def beside(self, client_id: str) -> ControllerChannel:
        """Another connection to the active controller, for requests whose responses may take long: those on one
        connection keep the order of the requests. It connects at its first request, and is closed with this channel."""
        policy = self._policy
        channel = ControllerChannel(self._address, client_id, policy.timeout_ms, self._reach, policy.silence_ms)
        self._beside.append(channel)
        return channel

    def send(self, request: Request, timeout_ms: int | None = None) -> Pending[Any]:
        """The controller's response. Fails with REQUEST_TIMED_OUT when none came in time, and also where this node
        stops or has too many requests under way: clients get the error of a forwarded request, and retry this one."""
        return self.begin(self._within, request, timeout_ms or self._policy.timeout_ms)

    def on_controller_change(self) -> None:
        """Called whenever another node may be the active controller. Requests that the former one has not answered are
        sent to the new one."""
        address = self._address()
        if address is not None and address != self._controller:
            self._disconnect()
            self._controller_changed.set()
        for channel in self._beside:
            channel.on_controller_change()

    def drop_silent_connection(self, silence_ms: int) -> None:
        """Close the connection if no byte has arrived on it for so long. Requests that wait on it are sent again."""
        for channel in self._beside:
            channel.drop_silent_connection(silence_ms)
        for client in self._clients.values():
            if client.drop_silent_connection(silence_ms):
                log.info(
                    "%s: no byte came from the controller for %d ms, while it answered on another connection: "
                    "connecting anew",
                    self._policy.client_id,
                    silence_ms,
                )

    async def close(self) -> None:
        """Fail all requests under way, and close the connection."""
        for channel in self._beside:
            await channel.close()
        if self._path_check is not None:
            self._path_check.cancel()
        await super().close()

    async def _within(self, request: Request, timeout_ms: int) -> Any:
        try:
            async with timeout(timeout_ms / 1000):
                return await self._until_answered(request, timeout_ms)
        except TimeoutError:
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, f"no controller answered within {timeout_ms} ms") from None

    async def _until_answered(self, request: Request, timeout_ms: int) -> Any:
        retry_ms = _RETRY_MS
        while True:
            try:
                response = await self._try(request, timeout_ms)
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

    async def _try(self, request: Request, timeout_ms: int) -> Any:
        address = self._address()
        if address is None:
            raise ApiError(ErrorCode.BROKER_NOT_AVAILABLE, "no controller is active")
        if address != self._controller:
            self._disconnect()
            self._controller = address
        client = self.client(address)
        try:
            response = await client.request(request, timeout_ms=timeout_ms)
        except ApiError as error:
            if client.was_silent:
                self._note_silence(client)
            if error.code not in _LOGIN_FAILED:
                raise
            # Credentials of nodes may be altered one node after the other, so a later attempt may succeed.
            log.warning("%s: no login to the controller at %s:%d: %s", self._policy.client_id, *address, error.message)
            raise ApiError(ErrorCode.NETWORK_EXCEPTION, error.message) from error
        self._note_answer(client)
        return response

    def _note_silence(self, client: RpcClient) -> None:
        """A request failed because its connection was silent."""
        if self._silent is None:
            self._silent = client
            log.warning(
                "%s: no byte came from the controller at %s:%d for %d ms: connecting anew",
                self._policy.client_id,
                client.host,
                client.port,
                self._policy.silence_ms,
            )

    def _note_answer(self, client: RpcClient) -> None:
        """A request was answered."""
        silent, self._silent = self._silent, None
        if silent is client and self._on_path_broken is not None:
            self._path_check = asyncio.get_running_loop().call_later(_PATH_CHECK_S, self._on_path_broken)

    def _disconnect(self) -> None:
        if self._controller is not None:
            self.drop(self._controller)
