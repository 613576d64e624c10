"""Classic groups, consumer groups (KIP-848) and the offsets of both.

FindCoordinator (10), JoinGroup (11), Heartbeat (12), LeaveGroup (13), SyncGroup (14), describe, list, delete (15, 16,
42); ConsumerGroupHeartbeat (68), ConsumerGroupDescribe (69); OffsetCommit (8), OffsetFetch (9), OffsetDelete (47).
"""

from __future__ import annotations

from enum import IntEnum

from kalda.base.ids import ZERO_UUID, Uuid
from kalda.protocol.notation import Bool, Bytes, Int8, Int16, Int32, Int64, Request, Response, String, Struct, field


class CoordinatorType(IntEnum):
    """Which kind of coordinator is to be found for a key."""

    GROUP = 0
    TRANSACTION = 1
    SHARE = 2


class FindCoordinatorRequest(Request, key=10, versions="0-6", flexible="3+"):
    key: String = field("0-3", default="")
    key_type: Int8 = field("1+", default=0)
    coordinator_keys: list[String] = field("4+", default=[])


class Coordinator(Struct):
    key: String = ""
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""


class FindCoordinatorResponse(Response, key=10, versions="0-6", flexible="3+"):
    throttle_time_ms: Int32 = field("1+", default=0, ignorable=True)
    coordinators: list[Coordinator] = field("4+", default=[])
    error_code: Int16 = field("0-3", default=0)
    error_message: String | None = field("1-3", default="", ignorable=True)
    node_id: Int32 = field("0-3", default=0)
    host: String = field("0-3", default="")
    port: Int32 = field("0-3", default=0)


class JoinGroupRequestProtocol(Struct):
    name: String = ""
    metadata: Bytes = b""


class JoinGroupRequest(Request, key=11, versions="0-9", flexible="6+"):
    group_id: String = ""
    session_timeout_ms: Int32 = 0
    rebalance_timeout_ms: Int32 = field("1+", default=-1, ignorable=True)
    member_id: String = ""
    group_instance_id: String | None = field("5+", default=None)
    protocol_type: String = ""
    protocols: list[JoinGroupRequestProtocol] = []
    reason: String | None = field("8+", default=None, ignorable=True)


class JoinGroupResponseMember(Struct):
    member_id: String = ""
    group_instance_id: String | None = field("5+", default=None, ignorable=True)
    metadata: Bytes = b""


class JoinGroupResponse(Response, key=11, versions="0-9", flexible="6+"):
    throttle_time_ms: Int32 = field("2+", default=0, ignorable=True)
    error_code: Int16 = 0
    generation_id: Int32 = -1
    protocol_type: String | None = field("7+", default=None, ignorable=True)
    protocol_name: String | None = field("0+", default="", nullable="7+")
    leader: String = ""
    skip_assignment: Bool = field("9+", default=False)
    member_id: String = ""
    members: list[JoinGroupResponseMember] = []


class HeartbeatRequest(Request, key=12, versions="0-4", flexible="4+"):
    group_id: String = ""
    generation_id: Int32 = 0
    member_id: String = ""
    group_instance_id: String | None = field("3+", default=None)


class HeartbeatResponse(Response, key=12, versions="0-4", flexible="4+"):
    throttle_time_ms: Int32 = field("1+", default=0, ignorable=True)
    error_code: Int16 = 0


class MemberIdentity(Struct):
    member_id: String = ""
    group_instance_id: String | None = None
    reason: String | None = field("5+", default=None, ignorable=True)


class LeaveGroupRequest(Request, key=13, versions="0-5", flexible="4+"):
    group_id: String = ""
    members: list[MemberIdentity] = field("3+", default=[])
    member_id: String = field("0-2", default="")


class MemberResponse(Struct):
    member_id: String = ""
    group_instance_id: String | None = ""
    error_code: Int16 = 0


class LeaveGroupResponse(Response, key=13, versions="0-5", flexible="4+"):
    throttle_time_ms: Int32 = field("1+", default=0, ignorable=True)
    error_code: Int16 = 0
    members: list[MemberResponse] = field("3+", default=[])


class SyncGroupRequestAssignment(Struct):
    member_id: String = ""
    assignment: Bytes = b""


class SyncGroupRequest(Request, key=14, versions="0-5", flexible="4+"):
    group_id: String = ""
    generation_id: Int32 = 0
    member_id: String = ""
    group_instance_id: String | None = field("3+", default=None)
    protocol_type: String | None = field("5+", default=None, ignorable=True)
    protocol_name: String | None = field("5+", default=None, ignorable=True)
    assignments: list[SyncGroupRequestAssignment] = []


class SyncGroupResponse(Response, key=14, versions="0-5", flexible="4+"):
    throttle_time_ms: Int32 = field("1+", default=0, ignorable=True)
    error_code: Int16 = 0
    protocol_type: String | None = field("5+", default=None, ignorable=True)
    protocol_name: String | None = field("5+", default=None, ignorable=True)
    assignment: Bytes = b""


class DescribeGroupsRequest(Request, key=15, versions="0-6", flexible="5+"):
    groups: list[String] = []
    include_authorized_operations: Bool = field("3+", default=False)


class DescribedGroupMember(Struct):
    member_id: String = ""
    group_instance_id: String | None = field("4+", default=None, ignorable=True)
    client_id: String = ""
    client_host: String = ""
    member_metadata: Bytes = b""
    member_assignment: Bytes = b""


class DescribeGroupsResponseDescribedGroup(Struct):
    error_code: Int16 = 0
    error_message: String | None = field("6+", default=None)
    group_id: String = ""
    group_state: String = ""
    protocol_type: String = ""
    protocol_data: String = ""
    members: list[DescribedGroupMember] = []
    authorized_operations: Int32 = field("3+", default=-2147483648)


class DescribeGroupsResponse(Response, key=15, versions="0-6", flexible="5+"):
    throttle_time_ms: Int32 = field("1+", default=0, ignorable=True)
    groups: list[DescribeGroupsResponseDescribedGroup] = []


class ListGroupsRequest(Request, key=16, versions="0-5", flexible="3+"):
    states_filter: list[String] = field("4+", default=[])
    types_filter: list[String] = field("5+", default=[])


class ListedGroup(Struct):
    group_id: String = ""
    protocol_type: String = ""
    group_state: String = field("4+", default="", ignorable=True)
    group_type: String = field("5+", default="", ignorable=True)


class ListGroupsResponse(Response, key=16, versions="0-5", flexible="3+"):
    throttle_time_ms: Int32 = field("1+", default=0, ignorable=True)
    error_code: Int16 = 0
    groups: list[ListedGroup] = []


class DeleteGroupsRequest(Request, key=42, versions="0-3", flexible="2+"):
    groups_names: list[String] = []


class DeletableGroupResult(Struct):
    group_id: String = ""
    error_code: Int16 = 0
    error_message: String | None = field("3+", default=None, ignorable=True)


class DeleteGroupsResponse(Response, key=42, versions="0-3", flexible="2+"):
    throttle_time_ms: Int32 = 0
    results: list[DeletableGroupResult] = []


# Consumer groups of KIP-848: ConsumerGroupHeartbeat (68), ConsumerGroupDescribe (69).


class ConsumerGroupHeartbeatRequestTopicPartitions(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = []


class ConsumerGroupHeartbeatRequest(Request, key=68, versions="0-1", flexible="0+"):
    group_id: String = ""
    member_id: String = ""
    member_epoch: Int32 = 0
    instance_id: String | None = None
    rack_id: String | None = None
    rebalance_timeout_ms: Int32 = -1
    subscribed_topic_names: list[String] | None = None
    subscribed_topic_regex: String | None = field("1+", default=None)
    server_assignor: String | None = None
    topic_partitions: list[ConsumerGroupHeartbeatRequestTopicPartitions] | None = None


class ConsumerGroupHeartbeatResponseTopicPartitions(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = []


class ConsumerGroupHeartbeatResponseAssignment(Struct):
    topic_partitions: list[ConsumerGroupHeartbeatResponseTopicPartitions] = []


class ConsumerGroupHeartbeatResponse(Response, key=68, versions="0-1", flexible="0+"):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    member_id: String | None = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: ConsumerGroupHeartbeatResponseAssignment | None = None


class ConsumerGroupDescribeRequest(Request, key=69, versions="0-1", flexible="0+"):
    group_ids: list[String] = []
    include_authorized_operations: Bool = False


class ConsumerGroupDescribeResponseTopicPartitions(Struct):
    topic_id: Uuid = ZERO_UUID
    topic_name: String = ""
    partitions: list[Int32] = []


class ConsumerGroupDescribeResponseAssignment(Struct):
    topic_partitions: list[ConsumerGroupDescribeResponseTopicPartitions] = []


class ConsumerGroupDescribeResponseMember(Struct):
    member_id: String = ""
    instance_id: String | None = None
    rack_id: String | None = None
    member_epoch: Int32 = 0
    client_id: String = ""
    client_host: String = ""
    subscribed_topic_names: list[String] = []
    subscribed_topic_regex: String | None = None
    assignment: ConsumerGroupDescribeResponseAssignment = ConsumerGroupDescribeResponseAssignment()
    target_assignment: ConsumerGroupDescribeResponseAssignment = ConsumerGroupDescribeResponseAssignment()
    member_type: Int8 = field("1+", default=-1, ignorable=True)


class ConsumerGroupDescribeResponseDescribedGroup(Struct):
    error_code: Int16 = 0
    error_message: String | None = None
    group_id: String = ""
    group_state: String = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    assignor_name: String = ""
    members: list[ConsumerGroupDescribeResponseMember] = []
    authorized_operations: Int32 = -2147483648


class ConsumerGroupDescribeResponse(Response, key=69, versions="0-1", flexible="0+"):
    throttle_time_ms: Int32 = 0
    groups: list[ConsumerGroupDescribeResponseDescribedGroup] = []


# A group's offsets: OffsetCommit (8), OffsetFetch (9), OffsetDelete (47).


class OffsetCommitRequestPartition(Struct):
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Int32 = field("6+", default=-1, ignorable=True)
    committed_metadata: String | None = ""


class OffsetCommitRequestTopic(Struct):
    name: String = field("2-9", default="", ignorable=True)
    topic_id: Uuid = field("10+", default=ZERO_UUID, ignorable=True)
    partitions: list[OffsetCommitRequestPartition] = []


class OffsetCommitRequest(Request, key=8, versions="2-10", flexible="8+"):
    group_id: String = ""
    generation_id_or_member_epoch: Int32 = -1
    member_id: String = ""
    retention_time_ms: Int64 = field("2-4", default=-1, ignorable=True)
    group_instance_id: String | None = field("7+", default=None)
    topics: list[OffsetCommitRequestTopic] = []


class OffsetCommitResponsePartition(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class OffsetCommitResponseTopic(Struct):
    name: String = field("2-9", default="", ignorable=True)
    topic_id: Uuid = field("10+", default=ZERO_UUID, ignorable=True)
    partitions: list[OffsetCommitResponsePartition] = []


class OffsetCommitResponse(Response, key=8, versions="2-10", flexible="8+"):
    throttle_time_ms: Int32 = field("3+", default=0, ignorable=True)
    topics: list[OffsetCommitResponseTopic] = []


class OffsetFetchRequestTopic(Struct):
    name: String = ""
    partition_indexes: list[Int32] = []


class OffsetFetchRequestTopics(Struct):
    name: String = field("8-9", default="", ignorable=True)
    topic_id: Uuid = field("10+", default=ZERO_UUID, ignorable=True)
    partition_indexes: list[Int32] = []


class OffsetFetchRequestGroup(Struct):
    group_id: String = ""
    member_id: String | None = field("9+", default=None, ignorable=True)
    member_epoch: Int32 = field("9+", default=-1, ignorable=True)
    topics: list[OffsetFetchRequestTopics] | None = []


class OffsetFetchRequest(Request, key=9, versions="1-10", flexible="6+"):
    group_id: String = field("1-7", default="")
    topics: list[OffsetFetchRequestTopic] | None = field("1-7", default=[], nullable="2-7")
    groups: list[OffsetFetchRequestGroup] = field("8+", default=[])
    require_stable: Bool = field("7+", default=False)


class OffsetFetchResponsePartitions(Struct):
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Int32 = -1
    metadata: String | None = ""
    error_code: Int16 = 0


class OffsetFetchResponseTopics(Struct):
    name: String = field("8-9", default="", ignorable=True)
    topic_id: Uuid = field("10+", default=ZERO_UUID, ignorable=True)
    partitions: list[OffsetFetchResponsePartitions] = []


class OffsetFetchResponseGroup(Struct):
    group_id: String = ""
    topics: list[OffsetFetchResponseTopics] = []
    error_code: Int16 = 0


class OffsetFetchResponsePartition(Struct):
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Int32 = field("5-7", default=-1, ignorable=True)
    metadata: String | None = ""
    error_code: Int16 = 0


class OffsetFetchResponseTopic(Struct):
    name: String = ""
    partitions: list[OffsetFetchResponsePartition] = []


class OffsetFetchResponse(Response, key=9, versions="1-10", flexible="6+"):
    throttle_time_ms: Int32 = field("3+", default=0, ignorable=True)
    groups: list[OffsetFetchResponseGroup] = field("8+", default=[])
    topics: list[OffsetFetchResponseTopic] = field("1-7", default=[])
    error_code: Int16 = field("2-7", default=0, ignorable=True)


class OffsetDeleteRequestPartition(Struct):
    partition_index: Int32 = 0


class OffsetDeleteRequestTopic(Struct):
    name: String = ""
    partitions: list[OffsetDeleteRequestPartition] = []


class OffsetDeleteRequest(Request, key=47, versions="0"):
    group_id: String = ""
    topics: list[OffsetDeleteRequestTopic] = []


class OffsetDeleteResponsePartition(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class OffsetDeleteResponseTopic(Struct):
    name: String = ""
    partitions: list[OffsetDeleteResponsePartition] = []


class OffsetDeleteResponse(Response, key=47, versions="0"):
    error_code: Int16 = 0
    throttle_time_ms: Int32 = 0
    topics: list[OffsetDeleteResponseTopic] = []
