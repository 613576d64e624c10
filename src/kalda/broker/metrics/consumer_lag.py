"""How far the groups that this broker coordinates have read, and how far behind they are.

Apache Kafka leaves this to exporters beside it. The names are those that these have made usual, so that their
dashboards and alerts work.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from kalda.base.sensors import Measurable, SensorName, gauged

if TYPE_CHECKING:
    from kalda.coordinator.groups.group_coordinator import GroupCoordinator
    from kalda.replication.replica_manager import ReplicaManager

GROUP: Final = "kafka.consumergroup"


def lag_sensors(
    coordinator: GroupCoordinator, replicas: ReplicaManager, most: int
) -> Iterator[tuple[SensorName, Measurable]]:
    """A source for `Sensors.add_source`: of each committed offset, and its distance from the end of what consumers can
    read, where there is a replica. A follower has the high watermark with its next fetch only, so the end of its
    log is taken. Nothing where more than `most` are committed: they would hold the event loop."""
    shards = list(coordinator.runtime.active_shards())
    if sum(shard.offsets.count for shard in shards) > most:
        return
    for shard in shards:
        for group_id, topic, index, offset in list(shard.offsets.committed()):
            tags = (("consumergroup", group_id), ("topic", topic), ("partition", str(index)))
            yield SensorName(GROUP, "current_offset", tags), gauged(offset)
            replica = replicas.find(topic, index)
            if replica is not None:
                end = replica.log.high_watermark if replica.is_leader else replica.log.log_end_offset
                yield SensorName(GROUP, "lag", tags), gauged(max(0, end - offset))
