"""What a node answers to a client that has some rights: every API, asked with one set of rights after another.

Nodes connect to themselves from 127.0.0.1, and have all rights there. The client whose rights change connects from
127.0.0.2. So a listener without authentication is enough to compare a node with Apache Kafka:

    python access_questions.py PORT | gzip -9n > tests/golden/security/answers.json.gz

asks a node that has StandardAuthorizer and `allow.everyone.if.no.acl.found=true`, and prints the answers.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
from collections.abc import Iterator
from typing import Any

from kalda.base.errors import ErrorCode
from kalda.protocol.apis import API, response_class
from kalda.protocol.codec import decode
from kalda.protocol.framing import decode_response_header, encode_request
from kalda.protocol.messages import admin, groups, metadata, partitions, security, topics
from kalda.protocol.messages import transactions as txn
from kalda.protocol.notation import Request, Struct
from waiting import wait_until

ADMIN, CLIENT = "127.0.0.1", "127.0.0.2"
TOPIC, GROUP, CLUSTER, TRANSACTION, TOKEN, USER = 2, 3, 4, 5, 6, 7
ALL, READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT = range(2, 13)
TWO_PHASE = 15
LITERAL, PREFIXED = 3, 4
ALLOW = 3
Right = tuple[int, int, str, int]
"""Operation, resource type, name, pattern type."""
RIGHTS: dict[str, list[Right]] = {
    "nothing": [],
    **{
        f"{name} topics a*": [(operation, TOPIC, "a", PREFIXED)]
        for name, operation in (
            ("READ", READ), ("WRITE", WRITE), ("CREATE", CREATE), ("DELETE", DELETE), ("ALTER", ALTER),
            ("DESCRIBE", DESCRIBE), ("DESCRIBE_CONFIGS", DESCRIBE_CONFIGS), ("ALTER_CONFIGS", ALTER_CONFIGS),
        )
    },
    **{
        f"{name} group g1": [(operation, GROUP, "g1", LITERAL)]
        for name, operation in (
            ("READ", READ), ("DELETE", DELETE), ("DESCRIBE", DESCRIBE), ("DESCRIBE_CONFIGS", DESCRIBE_CONFIGS),
            ("ALTER_CONFIGS", ALTER_CONFIGS),
        )
    },
    **{
        f"{name} cluster": [(operation, CLUSTER, "kafka-cluster", LITERAL)]
        for name, operation in (
            ("CREATE", CREATE), ("DELETE", DELETE), ("ALTER", ALTER), ("DESCRIBE", DESCRIBE), ("ACTION", ACTION),
            ("DESCRIBE_CONFIGS", DESCRIBE_CONFIGS), ("ALTER_CONFIGS", ALTER_CONFIGS), ("IDEMPOTENT", IDEMPOTENT),
        )
    },
    "WRITE id": [(WRITE, TRANSACTION, "id", LITERAL)],
    "DESCRIBE id": [(DESCRIBE, TRANSACTION, "id", LITERAL)],
    "WRITE id, topics a*": [(WRITE, TRANSACTION, "id", LITERAL), (WRITE, TOPIC, "a", PREFIXED)],
    "WRITE and TWO_PHASE id": [(WRITE, TRANSACTION, "id", LITERAL), (TWO_PHASE, TRANSACTION, "id", LITERAL)],
    "READ group g1, WRITE id": [(READ, GROUP, "g1", LITERAL), (WRITE, TRANSACTION, "id", LITERAL)],
    "READ group g1, topics a*": [(READ, GROUP, "g1", LITERAL), (READ, TOPIC, "a", PREFIXED)],
    "DELETE group g1, READ topics a*": [(DELETE, GROUP, "g1", LITERAL), (READ, TOPIC, "a", PREFIXED)],
    "DESCRIBE group g1, topics a*": [(DESCRIBE, GROUP, "g1", LITERAL), (DESCRIBE, TOPIC, "a", PREFIXED)],
    "DESCRIBE topics a*, CREATE cluster": [
        (DESCRIBE, TOPIC, "a", PREFIXED), (CREATE, CLUSTER, "kafka-cluster", LITERAL),
    ],
    "READ group g1, topics a*, WRITE id": [
        (READ, GROUP, "g1", LITERAL), (READ, TOPIC, "a", PREFIXED), (WRITE, TRANSACTION, "id", LITERAL),
    ],
}  # fmt: skip
_EVERY_TYPE = {TOPIC: "*", GROUP: "*", CLUSTER: "kafka-cluster", TRANSACTION: "*", TOKEN: "*", USER: "*"}
_KEPT = frozenset(
    (
        "name", "topic", "topic_name", "group_id", "transactional_id", "resource_name", "user", "key", "feature",
        "topic_authorized_operations", "cluster_authorized_operations", "authorized_operations", "partition_index",
        "index", "partition", "partition_id",
    )
)  # fmt: skip


class Peer:
    """One connection from an address."""

    def __init__(self, port: int, source: str) -> None:
        self._port, self._source = port, source
        self._socket: socket.socket | None = None

    def ask(self, request: Request, version: int) -> Any:
        """The response; None where the connection was closed, and 0 where nothing is answered."""
        if self._socket is None:
            self._socket = socket.create_connection(("127.0.0.1", self._port), 5, (self._source, 0))
        frame = b"".join(encode_request(request, version, 1, "asker"))
        try:
            self._socket.sendall(struct.pack(">i", len(frame)) + frame)
            size = struct.unpack(">i", self._read(4))[0]
            answer = memoryview(self._read(size))
        except (ConnectionError, TimeoutError):
            self.close()
            return None
        api = API[request.API_KEY]
        _, at = decode_response_header(api, version, answer)
        return decode(response_class(api.key), answer, version, at)

    def _read(self, size: int) -> bytes:
        assert self._socket is not None
        parts = b""
        while len(parts) < size:
            part = self._socket.recv(size - len(parts))
            if not part:
                raise ConnectionResetError
            parts += part
        return parts

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def gist(value: Any) -> Any:
    """Names, error codes and authorized operations; lists in any order."""
    if isinstance(value, Struct):
        found = {}
        for name in type(value).declared:
            field = getattr(value, name)
            if name.endswith("error_code"):
                found[name] = ErrorCode(field).name
            elif name in _KEPT:
                found[name] = field
            elif isinstance(field, Struct) or (isinstance(field, list) and field and isinstance(field[0], Struct)):
                inner = gist(field)
                if inner:
                    found[name] = inner
        return found
    if isinstance(value, list):
        return sorted((gist(each) for each in value), key=json.dumps)
    return value


def questions() -> Iterator[tuple[str, Request, int]]:
    """A name, a request, a version. Nothing that is allowed changes what later ones are answered."""
    both = ("a", "b")
    every = [*both, "a-missing"]
    yield "Metadata of all", metadata.MetadataRequest(topics=None, allow_auto_topic_creation=False), 12
    for allow in (False, True):
        # A name that is not legal is not created.
        asked = [metadata.MetadataRequestTopic(name=name) for name in (("a", "b", "a!") if allow else every)]
        yield (
            f"Metadata, creation {allow}",
            metadata.MetadataRequest(
                topics=asked, allow_auto_topic_creation=allow, include_topic_authorized_operations=True,
                include_cluster_authorized_operations=True,
            ),
            10,
        )  # fmt: skip
    yield (
        "DescribeTopicPartitions",
        metadata.DescribeTopicPartitionsRequest(
            topics=[metadata.DescribeTopicPartitionsRequestTopicRequest(name=name) for name in every]
        ),
        0,
    )
    yield "DescribeTopicPartitions of all", metadata.DescribeTopicPartitionsRequest(), 0
    yield "DescribeCluster", metadata.DescribeClusterRequest(include_cluster_authorized_operations=True), 1
    for kind, keys in ((0, ["g1", "g2"]), (1, ["id", "id2"])):
        yield f"FindCoordinator {kind}", groups.FindCoordinatorRequest(key_type=kind, coordinator_keys=keys), 4
        yield f"FindCoordinator {kind} old", groups.FindCoordinatorRequest(key_type=kind, key=keys[0]), 3
    yield from _data(every)
    yield from _groups(every)
    yield from _transactions(both)
    yield from _topics(every)
    yield from _cluster()


def _data(every: list[str]) -> Iterator[tuple[str, Request, int]]:
    yield (
        "Produce",
        partitions.ProduceRequest(
            acks=1,
            timeout_ms=5_000,
            topic_data=[
                partitions.TopicProduceData(name=name, partition_data=[partitions.PartitionProduceData(records=b"")])
                for name in every
            ],
        ),
        9,
    )
    for replica in (-1, 7):
        yield (
            f"Fetch by {replica}",
            partitions.FetchRequest(
                replica_id=replica,
                max_bytes=1000,
                session_epoch=-1,
                topics=[
                    partitions.FetchRequestFetchTopic(
                        topic=name, partitions=[partitions.FetchRequestFetchPartition(partition_max_bytes=100)]
                    )
                    for name in every
                ],
            ),
            11,
        )
    yield (
        "ListOffsets",
        partitions.ListOffsetsRequest(
            replica_id=-1,
            topics=[
                partitions.ListOffsetsTopic(name=name, partitions=[partitions.ListOffsetsPartition(timestamp=-1)])
                for name in every
            ],
        ),
        6,
    )
    yield (
        "OffsetForLeaderEpoch",
        partitions.OffsetForLeaderEpochRequest(
            replica_id=-1,
            topics=[
                partitions.OffsetForLeaderTopic(
                    topic=name, partitions=[partitions.OffsetForLeaderPartition(leader_epoch=0)]
                )
                for name in every
            ],
        ),
        4,
    )
    yield (
        "DeleteRecords",
        partitions.DeleteRecordsRequest(
            timeout_ms=5_000,
            topics=[
                partitions.DeleteRecordsTopic(name=name, partitions=[partitions.DeleteRecordsPartition(offset=0)])
                for name in every
            ],
        ),
        2,
    )


def _groups(every: list[str]) -> Iterator[tuple[str, Request, int]]:
    for group in ("g1", "g2"):
        yield f"Heartbeat {group}", groups.HeartbeatRequest(group_id=group, member_id="m"), 4
        yield f"SyncGroup {group}", groups.SyncGroupRequest(group_id=group, member_id="m"), 4
        yield f"LeaveGroup {group}", groups.LeaveGroupRequest(group_id=group, members=[]), 4
        yield f"JoinGroup {group}", groups.JoinGroupRequest(group_id=group, session_timeout_ms=1), 5
        yield (
            f"OffsetCommit {group}",
            groups.OffsetCommitRequest(
                group_id=group,
                member_id="no such member",
                generation_id_or_member_epoch=5,
                topics=[
                    groups.OffsetCommitRequestTopic(name=name, partitions=[groups.OffsetCommitRequestPartition()])
                    for name in every
                ],
            ),
            8,
        )
        asked = [groups.OffsetFetchRequestTopic(name=name, partition_indexes=[0]) for name in every]
        yield f"OffsetFetch {group} old", groups.OffsetFetchRequest(group_id=group, topics=asked), 5
        yield f"OffsetFetch {group} old of all", groups.OffsetFetchRequest(group_id=group, topics=None), 5
        yield (
            f"OffsetDelete {group}",
            groups.OffsetDeleteRequest(
                group_id=group,
                topics=[
                    groups.OffsetDeleteRequestTopic(name=name, partitions=[groups.OffsetDeleteRequestPartition()])
                    for name in every
                ],
            ),
            0,
        )
        yield (
            f"TxnOffsetCommit {group}",
            txn.TxnOffsetCommitRequest(
                transactional_id="id",
                producer_id=12345,
                group_id=group,
                member_id="no such member",
                generation_id_or_member_epoch=5,
                topics=[
                    txn.TxnOffsetCommitRequestTopic(name=name, partitions=[txn.TxnOffsetCommitRequestPartition()])
                    for name in every
                ],
            ),
            3,
        )
        yield (
            f"AddOffsetsToTxn {group}",
            txn.AddOffsetsToTxnRequest(transactional_id="id", producer_id=9, group_id=group),
            3,
        )
    yield from _several_groups(every, ["g1", "g2"])


def _several_groups(every: list[str], two: list[str]) -> Iterator[tuple[str, Request, int]]:
    wanted = [groups.OffsetFetchRequestTopics(name=name, partition_indexes=[0]) for name in every]
    yield (
        "OffsetFetch",
        groups.OffsetFetchRequest(
            groups=[groups.OffsetFetchRequestGroup(group_id=each, topics=wanted) for each in two]
        ),
        8,
    )
    yield (
        "OffsetFetch of all",
        groups.OffsetFetchRequest(groups=[groups.OffsetFetchRequestGroup(group_id=each, topics=None) for each in two]),
        8,
    )
    yield "DescribeGroups", groups.DescribeGroupsRequest(groups=two, include_authorized_operations=True), 5
    yield "ListGroups", groups.ListGroupsRequest(), 4
    yield "DeleteGroups", groups.DeleteGroupsRequest(groups_names=["g1-missing", "g2"]), 2


def _transactions(both: tuple[str, ...]) -> Iterator[tuple[str, Request, int]]:
    yield "InitProducerId", txn.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), 4
    init = txn.InitProducerIdRequest(transactional_id="id", transaction_timeout_ms=-1)
    yield "InitProducerId id", init, 4
    for name in ("id", "id2"):
        yield (
            f"AddPartitionsToTxn {name}",
            txn.AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=name,
                v3_and_below_producer_id=9,
                v3_and_below_topics=[txn.AddPartitionsToTxnTopic(name=each, partitions=[0]) for each in both],
            ),
            3,
        )
        yield f"EndTxn {name}", txn.EndTxnRequest(transactional_id=name, producer_id=9), 3
    of_broker = txn.AddPartitionsToTxnTransaction(
        transactional_id="id", producer_id=12345, topics=[txn.AddPartitionsToTxnTopic(name="a", partitions=[0])]
    )
    yield "AddPartitionsToTxn of brokers", txn.AddPartitionsToTxnRequest(transactions=[of_broker]), 4
    yield "DescribeTransactions", txn.DescribeTransactionsRequest(transactional_ids=["id", "id2"]), 0
    yield "ListTransactions", txn.ListTransactionsRequest(), 1
    yield (
        "DescribeProducers",
        txn.DescribeProducersRequest(
            topics=[
                txn.DescribeProducersRequestTopicRequest(name=name, partition_indexes=[0])
                for name in (*both, "a-missing", "no/name")
            ]
        ),
        0,
    )
    yield "WriteTxnMarkers", txn.WriteTxnMarkersRequest(markers=[]), 1


def _topics(every: list[str]) -> Iterator[tuple[str, Request, int]]:
    yield (
        "CreateTopics",
        topics.CreateTopicsRequest(
            topics=[topics.CreatableTopic(name=f"{name}-new", num_partitions=1, replication_factor=1) for name in "ab"],
            timeout_ms=5_000,
            validate_only=True,
        ),
        5,
    )
    yield (
        "DeleteTopics",
        topics.DeleteTopicsRequest(topic_names=["a-missing", "b", "b-missing"], timeout_ms=5_000),
        5,
    )
    yield (
        "CreatePartitions",
        topics.CreatePartitionsRequest(
            topics=[topics.CreatePartitionsTopic(name=name, count=2) for name in every],
            timeout_ms=5_000,
            validate_only=True,
        ),
        2,
    )
    for kind, names in ((2, ["a", "b"]), (4, ["1", ""]), (32, ["g1", "g2"]), (16, ["m"]), (8, ["1"])):
        yield (
            f"DescribeConfigs {kind}",
            admin.DescribeConfigsRequest(
                resources=[
                    admin.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=["none"])
                    for name in names
                ]
            ),
            4,
        )
        changed = [
            admin.IncrementalAlterConfigsRequestAlterConfigsResource(resource_type=kind, resource_name=name)
            for name in names
        ]
        yield (
            f"IncrementalAlterConfigs {kind}",
            admin.IncrementalAlterConfigsRequest(resources=changed, validate_only=True),
            1,
        )
    yield "ListConfigResources", admin.ListConfigResourcesRequest(), 1


def _cluster() -> Iterator[tuple[str, Request, int]]:
    yield "DescribeClientQuotas", admin.DescribeClientQuotasRequest(), 1
    yield "AlterClientQuotas", admin.AlterClientQuotasRequest(entries=[], validate_only=True), 1
    yield "DescribeLogDirs", admin.DescribeLogDirsRequest(topics=[]), 4
    yield "AlterReplicaLogDirs", admin.AlterReplicaLogDirsRequest(dirs=[]), 2
    yield "DescribeUserScramCredentials", security.DescribeUserScramCredentialsRequest(
        users=[security.UserName(name="nobody")]
    ), 0  # fmt: skip
    yield "AlterUserScramCredentials", security.AlterUserScramCredentialsRequest(
        deletions=[security.ScramCredentialDeletion(name="nobody", mechanism=1)]
    ), 0  # fmt: skip
    yield "ElectLeaders", topics.ElectLeadersRequest(topic_partitions=[], timeout_ms=5_000), 2
    yield "AlterPartitionReassignments", topics.AlterPartitionReassignmentsRequest(topics=[], timeout_ms=5_000), 0
    yield "ListPartitionReassignments", topics.ListPartitionReassignmentsRequest(timeout_ms=5_000, topics=None), 0
    yield "DescribeAcls", security.DescribeAclsRequest(
        resource_type_filter=1, resource_name_filter="none", pattern_type_filter=1, principal_filter=None,
        host_filter=None, operation=1, permission_type=1,
    ), 3  # fmt: skip
    yield "CreateAcls", security.CreateAclsRequest(
        creations=[
            security.AclCreation(
                resource_type=TOPIC, resource_name="", resource_pattern_type=3, principal="User:x", host="*",
                operation=3, permission_type=3,
            )
        ]
    ), 3  # fmt: skip
    yield "DeleteAcls", security.DeleteAclsRequest(
        filters=[
            security.DeleteAclsFilter(
                resource_type_filter=1, resource_name_filter="none", pattern_type_filter=1, principal_filter=None,
                host_filter=None, operation=1, permission_type=1,
            )
        ]
    ), 3  # fmt: skip
    yield "CreateDelegationToken", security.CreateDelegationTokenRequest(), 3
    yield "DescribeDelegationToken", security.DescribeDelegationTokenRequest(owners=None), 3
    yield "RenewDelegationToken", security.RenewDelegationTokenRequest(hmac=b"x"), 2
    yield "ExpireDelegationToken", security.ExpireDelegationTokenRequest(hmac=b"x"), 2


def _creation(right: Right, host: str) -> security.AclCreation:
    operation, resource, name, pattern = right
    return security.AclCreation(
        resource_type=resource,
        resource_name=name,
        resource_pattern_type=pattern,
        principal="User:ANONYMOUS",
        host=host,
        operation=operation,
        permission_type=ALLOW,
    )


def _create(peer: Peer, rights: list[Right], host: str) -> None:
    creations = [_creation(right, host) for right in rights]
    if creations:
        response = peer.ask(security.CreateAclsRequest(creations=creations), 3)
        assert all(not each.error_code for each in response.results), gist(response)


def _entries(peer: Peer, host: str) -> int:
    response = peer.ask(
        security.DescribeAclsRequest(
            resource_type_filter=1, resource_name_filter=None, pattern_type_filter=1, principal_filter=None,
            host_filter=host, operation=1, permission_type=1,
        ),
        3,
    )  # fmt: skip
    return sum(len(each.acls) for each in response.resources)


def _delete(peer: Peer, host: str) -> None:
    every = security.DeleteAclsFilter(
        resource_type_filter=1, resource_name_filter=None, pattern_type_filter=1, principal_filter=None,
        host_filter=host, operation=1, permission_type=1,
    )  # fmt: skip
    peer.ask(security.DeleteAclsRequest(filters=[every]), 3)


def prepare(peer: Peer) -> None:
    """All rights for the nodes, and for whoever prepares; topics, a group with offsets, a transactional id."""
    _create(peer, [(ALL, CLUSTER, "kafka-cluster", LITERAL)], ADMIN)
    _create(peer, [(ALL, resource, name, LITERAL) for resource, name in _EVERY_TYPE.items()], ADMIN)
    _delete(peer, CLIENT)
    made = topics.CreateTopicsRequest(
        topics=[topics.CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in "ab"],
        timeout_ms=10_000,
    )
    peer.ask(made, 5)
    commit = groups.OffsetCommitRequest(
        group_id="g1",
        generation_id_or_member_epoch=-1,
        topics=[
            groups.OffsetCommitRequestTopic(
                name=name, partitions=[groups.OffsetCommitRequestPartition(committed_offset=1)]
            )
            for name in "ab"
        ],
    )
    for kind, key in ((0, "g1"), (1, "id")):
        find = groups.FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
        wait_until(lambda find=find: not peer.ask(find, 4).coordinators[0].error_code, f"{key} has a coordinator")
    wait_until(lambda: not peer.ask(commit, 8).topics[0].partitions[0].error_code, "offsets are committed")
    begin = txn.InitProducerIdRequest(transactional_id="id", transaction_timeout_ms=60_000)
    wait_until(lambda: not peer.ask(begin, 4).error_code, "there is a producer id")


def answers(port: int) -> dict[str, dict[str, Any]]:
    """By name of the rights, then of the question."""
    root, client = Peer(port, ADMIN), Peer(port, CLIENT)
    prepare(root)
    found: dict[str, dict[str, Any]] = {}
    for name, rights in RIGHTS.items():
        _create(root, rights, CLIENT)
        count = len(rights)
        wait_until(lambda count=count: _entries(root, CLIENT) == count, "the broker has applied the entries")
        found[name] = {label: gist(client.ask(request, version)) for label, request, version in questions()}
        _delete(root, CLIENT)
        wait_until(lambda: _entries(root, CLIENT) == 0, "the broker has applied the entries")
    client.close()
    root.close()
    return found


if __name__ == "__main__":
    json.dump(answers(int(sys.argv[1])), sys.stdout, separators=(",", ":"))
