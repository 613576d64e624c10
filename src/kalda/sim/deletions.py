"""An operator that deletes records: those below a requested offset may be deleted, those below an acknowledged one
are."""

from __future__ import annotations

from kalda.base.ids import TopicPartition
from kalda.sim.admin import Operator
from kalda.sim.client import SimClient
from kalda.sim.history import History

_MAX_STEP = 20


class Deleter(Operator):
    """Raises the log start offsets of partitions in small steps."""

    def __init__(
        self, client: SimClient, history: History, partitions: list[TopicPartition], pause_s: float = 4.0
    ) -> None:
        self._history = history
        self._partitions = partitions
        super().__init__(client, pause_s)

    async def _act(self) -> None:
        partition = self._rng.choice(self._partitions)
        known = self._history.deletions(partition)
        read = len(self._history.seen.get(partition, ()))
        # Records are read from the first one on, and only committed ones: so `read` is at most the high watermark.
        offset = min(known.acknowledged + self._rng.randint(1, _MAX_STEP), read)
        if offset > known.acknowledged:
            known.requested = max(known.requested, offset)
            if await self.delete_records(partition, offset):
                known.acknowledged = max(known.acknowledged, offset)
