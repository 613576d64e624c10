"""What administrators and telemetry request: configs, log directories, client quotas, features, pushed metrics.

DescribeConfigs (32), AlterConfigs (33), IncrementalAlterConfigs (44), ListConfigResources (74); AlterReplicaLogDirs
(34), DescribeLogDirs (35); client quotas (48, 49); UpdateFeatures (57); GetTelemetrySubscriptions (71), PushTelemetry
(72).
"""

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
    Request,
    Response,
    String,
    Struct,
    field,
)


class AlterReplicaLogDirTopic(Struct):
    name: String = ""
    partitions: list[Int32] = []


class AlterReplicaLogDir(Struct):
    path: String = ""
    topics: list[AlterReplicaLogDirTopic] = []


class AlterReplicaLogDirsRequest(Request, key=34, versions="1-2", flexible="2+"):
    dirs: list[AlterReplicaLogDir] = []


class AlterReplicaLogDirPartitionResult(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class AlterReplicaLogDirTopicResult(Struct):
    topic_name: String = ""
    partitions: list[AlterReplicaLogDirPartitionResult] = []


class AlterReplicaLogDirsResponse(Response, key=34, versions="1-2", flexible="2+"):
    throttle_time_ms: Int32 = 0
    results: list[AlterReplicaLogDirTopicResult] = []


class DescribableLogDirTopic(Struct):
    topic: String = ""
    partitions: list[Int32] = []


class DescribeLogDirsRequest(Request, key=35, versions="1-5", flexible="2+"):
    topics: list[DescribableLogDirTopic] | None = []


class DescribeLogDirsPartition(Struct):
    partition_index: Int32 = 0
    partition_size: Int64 = 0
    offset_lag: Int64 = 0
    is_future_key: Bool = False


class DescribeLogDirsTopic(Struct):
    name: String = ""
    partitions: list[DescribeLogDirsPartition] = []


class DescribeLogDirsResult(Struct):
    error_code: Int16 = 0
    log_dir: String = ""
    topics: list[DescribeLogDirsTopic] = []
    total_bytes: Int64 = field("4+", default=-1, ignorable=True)
    usable_bytes: Int64 = field("4+", default=-1, ignorable=True)
    is_cordoned: Bool = field("5+", default=False, ignorable=True)


class DescribeLogDirsResponse(Response, key=35, versions="1-5", flexible="2+"):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = field("3+", default=0, ignorable=True)
    results: list[DescribeLogDirsResult] = []


class ComponentData(Struct):
    entity_type: String = ""
    match_type: Int8 = 0
    match: String | None = ""


class DescribeClientQuotasRequest(Request, key=48, versions="0-1", flexible="1+"):
    components: list[ComponentData] = []
    strict: Bool = False


class DescribeClientQuotasResponseEntityData(Struct):
    entity_type: String = ""
    entity_name: String | None = ""


class ValueData(Struct):
    key: String = ""
    value: Float64 = 0.0


class DescribeClientQuotasResponseEntryData(Struct):
    entity: list[DescribeClientQuotasResponseEntityData] = []
    values: list[ValueData] = []


class DescribeClientQuotasResponse(Response, key=48, versions="0-1", flexible="1+"):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
    entries: list[DescribeClientQuotasResponseEntryData] | None = []


class AlterClientQuotasRequestEntityData(Struct):
    entity_type: String = ""
    entity_name: String | None = ""


class OpData(Struct):
    key: String = ""
    value: Float64 = 0.0
    remove: Bool = False


class AlterClientQuotasRequestEntryData(Struct):
    entity: list[AlterClientQuotasRequestEntityData] = []
    ops: list[OpData] = []


class AlterClientQuotasRequest(Request, key=49, versions="0-1", flexible="1+"):
    entries: list[AlterClientQuotasRequestEntryData] = []
    validate_only: Bool = False


class AlterClientQuotasResponseEntityData(Struct):
    entity_type: String = ""
    entity_name: String | None = ""


class AlterClientQuotasResponseEntryData(Struct):
    error_code: Int16 = 0
    error_message: String | None = ""
    entity: list[AlterClientQuotasResponseEntityData] = []


class AlterClientQuotasResponse(Response, key=49, versions="0-1", flexible="1+"):
    throttle_time_ms: Int32 = 0
    entries: list[AlterClientQuotasResponseEntryData] = []


class FeatureUpdateKey(Struct):
    feature: String = ""
    max_version_level: Int16 = 0
    upgrade_type: Int8 = field("1+", default=1)
    allow_downgrade: Bool = field("0", default=False)


class UpdateFeaturesRequest(Request, key=57, versions="0-2", flexible="0+"):
    timeout_ms: Int32 = 60000
    feature_updates: list[FeatureUpdateKey] = []
    validate_only: Bool = field("1+", default=False)


class UpdatableFeatureResult(Struct):
    feature: String = ""
    error_code: Int16 = 0
    error_message: String | None = ""


class UpdateFeaturesResponse(Response, key=57, versions="0-2", flexible="0+"):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
    results: list[UpdatableFeatureResult] = field("0-1", default=[], ignorable=True)


# Configs: DescribeConfigs (32), AlterConfigs (33), IncrementalAlterConfigs (44), ListConfigResources (74).


class DescribeConfigsResource(Struct):
    resource_type: Int8 = 0
    resource_name: String = ""
    configuration_keys: list[String] | None = []


class DescribeConfigsRequest(Request, key=32, versions="1-4", flexible="4+"):
    resources: list[DescribeConfigsResource] = []
    include_synonyms: Bool = False
    include_documentation: Bool = field("3+", default=False)


class DescribeConfigsSynonym(Struct):
    name: String = ""
    value: String | None = ""
    source: Int8 = 0


class DescribeConfigsResourceResult(Struct):
    name: String = ""
    value: String | None = ""
    read_only: Bool = False
    config_source: Int8 = -1
    is_sensitive: Bool = False
    synonyms: list[DescribeConfigsSynonym] = []
    config_type: Int8 = field("3+", default=0, ignorable=True)
    documentation: String | None = field("3+", default="", ignorable=True)


class DescribeConfigsResult(Struct):
    error_code: Int16 = 0
    error_message: String | None = ""
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: list[DescribeConfigsResourceResult] = []


class DescribeConfigsResponse(Response, key=32, versions="1-4", flexible="4+"):
    throttle_time_ms: Int32 = 0
    results: list[DescribeConfigsResult] = []


class AlterConfigsRequestAlterableConfig(Struct):
    name: String = ""
    value: String | None = ""


class AlterConfigsRequestAlterConfigsResource(Struct):
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: list[AlterConfigsRequestAlterableConfig] = []


class AlterConfigsRequest(Request, key=33, versions="0-2", flexible="2+"):
    resources: list[AlterConfigsRequestAlterConfigsResource] = []
    validate_only: Bool = False


class AlterConfigsResponseAlterConfigsResourceResponse(Struct):
    error_code: Int16 = 0
    error_message: String | None = ""
    resource_type: Int8 = 0
    resource_name: String = ""


class AlterConfigsResponse(Response, key=33, versions="0-2", flexible="2+"):
    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResponseAlterConfigsResourceResponse] = []


class IncrementalAlterConfigsRequestAlterableConfig(Struct):
    name: String = ""
    config_operation: Int8 = 0
    value: String | None = ""


class IncrementalAlterConfigsRequestAlterConfigsResource(Struct):
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: list[IncrementalAlterConfigsRequestAlterableConfig] = []


class IncrementalAlterConfigsRequest(Request, key=44, versions="0-1", flexible="1+"):
    resources: list[IncrementalAlterConfigsRequestAlterConfigsResource] = []
    validate_only: Bool = False


class IncrementalAlterConfigsResponseAlterConfigsResourceResponse(Struct):
    error_code: Int16 = 0
    error_message: String | None = ""
    resource_type: Int8 = 0
    resource_name: String = ""


class IncrementalAlterConfigsResponse(Response, key=44, versions="0-1", flexible="1+"):
    throttle_time_ms: Int32 = 0
    responses: list[IncrementalAlterConfigsResponseAlterConfigsResourceResponse] = []


class ListConfigResourcesRequest(Request, key=74, versions="0-1", flexible="0+"):
    resource_types: list[Int8] = field("1+", default=[])


class ConfigResource(Struct):
    resource_name: String = ""
    resource_type: Int8 = field("1+", default=16, ignorable=True)


class ListConfigResourcesResponse(Response, key=74, versions="0-1", flexible="0+"):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    config_resources: list[ConfigResource] = []


# Client telemetry of KIP-714: GetTelemetrySubscriptions (71), PushTelemetry (72).


class GetTelemetrySubscriptionsRequest(Request, key=71, versions="0", flexible="0+"):
    client_instance_id: Uuid = ZERO_UUID


class GetTelemetrySubscriptionsResponse(Response, key=71, versions="0", flexible="0+"):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    client_instance_id: Uuid = ZERO_UUID
    subscription_id: Int32 = 0
    accepted_compression_types: list[Int8] = []
    push_interval_ms: Int32 = 0
    telemetry_max_bytes: Int32 = 0
    delta_temporality: Bool = False
    requested_metrics: list[String] = []


class PushTelemetryRequest(Request, key=72, versions="0", flexible="0+"):
    client_instance_id: Uuid = ZERO_UUID
    subscription_id: Int32 = 0
    terminating: Bool = False
    compression_type: Int8 = 0
    metrics: Bytes = b""


class PushTelemetryResponse(Response, key=72, versions="0", flexible="0+"):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
