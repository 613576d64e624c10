"""Reads of the cluster's metadata.

Serves Metadata, DescribeCluster, DescribeTopicPartitions, FindCoordinator; DescribeProducers, DescribeClientQuotas,
DescribeUserScramCredentials. Creates topics that clients ask for and that do not exist.
"""

from __future__ import annotations

from kalda.broker.auto_topics import AutoTopics
from kalda.broker.coordinators import Coordinators
from kalda.broker.handlers.describe import DescribeHandlers
from kalda.broker.handlers.metadata import MetadataHandlers
from kalda.broker.modules.module import BrokerContext, Handlers, Module
from kalda.protocol.apis import ApiKey
from kalda.replication.replica_manager import ReplicaManager


class MetadataModule(Module):
    """Rests on the replicas, and on the table of coordinators: which there are, and how their topics are created."""

    def __init__(self, context: BrokerContext, replicas: ReplicaManager, coordinators: Coordinators) -> None:
        config = context.config
        auto_topics = AutoTopics(
            context.channel, config["auto.create.topics.enable"], coordinators.plan, config["request.timeout.ms"]
        )
        self._metadata = MetadataHandlers(
            context.cache,
            context.cluster_id,
            auto_topics,
            coordinators.topic_of,
            config["max.request.partition.size.limit"],
        )
        self._describe = DescribeHandlers(replicas, context.cache)

    def handlers(self) -> Handlers:
        """Reads of the newest image; none changes it."""
        return {
            ApiKey.METADATA: self._metadata.metadata,
            ApiKey.DESCRIBE_CLUSTER: self._metadata.describe_cluster,
            ApiKey.DESCRIBE_TOPIC_PARTITIONS: self._metadata.describe_topic_partitions,
            ApiKey.FIND_COORDINATOR: self._metadata.find_coordinator,
            ApiKey.DESCRIBE_PRODUCERS: self._describe.describe_producers,
            ApiKey.DESCRIBE_CLIENT_QUOTAS: self._describe.describe_client_quotas,
            ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: self._describe.describe_user_scram_credentials,
        }
