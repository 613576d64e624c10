"""Transaction coordinators that are killed between two records that they write.

A record is appended to `__transaction_state` in one step of the loop; its commit, the markers and the answers follow in
later ones. The node is killed right after the append, so that its successor, or its own next start, finds the record
and nothing of what should follow. A switch patches the append, as ablations do.
"""

from __future__ import annotations

from random import Random
from types import TracebackType
from typing import Any

from kalda.base.topic_names import TRANSACTIONS_TOPIC
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
