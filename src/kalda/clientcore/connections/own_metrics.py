"""When a client pushes its own metrics: what its core holds of that.

The machine that does it (`telemetry_push`) is imported and made when the first request is due, a second after the
client was made: it would cost the first record its time, and a client that ends before then needs none of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from kalda.base.ids import ZERO_UUID, Uuid

if TYPE_CHECKING:
    from kalda.clientcore.connections.client_metrics import ClientMetrics
    from kalda.clientcore.connections.connections import Connections
    from kalda.clientcore.connections.telemetry_push import Measured, TelemetryPusher

FIRST_MS: Final = 1_000
"""From the making of the client to its first request of telemetry."""


def measured_by(metrics: ClientMetrics) -> Callable[[int], Iterable[Measured]]:
    """What a client pushes: all that it measures."""

    def measure(now_ms: int) -> Iterable[Measured]:
        from kalda.clientcore.connections.telemetry_push import by_names_of_telemetry

        return by_names_of_telemetry(metrics.measured(now_ms))

    return measure


class OwnMetrics:
    """Of one client."""

    __slots__ = (
        "_awaiting",
        "_connections",
        "_first_ms",
        "_labels",
        "_measure",
        "_now_ms",
        "_pusher",
        "_random",
        "_wall_ms",
    )

    def __init__(
        self,
        connections: Connections,
        measure: Callable[[int], Iterable[Measured]],
        labels: tuple[tuple[str, str], ...],
        *,
        wall_ms: Callable[[], int],
        now_ms: Callable[[], int],
        random: Callable[[], float],
    ) -> None:
        """The arguments are those of `TelemetryPusher`."""
        self._connections = connections
        self._measure = measure
        self._labels = labels
        self._wall_ms = wall_ms
        self._now_ms = now_ms
        self._random = random
        self._pusher: TelemetryPusher | None = None
        """None until its first request is due, or a metric of the application is registered."""
        self._first_ms = now_ms() + FIRST_MS
        self._awaiting: list[Callable[[], None]] = []
        """Called once the client has its id."""

    @property
    def due_ms(self) -> int:
        """When `run` has something to do."""
        return self._first_ms if self._pusher is None else self._pusher.due_ms

    @property
    def instance_id(self) -> Uuid | None:
        """The id that the cluster has given to this client; None before."""
        found = None if self._pusher is None else self._pusher.instance_id
        return None if found == ZERO_UUID else found

    def call_with_id(self, function: Callable[[], None]) -> None:
        """Call `function` when the client has its id, for which a request is due now. From any thread."""
        self._awaiting.append(function)
        if self.instance_id is not None:
            function()
            return
        self._first_ms = 0
        if self._pusher is not None:
            self._pusher.request_soon()

    def run(self, now_ms: int) -> None:
        """Send what is due."""
        self._made().run(self._connections, now_ms)

    def has_ended(self, now_ms: int) -> bool:
        """Whether the last metrics are sent, so that the connections may be closed. The first call begins that."""
        return self._pusher is None or self._pusher.has_ended(now_ms)

    def register(self, name: str, read: Callable[[], float], *, is_total: bool = False) -> None:
        """Push what `read()` returns too, under this name (KIP-1076)."""
        self._made().register(name, read, is_total=is_total)

    def unregister(self, name: str) -> None:
        """Push it no longer."""
        self._made().unregister(name)

    def _made(self) -> TelemetryPusher:
        if self._pusher is None:
            from kalda.clientcore.connections.telemetry_push import TelemetryPusher

            self._pusher = TelemetryPusher(
                self._measure,
                self._wall_ms,
                self._random,
                self._now_ms,
                self._first_ms,
                self._labels,
                self._awaiting,
            )
        return self._pusher
