"""What a broker's replicas count, under which of Kafka's names, and for how long."""

from __future__ import annotations

from data_path_world import SELF, Assigned, World, answers_of
from replication_world import LAG_MAX_MS
from replication_world import World as Trio

from kalda.base.errors import ErrorCode
from kalda.base.ids import TopicPartition
from kalda.base.scheduling import Pending
from kalda.protocol.messages.partitions import PartitionProduceData, ProduceRequest, TopicProduceData
from kalda.records.batch import write_crc
from kalda.records.builder import build_batch
from kalda.replication import produce
from kalda.replication.counters import BROKER_TOPIC, FETCH_WAITS, PRODUCE_WAITS, REPLICA_MANAGER
from kalda.replication.gauges import PURGATORY, partition_sensors

TOPIC_A = (("topic", "a"),)


def counted(world: World, topic: str | None = None) -> dict[str, float]:
    """Measurements that are not 0: of a topic, or of the broker."""
    tags = () if topic is None else (("topic", topic),)
    return {
        name.name: value
        for name, sensor in world.sensors
        if name.group == BROKER_TOPIC and name.tags == tags and (value := sensor.measure(0))
    }


def gauges(world: World | Trio, group: str = REPLICA_MANAGER, broker: int = 1) -> dict[str, float]:
    """Measurements that are not 0, by name, or by operation and name."""
    sensors = world.sensors if isinstance(world, World) else world[broker].sensors
    return {
        " ".join((*(value for _, value in name.tags), name.name)): value
        for name, sensor in sensors
        if name.group == group and (value := sensor.measure(0))
    }


def test_a_produce_and_a_fetch_count_for_their_topic_and_the_broker() -> None:
    world = World()
    world.assign("a")
    world.produce("a", 3)
    size = world.replicas.get("a", 0).log.size_bytes
    world.fetch(("a", 0, 0))
    expected = {
        "BytesInPerSec": size,
        "MessagesInPerSec": 3,
        "BytesOutPerSec": size,
        "TotalProduceRequestsPerSec": 1,
        "TotalFetchRequestsPerSec": 1,
    }
    assert counted(world, "a") == counted(world) == expected


def test_a_fetch_that_waits_for_more_counts_the_bytes_that_it_sends() -> None:
    world = World()
    world.assign("a")
    world.produce("a")
    size = world.replicas.get("a", 0).log.size_bytes
    waiting = world.fetch(("a", 0, 0), min_bytes=size + 1)
    assert isinstance(waiting, Pending)
    assert "BytesOutPerSec" not in counted(world)
    world.produce("a")
    assert answers_of(waiting)
    assert counted(world)["BytesOutPerSec"] == 2 * size
    assert counted(world)["TotalFetchRequestsPerSec"] == 2, "read before the wait and after it, as in Kafka"


def test_a_read_by_a_job_counts_once() -> None:
    world = World()
    world.assign("a")
    world.produce("a")
    world.disk.cold = world.hold_jobs = True
    world.fetch(("a", 0, 0))
    assert "BytesOutPerSec" not in counted(world)
    world.let_jobs_run()
    assert counted(world)["BytesOutPerSec"] == world.replicas.get("a", 0).log.size_bytes


def test_a_follower_counts_as_replication() -> None:
    world = Trio(size=2)
    world[1].write("abc")
    world.run(1_100)
    size = world[1].log.size_bytes
    for broker, name in ((1, "ReplicationBytesOutPerSec"), (2, "ReplicationBytesInPerSec")):
        found = {sensor_name.name: sensor.measure(0) for sensor_name, sensor in world[broker].sensors}
        assert found[name] == size
        assert found["BytesOutPerSec"] == 0


def test_refusals_that_send_a_client_elsewhere_are_no_failures() -> None:
    world = World()
    world.assign("a")
    world.elsewhere.add("far")
    world.produce("far")
    world.fetch(("far", 0, 0), ("a", 0, 99), max_wait_ms=0)
    assert counted(world) == {"TotalProduceRequestsPerSec": 1, "TotalFetchRequestsPerSec": 2}


def test_other_refusals_are_failures() -> None:
    world = World()
    world.assign("a", assigned=Assigned(SELF, 0, (SELF, 2), (SELF,)), min_insync_replicas="2")
    world.produce("a")
    world.fetch(("a", 0, 0), max_wait_ms=0, partition_bytes=-1)
    for found in (counted(world), counted(world, "a")):
        assert (found["FailedProduceRequestsPerSec"], found["FailedFetchRequestsPerSec"]) == (1, 1)


def test_a_produce_that_has_its_log_opened_first_counts_once() -> None:
    world = World()
    partition = world.assign("a")
    world.produce("a")
    world.replicas.remove(TopicPartition("a", 0))
    partition.log.close()
    world.assign("a")
    batch = build_batch([(world.now_ms, None, b"v", ())])
    data = [PartitionProduceData(index=0, records=batch)]
    request = ProduceRequest(acks=1, topic_data=[TopicProduceData(partition_data=data)])
    produce.run(world.replicas, request, ["a"], world.now_ms).finish(1_000)
    assert counted(world, "a")["TotalProduceRequestsPerSec"] == 1


def test_a_topic_has_counters_while_a_partition_of_it_is_here() -> None:
    """Names that a client makes up have none, and those of a deleted topic go; the broker's totals stay."""
    world = World()
    for index in (0, 1):
        world.assign("a", index)
        world.produce("a", 2, index=index)
    world.produce("made up")
    world.fetch(("made up too", 0, 0))
    tags = {name.tags for name, _ in world.sensors if name.group == BROKER_TOPIC}
    assert tags == {(), TOPIC_A}
    world.replicas.remove(TopicPartition("a", 0))
    assert counted(world, "a")["MessagesInPerSec"] == 4
    world.replicas.take_offline([TopicPartition("a", 1)])
    assert counted(world, "a") == {}
    assert counted(world)["MessagesInPerSec"] == 4
    world.assign("a", 0)
    world.produce("a")
    assert (counted(world, "a")["MessagesInPerSec"], counted(world)["MessagesInPerSec"]) == (1, 5)


def test_gauges_show_the_replicas_of_this_moment() -> None:
    world = World()
    everyone = (SELF, 2, 3)
    world.assign("a", 0, Assigned(SELF, 0, everyone, everyone), min_insync_replicas="2")
    assert gauges(world) == {"PartitionCount": 1, "LeaderCount": 1}
    world.assign("a", 0, Assigned(SELF, 1, everyone, (SELF, 2)))
    assert of_partition(world) == {"InSyncReplicasCount": 2, "ReplicasCount": 3, "UnderReplicated": 1, "AtMinIsr": 1}
    assert list(partition_sensors(world.replicas, most=0)) == [], "there are too many"
    found = {"PartitionCount": 1, "LeaderCount": 1, "UnderReplicatedPartitions": 1}
    assert gauges(world) == {**found, "AtMinIsrPartitionCount": 1}
    world.assign("a", 0, Assigned(SELF, 2, everyone, (SELF,)))
    assert gauges(world) == {**found, "UnderMinIsrPartitionCount": 1}
    world.assign("a", 0, Assigned(2, 3, everyone, (2,)))
    assert gauges(world) == {"PartitionCount": 1}, "whoever leads it counts it"
    assert of_partition(world) == {}
    world.replicas.take_offline([TopicPartition("a", 0)])
    assert gauges(world) == {"OfflineReplicaCount": 1}


def of_partition(world: World) -> dict[str, float]:
    """Gauges of the first partition that are not 0."""
    sensors = [(name, sensor) for name, sensor in partition_sensors(world.replicas, most=10)]
    assert {name.tags for name, _ in sensors} == {(("topic", "a"), ("partition", "0"))}
    return {name.name: value for name, sensor in sensors if (value := sensor.measure(0))}


def test_bytes_for_a_replica_that_is_being_added_are_a_reassignments() -> None:
    world = Trio(size=2)
    for broker in (1, 2):
        world[broker].partition.adding_replicas = (2,)
    world[1].write("abc")
    world.run(1_100)
    for broker, name in ((1, "ReassignmentBytesOutPerSec"), (2, "ReassignmentBytesInPerSec")):
        assert gauges(world, BROKER_TOPIC, broker)[name] == world[1].log.size_bytes


def test_what_is_refused_counts_by_its_fault() -> None:
    world = World()
    world.assign("a")
    world.assign("small", max_message_bytes="100")
    world.assign("keys", cleanup_policy="compact")
    rows = [(world.now_ms, None, b"v" * 50, ()) for _ in range(3)]
    good = bytes(build_batch(rows))

    def spoiled(at: int, value: int) -> bytearray:
        batch = bytearray(good)
        batch[at] = value
        write_crc(batch, 0, len(batch))
        return batch

    bad_crc = bytearray(good)
    bad_crc[-1] ^= 1
    for topic, batch in (
        ("small", bytearray(good)),
        ("keys", bytearray(good)),
        ("a", bad_crc),
        ("a", spoiled(16, 1)),
        ("a", spoiled(26, 7)),
    ):
        request = ProduceRequest(
            acks=1, topic_data=[TopicProduceData(partition_data=[PartitionProduceData(index=0, records=batch)])]
        )
        produce.run(world.replicas, request, [topic], world.now_ms).finish(1_000)
    found = counted(world)
    assert found["BytesRejectedPerSec"] == counted(world, "small")["BytesRejectedPerSec"] == len(good)
    assert found["NoKeyCompactedTopicRecordsPerSec"] == 3
    assert found["InvalidMessageCrcRecordsPerSec"] == 1
    assert found["InvalidMagicNumberRecordsPerSec"] == 1
    assert found["InvalidOffsetOrSequenceRecordsPerSec"] == 1
    assert "BytesInPerSec" not in found


def test_records_that_are_compressed_anew_are_conversions() -> None:
    world = World()
    log = world.assign("a", compression_type="lz4").log
    world.produce("a", 3)
    world.produce("a", 2)
    assert log.hooks.conversions.value == 5
    log.update_config(log.config._replace(compression_type="producer"))
    world.produce("a", 2)
    assert log.hooks.conversions.value == 5


def test_a_replica_that_is_being_added_is_not_missing() -> None:
    world = World()
    assigned = Assigned(SELF, 0, (SELF, 2, 3), (SELF, 2))
    assigned.adding_replicas = (3,)
    world.assign("a", 0, assigned)
    assert "UnderReplicatedPartitions" not in gauges(world)


def test_waiting_requests_are_in_the_purgatory() -> None:
    world = World()
    everyone = Assigned(SELF, 0, (SELF, 2), (SELF, 2))
    for index in (0, 1):
        world.assign("a", index, everyone)
    produced = world.produce("a", timeout_ms=100)
    fetched = world.fetch(("a", 0, 0), ("a", 1, 0), max_wait_ms=100)
    assert gauges(world, PURGATORY) == {
        "Produce PurgatorySize": 1,
        "Produce NumDelayedOperations": 1,
        "Fetch PurgatorySize": 2,
        "Fetch NumDelayedOperations": 1,
    }
    world.advance(100)
    assert isinstance(produced, Pending)
    assert isinstance(fetched, Pending)
    assert produced.done
    assert fetched.done
    assert gauges(world, PRODUCE_WAITS) == {"ExpiresPerSec": 1}
    assert gauges(world, FETCH_WAITS) == {"consumer ExpiresPerSec": 1}
    world.fetch(("a", 0, 1), max_wait_ms=100)
    world.replicas.take_offline([TopicPartition("a", 0)])
    assert gauges(world, FETCH_WAITS) == {"consumer ExpiresPerSec": 1}, "its time was not up"
    assert gauges(world, PURGATORY) == {}


def test_isr_changes_count_when_they_were_decided() -> None:
    world = Trio()
    world.watch_isrs()
    world.run()
    world.cut.add((3, 1))
    world[1].write("ab")
    world.refuses = ErrorCode.INVALID_UPDATE_VERSION
    world.run(2 * LAG_MAX_MS)
    assert gauges(world)["FailedIsrUpdatesPerSec"] == 1
    world.refuses = None
    world.elect(1)
    world.run(2 * LAG_MAX_MS)
    world.cut.clear()
    world.run(2 * LAG_MAX_MS)
    found = gauges(world)
    assert (found["IsrShrinksPerSec"], found["IsrExpandsPerSec"], found["FailedIsrUpdatesPerSec"]) == (1, 1, 1)
