"""Streams groups of KIP-1071: StreamsGroupHeartbeat (88), StreamsGroupDescribe (89),
StreamsGroupTopologyDescriptionUpdate (93)."""

from __future__ import annotations

from enum import IntEnum

from kalda.protocol.notation import Bool, Int8, Int16, Int32, Int64, Request, Response, String, Struct, UInt16, field


class StreamsGroupHeartbeatRequestKeyValue(Struct):
    key: String = ""
    value: String = ""


class StreamsGroupHeartbeatRequestTopicInfo(Struct):
    name: String = ""
    partitions: Int32 = 0
    replication_factor: Int16 = 0
    topic_configs: list[StreamsGroupHeartbeatRequestKeyValue] = []


class StreamsGroupHeartbeatRequestCopartitionGroup(Struct):
    source_topics: list[Int16] = []
    source_topic_regex: list[Int16] = []
    repartition_source_topics: list[Int16] = []


class StreamsGroupHeartbeatRequestSubtopology(Struct):
    subtopology_id: String = ""
    source_topics: list[String] = []
    source_topic_regex: list[String] = []
    state_changelog_topics: list[StreamsGroupHeartbeatRequestTopicInfo] = []
    repartition_sink_topics: list[String] = []
    repartition_source_topics: list[StreamsGroupHeartbeatRequestTopicInfo] = []
    copartition_groups: list[StreamsGroupHeartbeatRequestCopartitionGroup] = []


class StreamsGroupHeartbeatRequestTopology(Struct):
    epoch: Int32 = 0
    subtopologies: list[StreamsGroupHeartbeatRequestSubtopology] = []


class StreamsGroupHeartbeatRequestTaskIds(Struct):
    subtopology_id: String = ""
    partitions: list[Int32] = []


class StreamsGroupHeartbeatRequestEndpoint(Struct):
    host: String = ""
    port: UInt16 = 0


class StreamsGroupHeartbeatRequestTaskOffset(Struct):
    subtopology_id: String = ""
    partition: Int32 = 0
    offset: Int64 = 0


class StreamsGroupHeartbeatRequest(Request, key=88, versions="0-1", flexible="0+"):
    group_id: String = ""
    member_id: String = ""
    member_epoch: Int32 = 0
    endpoint_information_epoch: Int32 = 0
    instance_id: String | None = None
    rack_id: String | None = None
    rebalance_timeout_ms: Int32 = -1
    topology: StreamsGroupHeartbeatRequestTopology | None = None
    active_tasks: list[StreamsGroupHeartbeatRequestTaskIds] | None = None
    standby_tasks: list[StreamsGroupHeartbeatRequestTaskIds] | None = None
    warmup_tasks: list[StreamsGroupHeartbeatRequestTaskIds] | None = None
    process_id: String | None = None
    user_endpoint: StreamsGroupHeartbeatRequestEndpoint | None = None
    client_tags: list[StreamsGroupHeartbeatRequestKeyValue] | None = None
    task_offsets: list[StreamsGroupHeartbeatRequestTaskOffset] | None = None
    task_end_offsets: list[StreamsGroupHeartbeatRequestTaskOffset] | None = None
    shutdown_application: Bool = False


class StreamsGroupStatus(IntEnum):
    """A condition of the group that an accepted heartbeat is answered with."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5
    MISSING_CLIENT_TAGS = 6


class Status(Struct):
    status_code: Int8 = 0
    status_detail: String = ""


class StreamsGroupHeartbeatResponseTaskIds(Struct):
    subtopology_id: String = ""
    partitions: list[Int32] = []


class StreamsGroupHeartbeatResponseEndpoint(Struct):
    host: String = ""
    port: UInt16 = 0


class StreamsGroupHeartbeatResponseTopicPartition(Struct):
    topic: String = ""
    partitions: list[Int32] = []


class EndpointToPartitions(Struct):
    user_endpoint: StreamsGroupHeartbeatResponseEndpoint = StreamsGroupHeartbeatResponseEndpoint()
    active_partitions: list[StreamsGroupHeartbeatResponseTopicPartition] = []
    standby_partitions: list[StreamsGroupHeartbeatResponseTopicPartition] = []


class StreamsGroupHeartbeatResponse(Response, key=88, versions="0-1", flexible="0+"):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    member_id: String = ""
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    acceptable_recovery_lag_legacy: Int32 = field("0", default=0)
    task_offset_interval_ms: Int32 = 0
    acceptable_recovery_lag: Int64 = field("1+", default=-1, ignorable=True)
    status: list[Status] | None = []
    active_tasks: list[StreamsGroupHeartbeatResponseTaskIds] | None = None
    standby_tasks: list[StreamsGroupHeartbeatResponseTaskIds] | None = None
    warmup_tasks: list[StreamsGroupHeartbeatResponseTaskIds] | None = None
    topology_description_required: Bool = field("1+", default=False)
    endpoint_information_epoch: Int32 = 0
    partitions_by_user_endpoint: list[EndpointToPartitions] | None = None


class StreamsTopologyNode(Struct):
    name: String = ""
    node_type: Int8 = 0
    source_topics: list[String] = []
    sink_topic: String | None = None
    stores: list[String] = []
    successors: list[String] = []


class StreamsSubtopologyDescription(Struct):
    subtopology_id: String = ""
    nodes: list[StreamsTopologyNode] = []


class StreamsGlobalStore(Struct):
    source: StreamsTopologyNode = StreamsTopologyNode()
    processor: StreamsTopologyNode = StreamsTopologyNode()


class StreamsTopologyDescription(Struct):
    """The nodes of a topology, as `Topology.describe` of Kafka Streams lists them (KIP-1331)."""

    subtopologies: list[StreamsSubtopologyDescription] = []
    global_stores: list[StreamsGlobalStore] = []


class StreamsGroupDescribeRequest(Request, key=89, versions="0-1", flexible="0+"):
    group_ids: list[String] = []
    include_authorized_operations: Bool = False
    include_topology_description: Bool = field("1+", default=False)


class StreamsGroupDescribeResponseKeyValue(Struct):
    key: String = ""
    value: String = ""


class StreamsGroupDescribeResponseTopicInfo(Struct):
    name: String = ""
    partitions: Int32 = 0
    replication_factor: Int16 = 0
    topic_configs: list[StreamsGroupDescribeResponseKeyValue] = []


class StreamsGroupDescribeResponseSubtopology(Struct):
    subtopology_id: String = ""
    source_topics: list[String] = []
    repartition_sink_topics: list[String] = []
    state_changelog_topics: list[StreamsGroupDescribeResponseTopicInfo] = []
    repartition_source_topics: list[StreamsGroupDescribeResponseTopicInfo] = []


class StreamsGroupDescribeResponseTopology(Struct):
    epoch: Int32 = 0
    subtopologies: list[StreamsGroupDescribeResponseSubtopology] | None = None


class StreamsGroupDescribeResponseEndpoint(Struct):
    host: String = ""
    port: UInt16 = 0


class StreamsGroupDescribeResponseTaskOffset(Struct):
    subtopology_id: String = ""
    partition: Int32 = 0
    offset: Int64 = 0


class StreamsGroupDescribeResponseTaskIds(Struct):
    subtopology_id: String = ""
    partitions: list[Int32] = []


class StreamsGroupDescribeResponseAssignment(Struct):
    active_tasks: list[StreamsGroupDescribeResponseTaskIds] = []
    standby_tasks: list[StreamsGroupDescribeResponseTaskIds] = []
    warmup_tasks: list[StreamsGroupDescribeResponseTaskIds] = []


class StreamsGroupDescribeResponseMember(Struct):
    member_id: String = ""
    member_epoch: Int32 = 0
    instance_id: String | None = None
    rack_id: String | None = None
    client_id: String = ""
    client_host: String = ""
    topology_epoch: Int32 = 0
    process_id: String = ""
    user_endpoint: StreamsGroupDescribeResponseEndpoint | None = None
    client_tags: list[StreamsGroupDescribeResponseKeyValue] = []
    task_offsets: list[StreamsGroupDescribeResponseTaskOffset] = []
    task_end_offsets: list[StreamsGroupDescribeResponseTaskOffset] = []
    assignment: StreamsGroupDescribeResponseAssignment = StreamsGroupDescribeResponseAssignment()
    target_assignment: StreamsGroupDescribeResponseAssignment = StreamsGroupDescribeResponseAssignment()
    is_classic: Bool = False


class StreamsGroupDescribeResponseDescribedGroup(Struct):
    error_code: Int16 = 0
    error_message: String | None = None
    group_id: String = ""
    group_state: String = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    topology: StreamsGroupDescribeResponseTopology | None = None
    members: list[StreamsGroupDescribeResponseMember] = []
    authorized_operations: Int32 = -2147483648
    topology_description: StreamsTopologyDescription | None = field("1+", default=None)
    topology_description_status: Int8 = field("1+", default=0)
    assignor_name: String | None = field("1+", default=None, ignorable=True)


class StreamsGroupDescribeResponse(Response, key=89, versions="0-1", flexible="0+"):
    throttle_time_ms: Int32 = 0
    groups: list[StreamsGroupDescribeResponseDescribedGroup] = []


class StreamsGroupTopologyDescriptionUpdateRequest(Request, key=93, versions="0", flexible="0+"):
    group_id: String = ""
    member_id: String = ""
    topology_epoch: Int32 = 0
    topology_description: StreamsTopologyDescription = StreamsTopologyDescription()


class StreamsGroupTopologyDescriptionUpdateResponse(Response, key=93, versions="0", flexible="0+"):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
