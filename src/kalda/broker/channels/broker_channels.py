"""Requests from this broker to other brokers: one connection to each, made by the first request.

A request to a broker that is connected already is written on the spot, without a task. A request is never sent twice:
its sender decides whether it tries again. The connection to a broker is closed when the metadata shows that the broker
was fenced, has left, or has registered again: it may be stopped or unreachable, and its answers would be waited for in
vain until each request times out. Requests under way fail with NETWORK_EXCEPTION then.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, NamedTuple

from kalda.base.configs.server import ServerConfig
from kalda.base.errors import ApiError, ErrorCode, as_api_error
from kalda.base.scheduling import Pending
from kalda.broker.metadata_cache import MetadataCache
from kalda.metadata.image import MetadataDelta, MetadataImage
from kalda.metadata.publisher import Manifest
from kalda.network.client.channel import Address, Channel
from kalda.network.client.client import Reach, RpcPolicy
from kalda.protocol.notation import Request


class _Registration(NamedTuple):
    """Under which a broker is connected."""

    epoch: int
    address: Address


class BrokerChannels(Channel):
    """The connections to other brokers for one purpose. A publisher: see the module's docstring."""

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
