"""Which APIs a broker's listener serves, and with what. What is not here is not announced."""

from __future__ import annotations

from kalda.broker.dispatch import Handler
from kalda.broker.forwarding import Forwarding
from kalda.broker.handlers.configs import ConfigHandlers
from kalda.broker.handlers.data import DataHandlers
from kalda.broker.handlers.describe import DescribeHandlers
from kalda.broker.handlers.groups import GroupHandlers
from kalda.broker.handlers.log_dirs import LogDirHandlers
from kalda.broker.handlers.metadata import MetadataHandlers
from kalda.broker.handlers.offsets import OffsetHandlers
from kalda.broker.handlers.producers import ProducerHandlers
from kalda.protocol.apis import ApiKey

FORWARDED = (
    ApiKey.CREATE_TOPICS,
    ApiKey.DELETE_TOPICS,
    ApiKey.CREATE_PARTITIONS,
    ApiKey.ALTER_CLIENT_QUOTAS,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    ApiKey.UPDATE_FEATURES,
    ApiKey.ELECT_LEADERS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
    ApiKey.UNREGISTER_BROKER,
    ApiKey.DESCRIBE_QUORUM,
    ApiKey.ADD_RAFT_VOTER,
    ApiKey.REMOVE_RAFT_VOTER,
)
"""What the active controller answers."""


def handler_table(
    data: DataHandlers,
    offsets: OffsetHandlers,
    metadata: MetadataHandlers,
    groups: GroupHandlers,
    configs: ConfigHandlers,
    describe: DescribeHandlers,
    log_dirs: LogDirHandlers,
    producers: ProducerHandlers,
    forwarding: Forwarding,
) -> dict[ApiKey, Handler]:
    """Every API of the broker's listener but ApiVersions, which the dispatcher answers from this table."""
    table: dict[ApiKey, Handler] = {
        ApiKey.PRODUCE: data.produce,
        ApiKey.FETCH: data.fetch,
        ApiKey.LIST_OFFSETS: offsets.list_offsets,
        ApiKey.OFFSET_FOR_LEADER_EPOCH: offsets.offset_for_leader_epoch,
        ApiKey.DELETE_RECORDS: offsets.delete_records,
        ApiKey.METADATA: metadata.metadata,
        ApiKey.DESCRIBE_CLUSTER: metadata.describe_cluster,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: metadata.describe_topic_partitions,
        ApiKey.FIND_COORDINATOR: metadata.find_coordinator,
        ApiKey.DESCRIBE_CONFIGS: configs.describe_configs,
        ApiKey.LIST_CONFIG_RESOURCES: configs.list_config_resources,
        ApiKey.ALTER_CONFIGS: configs.alter_configs(forwarding),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: configs.incremental_alter_configs(forwarding),
        ApiKey.DESCRIBE_LOG_DIRS: log_dirs.describe_log_dirs,
        ApiKey.ALTER_REPLICA_LOG_DIRS: log_dirs.alter_replica_log_dirs,
        ApiKey.DESCRIBE_PRODUCERS: describe.describe_producers,
        ApiKey.DESCRIBE_CLIENT_QUOTAS: describe.describe_client_quotas,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: describe.describe_user_scram_credentials,
        ApiKey.INIT_PRODUCER_ID: producers.init_producer_id,
        **groups.table(),
    }
    table.update(dict.fromkeys(FORWARDED, forwarding.forward))
    return table
