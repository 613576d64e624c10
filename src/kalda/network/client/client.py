"""Requests to other nodes over asyncio: pipelined, answered in order, each with a deadline.

`RpcConnection` is one connection, and is not used again after it was closed. `RpcClient` is one address: it connects
when there is a request to send, with a longer pause after each failure. Failures are `ApiError`s: `NETWORK_EXCEPTION`
where the connection broke or could not be made (`ConnectionRefused` where no process listens), `REQUEST_TIMED_OUT`,
`UNSUPPORTED_VERSION` where the peer's version does not exist or cannot carry the request. A timeout closes the
connection, since answers come in order and all later ones would wait behind the late one. With `silence_ms` it fails
that request alone, and a connection is closed on which requests wait and no byte arrives for so long.

With `ClientSecurity` a connection has TLS, a SASL login, or both. A session that ends is renewed before its end, on the
same connection (KIP-368): meanwhile no other request is sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from kalda import __version__
from kalda.base.errors import ApiError, ErrorCode, InvalidRequest, as_api_error
from kalda.base.scheduling import GRACE_MS, RUN_ON_MS, Pending
from kalda.network.client.addresses import AddressIndex, IsRefused, addresses_of
from kalda.network.frames import Arena, FrameReader
from kalda.protocol.framing import (
    MAX_RESPONSE_BYTES,
    MIN_RESPONSE_BYTES,
    RENEWAL_SHARE,
    Call,
    ConnectionRefused,
    PeerVersions,
    api_versions_request,
    choose_version,
    disconnected,
    frame_request,
    peer_versions,
    retry_version,
    timed_out,
)
from kalda.protocol.notation import Request

if TYPE_CHECKING:
    import ssl

    from kalda.network.client.security import ClientSecurity


class Deadline:
    """Calls `callback` once after `delay_s`, unless it is cancelled. One that comes due in a stall of the loop is put
    off until what has arrived meanwhile was read: the loop runs its timers before it reads its sockets, and the answer
    may wait there."""

    __slots__ = ("_callback", "_due_s", "_handle", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, delay_s: float, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._due_s = loop.time() + delay_s
        self._handle = loop.call_later(delay_s, self._on_due)

    def cancel(self) -> None:
        """Drop the call."""
        self._handle.cancel()

    def _on_due(self) -> None:
        late_ms = (self._loop.time() - self._due_s) * 1000
        if late_ms <= RUN_ON_MS:
            self._callback()
        else:
            self._handle = self._loop.call_later(min(late_ms, GRACE_MS) / 1000, self._callback)


@asynccontextmanager
async def timeout(delay_s: float | None) -> AsyncIterator[None]:
    """As `asyncio.timeout`, with such a deadline; None for none."""
    if delay_s is None:
        yield
        return
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as limit:
        deadline = Deadline(loop, delay_s, lambda: limit.reschedule(loop.time()))
        try:
            yield
        finally:
            deadline.cancel()


MAX_IN_FLIGHT = 1000


class RpcPolicy(NamedTuple):
    """How requests of one purpose are sent, and for how long. Times are in milliseconds."""

    client_id: str | None = "kalda"
    timeout_ms: int = 30_000
    """Of a request that has none of its own. It counts from the call, the time to connect included."""
    connect_timeout_ms: int = 10_000
    """For each address of the host."""
    setup_timeout_ms: int | None = None
    """For all addresses, the peer's versions and the login together; None: the timeout of the request alone."""
    backoff_ms: int = 50
    """After a failed attempt to connect; doubled for each failure up to `backoff_max_ms`, with 20 % of jitter."""
    backoff_max_ms: int = 1_000
    silence_ms: int | None = None
    """With it, a request that times out fails alone, and the connection is closed when requests are unanswered and no
    byte has arrived for so long. With None, a timeout closes the connection."""
    probes: bool = False
    """Whether the address is probed where a connection breaks or cannot be made: `ConnectionRefused` then says that no
    process listens there."""


_DEFAULTS = RpcPolicy()


class _InFlight:
    """A call, the future of its answer, and the timer of its deadline."""

    __slots__ = ("call", "future", "timer")

    def __init__(self, call: Call, future: asyncio.Future[Any], timer: Deadline) -> None:
        self.call = call
        self.future = future
        self.timer = timer


class RpcConnection(asyncio.BufferedProtocol):
    """One connection to a node, made by `connect`."""

    def __init__(self, policy: RpcPolicy = _DEFAULTS) -> None:
        self._policy = policy
        self.versions: PeerVersions | None = None
        """None before `negotiate`: then requests are sent in the highest version supported here."""
        self.closed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._frames = FrameReader(Arena(), MAX_RESPONSE_BYTES, MIN_RESPONSE_BYTES)
        self._transport: asyncio.Transport | None = None
        self._in_flight: deque[_InFlight] = deque()
        """In the order of sending, which is the order of the answers."""
        self._last_correlation_id = 0
        self._close_reason = disconnected("not connected")
        """What requests fail with while `_transport` is None."""
        self._writing_paused = False
        self._may_send = asyncio.Event()
        """Clear while the transport's buffer is full or `MAX_IN_FLIGHT` is reached; `request` waits for it."""
        self._may_send.set()
        self._silence_s = None if policy.silence_ms is None else policy.silence_ms / 1000
        self.heard_at = self._loop.time()
        """When the last byte arrived, or the connection was made. Kept with `silence_ms` only."""
        self.was_silent = False
        """Whether the connection was closed because of its silence."""
        self._waiting_since = 0.0
        """When the oldest of the requests in flight was sent, or one after it. Kept with `silence_ms` only."""
        self._silence_timer: Deadline | None = None
        """For the next check of the silence; None while no request is in flight."""
        self._renewal_timer: asyncio.TimerHandle | None = None
        """For the renewal of a session that ends; None for one that does not."""
        self._renewal: asyncio.Task[None] | None = None
        """The renewal under way."""

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        policy: RpcPolicy = _DEFAULTS,
        *,
        security: ClientSecurity | None = None,
        negotiate: bool = False,
        first: AddressIndex | None = None,
    ) -> RpcConnection:
        """Connect, with `negotiate` request the peer's API versions, and with `security` log in; without it the
        connection is plain text. Each address of the host has the connect timeout, beginning with the one that `first`
        says. Raises `ApiError`."""
        index = first or AddressIndex()
        connect_timeout_ms = policy.connect_timeout_ms
        tls = None if security is None else security.tls
        connection = await _open(lambda: cls(policy), host, port, connect_timeout_ms, tls, index)
        if negotiate:
            try:
                await connection.negotiate()
            except BaseException:
                connection.close()
                index.value += 1
                raise
        if security is not None and security.mechanism is not None:
            try:
                async with timeout(connect_timeout_ms / 1000):
                    await connection.log_in(security, host)
            except TimeoutError:
                connection.close()
                raise disconnected(f"no login to {host}:{port} within {connect_timeout_ms} ms") from None
            except BaseException:
                connection.close()
                raise
        return connection

    async def log_in(self, security: ClientSecurity, host: str) -> None:
        """Log in by SASL, or renew the session. Raises `ApiError`."""
        login = await asyncio.to_thread(security.login, host) if security.blocks else security.login(host)
        if login is None:
            return
        message: Request | None = login.first()
        while message is not None:
            message = login.on_response(await self.send(message))
        if login.session_lifetime_ms > 0 and self._transport is not None:
            delay_s = login.session_lifetime_ms * RENEWAL_SHARE / 1000
            self._renewal_timer = self._loop.call_later(delay_s, self._begin_renewal, security, host)

    def _begin_renewal(self, security: ClientSecurity, host: str) -> None:
        self._renewal_timer = None
        self._renewal = self._loop.create_task(self._renew(security, host))
        self._update_may_send()

    async def _renew(self, security: ClientSecurity, host: str) -> None:
        try:
            await self.log_in(security, host)
        except ApiError as error:
            self._fail(disconnected(f"the session could not be renewed: {error.message}"))
        finally:
            self._renewal = None
            self._update_may_send()

    @property
    def in_flight(self) -> int:
        """Requests without an answer."""
        return len(self._in_flight)

    async def negotiate(self) -> PeerVersions:
        """Request the peer's API versions, and use only these from now on (KIP-511)."""
        request = api_versions_request(__version__)
        answer = await self.request(request)
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
            answer = await self.request(request, retry_version(answer))
        if answer.error_code:
            raise ApiError(ErrorCode(answer.error_code), "the peer refused to list its API versions")
        self.versions = peer_versions(answer)
        return self.versions

    async def request(self, message: Request, version: int | None = None, *, timeout_ms: int | None = None) -> Any:
        """The response to `message`, in `version` or the highest version in common. Raises `ApiError`."""
        await self.wait_may_send()
        return await self.send(message, version, timeout_ms=timeout_ms)

    @property
    def may_send(self) -> bool:
        """Whether `send` may be called: the peer reads, and fewer than `MAX_IN_FLIGHT` requests are in flight."""
        return self._may_send.is_set()

    async def wait_may_send(self) -> None:
        """Return when `may_send` is true, or the connection is closed."""
        while not self._may_send.is_set():
            await self._may_send.wait()

    def send(
        self, message: Request, version: int | None = None, *, timeout_ms: int | None = None
    ) -> asyncio.Future[Any]:
        """Send at once and return the future of the response. The caller keeps fewer than `MAX_IN_FLIGHT` requests in
        flight; a renewal of the session is one more."""
        assert len(self._in_flight) <= MAX_IN_FLIGHT, "too many requests in flight"
        call = self._write(message, version)
        timeout_ms = self._policy.timeout_ms if timeout_ms is None else timeout_ms
        future: asyncio.Future[Any] = self._loop.create_future()
        timer = Deadline(self._loop, timeout_ms / 1000, partial(self._time_out, call, timeout_ms, future))
        if self._silence_s is not None and not self._in_flight:
            self._waiting_since = self._loop.time()
            if self._silence_timer is None:
                self._silence_timer = Deadline(
                    self._loop, self._silence_s, partial(self._check_silence, self._silence_s)
                )
        self._in_flight.append(_InFlight(call, future, timer))
        self._update_may_send()
        return future

    def close(self) -> None:
        """Close; the requests in flight fail with `NETWORK_EXCEPTION`."""
        self._fail(disconnected("the connection was closed"))

    def _write(self, message: Request, version: int | None) -> Call:
        if self._transport is None:
            raise self._close_reason
        version = choose_version(message, version, self.versions)
        self._last_correlation_id = (self._last_correlation_id + 1) & 0x7FFFFFFF
        call = Call(message.API_KEY, version, self._last_correlation_id)
        try:
            buffers = frame_request(call, message, self._policy.client_id)
        except ValueError as error:
            # The version that the peer supports cannot carry a field of the request.
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, str(error)) from error
        if len(buffers) == 2:
            self._transport.write(b"".join(buffers))
        else:
            for buffer in buffers:
                self._transport.write(buffer)
        return call

    def _time_out(self, call: Call, timeout_ms: int, future: asyncio.Future[Any]) -> None:
        late = timed_out(call, timeout_ms)
        if self._silence_s is None:
            self._fail(disconnected(f"closed after a timeout: {late.message}"), call, late)
        elif not future.done():
            # The call stays in flight: its response is dropped when it arrives.
            future.set_exception(late)

    def _check_silence(self, silence_s: float) -> None:
        """Close the connection if it is silent; else check again when it could be."""
        self._silence_timer = None
        if not self._in_flight:
            return
        left_s = max(self.heard_at, self._waiting_since) + silence_s - self._loop.time()
        if left_s > 0:
            self._silence_timer = Deadline(self._loop, left_s, partial(self._check_silence, silence_s))
            return
        self.was_silent = True
        self._fail(disconnected(f"closed: no byte came within {silence_s * 1000:.0f} ms"))

    def _fail(self, reason: ApiError, late_call: Call | None = None, late: ApiError | None = None) -> None:
        """Close. All calls fail with `reason`, except `late_call`, which caused the close and fails with `late`."""
        if self._transport is None:
            return
        transport, self._transport = self._transport, None
        self._close_reason = reason
        transport.abort()
        if self._silence_timer is not None:
            self._silence_timer.cancel()
            self._silence_timer = None
        if self._renewal_timer is not None:
            self._renewal_timer.cancel()
            self._renewal_timer = None
        in_flight, self._in_flight = self._in_flight, deque()
        for entry in in_flight:
            entry.timer.cancel()
            if not entry.future.done():
                entry.future.set_exception(late if late is not None and entry.call is late_call else reason)
        self._may_send.set()
        self.closed.set()

    def _update_may_send(self) -> None:
        is_full = self._writing_paused or len(self._in_flight) >= MAX_IN_FLIGHT or self._renewal is not None
        if is_full and self._transport is not None:
            self._may_send.clear()
        else:
            self._may_send.set()

    # -- callbacks of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)
        self.heard_at = self._loop.time()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Memory for the next read."""
        return self._frames.room()

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes were read: settle the calls whose answers are complete."""
        self._frames.filled(nbytes)
        if self._silence_s is not None:
            self.heard_at = self._loop.time()
        try:
            while (frame := self._frames.next_frame()) is not None:
                if not self._in_flight:
                    raise InvalidRequest("an answer came while no request is in flight")
                entry = self._in_flight[0]
                answer = entry.call.read_answer(frame)
                self._in_flight.popleft()
                entry.timer.cancel()
                if not entry.future.done():
                    entry.future.set_result(answer)
        except InvalidRequest as error:
            self._fail(disconnected(f"the peer sent an invalid response: {error.message}"))
        else:
            if not self._may_send.is_set():
                self._update_may_send()

    def pause_writing(self) -> None:
        """The transport's buffer is full: the peer reads slower than requests are sent."""
        self._writing_paused = True
        self._update_may_send()

    def resume_writing(self) -> None:
        """The transport's buffer has room again."""
        self._writing_paused = False
        self._update_may_send()

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection ended: the requests in flight fail."""
        self._fail(disconnected(f"the connection was lost: {exc}" if exc else "the peer closed the connection"))


async def _open(
    make: Callable[[], RpcConnection],
    host: str,
    port: int,
    timeout_ms: int,
    tls: ssl.SSLContext | None,
    index: AddressIndex,
) -> RpcConnection:
    """A connection to the first address of the host that accepts one. Raises `ApiError`."""
    loop = asyncio.get_running_loop()
    server_hostname = host if tls is not None else None
    left = 1
    found: list[tuple[Any, ...]] = []
    while True:
        try:
            async with timeout(timeout_ms / 1000):
                if not found:
                    found = await addresses_of(host, port)
                    left = len(found)
                target = found[index.value % len(found)][4]
                index.value += 1  # where this attempt is cancelled, the next one begins behind it
                _, connection = await loop.create_connection(
                    make, target[0], port, ssl=tls, server_hostname=server_hostname
                )
        except (OSError, UnicodeError) as error:  # UnicodeError: the name cannot be encoded as a host name
            left -= 1
            if left > 0:
                continue
            if isinstance(error, TimeoutError):
                raise disconnected(f"no connection to {host}:{port} within {timeout_ms} ms") from None
            raise disconnected(f"cannot connect to {host}:{port}: {error}") from error
        index.value -= 1
        return connection


class Reach(NamedTuple):
    """By what way this node connects to others. The defaults are for plain text and real addresses."""

    random: Callable[[], float]
    """Numbers from 0 to 1, for jitter."""
    route: Callable[[str, int], tuple[str, int]] = lambda host, port: (host, port)
    """Where connections to an address are made to."""
    is_refused: IsRefused | None = None
    """None: no address is probed."""
    security: ClientSecurity | None = None
    """None for plain text."""


class RpcClient:
    """One address, with at most one connection, made when there is a request to send. Requests made while it is made
    wait for that attempt, and where the last one has failed, for the end of the policy's pause."""

    def __init__(self, host: str, port: int, policy: RpcPolicy, reach: Reach) -> None:
        """Connects to where `reach` routes the address."""
        self.host, self.port = reach.route(host, port)
        self._policy = policy
        self._reach = reach
        self._connection: RpcConnection | None = None
        """The last one; it may be closed."""
        self._connecting = asyncio.Lock()
        self._failures = 0
        """Failed attempts to connect since the last success."""
        self._next_attempt_s = 0.0
        """The loop's time of the next attempt; used only after a failure."""
        self._first = AddressIndex()
        self._closed = False

    async def request(self, message: Request, *, timeout_ms: int | None = None) -> Any:
        """The response to `message`. Raises `ApiError`; a request is never sent twice."""
        timeout_ms = timeout_ms or self._policy.timeout_ms
        try:
            connection = self.connected()
            if connection is None:
                began_s = asyncio.get_running_loop().time()
                connection = await self._connection_within(timeout_ms)
                timeout_ms -= int((asyncio.get_running_loop().time() - began_s) * 1000)
            return await connection.send(message, timeout_ms=max(1, timeout_ms))
        except ApiError as error:
            if error.code is ErrorCode.NETWORK_EXCEPTION and await self._is_refused():
                raise ConnectionRefused(f"{self.host}:{self.port} refuses connections") from error
            raise

    async def _connection_within(self, timeout_ms: int) -> RpcConnection:
        """One that takes a request at once, within that time."""
        try:
            async with timeout(timeout_ms / 1000):
                connection = await self.connection()
                await connection.wait_may_send()
                return connection
        except TimeoutError:
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, f"no connection within {timeout_ms} ms") from None

    async def _is_refused(self) -> bool:
        probe = self._reach.is_refused
        return self._policy.probes and probe is not None and not self._closed and await probe(self.host, self.port)

    def connected(self) -> RpcConnection | None:
        """The connection, where there is one that takes a request at once. Raises `ApiError` where this is closed."""
        connection = self._usable()
        return connection if connection is not None and connection.may_send else None

    async def connection(self) -> RpcConnection:
        """The connection, made if there is none. Raises `ApiError`."""
        connection = self._usable()
        if connection is not None:
            return connection
        async with self._connecting:
            connection = self._usable()
            return connection if connection is not None else await self._connect()

    @property
    def was_silent(self) -> bool:
        """Whether the last connection was closed because of its silence."""
        return self._connection is not None and self._connection.was_silent

    def drop_silent_connection(self, silence_ms: int) -> bool:
        """Close the connection if no byte has arrived on it for so long. Whether it was closed."""
        connection = self._connection
        if connection is None or connection.closed.is_set():
            return False
        if asyncio.get_running_loop().time() - connection.heard_at < silence_ms / 1000:
            return False
        connection.close()
        return True

    def close(self) -> None:
        """Close; later requests fail."""
        self._closed = True
        if self._connection is not None:
            self._connection.close()

    def _usable(self) -> RpcConnection | None:
        if self._closed:
            raise disconnected(f"the client for {self.host}:{self.port} is closed")
        connection = self._connection
        return connection if connection is not None and not connection.closed.is_set() else None

    async def _connect(self) -> RpcConnection:
        policy, loop = self._policy, asyncio.get_running_loop()
        if self._failures:
            await asyncio.sleep(max(0.0, self._next_attempt_s - loop.time()))
            self._usable()
        try:
            async with timeout(None if policy.setup_timeout_ms is None else policy.setup_timeout_ms / 1000):
                connection = await RpcConnection.connect(
                    self.host, self.port, policy, security=self._reach.security, negotiate=True, first=self._first
                )
        except (ApiError, TimeoutError) as error:
            wait_ms = min(policy.backoff_max_ms, policy.backoff_ms * 2 ** min(self._failures, 20))
            self._next_attempt_s = loop.time() + wait_ms * (0.8 + 0.4 * self._reach.random()) / 1000
            self._failures += 1
            if isinstance(error, TimeoutError):
                raise disconnected(f"{self.host}:{self.port} does not list its versions") from None
            raise
        if self._closed:
            connection.close()
            self._usable()
        self._failures = 0
        self._connection = connection
        return connection


# Requests of one purpose to other nodes, whose responses are pending results.
#
# A channel has a client for each address, and a task for each request under way. What a derived channel adds is whom
# a request goes to, and whether it is sent again.
#
# Invariant: whatever is begun is settled, also where it raises something unforeseen, and where the channel is closed.

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
