"""The listener of `kalda.metrics.listener`: what a node measures, and why its clients wait.

- `/metrics`: all sensors, as OpenMetrics text for Prometheus
- `/metrics.json`: the same under Kafka's own names
- `/client-metrics`: the newest values that clients have pushed (KIP-714), as OpenMetrics text
- `/quotas`: who uses how much of which quota
- `/explain/access?principal=P&operation=O&type=T&resource=R&host=H`: what allows or denies a request, and why
- `/explain/locks?group=G`: records of a share group that are in flight where this node leads
- `/explain/rebalance?group=G`: who waits for whom in a group, and what caused its last rebalances
- `/explain/throttle?user=U&client=ID`: whose quota applies to a client, and why, and what it has used
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

from kalda.base.scheduling import Clock
from kalda.base.sensors import Sensors
from kalda.network.server.http import HttpServer, Page
from kalda.quota.explanation import explain, usage
from kalda.quota.managers import QuotaManagers
from kalda.telemetry.exposition import CONTENT_TYPE, as_json, jmx_text, openmetrics

if TYPE_CHECKING:
    from kalda.telemetry.client_series import ClientSeries

log = logging.getLogger("kalda.node")

LISTENER = "kalda.metrics.listener"
_JSON = "application/json; charset=utf-8"
_PIECE_CHARACTERS = 50_000


class MetricsListener:
    """Serves the sensors and quotas of one node."""

    def __init__(
        self,
        node_id: int,
        sensors: Sensors,
        managers: QuotaManagers,
        clock: Clock,
        client_series: Callable[[], ClientSeries | None],
        names: str,
        explain_rebalance: Callable[[str, int], dict[str, Any]] | None,
        explain_locks: Callable[[str], dict[str, Any]] | None,
        authorizer: object | None = None,
    ) -> None:
        """`client_series()` is what clients have pushed, None where none has. `names`: `kalda.metrics.names`.
        `explain_rebalance(group, now_ms)` answers for the group coordinator of this node, `explain_locks(group)` for
        the share partitions that it leads; None where it is no broker.
        `authorizer`: None where everyone may do everything."""
        self._explain_rebalance = explain_rebalance
        self._explain_locks = explain_locks
        self._authorizer = authorizer
        self._node_id = node_id
        self._sensors = sensors
        self._managers = managers
        self._clock = clock
        self._client_series = client_series
        self._text = jmx_text if names == "jmx" else openmetrics
        self._server = HttpServer(self._page)

    @property
    def port(self) -> int:
        """The port that is bound."""
        return self._server.port

    async def open(self, listener: str) -> None:
        """Listen on `host:port`. Raises `OSError`, and `ValueError` for another text."""
        host, port = parse_listener(listener)
        await self._server.open(host, port)
        log.info("metrics are on http://%s:%d/metrics", host or "*", self.port)

    async def close(self) -> None:
        """Serve nothing more."""
        await self._server.close()

    def _explain_access(self, query: dict[str, str]) -> dict[str, Any]:
        """The decision, or what is wrong with the question."""
        from kalda.base.errors import ApiError
        from kalda.protocol.messages.security import AclOperation, AclResourceType
        from kalda.security.standard_authorizer import StandardAuthorizer
        from kalda.security.standard_authorizer import explain as explain_access

        if not isinstance(self._authorizer, StandardAuthorizer):
            what = "no authorizer" if self._authorizer is None else "an authorizer of its own, which explains nothing"
            return {"error": f"this node has {what}"}
        operation, resource = query.get("operation", "").upper(), query.get("type", "").upper()
        if operation not in AclOperation.__members__ or resource not in AclResourceType.__members__:
            return {"error": "operation and type are names of Kafka, as READ and TOPIC"}
        principal, host, name = query.get("principal", ""), query.get("host", ""), query.get("resource", "")
        try:
            return explain_access(
                self._authorizer, principal, host, AclOperation[operation], AclResourceType[resource], name
            )
        except ApiError as error:
            return {"error": error.message}

    def _page(self, path: str, query: dict[str, str]) -> Page | None:
        now_ms = self._clock.mono_ms()
        if path == "/metrics":
            return Page(CONTENT_TYPE, self._text(self._sensors.everything(), now_ms))
        if path == "/metrics.json":
            return Page(_JSON, _pieces(as_json(self._sensors.everything(), now_ms)))
        if path == "/client-metrics":
            series = self._client_series()
            return Page(CONTENT_TYPE, ["# EOF\n"] if series is None else series.openmetrics())
        if path == "/quotas":
            head = f'{{"node": {self._node_id}, "usage": '
            return Page(_JSON, chain([head], _pieces(usage(self._managers, now_ms)), ["}"]))
        if path == "/explain/access":
            return Page(_JSON, [json.dumps({"node": self._node_id, **self._explain_access(query)})])
        if path == "/explain/locks" and self._explain_locks is not None:
            locks = self._explain_locks(query.get("group", ""))
            return Page(_JSON, [json.dumps({"node": self._node_id, **locks})])
        if path == "/explain/rebalance" and self._explain_rebalance is not None:
            explained = self._explain_rebalance(query.get("group", ""), now_ms)
            return Page(_JSON, [json.dumps({"node": self._node_id, **explained})])
        if path == "/explain/throttle":
            found = explain(self._managers, query.get("user", "ANONYMOUS"), query.get("client", ""), now_ms)
            return Page(_JSON, [json.dumps({"node": self._node_id, "now_ms": now_ms, **found})])
        return None


def _pieces(rows: Iterable[dict[str, Any] | None]) -> Iterator[str]:
    """An array, some rows at a time. None is no row: nothing was made for a while."""
    piece, separator = "[", ""
    for row in rows:
        if row is not None:
            piece += separator + json.dumps(row)
            separator = ","
        if row is None or len(piece) >= _PIECE_CHARACTERS:
            yield piece
            piece = ""
    yield piece + "]"


def parse_listener(text: str) -> tuple[str, int]:
    """`host:port`, with or without `http://`. Raises `ValueError`."""
    host, colon, port = text.strip().removeprefix("http://").rstrip("/").rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535:
        raise ValueError(f"{LISTENER}={text}: HOST:PORT is expected, as in 127.0.0.1:9404")
    return host.strip("[]"), int(port)
