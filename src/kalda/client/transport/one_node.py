"""A connection to one certain node, driven by the calling thread: no metadata, no other node, no thread.

    with OneNode("localhost", 9092) as node:
        answer = node.request(DescribeClusterRequest())

For what asks each node by itself, as a start that waits until every node of a cluster serves. It has the clients'
`Connections` with a single peer. A connection that was lost is not made again: a `OneNode` is.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from kalda import __version__
from kalda.base.errors import ApiError
from kalda.client.transport.channels import monotonic_ms
from kalda.client.transport.driven import Driven
from kalda.client.transport.io_thread import IoThread
from kalda.clientcore.connections.backoff import Backoff
from kalda.clientcore.connections.cluster_values import Broker
from kalda.clientcore.connections.connections import Action, ConnectionConfig, Connections
from kalda.clientcore.consuming.consumer_errors import Operation
from kalda.protocol.apis import ApiKey
from kalda.protocol.calls import PeerVersions, disconnected
from kalda.protocol.notation import Request

if TYPE_CHECKING:
    from kalda.network.client.security import ClientSecurity

_NODE = 0
_NEVER_MS = 2**31 - 1


class OneNode:
    """A context manager that closes the connection. Any failure but `UNSUPPORTED_VERSION` closes it too."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        client_id: str = "kalda",
        timeout_ms: int = 30_000,
        connect_timeout_ms: int = 10_000,
        security: ClientSecurity | None = None,
    ) -> None:
        """Connect, request the node's API versions, and with `security` log in. `timeout_ms` bounds the wait for a
        response. Raises `ApiError`."""
        config = ConnectionConfig(
            client_id,
            __version__,
            Backoff(1, 1, random.random),
            timeout_ms,
            max_in_flight=_NEVER_MS,
            setup_timeout_ms=connect_timeout_ms,
            setup_timeout_max_ms=connect_timeout_ms,
            max_idle_ms=_NEVER_MS,
            required_api=ApiKey.API_VERSIONS,
        )
        self._connections = Connections(config)
        self._driven = _Driven(self._connections)
        self._connections.set_nodes({_NODE: Broker(_NODE, host, port, None)}, monotonic_ms())
        self._io = _Turns("kalda-one-node", self._driven, security, -1, -1)
        self._connections.is_ready(_NODE, monotonic_ms())  # begins to connect
        try:
            self._io.run_until(self._is_connected_or_failed, monotonic_ms() + connect_timeout_ms)
            if not self._connections.is_connected(_NODE):
                late = f"{host}:{port} has not listed its API versions within {connect_timeout_ms} ms"
                raise self._driven.refused or disconnected(self._connections.last_failure or late)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> OneNode:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def versions(self) -> PeerVersions:
        """The API versions that the node supports. Raises `ApiError` where the connection is closed."""
        versions = self._connections.versions_of(_NODE)
        if versions is None:
            raise disconnected("the connection is closed")
        return versions

    def request(self, message: Request, version: int | None = None, *, timeout_ms: int | None = None) -> Any:
        """The response to `message`, in `version` or the highest version in common. Raises `ApiError`."""
        return self.receive(self.send(message, version, timeout_ms=timeout_ms))

    def send(self, message: Request, version: int | None = None, *, timeout_ms: int | None = None) -> Operation:
        """Send without waiting: `receive` returns the response. Raises `ApiError`."""
        if not self._connections.is_connected(_NODE):
            raise self._driven.refused or disconnected(f"the connection is closed: {self._connections.last_failure}")
        operation = Operation("the request", _NEVER_MS)

        def on_done(answer: Any, error: ApiError | None) -> None:
            operation.succeed(answer) if error is None else operation.fail(error)

        self._connections.send(_NODE, message, monotonic_ms(), on_done, version=version, timeout_ms=timeout_ms)
        self._io.carry_out()
        if operation.error is not None:
            raise operation.error
        return operation

    def receive(self, sent: Operation) -> Any:
        """The response to what `send` has returned. Raises `ApiError`."""
        self._io.run_until(lambda: sent.is_done)
        if sent.error is not None:
            raise sent.error
        return sent.result

    def close(self) -> None:
        """Close; may be called more than once."""
        if not self._driven.is_ending:
            self._driven.is_ending = True
            self._io.end_unstarted()

    def _is_connected_or_failed(self) -> bool:
        is_idle = self._connections.ready_at_ms(_NODE, monotonic_ms()) is not None
        return is_idle or self._connections.is_connected(_NODE)


class _Condition:
    """What a turn waits for."""

    def __init__(self, check: Callable[[], bool]) -> None:
        self._check = check

    @property
    def is_done(self) -> bool:
        return self._check()


class _Turns(IoThread):
    """The turns of a thread that is never started: the caller's runs them."""

    def run_until(self, is_done: Callable[[], bool], limit_ms: int | None = None) -> None:
        """Run turns until that is so, or it is `limit_ms`. A turn that makes it so waits for nothing more."""
        awaited = _Condition(is_done)
        while not awaited.is_done and (limit_ms is None or monotonic_ms() < limit_ms):
            self._turn(awaited, limit_ms)

    def carry_out(self) -> None:
        """Write what was sent."""
        self._carry_out()


class _Core:
    """The connections, and no machine that uses them."""

    def __init__(self, connections: Connections) -> None:
        self.connections = connections

    def at(self, now_ms: int) -> Connections:
        del now_ms
        return self.connections

    def take_actions(self) -> list[Action]:
        return self.connections.take_actions()


class _Driven(Driven):
    """What the turns run: only the connections."""

    def __init__(self, connections: Connections) -> None:
        super().__init__(_Core(connections))
        connections.on_refused = self._on_refused
        self.refused: ApiError | None = None

    def _on_refused(self, error: ApiError) -> None:
        self.refused = error

    def run(self, now_ms: int) -> None:
        self.core.connections.run(now_ms)

    def deadline_ms(self, now_ms: int) -> int | None:
        return self.core.connections.deadline_ms(now_ms)

    def on_end(self, error: ApiError | None) -> None:
        self.failure = error
        self.is_ended = True
        self.core.connections.close(monotonic_ms())
