"""Topics, metadata, configs, groups: the same answers as Apache Kafka's, in every version, for valid and invalid
requests."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from same_answers import Asker, topic

from kalda.base.errors import ErrorCode
from kalda.base.ids import Uuid
from kalda.protocol.messages.admin import (
    AlterConfigsRequest,
    AlterConfigsRequestAlterableConfig,
    AlterConfigsRequestAlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from kalda.protocol.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    MemberIdentity,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from kalda.protocol.messages.metadata import (
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestCursor,
    DescribeTopicPartitionsRequestTopicRequest,
    MetadataRequest,
    MetadataRequestTopic,
)
from kalda.protocol.messages.topics import (
    AlterPartitionReassignmentsRequest,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    ListPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)

pytestmark = pytest.mark.compat

Both = Callable[[Callable[[Asker], None]], None]
Fresh = Callable[[str], str]
SOME_ID = Uuid(b"\1" * 16)
BAD_NAMES = ("", ".", "..", "a b", "x" * 250, "ü", "a/b")
TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32


def test_creating_topics(both: Both, fresh: Fresh) -> None:
    base = fresh("same")

    def scenario(asker: Asker) -> None:
        for version in range(2, 8):
            asker.ask(CreateTopicsRequest(topics=[topic(f"{base}-{version}", 2)]), version)
        for made, label in (
            (topic(f"{base}-7"), "exists"),
            *((topic(name), f"name {name[:5]!r}") for name in BAD_NAMES),
            *(
                (topic(f"{base}-n", count, replicas), f"{count} partitions, {replicas} replicas")
                for count, replicas in ((0, 1), (-1, -1), (-2, 1), (1, 0), (1, -2), (1, 2), (1, 32767), (20_000, 1))
            ),
            *(
                (topic(f"{base}-a", count, replicas, assigned=assigned), f"{assigned} {count} {replicas}")
                for assigned, count, replicas in (
                    (((0, [1]),), -1, -1), (((0, [1]),), 1, 1), (((1, [1]),), -1, -1), (((0, []),), -1, -1),
                    (((0, [1, 1]),), -1, -1), (((0, [2]),), -1, -1), (((0, [1]), (0, [1])), -1, -1),
                )
            ),
            *(
                (topic(f"{base}-c", configs={key: value}), f"{key}={value}")
                for key, value in (
                    ("retention.ms", "1000"), ("retention.ms", "x"), ("nope", "1"), ("cleanup.policy", "foo"),
                    ("cleanup.policy", "compact,delete"), ("cleanup.policy", ""), ("compression.type", "zip"),
                    ("min.insync.replicas", "0"), ("retention.ms", None), ("segment.bytes", "1"),
                    ("message.timestamp.difference.max.ms", "1"), ("message.format.version", "2.0"),
                    ("unclean.leader.election.enable", "maybe"), ("segment.ms", " 100000 "), ("", ""),
                )
            ),
        ):  # fmt: skip
            asker.ask(CreateTopicsRequest(topics=[made], timeout_ms=5000, validate_only=True), 7, label)
            asker.ask(CreateTopicsRequest(topics=[made], timeout_ms=5000, validate_only=True), 4, label)
        asker.ask(CreateTopicsRequest(topics=[topic(base), topic(base)]), 7, "twice")
        asker.ask(
            CreateTopicsRequest(topics=[topic("__cluster_metadata"), topic(f"{base}.7")]), 7, "reserved, colliding"
        )
        asker.ask(CreateTopicsRequest(topics=[topic(base)], timeout_ms=0), 7, "no time")

    both(scenario)


def test_changing_and_deleting_topics(both: Both, fresh: Fresh) -> None:
    name, by_id = fresh("same"), fresh("same")

    def scenario(asker: Asker) -> None:
        asker.make(name, 2)
        topic_id = asker.make(by_id)
        for version in range(4):
            for count, brokers in (
                (3, None), (1, None), (0, None), (4, [[1]]), (4, [[1], [1]]), (4, [[2], [1]]), (4, []),
            ):  # fmt: skip
                assigned = (
                    None if brokers is None else [CreatePartitionsAssignment(broker_ids=each) for each in brokers]
                )
                asked = CreatePartitionsTopic(name=name, count=count, assignments=assigned)
                request = CreatePartitionsRequest(topics=[asked], timeout_ms=5000, validate_only=True)
                asker.ask(request, version, f"{count} {brokers}")
        for version in range(1, 6):
            asker.ask(DeleteTopicsRequest(topic_names=["nope", "nope", "a b", ""], timeout_ms=5000), version)
        for label, state in (
            ("both", DeleteTopicState(name=by_id, topic_id=topic_id)),
            ("neither", DeleteTopicState()),
            ("unknown id", DeleteTopicState(topic_id=SOME_ID)),
            ("id", DeleteTopicState(topic_id=topic_id)),
            ("id again", DeleteTopicState(topic_id=topic_id)),
            ("name", DeleteTopicState(name=name)),
        ):
            asker.ask(DeleteTopicsRequest(topics=[state], timeout_ms=5000), 6, label)

    both(scenario)


def test_metadata(both: Both, fresh: Fresh) -> None:
    name, other = fresh("same"), fresh("same")

    def scenario(asker: Asker) -> None:
        topic_id = asker.make(name, 3)
        asker.make(other, 2)
        for version in range(14):
            names = [MetadataRequestTopic(name=each) for each in (name, "nope", name, *BAD_NAMES)]
            quiet = {"allow_auto_topic_creation": False} if version >= 4 else {}
            if version >= 4:
                asker.ask(MetadataRequest(topics=names, **quiet), version)
            rights = {"include_topic_authorized_operations": True} if version >= 8 else {}
            asker.ask(MetadataRequest(topics=names[:1], **rights), version, "rights")
            if version:
                asker.ask(MetadataRequest(topics=[]), version, "none")
            if version >= 10:
                ids = [MetadataRequestTopic(name=None, topic_id=each) for each in (topic_id, SOME_ID)]
                asker.ask(MetadataRequest(topics=ids), version, "ids")
                asker.ask(MetadataRequest(topics=[ids[0], names[0]]), version, "an id and a name")
        for version in range(3):
            asker.ask(DescribeClusterRequest(include_cluster_authorized_operations=True), version)
        for endpoint_type in range(4):
            asker.ask(DescribeClusterRequest(endpoint_type=endpoint_type), 2, f"type {endpoint_type}")
        for names_, limit, cursor in (
            ([name], 2000, None), ([name, other], 2, None), ([name, other], 3, None),
            ([name, "nope", "a b"], 2000, None),
            ([name], 0, None), ([name], -1, None), ([name, name], 2000, None), ([name, other], 2000, (name, 1)),
            ([name, other], 2000, (name, 3)), ([name, other], 1, (other, 1)), ([name], 2000, (name, -1)),
            ([name], 2000, ("", 0)), ([name], 2000, ("zzz", 0)),
        ):  # fmt: skip
            request = DescribeTopicPartitionsRequest(
                topics=[DescribeTopicPartitionsRequestTopicRequest(name=each) for each in names_],
                response_partition_limit=limit,
                cursor=cursor and DescribeTopicPartitionsRequestCursor(topic_name=cursor[0], partition_index=cursor[1]),
            )
            asker.ask(request, 0, f"{names_} {limit} {cursor}")

    both(scenario)


def test_configs(both: Both, fresh: Fresh) -> None:
    name = fresh("same")

    def scenario(asker: Asker) -> None:
        asker.make(name, retention_ms="5000")
        for version in range(1, 5):
            for kind, resource, keys in (
                (TOPIC, name, None), (TOPIC, name, ["retention.ms", "nope"]), (TOPIC, name, []), (TOPIC, "nope", None),
                (TOPIC, "a b", None), (BROKER, "1", ["num.io.threads", "nope"]), (BROKER, "", None),
                (BROKER, "2", None), (BROKER, "x", None), (GROUP, "g", None), (GROUP, "", None),
                (CLIENT_METRICS, "m", None), (CLIENT_METRICS, "", None), (LOGGER, "2", None),
                (0, "x", None), (99, "x", None),
            ):  # fmt: skip
                asked = DescribeConfigsResource(resource_type=kind, resource_name=resource, configuration_keys=keys)
                request = DescribeConfigsRequest(resources=[asked], include_synonyms=True)
                asker.ask(request, version, f"{kind} {resource} {keys}")
        for kind, resource, key, operation, value in (
            (TOPIC, name, "retention.ms", 0, "1000"), (TOPIC, name, "retention.ms", 0, "x"),
            (TOPIC, name, "nope", 0, "1"),
            (TOPIC, name, "retention.ms", 1, None), (TOPIC, name, "retention.ms", 2, "5"),
            (TOPIC, name, "cleanup.policy", 2, "compact"), (TOPIC, name, "cleanup.policy", 3, "delete"),
            (TOPIC, name, "retention.ms", 0, None), (TOPIC, "nope", "retention.ms", 0, "1"),
            (TOPIC, "", "retention.ms", 0, "1"), (BROKER, "1", "num.io.threads", 0, "9"),
            (BROKER, "1", "num.io.threads", 1, None), (BROKER, "1", "node.id", 0, "2"), (BROKER, "1", "nope", 0, "2"),
            (BROKER, "1", "num.io.threads", 0, "0"), (BROKER, "1", "num.io.threads", 0, "1000"),
            (BROKER, "2", "log.retention.ms", 0, "1"), (BROKER, "x", "log.retention.ms", 0, "1"),
            (BROKER, "", "min.insync.replicas", 1, None), (BROKER, "1", "min.insync.replicas", 0, "1"),
            (BROKER, "1", "min.insync.replicas", 1, None), (LOGGER, "1", "no.such.logger", 0, "INFO"),
            (LOGGER, "1", "root", 0, "NOPE"), (LOGGER, "1", "root", 1, None), (LOGGER, "2", "root", 0, "INFO"),
            (GROUP, "g", "consumer.session.timeout.ms", 0, "1"), (GROUP, "g", "nope", 0, "1"),
            (CLIENT_METRICS, "m", "interval.ms", 0, "1"), (CLIENT_METRICS, "m", "match", 0, "nope"),
            (0, "x", "a", 0, "b"), (99, "x", "a", 0, "b"),
        ):  # fmt: skip
            change = IncrementalAlterConfigsRequestAlterableConfig(name=key, config_operation=operation, value=value)
            altered = IncrementalAlterConfigsRequestAlterConfigsResource(
                resource_type=kind, resource_name=resource, configs=[change]
            )
            for validate_only in (True, False):
                request_ = IncrementalAlterConfigsRequest(resources=[altered], validate_only=validate_only)
                asker.ask(request_, 1, f"{kind} {resource} {key} {operation} {value} {validate_only}")
        for kind, resource, values in (
            (TOPIC, name, {"retention.ms": "77"}), (TOPIC, name, {}), (TOPIC, name, {"nope": "1"}),
            (TOPIC, name, {"retention.ms": None}), (TOPIC, "nope", {}), (BROKER, "1", {"num.io.threads": "7"}),
            (BROKER, "1", {}), (LOGGER, "1", {"root": "INFO"}), (0, "x", {}),
        ):  # fmt: skip
            whole = AlterConfigsRequestAlterConfigsResource(
                resource_type=kind,
                resource_name=resource,
                configs=[AlterConfigsRequestAlterableConfig(name=key, value=value) for key, value in values.items()],
            )
            for version in range(3):
                asker.ask(AlterConfigsRequest(resources=[whole]), version, f"{kind} {resource} {values}")

    both(scenario)


def ready_for_groups(asker: Asker) -> None:
    """Wait until the coordinators' topic exists."""
    while asker.quiet(FindCoordinatorRequest(coordinator_keys=["g"]), 6).coordinators[0].error_code:
        pass
    while asker.quiet(HeartbeatRequest(group_id="nobody"), 4).error_code != ErrorCode.UNKNOWN_MEMBER_ID:
        pass


def join(group: str, member: str = "", **fields: object) -> JoinGroupRequest:
    protocols = [JoinGroupRequestProtocol(name="range", metadata=b"m")]
    usual = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 5000, "protocol_type": "consumer"}
    return JoinGroupRequest(group_id=group, member_id=member, **{"protocols": protocols, **usual, **fields})


def test_groups(both: Both, fresh: Fresh) -> None:
    base = fresh("group")

    def scenario(asker: Asker) -> None:
        ready_for_groups(asker)
        for version in range(10):
            group, sync, beat, leave = f"{base}-{version}", min(5, version), min(4, version), min(5, version)
            joined = asker.ask(join(group), version, "first")
            if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                joined = asker.ask(join(group, joined.member_id), version, "with its id")
            member, generation = joined.member_id, joined.generation_id
            for who, when, kind in (
                (member, 1, "consumer"),
                ("x", 0, "consumer"),
                (member, 0, "foo"),
                (member, 0, "consumer"),
            ):
                told = {"protocol_type": kind, "protocol_name": "range"} if sync >= 5 else {}
                given = [SyncGroupRequestAssignment(member_id=member, assignment=b"part")]
                request = SyncGroupRequest(
                    group_id=group, generation_id=generation + when, member_id=who, assignments=given, **told
                )
                asker.ask(request, sync, f"{who == member} {when} {kind}")
            for who, when in ((member, 0), (member, 1), ("x", 0), ("", 0)):
                asker.ask(
                    HeartbeatRequest(group_id=group, generation_id=generation + when, member_id=who),
                    beat,
                    (who == member, when),
                )
            asker.ask(join(group, "stranger"), version, "stranger")
            asker.ask(join(group, member, protocol_type="other"), version, "other type")
            for describe in range(7):
                asker.ask(
                    DescribeGroupsRequest(groups=[group, "nope"], include_authorized_operations=describe >= 3), describe
                )
            asker.ask(DeleteGroupsRequest(groups_names=[group, "nope"]), 2, "not empty")
            for who in ("x", member):
                gone = {"members": [MemberIdentity(member_id=who)]} if leave >= 3 else {"member_id": who}
                asker.ask(LeaveGroupRequest(group_id=group, **gone), leave, who == member)
            asker.ask(DescribeGroupsRequest(groups=[group]), 6, "left")
        for version in (0, 9):
            for fields in (
                {"session_timeout_ms": 1}, {"session_timeout_ms": 10**8}, {"protocols": []}, {"protocol_type": ""},
            ):  # fmt: skip
                asker.ask(join(f"{base}-x", **fields), version, fields)
            asker.ask(join(""), version, "no name")
        for version in range(3):
            asker.ask(DeleteGroupsRequest(groups_names=[f"{base}-{version}", "nope"]), version)

    both(scenario)


def test_commits(both: Both, fresh: Fresh) -> None:
    name, base = fresh("same"), fresh("group")

    def commit(
        group: str, topic_id: Uuid, *offsets: tuple[int, int, str | None], **fields: object
    ) -> OffsetCommitRequest:
        partitions = [
            OffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata=metadata)
            for index, offset, metadata in offsets
        ]
        topics = [OffsetCommitRequestTopic(name=name, topic_id=topic_id, partitions=partitions)]
        return OffsetCommitRequest(group_id=group, **{"topics": topics, **fields})

    def scenario(asker: Asker) -> None:
        ready_for_groups(asker)
        topic_id = asker.make(name, 3)
        for version in range(2, 11):
            group = f"{base}-{version}"
            asker.ask(commit(group, topic_id, (0, 5, "m"), (1, 7, None)), version)
            asker.ask(
                commit(group, topic_id, (9, 5, "m"), (-1, 7, None), (0, 6, "x" * 5000), (2, -1, "")), version, "bad"
            )
            for fields in (
                {"generation_id_or_member_epoch": 3, "member_id": "x"}, {"generation_id_or_member_epoch": 3},
                {"member_id": "x"}, {"topics": []},
            ):  # fmt: skip
                asker.ask(commit(group, topic_id, (0, 5, "m"), **fields), version, fields)
        group = f"{base}-2"
        for version in range(1, 11):
            for asked in (group, "nope") if version < 8 else ():
                topics = [OffsetFetchRequestTopic(name=each, partition_indexes=[0, 1, 2, 9]) for each in (name, "nope")]
                asker.ask(OffsetFetchRequest(group_id=asked, topics=topics), version, asked)
                if version >= 2:
                    asker.ask(OffsetFetchRequest(group_id=asked, topics=None), version, f"all of {asked}")
            for asked in (group, "nope") if version >= 8 else ():
                some = [OffsetFetchRequestTopics(name=name, topic_id=topic_id, partition_indexes=[0, 1, 2, 9])]
                for topics_ in (some, None):
                    wanted = OffsetFetchRequestGroup(group_id=asked, topics=topics_)
                    asker.ask(OffsetFetchRequest(groups=[wanted]), version, f"{asked} {topics_ is None}")
        for asked in (group, "nope"):
            partitions = [OffsetDeleteRequestPartition(partition_index=index) for index in (0, 9)]
            deleted = [OffsetDeleteRequestTopic(name=each, partitions=partitions) for each in (name, "nope")]
            asker.ask(OffsetDeleteRequest(group_id=asked, topics=deleted), 0, asked)

    both(scenario)


def test_messages_of_answers_without_an_error(both: Both, fresh: Fresh) -> None:
    """Whether a text is null, empty or there. Clients differ in what they make of the three."""
    name = fresh("same")

    def scenario(asker: Asker) -> None:
        asker.make(name)
        for replicas in (None, [], [9]):
            targets = [ReassignablePartition(partition_index=0, replicas=replicas)]
            topics = [ReassignableTopic(name=name, partitions=targets)]
            asker.ask(AlterPartitionReassignmentsRequest(topics=topics), label=replicas)
        asker.ask(AlterPartitionReassignmentsRequest(topics=[]), label="nothing")
        asker.ask(ListPartitionReassignmentsRequest(topics=None))
        for version in range(1, 7):
            for key_type in (3, -1):
                keys = {"key": "k"} if version < 4 else {"coordinator_keys": ["k"]}
                asker.ask(FindCoordinatorRequest(**keys, key_type=key_type), version, key_type)
        ready_for_groups(asker)
        for version in range(7):
            keys = {"key": "g"} if version < 4 else {"coordinator_keys": ["g"]}
            asker.ask(FindCoordinatorRequest(**keys), version)

    both(scenario)
