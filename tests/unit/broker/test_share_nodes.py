"""Two nodes of which one leads a topic, and both coordinate share partitions of it."""

from __future__ import annotations

from access_questions import Peer

from kalda import Admin, Consumer, Producer, Record
from kalda.base.configs.resources import ConfigResourceType
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.base.share_states import AcknowledgeType, SharePartitionKey
from kalda.client.admin.configs import Alteration, ConfigOperation, ConfigResource
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.groups import CoordinatorType, FindCoordinatorRequest
from kalda.protocol.messages.metadata import ApiVersionsRequest, MetadataRequest, MetadataRequestTopic
from kalda.protocol.messages.share import (
    AcknowledgePartition,
    AcknowledgeTopic,
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateRequestPartitionData,
    InitializeStateData,
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryRequestPartitionData,
    ReadStateSummaryData,
    ShareAcknowledgeRequest,
    ShareAcknowledgeRequestAcknowledgementBatch,
    ShareFetchRequest,
    ShareFetchRequestFetchPartition,
    ShareFetchRequestFetchTopic,
)
from kalda.testing import Cluster
from waiting import wait_until

CONFIG = {
    "share.coordinator.state.topic.num.partitions": 4,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
}
GROUPS = [f"g{number}" for number in range(8)]
RECORDS = 10


def _peer(address: str) -> Peer:
    host, _, port = address.rpartition(":")
    return Peer(int(port), host)


class Nodes:
    """Connections to both, and who coordinates which share partition."""

    def __init__(self, cluster: Cluster) -> None:
        self.peers = {node_id: _peer(cluster.address(node_id)) for node_id in cluster.nodes}
        self.coordinators: dict[str, int] = {}
        request = MetadataRequest(topics=[MetadataRequestTopic(name="orders")])
        (topic,) = self.peers[1].ask(request, 12).topics
        self.topic_id: Uuid = topic.topic_id
        self.leader: Peer = self.peers[topic.partitions[0].leader_id]

    def find(self) -> bool:
        """Whether the coordinators of all groups are known."""
        keys = {SharePartitionKey(group, self.topic_id, 0).coordinator_key: group for group in GROUPS}
        request = FindCoordinatorRequest(key_type=CoordinatorType.SHARE, coordinator_keys=list(keys))
        found = self.peers[1].ask(request, 6).coordinators
        self.coordinators = {keys[each.key]: each.node_id for each in found if not each.error_code}
        return len(self.coordinators) == len(GROUPS)

    def initialize(self, group: str) -> int:
        data = InitializeShareGroupStateRequestPartitionData(partition=0, state_epoch=1, start_offset=0)
        topics = [InitializeStateData(topic_id=self.topic_id, partitions=[data])]
        request = InitializeShareGroupStateRequest(group_id=group, topics=topics)
        response = self.peers[self.coordinators[group]].ask(request, 0)
        return int(response.results[0].partitions[0].error_code)

    def fetch(self, group: str, epoch: int = 0) -> list[tuple[int, int, int]]:
        """Offsets and deliveries of what a new member acquires."""
        partitions = [ShareFetchRequestFetchPartition(partition_index=0)]
        request = ShareFetchRequest(
            group_id=group,
            member_id="m",
            share_session_epoch=epoch,
            max_wait_ms=10_000,
            min_bytes=1,
            max_bytes=1 << 20,
            max_records=100,
            batch_size=100,
            topics=[ShareFetchRequestFetchTopic(topic_id=self.topic_id, partitions=partitions)],
        )
        response = self.leader.ask(request, 2)
        assert response.error_code == 0, response.error_message
        (answer,) = response.responses[0].partitions
        assert ErrorCode(answer.error_code) is ErrorCode.NONE
        return [(each.first_offset, each.last_offset, each.delivery_count) for each in answer.acquired_records]

    def acknowledge(self, group: str, first: int, last: int, kind: AcknowledgeType = AcknowledgeType.ACCEPT) -> int:
        """Acknowledge, and end the session."""
        batch = ShareAcknowledgeRequestAcknowledgementBatch(
            first_offset=first, last_offset=last, acknowledge_types=[kind]
        )
        partitions = [AcknowledgePartition(partition_index=0, acknowledgement_batches=[batch])]
        request = ShareAcknowledgeRequest(
            group_id=group,
            member_id="m",
            share_session_epoch=-1,
            topics=[AcknowledgeTopic(topic_id=self.topic_id, partitions=partitions)],
        )
        return int(self.leader.ask(request, 2).responses[0].partitions[0].error_code)

    def start(self, group: str) -> int:
        """The offset before which all records are done with, as the share coordinator has it."""
        data = ReadShareGroupStateSummaryRequestPartitionData(partition=0, leader_epoch=0)
        topics = [ReadStateSummaryData(topic_id=self.topic_id, partitions=[data])]
        request = ReadShareGroupStateSummaryRequest(group_id=group, topics=topics)
        (result,) = self.peers[self.coordinators[group]].ask(request, 1).results[0].partitions
        return int(result.start_offset)

    def announced(self) -> set[int]:
        request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
        return {each.api_key for each in self.leader.ask(request, 3).api_keys}


def _check_dead_letters(cluster: Cluster, nodes: Nodes) -> None:
    """The last two records, which a member holds, are rejected, and written to a topic that is made for them."""
    group = ConfigResource(ConfigResourceType.GROUP, GROUPS[0])
    brokers = ConfigResource(ConfigResourceType.BROKER, "")
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        changes = {
            group: {"errors.deadletterqueue.topic.name": "dlq.g", "errors.deadletterqueue.copy.record.enable": "true"},
            brokers: {"errors.deadletterqueue.auto.create.topics.enable": "true"},
        }
        altered = admin.alter_configs(
            {
                resource: [Alteration(key, ConfigOperation.SET, value) for key, value in configs.items()]
                for resource, configs in changes.items()
            }
        )
        assert set(altered.values()) == {None}
        assert nodes.acknowledge(GROUPS[0], RECORDS - 2, RECORDS - 1, AcknowledgeType.REJECT) == ErrorCode.NONE
        topic = ConfigResource(ConfigResourceType.TOPIC, "dlq.g")
        wait_until(lambda: "dlq.g" in admin.list_topics(), "the topic of the letters has been created")
        described = admin.describe_configs([topic])[topic]
        assert not isinstance(described, ApiError)
        assert described["errors.deadletterqueue.group.enable"].value == "true"
    with Consumer(
        bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest", group_id="reader"
    ) as consumer:
        consumer.subscribe(["dlq.g"])
        letters: list[Record] = []
        while len(letters) < 2:
            letters += consumer.poll(5.0)
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.send("orders", value=b"more")
    assert nodes.fetch(GROUPS[0]) == [(RECORDS, RECORDS, 1)]
    assert nodes.acknowledge(GROUPS[0], RECORDS, RECORDS) == ErrorCode.NONE
    assert nodes.start(GROUPS[0]) == RECORDS, "the rejected records are archived"
    assert [each.value for each in letters] == [b"8", b"9"]
    assert [dict(each.headers)["__dlq.errors.offset"] for each in letters] == [b"8", b"9"]


def test_members_are_served_with_their_state_at_either_node() -> None:
    with Cluster(nodes=2, config=CONFIG) as cluster:
        cluster.create_topic("orders", partitions=1)
        with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            for number in range(RECORDS):
                producer.send("orders", value=str(number).encode())
        nodes = Nodes(cluster)
        try:
            wait_until(nodes.find, "the coordinators are elected")
            assert set(nodes.coordinators.values()) == {1, 2}, "a share partition is coordinated at either node"
            for group in GROUPS:
                wait_until(lambda group=group: nodes.initialize(group) == ErrorCode.NONE, "its coordinator has loaded")
                got = nodes.fetch(group)
                assert sum(last - first + 1 for first, last, _ in got) == RECORDS
                assert {count for _, _, count in got} == {1}
                assert nodes.acknowledge(group, 0, RECORDS - 3) == ErrorCode.NONE
                assert nodes.start(group) == RECORDS - 2, "written with the release of the others"
                assert nodes.fetch(group) == [(RECORDS - 2, RECORDS - 1, 2)], "released with the session"
            served = nodes.announced()
            assert {ApiKey.READ_SHARE_GROUP_STATE, ApiKey.WRITE_SHARE_GROUP_STATE} <= served
            assert {ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE, ApiKey.SHARE_GROUP_HEARTBEAT} <= served
            _check_dead_letters(cluster, nodes)
        finally:
            for peer in nodes.peers.values():
                peer.close()
