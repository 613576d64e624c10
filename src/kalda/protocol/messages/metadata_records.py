"""Records of `__cluster_metadata`, by record type id."""

from __future__ import annotations

from kalda.base.ids import ZERO_UUID, Uuid
from kalda.protocol.notation import (
    Bool,
    Bytes,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    RecordBody,
    String,
    Struct,
    UInt16,
    field,
)


class BrokerEndpoint(Struct):
    name: String = ""
    host: String = ""
    port: UInt16 = 0
    security_protocol: Int16 = 0


class BrokerFeature(Struct):
    name: String = ""
    min_supported_version: Int16 = 0
    max_supported_version: Int16 = 0


class RegisterBrokerRecord(RecordBody, id=0, versions="0-4", flexible="0+"):
    broker_id: Int32 = 0
    is_migrating_zk_broker: Bool = field("2+", default=False)
    incarnation_id: Uuid = ZERO_UUID
    broker_epoch: Int64 = 0
    end_points: list[BrokerEndpoint] = []
    features: list[BrokerFeature] = []
    rack: String | None = ""
    fenced: Bool = True
    in_controlled_shutdown: Bool = field("1+", default=False)
    log_dirs: list[Uuid] = field("3+", default=[], tag=0)
    cordoned_log_dirs: list[Uuid] | None = field("4+", default=None, tag=1)


class UnregisterBrokerRecord(RecordBody, id=1, versions="0", flexible="0+"):
    broker_id: Int32 = 0
    broker_epoch: Int64 = 0


class TopicRecord(RecordBody, id=2, versions="0", flexible="0+"):
    name: String = ""
    topic_id: Uuid = ZERO_UUID


class PartitionRecord(RecordBody, id=3, versions="0-2", flexible="0+"):
    partition_id: Int32 = -1
    topic_id: Uuid = ZERO_UUID
    replicas: list[Int32] = []
    isr: list[Int32] = []
    removing_replicas: list[Int32] = []
    adding_replicas: list[Int32] = []
    leader: Int32 = -1
    leader_epoch: Int32 = -1
    partition_epoch: Int32 = -1
    directories: list[Uuid] = field("1+", default=[])
    leader_recovery_state: Int8 = field("0+", default=0, tag=0)
    eligible_leader_replicas: list[Int32] | None = field("2+", default=None, tag=1)
    last_known_elr: list[Int32] | None = field("2+", default=None, tag=2)


class ConfigRecord(RecordBody, id=4, versions="0", flexible="0+"):
    resource_type: Int8 = 0
    resource_name: String = ""
    name: String = ""
    value: String | None = ""


class PartitionChangeRecord(RecordBody, id=5, versions="0-2", flexible="0+"):
    partition_id: Int32 = -1
    topic_id: Uuid = ZERO_UUID
    isr: list[Int32] | None = field("0+", default=None, tag=0)
    leader: Int32 = field("0+", default=-2, tag=1)
    replicas: list[Int32] | None = field("0+", default=None, tag=2)
    removing_replicas: list[Int32] | None = field("0+", default=None, tag=3)
    adding_replicas: list[Int32] | None = field("0+", default=None, tag=4)
    leader_recovery_state: Int8 = field("0+", default=-1, tag=5)
    eligible_leader_replicas: list[Int32] | None = field("2+", default=None, tag=6)
    last_known_elr: list[Int32] | None = field("2+", default=None, tag=7)
    directories: list[Uuid] | None = field("1+", default=None, tag=8)


class FenceBrokerRecord(RecordBody, id=7, versions="0", flexible="0+"):
    id: Int32 = 0
    epoch: Int64 = 0


class UnfenceBrokerRecord(RecordBody, id=8, versions="0", flexible="0+"):
    id: Int32 = 0
    epoch: Int64 = 0


class RemoveTopicRecord(RecordBody, id=9, versions="0", flexible="0+"):
    topic_id: Uuid = ZERO_UUID


class DelegationTokenRecord(RecordBody, id=10, versions="0", flexible="0+"):
    owner: String = ""
    requester: String = ""
    renewers: list[String] = []
    issue_timestamp: Int64 = 0
    max_timestamp: Int64 = 0
    expiration_timestamp: Int64 = 0
    token_id: String = ""


class UserScramCredentialRecord(RecordBody, id=11, versions="0", flexible="0+"):
    name: String = ""
    mechanism: Int8 = 0
    salt: Bytes = b""
    stored_key: Bytes = b""
    server_key: Bytes = b""
    iterations: Int32 = 0


class FeatureLevelRecord(RecordBody, id=12, versions="0", flexible="0+"):
    name: String = ""
    feature_level: Int16 = 0


class ClientQuotaRecordEntityData(Struct):
    entity_type: String = ""
    entity_name: String | None = ""


class ClientQuotaRecord(RecordBody, id=14, versions="0", flexible="0+"):
    entity: list[ClientQuotaRecordEntityData] = []
    key: String = ""
    value: Float64 = 0.0
    remove: Bool = False


class ProducerIdsRecord(RecordBody, id=15, versions="0", flexible="0+"):
    broker_id: Int32 = 0
    broker_epoch: Int64 = -1
    next_producer_id: Int64 = 0


class BrokerRegistrationChangeRecord(RecordBody, id=17, versions="0-3", flexible="0+"):
    broker_id: Int32 = 0
    broker_epoch: Int64 = 0
    fenced: Int8 = field("0+", default=0, tag=0)
    in_controlled_shutdown: Int8 = field("1+", default=0, tag=1)
    log_dirs: list[Uuid] = field("2+", default=[], tag=2)
    cordoned_log_dirs: list[Uuid] | None = field("3+", default=None, tag=3)


class AccessControlEntryRecord(RecordBody, id=18, versions="0", flexible="0+"):
    id: Uuid = ZERO_UUID
    resource_type: Int8 = 0
    resource_name: String = ""
    pattern_type: Int8 = 0
    principal: String = ""
    host: String = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


class RemoveAccessControlEntryRecord(RecordBody, id=19, versions="0", flexible="0+"):
    id: Uuid = ZERO_UUID


class NoOpRecord(RecordBody, id=20, versions="0", flexible="0+"):
    """No fields."""


class ZkMigrationStateRecord(RecordBody, id=21, versions="0", flexible="0+"):
    zk_migration_state: Int8 = 0


class RemoveUserScramCredentialRecord(RecordBody, id=22, versions="0", flexible="0+"):
    name: String = ""
    mechanism: Int8 = 0


class BeginTransactionRecord(RecordBody, id=23, versions="0", flexible="0+"):
    name: String | None = field("0+", default=None, tag=0)


class EndTransactionRecord(RecordBody, id=24, versions="0", flexible="0+"):
    """No fields."""


class AbortTransactionRecord(RecordBody, id=25, versions="0", flexible="0+"):
    reason: String | None = field("0+", default=None, tag=0)


class RemoveDelegationTokenRecord(RecordBody, id=26, versions="0", flexible="0+"):
    token_id: String = ""


class ControllerEndpoint(Struct):
    name: String = ""
    host: String = ""
    port: UInt16 = 0
    security_protocol: Int16 = 0


class ControllerFeature(Struct):
    name: String = ""
    min_supported_version: Int16 = 0
    max_supported_version: Int16 = 0


class RegisterControllerRecord(RecordBody, id=27, versions="0", flexible="0+"):
    controller_id: Int32 = 0
    incarnation_id: Uuid = ZERO_UUID
    zk_migration_ready: Bool = False
    end_points: list[ControllerEndpoint] = []
    features: list[ControllerFeature] = []


class ClearElrRecord(RecordBody, id=28, versions="0", flexible="0+"):
    topic_name: String = ""


class UnregisterControllerRecord(RecordBody, id=29, versions="0", flexible="0+"):
    controller_id: Int32 = 0
