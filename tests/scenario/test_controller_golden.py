"""Replay of metadata logs that Apache Kafka wrote; and the same requests, with the records that Kafka wrote for them.

A controller replays Kafka's log up to some offset, becomes active, and receives the request that Kafka's controller
received there. It must write the records that follow in Kafka's log. The order of partitions inside a batch comes from
Kafka's hash maps, so batches are compared as sets.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from by_hand import inline_background
from controller_world import QuorumLog, World, creatable, state
from metadata_logs import NODES, log_batches, snapshots

from kalda.base.background import run_to_end
from kalda.base.errors import ErrorCode
from kalda.base.ids import Uuid, uuid_from_text
from kalda.controller.config import ControllerConfig, ControllerHost
from kalda.controller.config_schema import NodeConfigSchema
from kalda.controller.quorum_controller import QuorumController
from kalda.metadata.features import MetadataVersion
from kalda.metadata.formatter import BootstrapMetadata
from kalda.metadata.image import EMPTY, MetadataDelta, MetadataImage, Provenance
from kalda.protocol.access import Caller
from kalda.protocol.messages import admin, brokers, topics
from kalda.protocol.messages import metadata_records as records
from kalda.protocol.record_framing import VersionedRecord, encode_metadata_record

CALLER = Caller()
NOW_MS = 1_000_000


class KafkaLog(QuorumLog):
    """A log whose first append has the offset `end`, where the test has cut Kafka's log."""

    end = 0

    @property
    def log_end_offset(self) -> int:
        return max(self.end, super().log_end_offset)


def standby_at(node: str, end: int, log: KafkaLog | None = None, new_ids: Iterable[Uuid] = ()) -> QuorumController:
    """A controller that has replayed Kafka's log below `end`."""
    ids = iter(new_ids)
    controller = QuorumController(
        ControllerConfig(node_id=1, cluster_id="c", metadata_max_idle_interval_ms=None),
        KafkaLog() if log is None else log,
        NodeConfigSchema({}),
        ControllerHost(
            new_id=lambda: next(ids),
            rng=random.Random(1),
            background=inline_background(),
            elapsed_ms=lambda: 0,
            on_fatal=pytest.fail,
            on_poll=pytest.fail,
        ),
        bootstrap=(),
    )
    for batch in log_batches(node):
        if batch.last_offset < end:
            controller.on_commit([batch])
    return controller


def active_at(node: str, end: int, new_ids: Iterable[Uuid] = ()) -> tuple[QuorumController, KafkaLog]:
    log = KafkaLog()
    controller = standby_at(node, end, log, new_ids)
    log.end = end
    log.leader_epoch = 7
    controller.on_leader_change(1, 7)
    controller.poll(NOW_MS)
    return controller, log


def kafka_wrote(node: str, first: int, last: int) -> set[bytes]:
    return {
        encode_metadata_record(record, version)
        for batch in log_batches(node)
        for at, (record, version) in enumerate(batch.records)
        if first <= batch.base_offset + at <= last and not isinstance(record, records.NoOpRecord)
    }


def kalda_wrote(log: KafkaLog) -> set[bytes]:
    return {encode_metadata_record(record, version) for batch in log.batches for record, version in batch.records}


def image_of(node: str) -> MetadataImage:
    delta = MetadataDelta(EMPTY)
    for batch in log_batches(node):
        for record, _ in batch.records:
            if not isinstance(record, records.BeginTransactionRecord | records.EndTransactionRecord):
                delta.replay(record)
    return delta.apply(Provenance(0, 0, 0))


@pytest.mark.parametrize("node", NODES)
def test_the_state_is_the_images(node: str) -> None:
    controller = standby_at(node, 10**9)
    image = image_of(node)
    seen = state(controller)
    assert seen["brokers"] == image.cluster.brokers
    assert seen["controllers"] == image.cluster.controllers
    assert seen["topics"] == {name: topic.id for name, topic in image.topics.by_name.items()}
    assert seen["partitions"] == {
        (topic.id, at): partition for topic in image.topics.by_id.values() for at, partition in topic.partitions.items()
    }
    assert seen["configs"] == image.configs.resources
    assert seen["quotas"] == image.client_quotas.entities
    assert seen["acls"] == image.acls.acls
    assert seen["scram"] == image.scram.credentials
    assert seen["producer ids"] == image.producer_ids.next_producer_id
    assert seen["features"] == image.features.all_levels


@pytest.mark.parametrize("node", NODES)
def test_a_snapshot_gives_the_state_of_the_log(node: str) -> None:
    for end, contents in snapshots(node).items():
        if end == 0 or not contents:
            continue
        from_snapshot = standby_at(node, 0)
        run_to_end(from_snapshot.load_snapshot(_Snapshot(end - 1, contents)))
        assert state(from_snapshot) == state(standby_at(node, end))


@pytest.mark.parametrize("node", NODES)
def test_an_image_gives_the_state_of_the_log(node: str) -> None:
    from_log = standby_at(node, 10**9)
    from_image = standby_at(node, 3)
    for _ in from_image.load_image(image_of(node)):
        pass
    assert state(from_image) == state(from_log)
    assert reverse_indexes(from_image) == reverse_indexes(from_log)


def reverse_indexes(controller: QuorumController) -> dict[str, object]:
    index, registered = controller.partitions.index, controller.cluster.brokers
    directories = {directory for broker in registered.values() for directory in broker.directories}
    return {
        "isr": {broker_id: set(index.with_in_isr(broker_id)) for broker_id in registered},
        "elr": {broker_id: set(index.with_in_elr(broker_id)) for broker_id in registered},
        "directories": {directory: set(index.in_directory(directory)) for directory in directories},
        "leaders": {broker_id for broker_id in registered if index.leads_any(broker_id)},
        "leaderless": set(index.leaderless),
        "imbalanced": set(index.imbalanced),
        "reassigning": set(index.reassigning),
        "counts": dict(controller.partitions.partition_counts),
    }


class _Snapshot:
    last_contained_epoch = 1
    last_contained_log_time_ms = 0

    def __init__(self, last_contained_offset: int, contents: list[VersionedRecord]) -> None:
        self.last_contained_offset = last_contained_offset
        self.records = contents


# Requests, each as a function that sends it to a controller.

Action = Callable[[QuorumController], Any]


def heartbeat(broker_id: int, **fields: Any) -> Action:
    def action(controller: QuorumController) -> Any:
        request = brokers.BrokerHeartbeatRequest(
            broker_id=broker_id,
            broker_epoch=controller.cluster.brokers[broker_id].epoch,
            current_metadata_offset=10**6,
            **fields,
        )
        return controller.handle_broker_heartbeat(request, CALLER, NOW_MS)

    return action


def registration(node: str, offset: int, previous_epoch: int = -1) -> Action:
    """The request for which Kafka wrote the RegisterBrokerRecord at `offset`."""

    def action(controller: QuorumController) -> Any:
        record = record_at(node, offset)
        assert isinstance(record, records.RegisterBrokerRecord)
        request = brokers.BrokerRegistrationRequest(
            broker_id=record.broker_id,
            cluster_id="c",
            incarnation_id=record.incarnation_id,
            listeners=[
                brokers.BrokerRegistrationRequestListener(
                    name=one.name, host=one.host, port=one.port, security_protocol=one.security_protocol
                )
                for one in record.end_points
            ],
            features=[
                brokers.BrokerRegistrationRequestFeature(
                    name=one.name,
                    min_supported_version=one.min_supported_version,
                    max_supported_version=one.max_supported_version,
                )
                for one in record.features
            ],
            rack=record.rack,
            log_dirs=record.log_dirs,
            previous_broker_epoch=previous_epoch,
        )
        # The session of the previous incarnation has expired.
        return controller.handle_broker_registration(request, CALLER, NOW_MS + 20_000)

    return action


def alter_partition(topic: str, partition_id: int, isr: list[int]) -> Action:
    def action(controller: QuorumController) -> Any:
        topic_id = controller.partitions.topic_ids[topic]
        partition = controller.partitions.partition(topic_id, partition_id)
        assert partition is not None
        data = brokers.AlterPartitionRequestPartitionData(
            partition_index=partition_id,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            new_isr_with_epochs=[
                brokers.AlterPartitionRequestBrokerState(
                    broker_id=replica, broker_epoch=controller.cluster.brokers[replica].epoch
                )
                for replica in isr
            ],
        )
        request = brokers.AlterPartitionRequest(
            broker_id=partition.leader,
            broker_epoch=controller.cluster.brokers[partition.leader].epoch,
            topics=[brokers.AlterPartitionRequestTopicData(topic_id=topic_id, partitions=[data])],
        )
        return controller.handle_alter_partition(request, CALLER, NOW_MS)

    return action


def assign(broker_id: int, topic: str, partition_id: int, directory: str) -> Action:
    def action(controller: QuorumController) -> Any:
        partition = brokers.AssignReplicasToDirsRequestPartitionData(partition_index=partition_id)
        one = brokers.AssignReplicasToDirsRequestTopicData(
            topic_id=controller.partitions.topic_ids[topic], partitions=[partition]
        )
        request = brokers.AssignReplicasToDirsRequest(
            broker_id=broker_id,
            broker_epoch=controller.cluster.brokers[broker_id].epoch,
            directories=[brokers.AssignReplicasToDirsRequestDirectoryData(id=uuid_from_text(directory), topics=[one])],
        )
        return controller.handle_assign_replicas_to_dirs(request, CALLER, NOW_MS)

    return action


def reassign(topic: str, targets: dict[int, list[int]]) -> Action:
    partitions = [topics.ReassignablePartition(partition_index=at, replicas=to) for at, to in targets.items()]
    request = topics.AlterPartitionReassignmentsRequest(
        topics=[topics.ReassignableTopic(name=topic, partitions=partitions)]
    )
    return lambda controller: controller.handle_alter_partition_reassignments(request, CALLER, NOW_MS)


def create_topics(*creatables: topics.CreatableTopic) -> Action:
    request = topics.CreateTopicsRequest(topics=list(creatables))
    return lambda controller: controller.handle_create_topics(request, CALLER, NOW_MS)


def grow(topic: str, count: int) -> Action:
    request = topics.CreatePartitionsRequest(
        topics=[topics.CreatePartitionsTopic(name=topic, count=count, assignments=None)]
    )
    return lambda controller: controller.handle_create_partitions(request, CALLER, NOW_MS)


def delete_topic(node: str, offset: int) -> Action:
    def action(controller: QuorumController) -> Any:
        topic_id = record_at(node, offset).topic_id
        request = topics.DeleteTopicsRequest(topics=[topics.DeleteTopicState(topic_id=topic_id)])
        return controller.handle_delete_topics(request, CALLER, NOW_MS)

    return action


def alter_configs(kind: int, name: str, *ops: tuple[str, int, str | None]) -> Action:
    resource = admin.IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            admin.IncrementalAlterConfigsRequestAlterableConfig(name=key, config_operation=op, value=value)
            for key, op, value in ops
        ],
    )
    request = admin.IncrementalAlterConfigsRequest(resources=[resource])
    return lambda controller: controller.handle_incremental_alter_configs(request, CALLER, NOW_MS)


def allocate(broker_id: int) -> Action:
    return lambda controller: controller.handle_allocate_producer_ids(
        brokers.AllocateProducerIdsRequest(
            broker_id=broker_id, broker_epoch=controller.cluster.brokers[broker_id].epoch
        ),
        CALLER,
        NOW_MS,
    )


def update_features(**levels: int) -> Action:
    updates = [
        admin.FeatureUpdateKey(feature=name.replace("_", "."), max_version_level=level)
        for name, level in levels.items()
    ]
    request = admin.UpdateFeaturesRequest(feature_updates=updates)
    return lambda controller: controller.handle_update_features(request, CALLER, NOW_MS)


def alter_quotas(*entries: tuple[dict[str, str | None], dict[str, float | None]]) -> Action:
    request = admin.AlterClientQuotasRequest(
        entries=[
            admin.AlterClientQuotasRequestEntryData(
                entity=[
                    admin.AlterClientQuotasRequestEntityData(entity_type=kind, entity_name=name)
                    for kind, name in entity.items()
                ],
                ops=[admin.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in quotas.items()],
            )
            for entity, quotas in entries
        ]
    )
    return lambda controller: controller.handle_alter_client_quotas(request, CALLER, NOW_MS)


def silence(*alive: int) -> Action:
    """Time passes, in which only the brokers `alive` send heartbeats."""

    def action(controller: QuorumController) -> None:
        for now_ms in range(NOW_MS, NOW_MS + 12_000, 500):
            for broker_id in alive:
                epoch = controller.cluster.brokers[broker_id].epoch
                controller.cluster.heartbeats.contact(broker_id, epoch, now_ms)
            controller.poll(now_ms)

    return action


def balance(controller: QuorumController) -> None:
    now_ms = NOW_MS + 300_000
    for broker_id, registration in controller.cluster.brokers.items():
        controller.cluster.heartbeats.contact(broker_id, registration.epoch, now_ms)
    controller.poll(now_ms)


def record_at(node: str, offset: int) -> Any:
    for batch in log_batches(node):
        if batch.base_offset <= offset <= batch.last_offset:
            return batch.records[offset - batch.base_offset].record
    raise AssertionError(f"no record at {offset}")


def manual(name: str, assignment: list[list[int]], **settings: str) -> topics.CreatableTopic:
    return creatable(name, dict(enumerate(assignment)), configs={k.replace("_", "."): v for k, v in settings.items()})


DECISIONS = [
    ("node", 14, 14, heartbeat(1)),
    ("node", 113, 115, create_topics(manual("manual", [[1], [1]]))),
    ("node", 117, 117, allocate(1)),
    (
        "node",
        118,
        126,
        create_topics(
            manual(
                "__transaction_state",
                [[1], [1]],
                compression_type="uncompressed",
                cleanup_policy="compact",
                min_insync_replicas="1",
                segment_bytes="104857600",
                unclean_leader_election_enable="false",
            )
        ),
    ),
    (
        "node",
        137,
        138,
        alter_configs(
            32,
            "share-group",
            ("share.auto.offset.reset", 0, "earliest"),
            ("share.record.lock.duration.ms", 0, "20000"),
        ),
    ),
    ("node", 150, 151, grow("manual", 4)),
    (
        "node",
        152,
        154,
        alter_configs(
            2,
            "empty",
            ("cleanup.policy", 2, "compact"),
            ("retention.ms", 0, "3600000"),
            ("retention.bytes", 1, None),
        ),
    ),
    ("node", 155, 155, alter_configs(4, "1", ("log.retention.ms", 0, "123456789"))),
    ("node", 156, 156, alter_configs(4, "", ("max.connections.per.ip", 0, "1000"))),
    ("node", 157, 157, alter_configs(4, "1", ("log.retention.ms", 1, None))),
    ("node", 161, 161, alter_configs(32, "modern-group", ("consumer.session.timeout.ms", 0, "50000"))),
    (
        "node",
        162,
        169,
        alter_quotas(
            ({"user": "alice"}, {"consumer_byte_rate": 2097152.0, "producer_byte_rate": 1048576.0}),
            ({"user": None}, {"request_percentage": 150.0}),
            ({"user": "alice", "client-id": "app"}, {"controller_mutation_rate": 10.5}),
            ({"user": "bob", "client-id": None}, {"producer_byte_rate": 1024.0}),
            ({"ip": "10.0.0.1"}, {"connection_creation_rate": 20.0}),
            ({"ip": None}, {"connection_creation_rate": 100.0}),
            ({"client-id": "gone"}, {"producer_byte_rate": 1.0}),
        ),
    ),
    ("node", 170, 170, alter_quotas(({"client-id": "gone"}, {"producer_byte_rate": None}))),
    ("node", 180, 180, delete_topic("node", 180)),
    ("node", 181, 182, update_features(metadata_version=30, transaction_version=2)),
    ("node", 183, 183, heartbeat(1, cordoned_log_dirs=[])),
    ("node", 227, 227, registration("node", 227, previous_epoch=13)),
    ("node", 228, 266, heartbeat(1, cordoned_log_dirs=[])),
    ("node", 286, 322, heartbeat(1, want_shut_down=True)),
    ("node", 323, 323, heartbeat(1, want_shut_down=True)),
    ("trio-1", 18, 18, heartbeat(3, want_fence=True, cordoned_log_dirs=[])),
    ("trio-1", 19, 19, heartbeat(3)),
    ("trio-1", 56, 57, reassign("two", {0: [3, 2], 1: [3, 1, 2]})),
    ("trio-1", 58, 58, alter_partition("two", 0, [1, 2, 3])),
    ("trio-1", 59, 59, alter_partition("two", 1, [1, 2, 3])),
    ("trio-1", 67, 67, assign(3, "replicated", 1, "07R5amHmR32VDA6jHkGbTA")),
    ("trio-1", 68, 79, heartbeat(3, want_shut_down=True)),
    ("trio-1", 80, 80, heartbeat(3, want_shut_down=True)),
    ("trio-1", 88, 88, registration("trio-1", 88, previous_epoch=12)),
    ("trio-1", 93, 93, alter_partition("needs-three", 1, [1, 2, 3])),
    ("trio-1", 104, 110, balance),
    ("trio-1", 114, 124, silence(2, 3)),
    ("trio-1", 130, 132, registration("trio-1", 132)),
]


@pytest.mark.parametrize(("node", "first", "last", "action"), DECISIONS, ids=lambda value: str(value)[:9])
def test_the_same_records_as_kafka(node: str, first: int, last: int, action: Action) -> None:
    wrote = range(first, last + 1)
    ids = [record_at(node, at).topic_id for at in wrote if isinstance(record_at(node, at), records.TopicRecord)]
    controller, log = active_at(node, first, ids)
    action(controller)
    assert kalda_wrote(log) == kafka_wrote(node, first, last)


def test_a_reassignment_that_ends_takes_the_leader_away() -> None:
    controller, _ = active_at("trio-1", 58)
    pending = alter_partition("two", 0, [1, 2, 3])(controller)
    controller.runtime.on_commit(58)
    assert pending.value.topics[0].partitions[0].error_code == ErrorCode.NEW_LEADER_ELECTED


def test_activation_on_an_empty_log() -> None:
    levels = {"eligible.leader.replicas.version": 1, "group.version": 1, "share.version": 1, "streams.version": 1}
    metadata = BootstrapMetadata.from_levels(
        MetadataVersion.IBP_4_2_IV1, {**levels, "transaction.version": 2, "kraft.version": 1}, "the test"
    )
    world = World(version=metadata.metadata_version, bootstrap=metadata.records)
    kafka = next(batch for batch in log_batches("node") if batch.base_offset == 3)
    kalda = next(batch for batch in world.log.batches if batch.records)
    assert [encode_metadata_record(*one) for one in kalda.records] == [
        encode_metadata_record(*one) for one in kafka.records
    ]
