"""The replication throttles of a broker (KIP-73): rates from its configs, replicas from the configs of topics."""

from __future__ import annotations

from collections.abc import Iterable

from kalda.base.configs.resources import ConfigResourceType
from kalda.base.configs.server import ServerConfig
from kalda.base.sensors import Measurable, SensorName, Sensors
from kalda.metadata.delta import MetadataDelta
from kalda.metadata.image import MetadataImage
from kalda.metadata.publisher import Manifest
from kalda.quota.managers import Windows
from kalda.quota.replication_quotas import ReplicationQuota, throttled_partitions

LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"
LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"


class ReplicationThrottles:
    """Both throttles. A publisher: the configs of topics take effect with the image that has them."""

    name = "ReplicationThrottles"

    def __init__(self, broker_id: int, config: ServerConfig, sensors: Sensors) -> None:
        self._broker_id = broker_id
        windows = Windows(lambda key: int(config[key]))
        self.leader = ReplicationQuota(windows.replication)
        self.follower = ReplicationQuota(windows.replication)
        sensors.add_source(self._measured)

    def set_rates(self, current: ServerConfig) -> None:
        """Take over the rates of the broker's configs."""
        self.leader.set_bound(float(current[LEADER_RATE]))
        self.follower.set_bound(float(current[FOLLOWER_RATE]))

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage, manifest: Manifest) -> None:
        """Throttle the replicas that the configs of topics name now."""
        if delta.configs is None:
            return
        for resource, changes in delta.configs.changes.items():
            if resource.type != ConfigResourceType.TOPIC:
                continue
            for name, quota in ((LEADER_REPLICAS, self.leader), (FOLLOWER_REPLICAS, self.follower)):
                if name in changes:
                    quota.set_throttled(resource.name, throttled_partitions(changes[name] or "", self._broker_id))

    def on_controller_change(self, leader_id: int | None, epoch: int) -> None:
        """No throttle depends on the controller."""

    def _measured(self) -> Iterable[tuple[SensorName, Measurable]]:
        return (
            (SensorName("kafka.server:type=LeaderReplication", "byte-rate"), self.leader.rate),
            (SensorName("kafka.server:type=FollowerReplication", "byte-rate"), self.follower.rate),
        )
