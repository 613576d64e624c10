"""Requests that are hardly valid, or not quite: Kalda gives the same answers as Apache Kafka."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from data_requests import batch, fetch, produce
from same_answers import Asker

from kalda.base.ids import ZERO_UUID, Uuid
from kalda.protocol.messages.admin import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
    ComponentData,
    DescribeClientQuotasRequest,
    FeatureUpdateKey,
    OpData,
    UpdateFeaturesRequest,
)
from kalda.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from kalda.protocol.messages.partitions import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kalda.protocol.messages.quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)
from kalda.protocol.messages.topics import ElectLeadersRequest, ElectLeadersRequestTopicPartitions

pytestmark = pytest.mark.compat

Both = Callable[[Callable[[Asker], None]], None]
Fresh = Callable[[str], str]
SOME_ID = Uuid(bytes(range(16)))


def quorum(*asked: tuple[str, list[int]]) -> DescribeQuorumRequest:
    return DescribeQuorumRequest(
        topics=[
            DescribeQuorumRequestTopicData(
                topic_name=name,
                partitions=[DescribeQuorumRequestPartitionData(partition_index=index) for index in indexes],
            )
            for name, indexes in asked
        ]
    )


def test_the_quorum_of_other_topics(both: Both, fresh: Fresh) -> None:
    name = fresh("same")

    def scenario(asker: Asker) -> None:
        asker.make(name)
        for version in range(3):
            asker.ask(quorum((name, [0])), version, "another topic")
            asker.ask(quorum(("nope", [0, 1])), version, "an unknown topic")
            asker.ask(quorum(("__cluster_metadata", [1])), version, "another partition")
            asker.ask(quorum(("__cluster_metadata", [])), version, "no partition")
            asker.ask(quorum(), version, "nothing")
            asker.ask(quorum((name, [0]), ("__cluster_metadata", [0])), version, "two topics")

    both(scenario)


def test_elections_of_an_unknown_type(both: Both, fresh: Fresh) -> None:
    name = fresh("same")

    def scenario(asker: Asker) -> None:
        asker.make(name)
        for version in (1, 2):
            for kind in (-1, 2, 5, 127):
                asked = [ElectLeadersRequestTopicPartitions(topic=name, partitions=[0])]
                asker.ask(ElectLeadersRequest(election_type=kind, topic_partitions=asked), version, f"type {kind}")
                asker.ask(ElectLeadersRequest(election_type=kind, topic_partitions=None), version, f"all, type {kind}")

    both(scenario)


def test_features_as_they_are(both: Both) -> None:
    def scenario(asker: Asker) -> None:
        for version in range(3):
            for feature in ("kraft.version", "metadata.version", "transaction.version", "nope"):
                for level in (0, 1, 2, 30, 99, -1):
                    for kind in (0, 1, 2, 3, 4) if version else (0,):
                        update = FeatureUpdateKey(feature=feature, max_version_level=level)
                        if version:
                            update.upgrade_type = kind
                        request = UpdateFeaturesRequest(feature_updates=[update])
                        if version:
                            request.validate_only = True
                        elif (feature, level) not in (("kraft.version", 1), ("metadata.version", 30), ("nope", 1)):
                            continue
                        asker.ask(request, version, f"{feature} {level} {kind}")

    both(scenario)


def test_quotas_of_an_unknown_entity(both: Both) -> None:
    def entry(*entity: tuple[str, str | None], key: str = "producer_byte_rate") -> AlterClientQuotasRequestEntryData:
        return AlterClientQuotasRequestEntryData(
            entity=[AlterClientQuotasRequestEntityData(entity_type=kind, entity_name=name) for kind, name in entity],
            ops=[OpData(key=key, value=5e12)],
        )

    def scenario(asker: Asker) -> None:
        for version in range(2):
            for entity in (
                (("user", "a"), ("user", "b")), (("user", "a"), ("user", "a")),
                (("client-id", "a"), ("client-id", None)),
                (("ip", "1.2.3.4"), ("ip", "1.2.3.5")), (), (("user", ""),), (("team", "a"),),
                (("user", "a"), ("ip", "1.2.3.4")),
            ):  # fmt: skip
                for validate_only in (True, False):
                    request = AlterClientQuotasRequest(entries=[entry(*entity)], validate_only=validate_only)
                    asker.ask(request, version, f"{entity} {validate_only}")
        asker.ask(DescribeClientQuotasRequest(components=[]), 1, "what came of it")

    both(scenario)


def test_filters_of_quotas_and_keys_given_twice(both: Both) -> None:
    """Their errors in Kafka's own words."""

    def scenario(asker: Asker) -> None:
        for components in (
            [("", 2, None)], [("team", 0, "a")], [("user", 2, None), ("user", 1, None)], [("user", 7, None)],
            [("team", 2, None), ("team", 2, None)], [("user", 0, None)], [("user", 1, "a")], [("user", 2, "a")],
            [("user", 2, None), ("ip", 2, None)],
        ):  # fmt: skip
            asked = [ComponentData(entity_type=kind, match_type=how, match=name) for kind, how, name in components]
            answer = asker.quiet(DescribeClientQuotasRequest(components=asked))
            asker.note(f"{components}", (answer.error_code, answer.error_message))
        for named in ([("client-id", "a")], [("user", "a"), ("client-id", None)], [("user", "a"), ("ip", "1.2.3.4")]):
            entity = [AlterClientQuotasRequestEntityData(entity_type=kind, entity_name=name) for kind, name in named]
            ops = [OpData(key="producer_byte_rate", value=5.0), OpData(key="producer_byte_rate", value=6.0)]
            entry = AlterClientQuotasRequestEntryData(entity=entity, ops=ops)
            for entries in ([entry], [entry, entry]):
                (one,) = asker.quiet(AlterClientQuotasRequest(entries=entries, validate_only=True)).entries
                names = [(each.entity_type, each.entity_name) for each in one.entity]
                asker.note(f"{named}, {len(entries)} times", (one.error_code, one.error_message, names))

    both(scenario)


def test_limits_below_zero(both: Both, fresh: Fresh) -> None:
    name = fresh("same")

    def scenario(asker: Asker) -> None:
        at = (name, asker.make(name, 2))
        for _ in range(3):
            asker.quiet(produce(*at, (0, batch(3)), (1, batch())))
        for version in (4, 7, 11, 12, 15, 18):
            for limit in (-1, -(2**31)):
                asker.ask(fetch((*at, 0, 0), (*at, 1, 0), partition_bytes=limit), version, f"{limit} a partition")
                asker.ask(fetch((*at, 0, 0), (*at, 1, 0), max_bytes=limit), version, f"{limit} in all")
                asker.ask(fetch((*at, 0, 0), min_bytes=limit), version, f"{limit} at least")
                at_end = fetch((*at, 0, 9))
                at_end.max_wait_ms = limit
                asker.ask(at_end, version, f"{limit} ms")
            for isolation in (2, -1, 127):
                asker.ask(fetch((*at, 0, 0), isolation_level=isolation), version, f"isolation {isolation}")
        for version in (2, 7, 11):
            for isolation in (2, -1):
                asked = [ListOffsetsPartition(partition_index=0, timestamp=-1)]
                request = ListOffsetsRequest(
                    replica_id=-1, isolation_level=isolation, topics=[ListOffsetsTopic(name=name, partitions=asked)]
                )
                asker.ask(request, version, f"isolation {isolation}")

    both(scenario)


def test_topics_without_a_name(both: Both, fresh: Fresh) -> None:
    name = fresh("same")

    def scenario(asker: Asker) -> None:
        topic_id = asker.make(name)
        for version in (10, 11, 12, 13):
            for label, asked in (
                ("nothing", [MetadataRequestTopic(name=None, topic_id=ZERO_UUID)]),
                ("a name and an id", [MetadataRequestTopic(name=name, topic_id=topic_id)]),
                ("a name and another id", [MetadataRequestTopic(name=name, topic_id=SOME_ID)]),
                ("two", [MetadataRequestTopic(name=None), MetadataRequestTopic(name=name)]),
            ):
                request = MetadataRequest(topics=asked, allow_auto_topic_creation=False)
                asker.ask(request, version, label)

    both(scenario)


def test_moves_between_log_dirs(both: Both, fresh: Fresh) -> None:
    name = fresh("same")

    def scenario(asker: Asker) -> None:
        asker.make(name)
        for version in (1, 2):
            for path in ("", "nope", "/nowhere"):
                for topic, index in ((name, 0), ("unknown", 0), (name, 7), (name, -1), ("x" * 240, 0), ("a b", 0)):
                    asked = [AlterReplicaLogDirTopic(name=topic, partitions=[index])]
                    request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path, topics=asked)])
                    asker.ask(request, version, f"{path} {topic[:9]} {index}")
            asker.ask(AlterReplicaLogDirsRequest(dirs=[]), version, "nothing")

    both(scenario)
