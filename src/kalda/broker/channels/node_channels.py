"""Requests to other nodes: the active controller, other brokers, the members of the quorum.

A request is sent to the leader of the quorum. It is sent again, until its deadline, when the response is NOT_CONTROLLER
or the like, when the connection breaks, and, to the new leader, when the quorum has one. So controllers may process a
request twice. A process that is both broker and controller uses its own listener as well: the path is the same between
nodes and within one.

A request that reaches its deadline fails alone: the connection stays open, and a late response is dropped. A connection
that breaks without a sign, as where a firewall drops packets, is found by its silence: it is closed when requests wait
on it and no byte arrives for `silence_ms`.

A broker has several channels: one for its registration and heartbeats, one for what it requests for itself, and others
beside that one (`beside`) for requests of clients. A response to another request may take long, and responses on a
connection keep the order of the requests: a heartbeat behind it would be late. Heartbeats are regular and are answered
at once, so their channel has a short `silence_ms`. Where it finds its connection silent, and a new one to the same
controller is answered, the path may have broken: `on_path_broken` is called a little later, so that the connection of
the other channel is not waited for either. Where the controller was only slow, bytes have arrived on the other
connection by then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from kalda.base.configs.server import ServerConfig
from kalda.base.errors import ApiError, ErrorCode, as_api_error
from kalda.base.scheduling import Pending
from kalda.broker.metadata_cache import MetadataCache
from kalda.metadata.image import MetadataDelta, MetadataImage
from kalda.metadata.publisher import Manifest
from kalda.network.client.addresses import all_refuse
from kalda.network.client.client import Address, Channel, Reach, RpcClient, RpcPolicy, timeout
from kalda.protocol.framing import ConnectionRefused
from kalda.protocol.notation import Request
from kalda.raft.voters import Destination

log = logging.getLogger("kalda.channel")
quorum_log = logging.getLogger("kalda.quorum")

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


class _Registration(NamedTuple):
    """Under which a broker is connected."""

    epoch: int
    address: Address


class BrokerChannels(Channel):
    """Requests from this broker to other brokers: one connection to each, made by the first request.

    A request to a broker that is connected already is written on the spot, without a task. A request is never sent
    twice: its sender decides whether it tries again. The connection to a broker is closed when the metadata shows that
    the broker was fenced, has left, or has registered again: it may be stopped or unreachable, and its answers would be
    waited for in vain until each request times out. Requests under way fail with NETWORK_EXCEPTION then.

    The connections to other brokers for one purpose. A publisher: see the module's docstring.
    """

    def __init__(
        self, name: str, config: ServerConfig, cache: MetadataCache, reach: Reach, client_id: str = ""
    ) -> None:
        """`name` is that of the purpose; requests have the client id `broker-<id>-<name>` where none is given."""
        policy = RpcPolicy(
            client_id=client_id or f"broker-{config.node_id}-{name}",
            timeout_ms=config["request.timeout.ms"],
            connect_timeout_ms=config["socket.connection.setup.timeout.ms"],
            backoff_ms=20,
            backoff_max_ms=500,
        )
        super().__init__(policy, reach)
        self.name = f"channels for {name}"
        self._listener = config.inter_broker_listener_name
        self._cache = cache
        self._registrations: dict[int, _Registration] = {}
        """Of the brokers that have a client, by their ids."""

    def send(self, broker_id: int, request: Request, timeout_ms: int | None = None) -> Pending[Any]:
        """The broker's response. Fails with NETWORK_EXCEPTION where the connection breaks or cannot be made,
        BROKER_NOT_AVAILABLE where the broker is unknown or fenced, REQUEST_TIMED_OUT, UNSUPPORTED_VERSION."""
        pending: Pending[Any] = Pending()
        try:
            client = self.client(self._address_of(broker_id))
            connection = client.connected()
            if connection is None:
                return self.begin(partial(client.request, request, timeout_ms=timeout_ms))
            future = connection.send(request, timeout_ms=timeout_ms)
        except ApiError as error:
            pending.fail(error)
        else:
            future.add_done_callback(partial(_settle, pending))
        return pending

    def _address_of(self, broker_id: int) -> Address:
        broker = self._cache.image.cluster.brokers.get(broker_id)
        endpoint = None if broker is None or broker.fenced else broker.listeners.get(self._listener)
        if broker is None or endpoint is None or self.is_closed:
            raise ApiError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker_id} is unknown or fenced")
        registration = _Registration(broker.epoch, (endpoint.host, endpoint.port))
        if self._registrations.get(broker_id) != registration:
            self._disconnect(broker_id)
            self._registrations[broker_id] = registration
        return registration.address

    def _disconnect(self, broker_id: int) -> None:
        registration = self._registrations.pop(broker_id, None)
        if registration is not None:
            self.drop(registration.address)

    # -- publisher

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage, manifest: Manifest) -> None:
        """Close the connections to brokers that were fenced, have left, or have registered again."""
        brokers = image.cluster.brokers
        for broker_id, registration in list(self._registrations.items()):
            broker = brokers.get(broker_id)
            if broker is None or broker.fenced or broker.epoch != registration.epoch:
                self._disconnect(broker_id)

    def on_controller_change(self, leader_id: int | None, epoch: int) -> None:
        """No effect."""


def _settle(pending: Pending[Any], future: asyncio.Future[Any]) -> None:
    error = future.exception()
    if error is None:
        pending.complete(future.result())
    else:
        assert isinstance(error, Exception)
        pending.fail(as_api_error(error))


class RaftChannel(Channel):
    """The quorum's requests on the network, and the controller's probes of brokers.

    The machine has at most one request under way to each destination, so there is no queue to bound. A request that
    meets an error fails, whatever the error is: the machine sends nothing more to a destination whose request never
    ends. When to try again is the machine's decision. Where a connection broke, the address is probed at once: if the
    process of the leader is dead, the quorum need not wait for the timeout. The log names an address that does not
    answer once, and once more when it answers again. That is a warning, except where the address refuses connections:
    each orderly stop of a controller looks like this to the others.

    `send` is the driver's `SendRpc`.
    """

    def __init__(self, policy: RpcPolicy, reach: Reach) -> None:
        super().__init__(policy, reach)
        self._unanswered: set[Address] = set()
        """Addresses that did not answer the last request. Each was logged when it was added."""

    def send(self, destination: Destination, request: Request, timeout_ms: int) -> Pending[Any]:
        """The response. Fails with an `ApiError`, among others where no response came within the timeout; that is
        `ConnectionRefused` where the address refuses connections."""
        return self.begin(self._exchange, (destination.host, destination.port), request, timeout_ms)

    def probe(self, addresses: tuple[Address, ...]) -> Pending[bool]:
        """Whether each of a broker's addresses refuses connections: then no process listens there."""
        assert self._reach.is_refused is not None, "the controller probes where dead processes are to be detected"
        return self.begin(all_refuse, addresses, self._reach.is_refused)

    def drop(self, address: Address) -> None:
        """Close the connection to an address."""
        super().drop(address)
        self._unanswered.discard(address)

    async def _exchange(self, address: Address, request: Request, timeout_ms: int) -> Any:
        try:
            response = await self.client(address).request(request, timeout_ms=timeout_ms)
        except ConnectionRefused:
            self._note_silence(address, "it refuses connections, so no process runs there", logging.INFO)
            raise
        except ApiError as error:
            if error.code is not ErrorCode.UNSUPPORTED_VERSION:  # which an older controller may answer
                self._note_silence(address, error.message or error.code.name, logging.WARNING)
            raise
        if getattr(response, "error_code", 0) == ErrorCode.INCONSISTENT_CLUSTER_ID:
            self._note_silence(address, "it is of another cluster [INCONSISTENT_CLUSTER_ID]", logging.WARNING)
        elif address in self._unanswered:
            self._unanswered.discard(address)
            quorum_log.info("the controller at %s:%d answers now", *address)
        return response

    def _note_silence(self, address: Address, why: str, level: int) -> None:
        if address not in self._unanswered and not self.is_closed:
            self._unanswered.add(address)
            quorum_log.log(level, "no answer from the controller at %s:%d: %s", *address, why)
