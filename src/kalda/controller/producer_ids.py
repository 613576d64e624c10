"""Blocks of producer ids, allocated to brokers.

The log has the first id of the next block only. The block of a broker that crashed is never used again: ids have 63
bits, so gaps do not matter.
"""

from __future__ import annotations

from kalda.base.errors import ApiError, ErrorCode
from kalda.controller.cluster import ClusterControl
from kalda.protocol.messages.brokers import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from kalda.protocol.messages.metadata_records import ProducerIdsRecord
from kalda.protocol.record_framing import VersionedRecord
from kalda.statemachine.runtime import Result
from kalda.statemachine.timeline import SnapshotRegistry, TimelineValue

BLOCK_SIZE = 1_000
_MAX_INT64 = 2**63 - 1


class ProducerIdControl:
    """Allocates blocks, one after another."""

    def __init__(self, registry: SnapshotRegistry, cluster: ClusterControl) -> None:
        self._cluster = cluster
        self._next: TimelineValue[int] = TimelineValue(registry, 0)

    @property
    def next_producer_id(self) -> int:
        return self._next.value

    def allocate(self, request: AllocateProducerIdsRequest) -> Result[VersionedRecord, AllocateProducerIdsResponse]:
        """A block for a broker. Raises `ApiError` STALE_BROKER_EPOCH, or UNKNOWN_SERVER_ERROR when no ids are left."""
        self._cluster.check_broker_epoch(request.broker_id, request.broker_epoch)
        first = self._next.value
        if first > _MAX_INT64 - BLOCK_SIZE:
            raise ApiError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                "Exhausted all producerIds as the next block's end producerId has exceeded the int64 type limit",
            )
        record = ProducerIdsRecord(
            broker_id=request.broker_id, broker_epoch=request.broker_epoch, next_producer_id=first + BLOCK_SIZE
        )
        response = AllocateProducerIdsResponse(producer_id_start=first, producer_id_len=BLOCK_SIZE)
        return Result([VersionedRecord(record, 0)], response)

    def replay(self, record: ProducerIdsRecord) -> None:
        assert record.next_producer_id > self._next.value, (
            f"the next producer id {record.next_producer_id} is not after {self._next.value}"
        )
        self._next.value = record.next_producer_id
