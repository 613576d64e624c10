"""Gauges of a node, of its controller and of its quorum, under Kafka's names. Each is computed when it is read."""

from __future__ import annotations

from collections.abc import Callable

from kalda.base.sensors import Sensors
from kalda.broker.quorum_side import QuorumSide
from kalda.metadata.image import MetadataImage

CONTROLLER = "kafka.controller:type=KafkaController"
LOADER = "kafka.server:type=MetadataLoader"
RAFT = "kafka.server:type=raft-metrics"


def add_quorum_gauges(sensors: Sensors, quorum: QuorumSide) -> None:
    """Of the node's replica of the metadata log, and of what is loaded from it."""
    loader, raft = quorum.loader, quorum.raft

    def level() -> float:
        version = loader.image.features.metadata_version
        return 0 if version is None else int(version)

    _add(
        sensors,
        LOADER,
        {
            "CurrentMetadataVersion": level,
            "CurrentControllerId": lambda: -1 if raft.machine.leader_id is None else raft.machine.leader_id,
        },
    )
    _add(
        sensors,
        RAFT,
        {
            "current-leader": lambda: -1 if raft.machine.leader_id is None else raft.machine.leader_id,
            "current-epoch": lambda: raft.machine.epoch,
        },
    )
    _add(
        sensors,
        "kafka.server:type=broker-metadata-metrics",
        {"last-applied-record-offset": lambda: loader.image.offset},
    )


def add_controller_gauges(sensors: Sensors, is_active: Callable[[], bool], image: Callable[[], MetadataImage]) -> None:
    """Of the cluster, as a controller counts it. Counts of partitions visit all of them."""

    def brokers(fenced: bool) -> float:
        return sum(broker.fenced is fenced for broker in image().cluster.brokers.values())

    def partitions(wanted: Callable[[int, tuple[int, ...]], bool]) -> float:
        return sum(
            wanted(partition.leader, partition.replicas)
            for topic in image().topics.by_id.values()
            for partition in topic.partitions.values()
        )

    _add(
        sensors,
        CONTROLLER,
        {
            "ActiveControllerCount": lambda: int(is_active()),
            "ActiveBrokerCount": lambda: brokers(False),
            "FencedBrokerCount": lambda: brokers(True),
            "GlobalTopicCount": lambda: len(image().topics.by_id),
            "GlobalPartitionCount": lambda: sum(len(topic.partitions) for topic in image().topics.by_id.values()),
            "OfflinePartitionsCount": lambda: partitions(lambda leader, _: leader < 0),
            "PreferredReplicaImbalanceCount": lambda: partitions(lambda leader, replicas: leader != replicas[0]),
        },
    )


def _add(sensors: Sensors, group: str, gauges: dict[str, Callable[[], float]]) -> None:
    for name, read in gauges.items():
        sensors.gauge(group, name, read=read)
