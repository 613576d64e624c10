"""The listeners of a node: bound at the start, before anything can answer; requests wait in a `Gate` until then.

A controller's listener accepts connections at once. A broker's refuses them until the broker is registered: from a
refused connection the controller infers that the predecessor with this id is dead, and need not wait for the end of its
session.
"""

from __future__ import annotations

import logging
import socket
from typing import Any

from kalda.base.configs.addresses import ListenerEndpoint
from kalda.base.errors import as_api_error
from kalda.base.scheduling import Pending
from kalda.broker.process.closing import Part
from kalda.broker.process.node_parts import NodeParts
from kalda.network.server.connection import Answer, Connection, FrameHandler
from kalda.network.server.limits import Limits, NodeLimits, by_address
from kalda.network.server.server import Peers, Server
from kalda.raft.voters import VoterEndpoint

log = logging.getLogger("kalda.node")


class Gate:
    """The frame handler of a listener whose own handler does not exist yet. Closed at first; `open` opens it for good.

    Requests wait here, and are answered in order when the gate opens. Their number is bounded by the network, which
    limits connections and the unanswered requests of each. Afterwards only the requests of connections that were made
    before it opened pass it."""

    def __init__(self) -> None:
        self._handler: FrameHandler | None = None
        """None until the gate opens."""
        self._waiting: dict[Pending[Any], tuple[Connection, memoryview]] = {}
        """Requests that came before that, in order of arrival. One whose connection ends is removed."""

    def __call__(self, connection: Connection, frame: memoryview) -> Answer:
        if self._handler is not None:
            return self._handler(connection, frame)
        pending: Pending[Any] = Pending()
        self._waiting[pending] = (connection, frame)
        pending.on_abandoned = lambda: self._waiting.pop(pending, None) and None
        return pending

    def open(self, handler: FrameHandler) -> None:
        """Answer the requests that wait; from now on `handler` is called with each request at once."""
        self._handler = handler
        while self._waiting:
            pending = next(iter(self._waiting))
            connection, frame = self._waiting.pop(pending)
            try:
                answer = handler(connection, frame)
            except Exception as error:  # of one request: the start of the node must not fail
                failure = as_api_error(error)
                if failure is not error:
                    log.exception("a request of %s failed", connection)
                pending.fail(failure)
                continue
            if isinstance(answer, Pending):
                pending.on_abandoned = answer.abandon
                answer.then(pending.settle)
            else:
                pending.complete(answer)


log = logging.getLogger("kalda.node")


class NodeListeners:
    """The bound listeners of one node."""

    def __init__(self, parts: NodeParts) -> None:
        """None is bound yet."""
        self._config = config = parts.config
        limits = NodeLimits.of(config, by_address(config.connections_per_ip_overrides()))
        self.server = server = Server(parts.host.clock, limits, parts.host.work_ns)
        parts.closing.add(Part.SERVER, lambda ending: server.stop(1_000 if ending.is_clean else 0))
        parts.sensors.add_source(server.measured)
        parts.quotas.managers.on_ip_rate = server.set_ip_rate
        self.gates: dict[str, Gate] = {}
        """By the name of the listener, as is `ports`."""
        self.ports: dict[str, int] = {}

    async def bind(self, parts: NodeParts) -> None:
        """Bind every port. Raises `OSError`; `ValueError` where TLS or SASL cannot be set up."""
        config = self._config
        for endpoint in config.listeners:
            gate = self.gates[endpoint.listener] = Gate()
            security = None if parts.security is None else parts.security.of_listener(endpoint)
            is_controller = endpoint.listener in config.controller_listener_names
            is_inter_broker = endpoint.listener == config.inter_broker_listener_name
            listener = await self.server.listen(
                endpoint.listener,
                endpoint.host or None,
                endpoint.port,
                gate,
                Limits.of(config, endpoint.listener),
                security_protocol=endpoint.security_protocol,
                security=security,
                peers=Peers.CONTROLLERS if is_controller else Peers.BROKERS if is_inter_broker else Peers.CLIENTS,
                on_admitted=None if security is None else security.on_admitted,
                accepts=is_controller,
            )
            self.ports[endpoint.listener] = listener.port
            log.info("listening on %s://%s:%d", endpoint.listener, endpoint.host or "*", listener.port)

    async def accept_clients(self) -> None:
        """Accept connections to the broker. Their requests wait in the gate."""
        for endpoint in self._config.broker_listeners:
            await self.server.listeners[endpoint.listener].accept()

    def open(self, listener: str, on_frame: FrameHandler) -> None:
        """Answer the requests that wait; those of connections that are made from now on do not pass the gate."""
        self.gates[listener].open(on_frame)
        self.server.listeners[listener].handler = on_frame

    def address(self, endpoint: ListenerEndpoint) -> tuple[str, int]:
        """The advertised host and port. Port 0 in the properties stands for the port that was bound."""
        return endpoint.host or socket.getfqdn(), endpoint.port or self.ports[endpoint.listener]

    @property
    def controller_endpoints(self) -> tuple[VoterEndpoint, ...]:
        """The advertised ones of this node's controller; none without that role."""
        return tuple(
            VoterEndpoint(endpoint.listener, *self.address(endpoint))
            for endpoint in self._config.advertised_controller_listeners
        )
