"""Requests for transaction markers that arrive a second time, long after the first.

A coordinator sends markers again until they are answered, so a copy of a request may be delayed on a broken connection,
and arrive when the producer's next transaction is open in the partition. It must not end that one. A switch patches the
handler, as ablations do.
"""

from __future__ import annotations

from random import Random
from types import TracebackType
from typing import Any

from kalda.broker.node import Node
from kalda.protocol.messages.transactions import WriteTxnMarkersRequest
from kalda.replication.markers import MarkerWriter
from kalda.sim.cluster import SimCluster, SimNode

_DOUBLED = 0.4
_AFTER_S = (0.0, 1.5)


class LateMarkers:
    """Repeats some WriteTxnMarkers requests at the broker that has received them, in this context."""

    def __init__(self, cluster: SimCluster, rng: Random) -> None:
        self._cluster = cluster
        self._rng = rng
        self._write: Any = None
        self._has_ended = False

    def __enter__(self) -> LateMarkers:
        write = self._write = MarkerWriter.write
        late = self

        def twice(self: MarkerWriter, request: WriteTxnMarkersRequest) -> Any:
            late.on_request(self, request)
            return write(self, request)

        setattr(MarkerWriter, "write", twice)  # noqa: B010 (mypy refuses the assignment to a method)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        setattr(MarkerWriter, "write", self._write)  # noqa: B010
        self._has_ended = True

    def on_request(self, writer: MarkerWriter, request: WriteTxnMarkersRequest) -> None:
        """Called for each request; has some of them repeated."""
        if self._rng.random() >= _DOUBLED:
            return
        for each in self._cluster:
            if each.node is not None and each.node.replicas is writer.replicas:
                self._cluster.world.loop.call_later(
                    self._rng.uniform(*_AFTER_S), self._repeat, each, each.node, writer, request
                )

    def _repeat(self, sim: SimNode, node: Node, writer: MarkerWriter, request: WriteTxnMarkersRequest) -> None:
        if sim.node is node and not self._has_ended:
            self._cluster.world.trace(sim.name, "markers arrive a second time")
            sim.run(lambda: self._write(writer, request))
