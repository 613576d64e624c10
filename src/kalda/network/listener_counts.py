"""What is counted of the connections of each listener, under Kafka's names of `socket-server-metrics`.

Kafka has these for each of its network threads; here they are of the listener. Totals only: Prometheus makes rates of
them. Open connections are also counted by the client's software (KIP-511). Clients choose these names, so only the most
frequent ones are listed. A store.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Iterator
from typing import Final

from kalda.base.sensors import Measurable, SensorName, gauged
from kalda.network.connection import Connection

SOCKET_SERVER: Final = "kafka.server:type=socket-server-metrics"
_MOST_SOFTWARE: Final = 100
"""So many kinds of client software are listed."""


class ListenerCounts:
    """Of one listener, since the start."""

    __slots__ = ("closed", "created", "expired", "failed_logins", "failed_renewals", "logins", "renewals")

    def __init__(self) -> None:
        self.created = 0
        """Connections, admitted or not."""
        self.closed = 0
        self.expired = 0
        """Connections closed because their session had ended and was not renewed (KIP-368)."""
        self.logins = 0
        """Connections that have authenticated, by SASL or by TLS alone."""
        self.failed_logins = 0
        self.renewals = 0
        """Sessions that were renewed (KIP-368)."""
        self.failed_renewals = 0


def count_sensors(
    counts: Iterable[tuple[str, ListenerCounts]], connections: Iterable[Connection]
) -> Iterator[tuple[SensorName, Measurable]]:
    """The counts of each listener by name, and the open connections."""
    software = Tally(
        (each.listener_name, each.client_software_name, each.client_software_version) for each in connections
    )
    by_listener = Tally[str]()
    for (listener, _, _), count in software.items():
        by_listener[listener] += count
    for listener, each in counts:
        tags = (("listener", listener),)
        for name, value in (
            ("connection-count", by_listener[listener]),
            ("connection-creation-total", each.created),
            ("connection-close-total", each.closed),
            ("expired-connections-killed-count", each.expired),
            ("successful-authentication-total", each.logins),
            ("failed-authentication-total", each.failed_logins),
            ("successful-reauthentication-total", each.renewals),
            ("failed-reauthentication-total", each.failed_renewals),
        ):
            yield SensorName(SOCKET_SERVER, name, tags), gauged(value)
    for (listener, name, version), count in software.most_common(_MOST_SOFTWARE):
        by_software = (("clientSoftwareName", name), ("clientSoftwareVersion", version), ("listener", listener))
        yield SensorName(SOCKET_SERVER, "connections", by_software), gauged(count)
