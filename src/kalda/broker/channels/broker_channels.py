"""Requests from this broker to other brokers: one connection to each, made by the first request.

A request to a broker that is connected already is written on the spot, without a task. A request is never sent twice:
its sender decides whether it tries again. The connection to a broker is closed when the metadata shows that the broker
was fenced, has left, or has registered again: it may be stopped or unreachable, and its answers would be waited for in
vain until each request times out. Requests under way fail with NETWORK_EXCEPTION then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kalda.base.configs.server import ServerConfig
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.pending import Pending
from kalda.broker.modules.metadata_cache import MetadataCache
from kalda.metadata.delta import MetadataDelta
from kalda.metadata.image import MetadataImage
from kalda.metadata.manifest import Manifest
from kalda.network.client import RpcClient, RpcConnection
from kalda.network.deadlines import timeout
from kalda.protocol.notation import Request

if TYPE_CHECKING:
    from kalda.network.client_security import ClientSecurity

log = logging.getLogger("kalda.channel")

_BACKOFF_MS = 20
_MAX_BACKOFF_MS = 500
_MAX_CONNECTING = 1_000
"""Requests that wait for a connection, over all brokers; more fail at once."""


class _Channel:
    """One broker's."""

    __slots__ = ("address", "client", "epoch")

    def __init__(self, client: RpcClient, address: tuple[str, int], epoch: int) -> None:
        self.client = client
        self.address = address
        self.epoch = epoch
        """Of the registration under which the broker was connected."""


class BrokerChannels:
    """The connections to other brokers for one purpose. A publisher: see the module's docstring."""

    def __init__(
        self,
        name: str,
        config: ServerConfig,
        cache: MetadataCache,
        random: Callable[[], float],
        route: Callable[[str, int], tuple[str, int]],
        security: ClientSecurity | None = None,
        client_id: str = "",
    ) -> None:
        """`name` is that of the purpose; requests have the client id `broker-<id>-<name>` where none is given. `route`:
        of the `Host`. `security`: None for plain text."""
        self._security = security
        self._route = route
        self.name = f"channels for {name}"
        self._client_id = client_id or f"broker-{config.node_id}-{name}"
        self._listener = config.inter_broker_listener_name
        self._timeout_ms: int = config["request.timeout.ms"]
        self._connect_timeout_ms: int = config["socket.connection.setup.timeout.ms"]
        self._cache = cache
        self._random = random
        self._channels: dict[int, _Channel] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        """One for each request that waits for a connection, until it is answered."""
        self._closed = False

    def send(self, broker_id: int, request: Request, timeout_ms: int | None = None) -> Pending[Any]:
        """The broker's response. Fails with NETWORK_EXCEPTION where the connection breaks or cannot be made,
        BROKER_NOT_AVAILABLE where the broker is unknown or fenced, REQUEST_TIMED_OUT, UNSUPPORTED_VERSION."""
        pending: Pending[Any] = Pending()
        timeout_ms = timeout_ms or self._timeout_ms
        try:
            client = self._client_of(broker_id)
            connection = client.connected()
            if connection is not None:
                self._write(connection, request, timeout_ms, pending)
                return pending
            if len(self._tasks) >= _MAX_CONNECTING:
                raise ApiError(ErrorCode.NETWORK_EXCEPTION, "too many requests wait for connections to brokers")
        except ApiError as error:
            pending.fail(error)
            return pending
        task = asyncio.get_running_loop().create_task(self._connect_and_write(client, request, timeout_ms, pending))
        self._tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if task.cancelled():  # perhaps before it began
                pending.fail(ApiError(ErrorCode.NETWORK_EXCEPTION, "the node is stopping"))

        task.add_done_callback(ended)
        return pending

    def _client_of(self, broker_id: int) -> RpcClient:
        broker = self._cache.image.cluster.brokers.get(broker_id)
        endpoint = None if broker is None or broker.fenced else broker.listeners.get(self._listener)
        if broker is None or endpoint is None or self._closed:
            raise ApiError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker_id} is unknown or fenced")
        address = endpoint.host, endpoint.port
        channel = self._channels.get(broker_id)
        if channel is None or channel.epoch != broker.epoch or channel.address != address:
            self._close(broker_id)
            client = RpcClient(
                *self._route(*address),
                rng=self._random,
                client_id=self._client_id,
                timeout_ms=self._timeout_ms,
                connect_timeout_ms=self._connect_timeout_ms,
                backoff_ms=_BACKOFF_MS,
                backoff_max_ms=_MAX_BACKOFF_MS,
                security=self._security,
            )
            channel = self._channels[broker_id] = _Channel(client, address, broker.epoch)
        return channel.client

    def _write(self, connection: RpcConnection, request: Request, timeout_ms: int, pending: Pending[Any]) -> None:
        """Raises `ApiError`."""

        def answered(future: asyncio.Future[Any]) -> None:
            if future.cancelled():
                pending.fail(ApiError(ErrorCode.NETWORK_EXCEPTION, "the request was cancelled"))
                return
            error = future.exception()
            if error is None:
                pending.complete(future.result())
            else:
                pending.fail(
                    error if isinstance(error, ApiError) else ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
                )

        try:
            future = connection.send(request, timeout_ms=timeout_ms)
        except ValueError as error:
            # The version that the broker supports cannot carry a field of the request.
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, str(error)) from error
        future.add_done_callback(answered)

    async def _connect_and_write(
        self, client: RpcClient, request: Request, timeout_ms: int, pending: Pending[Any]
    ) -> None:
        try:
            async with timeout(timeout_ms / 1000):
                connection = await client.connection()
                await connection.wait_may_send()
            self._write(connection, request, timeout_ms, pending)
        except TimeoutError:
            pending.fail(ApiError(ErrorCode.REQUEST_TIMED_OUT, f"no connection within {timeout_ms} ms"))
        except ApiError as error:
            pending.fail(error)
        except Exception as error:
            log.exception("%s: a request could not be sent", self._client_id)
            pending.fail(ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)))

    def _close(self, broker_id: int) -> None:
        channel = self._channels.pop(broker_id, None)
        if channel is not None:
            channel.client.close()

    # -- publisher

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage, manifest: Manifest) -> None:
        """Close the connections to brokers that were fenced, have left, or have registered again."""
        brokers = image.cluster.brokers
        for broker_id, channel in list(self._channels.items()):
            broker = brokers.get(broker_id)
            if broker is None or broker.fenced or broker.epoch != channel.epoch:
                self._close(broker_id)

    def on_controller_change(self, leader_id: int | None, epoch: int) -> None:
        """No effect."""

    async def close(self) -> None:
        """Fail all requests under way, and close all connections."""
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for broker_id in list(self._channels):
            self._close(broker_id)
