"""An operator that deletes records: those below a requested offset may be deleted, those below an acknowledged one
are."""

from __future__ import annotations

from typing import Any

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.protocol.messages.fetch import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from kalda.sim.admin import Operator
from kalda.sim.client import SimClient
from kalda.sim.history import History

_VERSION = 2
_TIMEOUT_MS = 2_000
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
            if await delete_records(self._client, partition, offset):
                known.acknowledged = max(known.acknowledged, offset)


async def delete_records(client: SimClient, partition: TopicPartition, offset: int) -> bool:
    """Delete the records below `offset`. True where this was acknowledged; else they may be deleted, even later."""
    entry = DeleteRecordsPartition(partition_index=partition.partition, offset=offset)
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=partition.topic, partitions=[entry])], timeout_ms=_TIMEOUT_MS
    )
    try:
        answer: Any = await client.ask_leader(partition, request, _VERSION)
        code = ErrorCode(answer.topics[0].partitions[0].error_code)
    except ApiError as error:
        code = error.code
    client.world.trace(client.name, f"requests deletion of {partition} below {offset}: {code.name}")
    if code is not ErrorCode.NONE:
        client.forget_leaders()
    return code is ErrorCode.NONE
