"""Reads of the cluster's metadata.

Serves Metadata, DescribeCluster, DescribeTopicPartitions, FindCoordinator; DescribeClientQuotas,
DescribeUserScramCredentials. Creates topics that clients ask for and that do not exist.
"""

from __future__ import annotations

from kalda.base.configs.server import ServerConfig
from kalda.broker.handlers.acls import AclHandlers
from kalda.broker.handlers.describe import DescribeHandlers
from kalda.broker.handlers.metadata import MetadataHandlers
from kalda.broker.modules.auto_topics import AutoTopics, TopicPlan
from kalda.broker.modules.coordinator_table import Coordinators
from kalda.broker.modules.module import BrokerContext, Module
from kalda.broker.requests.rows import Row
from kalda.replication.replica_manager import ReplicaManager


class MetadataModule(Module):
    """Rests on the replicas, and on the table of coordinators: which there are, and how their topics are created."""

    def __init__(self, context: BrokerContext, replicas: ReplicaManager, coordinators: Coordinators) -> None:
        config = context.config
        auto_topics = AutoTopics(
            context.channel,
            config["auto.create.topics.enable"],
            coordinators.plan,
            config["request.timeout.ms"],
            timers=context.timers,
            ordinary=plan_of_others(config),
        )
        self._metadata = MetadataHandlers(
            context.cache,
            context.cluster_id,
            auto_topics,
            coordinators.topic_of,
            config["max.request.partition.size.limit"],
        )
        self._describe = DescribeHandlers(context.cache)
        self._acls = AclHandlers(lambda: context.cache.image.acls.acls.values())

    def rows(self) -> list[Row]:
        """Reads of the newest image; none changes it."""
        return [*self._metadata.rows(), *self._describe.rows(), self._acls.row()]


def plan_of_others(config: ServerConfig) -> TopicPlan:
    """How topics are made that are not internal: what this broker's file sets, else what the controller has."""

    def own(name: str) -> int:
        return int(config[name]) if config.is_set(name) else -1

    return TopicPlan(own("num.partitions"), own("default.replication.factor"), {})
