"""An operator who deletes records: what was asked for may be gone, what was promised to be gone is."""

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
    """Lets partitions begin later, a little each time."""

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
        # Records are read from the first on, so what was read is committed.
        offset = min(known.promised + self._rng.randint(1, _MAX_STEP), read)
        if offset > known.promised:
            known.asked = max(known.asked, offset)
            if await delete_records(self._client, partition, offset):
                known.promised = max(known.promised, offset)


async def delete_records(client: SimClient, partition: TopicPartition, offset: int) -> bool:
    """Whether all below `offset` is said to be deleted; otherwise it may be, also later."""
    wanted = DeleteRecordsPartition(partition_index=partition.partition, offset=offset)
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=partition.topic, partitions=[wanted])], timeout_ms=_TIMEOUT_MS
    )
    try:
        answer: Any = await client.ask_leader(partition, request, _VERSION)
        code = ErrorCode(answer.topics[0].partitions[0].error_code)
    except ApiError as error:
        code = error.code
    client.world.tell(client.name, f"wants {partition} to begin at {offset}: {code.name}")
    if code is not ErrorCode.NONE:
        client.forget_leaders()
    return code is ErrorCode.NONE
