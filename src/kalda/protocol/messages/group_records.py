"""Records of `__consumer_offsets`: keys and values, by record type id."""

from __future__ import annotations

from kalda.base.ids import ZERO_UUID, Uuid
from kalda.protocol.notation import Bytes, Int8, Int16, Int32, Int64, RecordBody, String, Struct, UInt16, field


class LegacyOffsetCommitKey(RecordBody, id=0, versions="0"):
    group: String = ""
    topic: String = ""
    partition: Int32 = 0


class LegacyOffsetCommitValue(RecordBody, id=0, versions="0"):
    offset: Int64 = 0
    metadata: String = ""
    commit_timestamp: Int64 = 0


class OffsetCommitKey(RecordBody, id=1, versions="0"):
    group: String = ""
    topic: String = ""
    partition: Int32 = 0


class OffsetCommitValue(RecordBody, id=1, versions="0-4", flexible="4+"):
    offset: Int64 = 0
    leader_epoch: Int32 = field("3+", default=-1, ignorable=True)
    metadata: String = ""
    commit_timestamp: Int64 = 0
    expire_timestamp: Int64 = field("1", default=-1, ignorable=True)
    topic_id: Uuid = field("4+", default=ZERO_UUID, tag=0, ignorable=True)


class GroupMetadataKey(RecordBody, id=2, versions="0"):
    group: String = ""


class MemberMetadata(Struct):
    member_id: String = ""
    group_instance_id: String | None = field("3+", default=None, ignorable=True)
    client_id: String = ""
    client_host: String = ""
    rebalance_timeout: Int32 = field("1+", default=-1, ignorable=True)
    session_timeout: Int32 = 0
    subscription: Bytes = b""
    assignment: Bytes = b""


class GroupMetadataValue(RecordBody, id=2, versions="0-4", flexible="4+"):
    protocol_type: String = ""
    generation: Int32 = 0
    protocol: String | None = ""
    leader: String | None = ""
    current_state_timestamp: Int64 = field("2+", default=-1, ignorable=True)
    members: list[MemberMetadata] = []


class ConsumerGroupMetadataKey(RecordBody, id=3, versions="0"):
    group_id: String = ""


class ConsumerGroupMetadataValue(RecordBody, id=3, versions="0", flexible="0+"):
    epoch: Int32 = 0
    metadata_hash: Int64 = field("0+", default=0, tag=0)


class ConsumerGroupPartitionMetadataKey(RecordBody, id=4, versions="0"):
    group_id: String = ""


class PartitionMetadata(Struct):
    partition: Int32 = 0
    racks: list[String] = []


class TopicMetadata(Struct):
    topic_id: Uuid = ZERO_UUID
    topic_name: String = ""
    num_partitions: Int32 = 0
    partition_metadata: list[PartitionMetadata] = []


class ConsumerGroupPartitionMetadataValue(RecordBody, id=4, versions="0", flexible="0+"):
    topics: list[TopicMetadata] = []


class ConsumerGroupMemberMetadataKey(RecordBody, id=5, versions="0"):
    group_id: String = ""
    member_id: String = ""


class ClassicProtocol(Struct):
    name: String = ""
    metadata: Bytes = b""


class ClassicMemberMetadata(Struct):
    session_timeout_ms: Int32 = 0
    supported_protocols: list[ClassicProtocol] = []


class ConsumerGroupMemberMetadataValue(RecordBody, id=5, versions="0", flexible="0+"):
    instance_id: String | None = ""
    rack_id: String | None = ""
    client_id: String = ""
    client_host: String = ""
    subscribed_topic_names: list[String] = []
    subscribed_topic_regex: String | None = ""
    rebalance_timeout_ms: Int32 = -1
    server_assignor: String | None = ""
    classic_member_metadata: ClassicMemberMetadata | None = field("0+", default=ClassicMemberMetadata(), tag=0)


class ConsumerGroupTargetAssignmentMetadataKey(RecordBody, id=6, versions="0"):
    group_id: String = ""


class ConsumerGroupTargetAssignmentMetadataValue(RecordBody, id=6, versions="0", flexible="0+"):
    assignment_epoch: Int32 = 0
    assignment_timestamp: Int64 = field("0+", default=0, tag=0)


class ConsumerGroupTargetAssignmentMemberKey(RecordBody, id=7, versions="0"):
    group_id: String = ""
    member_id: String = ""


class ConsumerGroupTargetAssignmentMemberValueTopicPartition(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = []


class ConsumerGroupTargetAssignmentMemberValue(RecordBody, id=7, versions="0", flexible="0+"):
    topic_partitions: list[ConsumerGroupTargetAssignmentMemberValueTopicPartition] = []


class ConsumerGroupCurrentMemberAssignmentKey(RecordBody, id=8, versions="0"):
    group_id: String = ""
    member_id: String = ""


class ConsumerGroupCurrentMemberAssignmentValueTopicPartitions(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = []
    assignment_epochs: list[Int32] | None = field("0+", default=[], tag=0)


class ConsumerGroupCurrentMemberAssignmentValue(RecordBody, id=8, versions="0", flexible="0+"):
    member_epoch: Int32 = 0
    previous_member_epoch: Int32 = 0
    state: Int8 = 0
    assigned_partitions: list[ConsumerGroupCurrentMemberAssignmentValueTopicPartitions] = []
    partitions_pending_revocation: list[ConsumerGroupCurrentMemberAssignmentValueTopicPartitions] = []


class ShareGroupMemberMetadataKey(RecordBody, id=10, versions="0"):
    group_id: String = ""
    member_id: String = ""


class ShareGroupMemberMetadataValue(RecordBody, id=10, versions="0", flexible="0+"):
    rack_id: String | None = ""
    client_id: String = ""
    client_host: String = ""
    subscribed_topic_names: list[String] = []


class ShareGroupMetadataKey(RecordBody, id=11, versions="0"):
    group_id: String = ""


class ShareGroupMetadataValue(RecordBody, id=11, versions="0", flexible="0+"):
    epoch: Int32 = 0
    metadata_hash: Int64 = 0


class ShareGroupTargetAssignmentMetadataKey(RecordBody, id=12, versions="0"):
    group_id: String = ""


class ShareGroupTargetAssignmentMetadataValue(RecordBody, id=12, versions="0", flexible="0+"):
    assignment_epoch: Int32 = 0
    assignment_timestamp: Int64 = field("0+", default=0, tag=0)


class ShareGroupTargetAssignmentMemberKey(RecordBody, id=13, versions="0"):
    group_id: String = ""
    member_id: String = ""


class ShareGroupTargetAssignmentMemberValueTopicPartition(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = []


class ShareGroupTargetAssignmentMemberValue(RecordBody, id=13, versions="0", flexible="0+"):
    topic_partitions: list[ShareGroupTargetAssignmentMemberValueTopicPartition] = []


class ShareGroupCurrentMemberAssignmentKey(RecordBody, id=14, versions="0"):
    group_id: String = ""
    member_id: String = ""


class ShareGroupCurrentMemberAssignmentValueTopicPartitions(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = []


class ShareGroupCurrentMemberAssignmentValue(RecordBody, id=14, versions="0", flexible="0+"):
    member_epoch: Int32 = 0
    previous_member_epoch: Int32 = 0
    state: Int8 = 0
    assigned_partitions: list[ShareGroupCurrentMemberAssignmentValueTopicPartitions] = []


class ShareGroupStatePartitionMetadataKey(RecordBody, id=15, versions="0"):
    group_id: String = ""


class TopicPartitionsInfo(Struct):
    topic_id: Uuid = ZERO_UUID
    topic_name: String = ""
    partitions: list[Int32] = []


class ShareGroupStatePartitionMetadataValueTopicInfo(Struct):
    topic_id: Uuid = ZERO_UUID
    topic_name: String = ""


class ShareGroupStatePartitionMetadataValue(RecordBody, id=15, versions="0", flexible="0+"):
    initializing_topics: list[TopicPartitionsInfo] = []
    initialized_topics: list[TopicPartitionsInfo] = []
    deleting_topics: list[ShareGroupStatePartitionMetadataValueTopicInfo] = []


class ConsumerGroupRegularExpressionKey(RecordBody, id=16, versions="0"):
    group_id: String = ""
    regular_expression: String = ""


class ConsumerGroupRegularExpressionValue(RecordBody, id=16, versions="0", flexible="0+"):
    topics: list[String] = []
    version: Int64 = 0
    timestamp: Int64 = 0


class StreamsGroupMetadataKey(RecordBody, id=17, versions="0"):
    group_id: String = ""


class LastAssignmentConfig(Struct):
    key: String = ""
    value: String = ""


class StreamsGroupMetadataValue(RecordBody, id=17, versions="0", flexible="0+"):
    epoch: Int32 = 0
    metadata_hash: Int64 = 0
    validated_topology_epoch: Int32 = field("0+", default=-1, tag=0)
    last_assignment_configs: list[LastAssignmentConfig] | None = field("0+", default=[], tag=1)
    stored_description_topology_epoch: Int32 = field("0+", default=-1, tag=2)
    failed_description_topology_epoch: Int32 = field("0+", default=-1, tag=3)


class StreamsGroupMemberMetadataKey(RecordBody, id=19, versions="0"):
    group_id: String = ""
    member_id: String = ""


class StreamsGroupMemberMetadataValueEndpoint(Struct):
    host: String = ""
    port: UInt16 = 0


class StreamsGroupMemberMetadataValueKeyValue(Struct):
    key: String = ""
    value: String = ""


class StreamsGroupMemberMetadataValue(RecordBody, id=19, versions="0", flexible="0+"):
    instance_id: String | None = ""
    rack_id: String | None = ""
    client_id: String = ""
    client_host: String = ""
    rebalance_timeout_ms: Int32 = -1
    topology_epoch: Int32 = 0
    process_id: String = ""
    user_endpoint: StreamsGroupMemberMetadataValueEndpoint | None = None
    client_tags: list[StreamsGroupMemberMetadataValueKeyValue] = []


class StreamsGroupTargetAssignmentMetadataKey(RecordBody, id=20, versions="0"):
    group_id: String = ""


class StreamsGroupTargetAssignmentMetadataValue(RecordBody, id=20, versions="0", flexible="0+"):
    assignment_epoch: Int32 = 0
    assignment_timestamp: Int64 = field("0+", default=0, tag=0)


class StreamsGroupTargetAssignmentMemberKey(RecordBody, id=21, versions="0"):
    group_id: String = ""
    member_id: String = ""


class StreamsGroupTargetAssignmentMemberValueTaskIds(Struct):
    subtopology_id: String = ""
    partitions: list[Int32] = []


class StreamsGroupTargetAssignmentMemberValue(RecordBody, id=21, versions="0", flexible="0+"):
    active_tasks: list[StreamsGroupTargetAssignmentMemberValueTaskIds] = []
    standby_tasks: list[StreamsGroupTargetAssignmentMemberValueTaskIds] = []
    warmup_tasks: list[StreamsGroupTargetAssignmentMemberValueTaskIds] = []


class StreamsGroupCurrentMemberAssignmentKey(RecordBody, id=22, versions="0"):
    group_id: String = ""
    member_id: String = ""


class StreamsGroupCurrentMemberAssignmentValueTaskIds(Struct):
    subtopology_id: String = ""
    partitions: list[Int32] = []
    assignment_epochs: list[Int32] | None = field("0+", default=[], tag=0)


class StreamsGroupCurrentMemberAssignmentValue(RecordBody, id=22, versions="0", flexible="0+"):
    member_epoch: Int32 = 0
    previous_member_epoch: Int32 = 0
    state: Int8 = 0
    active_tasks: list[StreamsGroupCurrentMemberAssignmentValueTaskIds] = []
    standby_tasks: list[StreamsGroupCurrentMemberAssignmentValueTaskIds] = []
    warmup_tasks: list[StreamsGroupCurrentMemberAssignmentValueTaskIds] = []
    active_tasks_pending_revocation: list[StreamsGroupCurrentMemberAssignmentValueTaskIds] = []
    standby_tasks_pending_revocation: list[StreamsGroupCurrentMemberAssignmentValueTaskIds] = []
    warmup_tasks_pending_revocation: list[StreamsGroupCurrentMemberAssignmentValueTaskIds] = []


class StreamsGroupTopologyKey(RecordBody, id=23, versions="0"):
    group_id: String = ""


class TopicConfig(Struct):
    key: String = ""
    value: String = ""


class StreamsGroupTopologyValueTopicInfo(Struct):
    name: String = ""
    partitions: Int32 = 0
    replication_factor: Int16 = 0
    topic_configs: list[TopicConfig] = []


class StreamsGroupTopologyValueCopartitionGroup(Struct):
    source_topics: list[Int16] = []
    source_topic_regex: list[Int16] = []
    repartition_source_topics: list[Int16] = []


class StreamsGroupTopologyValueSubtopology(Struct):
    subtopology_id: String = ""
    source_topics: list[String] = []
    source_topic_regex: list[String] = []
    state_changelog_topics: list[StreamsGroupTopologyValueTopicInfo] = []
    repartition_sink_topics: list[String] = []
    repartition_source_topics: list[StreamsGroupTopologyValueTopicInfo] = []
    copartition_groups: list[StreamsGroupTopologyValueCopartitionGroup] = []


class StreamsGroupTopologyValue(RecordBody, id=23, versions="0", flexible="0+"):
    epoch: Int32 = 0
    subtopologies: list[StreamsGroupTopologyValueSubtopology] = []
