"""Transaction coordinators that are killed between two records, and requests for markers that arrive a second time.

A record is appended to `__transaction_state` in one step of the loop; its commit, the markers and the answers follow in
later ones. The node is killed right after the append, so that its successor, or its own next start, finds the record
and nothing of what should follow.

A coordinator sends markers again until they are answered, so a copy of a request may be delayed on a broken connection,
and arrive when the producer's next transaction is open in the partition. It must not end that one.

A switch patches the append, or the handler, as ablations do.
"""

from __future__ import annotations

from random import Random
from types import TracebackType
from typing import Any

from kalda.base.topic_names import TRANSACTIONS_TOPIC
from kalda.broker.node import Node
from kalda.protocol.messages.transactions import WriteTxnMarkersRequest
from kalda.replication.markers import MarkerWriter
from kalda.replication.partition import Partition
from kalda.sim.cluster import SimCluster, SimNode

_DOWN_S = (0.1, 5.0)


class CoordinatorKills:
    """Kills the leader of a partition of `__transaction_state` after some of its appends, in this context."""

    def __init__(self, cluster: SimCluster, rng: Random, records_apart: int) -> None:
        """Between two kills there are 1 to `records_apart` appends."""
        self._cluster = cluster
        self._rng = rng
        self._records_apart = records_apart
        self._left = rng.randint(1, records_apart)
        self._append: Any = None
        self._has_ended = False
        self.kills = 0

    def __enter__(self) -> CoordinatorKills:
        append = self._append = Partition.append
        kills = self

        def counted(self: Partition, *arguments: Any, **options: Any) -> Any:
            info = append(self, *arguments, **options)
            if self.topic_partition.topic == TRANSACTIONS_TOPIC:
                kills.on_append(self)
            return info

        setattr(Partition, "append", counted)  # noqa: B010 (mypy refuses the assignment to a method)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        setattr(Partition, "append", self._append)  # noqa: B010
        self.end()

    def end(self) -> None:
        """Kill no more."""
        self._has_ended = True

    def on_append(self, partition: Partition) -> None:
        """Called after each append; kills only where all nodes serve, so that the cluster goes on."""
        self._left -= 1
        if self._left > 0 or self._has_ended or not all(node.serving for node in self._cluster):
            return
        self._left = self._rng.randint(1, self._records_apart)
        world = self._cluster.world
        node = next(
            each
            for each in self._cluster
            if each.node is not None and each.node.replicas is not None and partition in each.node.replicas
        )
        down_s = self._rng.uniform(*_DOWN_S)
        self.kills += 1
        world.loop.call_soon(self._kill, node)
        world.loop.call_later(down_s, self._start, node)

    def _kill(self, node: SimNode) -> None:
        node.kill()

    def _start(self, node: SimNode) -> None:
        if not node.machine.up:
            node.start()


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
