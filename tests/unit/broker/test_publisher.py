"""Updates of the metadata are applied in turns, with other work in between, and one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from by_hand import inline_background, one_step_a_turn

from kalda.base.configs.resources import ConfigResourceType
from kalda.base.disk import NoHandleLeft
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import DIRECTORY_LOST, DIRECTORY_UNASSIGNED, TopicPartition, Uuid
from kalda.broker.replicas.opening import OpeningPartitions
from kalda.broker.replicas.publisher import BrokerPublisher
from kalda.broker.replicas.publishing_faults import PublishingFaults
from kalda.metadata.image import EMPTY, MetadataDelta, Provenance
from kalda.protocol.messages.metadata_records import (
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from kalda.storage.config import LogConfig
from kalda.storage.dirs.log_manager import NewLog
from kalda.storage.job import Job

MANY = 100
HOME = Uuid(b"home" * 4)
AWAY = Uuid(b"away" * 4)
NOWHERE = Uuid(bytes(16))
_RESERVED = (NOWHERE, DIRECTORY_UNASSIGNED, DIRECTORY_LOST)
OLD, NEW = Uuid(bytes(15) + b"\x01"), Uuid(bytes(15) + b"\x02")


class FakeTimers:
    """They are over when the test calls `turn`."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def call_later_ms(self, delay_ms: int, callback: Callable[[], None]) -> Any:
        self.due.append(callback)
        return SimpleNamespace(cancel=lambda: self.due.clear())

    def turn(self) -> None:
        self.due.pop(0)()


class FakeReplicas:
    """Which partitions are served, by their topic's id."""

    def __init__(self) -> None:
        self.served: dict[tuple[str, int], Any] = {}
        self.configured: list[TopicPartition] = []
        """Partitions whose log got another config."""

    def __iter__(self) -> Any:
        return iter(self.served.values())

    def find(self, topic: str, index: int) -> Any:
        return self.served.get((topic, index))

    def remove(self, topic_partition: TopicPartition) -> None:
        self.served.pop(topic_partition, None)

    def apply(self, topic_partition: TopicPartition, topic_id: Uuid, registration: Any, log: Any) -> None:
        if topic_partition not in self.served:
            log()
        self.served[topic_partition] = SimpleNamespace(
            topic_partition=topic_partition,
            topic_id=topic_id,
            is_leader=registration.leader == 1,
            log=SimpleNamespace(update_config=lambda config: self.configured.append(topic_partition)),
            on_config=lambda: None,
        )

    def ids(self) -> set[Uuid]:
        return {partition.topic_id for partition in self.served.values()}


class FakeFutures(set[TopicPartition]):
    """Partitions that are being moved; of those in `alone` the log itself may be away."""

    def __init__(self) -> None:
        self.alone: set[TopicPartition] = set()

    def is_alone(self, topic_partition: TopicPartition, topic_id: Uuid | None) -> bool:
        return topic_partition in self.alone


class FakeDirs(list[SimpleNamespace]):
    @property
    def all_online(self) -> bool:
        return all(directory.online for directory in self)


class FakeLogs:
    """Logs by partition; like the manager, it has one of a name at a time."""

    def __init__(self) -> None:
        self.logs: dict[TopicPartition, Uuid | None] = {}
        self.unreadable: dict[TopicPartition, Any] = {}
        self.has_no_descriptor = False
        self.recovery_point = 0
        self.aside: list[tuple[TopicPartition, str]] = []
        self.futures = FakeFutures()
        self.dirs = FakeDirs(SimpleNamespace(online=True, directory_id=each) for each in (HOME, AWAY))

    def get(self, topic_partition: TopicPartition) -> Any:
        if topic_partition not in self.logs:
            return None
        return SimpleNamespace(
            topic_partition=topic_partition,
            topic_id=self.logs[topic_partition],
            recovery_point=self.recovery_point,
            directory="/d/t-0",
        )

    def set_aside(self, topic_partition: TopicPartition, why: str) -> None:
        if self.unreadable.pop(topic_partition, None) is None:
            del self.logs[topic_partition]
        self.aside.append((topic_partition, why))

    def get_or_create_log(self, topic_partition: TopicPartition, topic_id: Uuid, _: LogConfig, directory: Uuid) -> Any:
        if topic_partition not in self.logs:
            if self.has_no_descriptor:
                raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR) from NoHandleLeft()
            if directory not in (*_RESERVED, HOME, AWAY):
                raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
        assert self.logs.setdefault(topic_partition, topic_id) == topic_id
        return self.get(topic_partition)

    def make_logs_job(self, wanted: Iterable[NewLog]) -> Job[None]:
        def finish(made: list[NewLog]) -> None:
            for new in made:
                assert new.topic_id is not None
                if (
                    new.topic_partition not in self.unreadable
                    and new.directory_id in (*_RESERVED, HOME, AWAY)
                    and not self.has_no_descriptor
                ):
                    self.logs[new.topic_partition] = new.topic_id

        return Job("make logs", lambda: list(wanted), finish)

    def delete_log(self, topic_partition: TopicPartition) -> None:
        self.logs.pop(topic_partition, None)

    def dir_of(self, topic_partition: TopicPartition) -> Any:
        return SimpleNamespace(directory_id=HOME, had_clean_shutdown=False)


class World:
    """A publisher that has had its first image, and what it acts on."""

    def __init__(self) -> None:
        self.timers, self.replicas, self.logs = FakeTimers(), FakeReplicas(), FakeLogs()
        self.led: list[TopicPartition] = []
        """Partitions that coordinators were called with, elected and not resigned."""
        self.deleted: dict[str, Uuid] = {}
        self.broken: set[object] = set()
        """Partitions and topics for which everything raises."""
        self.fatal: list[str] = []
        self.faults = PublishingFaults()
        self.turns: list[Callable[[], None]] = []
        self.opening = OpeningPartitions(self.timers, inline_background())
        context = SimpleNamespace(
            config=SimpleNamespace(node_id=1),
            logs=self.logs,
            dynamic_configs=SimpleNamespace(log_config=self._log_config),
            timers=self.timers,
            jobs=self,
            background=one_step_a_turn(self.turns.append),
            opening=self.opening,
            faults=self.faults,
            on_fatal=self.fatal.append,
        )
        coordinators = SimpleNamespace(
            on_elected=self._on_elected,
            on_resigned=lambda topic_partition: topic_partition in self.led and self.led.remove(topic_partition),
            on_topics_deleted=self.deleted.update,
        )
        self.publisher = BrokerPublisher(
            cast(Any, context),
            self.replicas,  # type: ignore[arg-type]
            cast(Any, coordinators),
            lambda *placed: self.placed.append(placed),
        )
        self.placed: list[tuple[Uuid, int, Uuid]] = []
        self.hold_jobs = False
        self.held: list[Callable[[], None]] = []
        self.image = EMPTY

    def _log_config(self, topic: str, image: object) -> LogConfig:
        if topic in self.broken:
            raise ZeroDivisionError(topic)
        return LogConfig()

    def _on_elected(self, partition: Any) -> None:
        if partition.topic_partition in self.broken:
            raise ZeroDivisionError(partition.topic_partition)
        self.led.append(partition.topic_partition)

    def run(self, job: Callable[[], Any], finish: Callable[[Any, BaseException | None], None]) -> None:
        if self.hold_jobs:
            self.held.append(lambda: finish(job(), None))
        else:
            finish(job(), None)

    def update(self, *records: Any) -> None:
        delta = MetadataDelta(self.image)
        for record in records:
            delta.replay(record)
        self.image = delta.apply(Provenance(self.image.offset + 1, 1, 0))
        self.publisher.on_metadata_update(delta, self.image, None)

    def finish(self) -> int:
        turns = 0
        while self.turns:
            self.turns.pop(0)()
            turns += 1
        return turns

    def apply(self, *records: Any) -> None:
        """`update`, to its end."""
        self.update(*records)
        self.finish()


@pytest.fixture
def world() -> World:
    world = World()
    world.update()
    return world


def topic(
    topic_id: Uuid, partitions: int = MANY, directory: Uuid = NOWHERE, isr: int = 1, name: str = "t", **fields: Any
) -> Iterable[Any]:
    yield TopicRecord(name=name, topic_id=topic_id)
    for index in range(partitions):
        yield PartitionRecord(
            partition_id=index,
            topic_id=topic_id,
            replicas=[1, 2],
            isr=[isr],
            leader=isr,
            directories=[directory, HOME],
            **fields,
        )


def test_a_large_topic_is_opened_in_turns(world: World) -> None:
    world.update(*topic(OLD))
    assert world.finish() >= MANY, "one partition a step"
    assert len(world.replicas.served) == MANY


def test_the_first_image_is_applied_whole() -> None:
    world = World()
    world.update(*topic(OLD))
    assert len(world.replicas.served) == MANY
    assert not world.turns


def test_partitions_that_found_no_descriptor_are_opened_again(world: World) -> None:
    world.logs.has_no_descriptor = True
    world.apply(*topic(OLD, 3), *topic(NEW, 1, name="deleted meanwhile"))
    assert not world.replicas.served
    world.timers.turn()
    world.finish()
    assert not world.replicas.served, "none is left yet"
    world.apply(RemoveTopicRecord(topic_id=NEW))
    world.logs.has_no_descriptor = False
    world.timers.turn()
    world.finish()
    assert world.replicas.ids() == {OLD}
    assert sorted(world.led) == [TopicPartition("t", index) for index in range(3)]
    assert not world.faults.count


def test_a_deleted_partition_is_not_served_while_its_log_is_deleted(world: World) -> None:
    world.update(*topic(OLD))
    world.finish()
    world.update(RemoveTopicRecord(topic_id=OLD), *topic(NEW))
    assert OLD not in world.replicas.ids()
    world.finish()
    assert world.replicas.ids() == {NEW}
    assert set(world.logs.logs.values()) == {NEW}


def test_a_topic_deleted_while_it_is_opened_is_not_there_in_the_end(world: World) -> None:
    world.update(*topic(OLD))
    world.update(RemoveTopicRecord(topic_id=OLD))
    assert not world.replicas.served
    world.finish()
    assert not world.replicas.served
    assert not world.logs.logs


def test_a_topic_deleted_while_its_logs_are_made_is_not_there_in_the_end(world: World) -> None:
    world.hold_jobs = True
    world.apply(*topic(OLD))
    assert not world.replicas.served
    world.apply(RemoveTopicRecord(topic_id=OLD), *topic(NEW))
    assert not world.turns, "the first update goes on when its logs are there"
    while world.held or world.turns:
        held, world.held = world.held, []
        for finish in held:
            finish()
        world.finish()
    assert world.replicas.ids() == {NEW}
    assert set(world.logs.logs.values()) == {NEW}


@pytest.mark.parametrize("is_moving", [False, True])
def test_the_directory_of_a_replica_that_came_back_is_reported_again(world: World, is_moving: bool) -> None:
    """Unless it is being moved to another directory: that one will be reported when the move ends."""
    world.apply(*topic(OLD, 1))
    world.placed.clear()
    if is_moving:
        world.logs.futures.add(TopicPartition("t", 0))
    world.apply(
        PartitionChangeRecord(partition_id=0, topic_id=OLD, replicas=[2], isr=[2], leader=2, directories=[HOME]),
        PartitionChangeRecord(partition_id=0, topic_id=OLD, replicas=[2, 1], directories=[HOME, DIRECTORY_UNASSIGNED]),
    )
    assert world.placed == ([] if is_moving else [(OLD, 0, HOME)])


def test_a_replica_of_which_only_an_unfinished_copy_is_online_is_reported_as_lost(world: World) -> None:
    world.logs.dirs[1].online = False
    world.logs.futures.alone.add(TopicPartition("t", 0))
    world.apply(*topic(OLD, 1))
    assert (world.placed, world.replicas.served) == ([(OLD, 0, DIRECTORY_LOST)], {})


def test_a_replica_without_reported_directory_is_lost_while_a_directory_is_offline() -> None:
    """It is in sync, so its log has acknowledged records; its directory was not reported to the controller."""
    world = World()
    world.logs.dirs[1].online = False
    world.apply(*topic(OLD, 1, DIRECTORY_UNASSIGNED))
    lost = PartitionChangeRecord(partition_id=0, topic_id=OLD, directories=[DIRECTORY_LOST, HOME])
    world.apply(lost)
    assert (world.placed, world.logs.logs) == ([(OLD, 0, DIRECTORY_LOST)], {}), "reported once, and not made anew"
    world.apply(PartitionChangeRecord(partition_id=0, topic_id=OLD, isr=[2], leader=2))
    assert world.placed[1:] == [(OLD, 0, HOME)], "out of sync it may be made anew"
    assert world.logs.logs == {TopicPartition("t", 0): OLD}


@pytest.mark.parametrize(("online", "isr", "is_first"), [(True, 1, True), (False, 2, True), (False, 1, False)])
def test_a_new_replica_without_directory_is_made(online: bool, isr: int, is_first: bool) -> None:
    world = World()
    world.logs.dirs[1].online = online
    if not is_first:
        world.apply()
    world.apply(*topic(OLD, 1, DIRECTORY_UNASSIGNED, isr))
    assert world.placed == [(OLD, 0, HOME)]
    assert world.logs.logs == {TopicPartition("t", 0): OLD}


@pytest.mark.parametrize(
    ("online", "isr", "fields", "is_made"),
    [
        (True, 2, {}, True),
        (True, 1, {}, False),
        (True, 2, {"eligible_leader_replicas": [1]}, False),
        (True, 2, {"last_known_elr": [1]}, False),
        (False, 2, {}, False),
    ],
)
def test_a_replica_whose_disk_was_replaced_is_made_anew_where_the_cluster_does_not_rely_on_it(
    world: World, online: bool, isr: int, fields: dict[str, list[int]], is_made: bool
) -> None:
    world.logs.dirs[1].online = online
    world.apply(*topic(OLD, 1, Uuid(b"gone" * 4), isr, **fields))
    assert world.logs.logs == ({TopicPartition("t", 0): OLD} if is_made else {})
    assert world.placed == ([(OLD, 0, HOME)] if is_made else [])


def test_coordinators_are_called_with_every_partition_that_is_led_and_lost(world: World) -> None:
    """Of every topic: which of them have a coordinator is for the table of coordinators."""
    world.apply(*topic(OLD, 3))
    assert world.led == [TopicPartition("t", index) for index in range(3)]
    world.apply(PartitionChangeRecord(partition_id=0, topic_id=OLD, leader=2, isr=[2]))
    assert world.led == [TopicPartition("t", 1), TopicPartition("t", 2)]
    world.apply(PartitionChangeRecord(partition_id=1, topic_id=OLD, isr=[1, 2]))
    assert len(world.led) == 2, "the leader epoch is the same"
    world.apply(RemoveTopicRecord(topic_id=OLD))
    assert (world.led, world.deleted) == ([], {"t": OLD})


def test_nothing_is_opened_after_the_end(world: World) -> None:
    world.update(*topic(OLD))
    world.publisher.close()
    opened = len(world.logs.logs)
    world.finish()
    world.update(RemoveTopicRecord(topic_id=OLD), *topic(NEW))
    assert len(world.logs.logs) == opened


def test_a_partition_that_cannot_be_opened_does_not_keep_the_others_closed(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.broken = {"t", TopicPartition("u", 1)}
    world.apply(*topic(OLD, 2), *topic(NEW, 3, name="u"))
    world.finish()
    assert world.replicas.ids() == {NEW}
    assert [each.partition for each in world.led] == [0, 2], "one coordinator failed"
    assert world.faults.count == 5, "two logs are not made, two partitions not opened, one coordinator fails"
    assert "cannot open t-0: t" in caplog.text
    assert "ZeroDivisionError" in caplog.text, "the cause, with its stack"
    world.broken.clear()
    world.apply(PartitionChangeRecord(partition_id=0, topic_id=OLD, isr=[1, 2]))
    assert world.replicas.ids() == {OLD, NEW}, "the next update is applied"
    assert not world.fatal


def test_a_config_that_cannot_be_applied_does_not_keep_others_from_it(world: World) -> None:
    world.apply(*topic(OLD, 2), *topic(NEW, 2, name="u"))
    world.broken = {"t"}
    changes = [
        ConfigRecord(resource_type=ConfigResourceType.TOPIC, resource_name=name, name="retention.ms", value="1")
        for name in ("t", "u")
    ]
    world.apply(*changes, PartitionChangeRecord(partition_id=0, topic_id=NEW, leader=2, isr=[2]))
    assert world.replicas.configured == [TopicPartition("u", 0), TopicPartition("u", 1)]
    assert world.led == [TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 1)]
    assert world.faults.count == 2


def test_a_job_that_fails_does_not_end_the_turns(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(made: object) -> None:
        raise ZeroDivisionError

    make_logs_job = world.logs.make_logs_job
    monkeypatch.setattr(world.logs, "make_logs_job", lambda _: Job("make logs", list, fail))
    world.apply(*topic(OLD, 3))
    monkeypatch.setattr(world.logs, "make_logs_job", make_logs_job)
    world.apply(*topic(NEW, 3, name="u"))
    world.finish()
    assert (world.faults.count, world.replicas.ids()) == (1, {OLD, NEW})


def test_a_fault_in_the_first_image_is_raised() -> None:
    """A broker that has opened a part of its partitions must not serve."""
    world = World()
    world.broken = {"t"}
    with pytest.raises(ZeroDivisionError):
        world.apply(*topic(OLD, 1))


def test_an_update_that_cannot_go_on_stops_the_node(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Any:
        raise ZeroDivisionError
        yield

    monkeypatch.setattr(world.publisher, "_steps", lambda *_: fail())
    world.apply(*topic(OLD, 1))
    assert len(world.fatal) == 1
    assert not world.turns


def test_the_applied_offset_is_that_of_the_last_image_whose_partitions_are_open() -> None:
    world = World()
    applied = world.publisher.applied_offset
    assert applied(7) == 7, "nothing is to be applied yet"
    world.apply()
    opened = world.image.offset
    world.hold_jobs = True
    world.apply(*topic(OLD, 1))
    assert applied(world.image.offset) == opened
    while world.held:
        world.held.pop()()
        world.finish()
    assert applied(world.image.offset) == world.image.offset == opened + 1
    world.apply()
    assert applied(world.image.offset) == world.image.offset


def test_a_log_without_topic_id_is_not_adopted(world: World) -> None:
    """It may be that of a former topic of that name. Apache Kafka takes it for a stray log."""
    at = TopicPartition("t", 0)
    world.logs.logs[at] = None
    world.apply(*topic(NEW, 1))
    assert (world.logs.aside, world.logs.logs) == ([(at, "has no topic id")], {at: NEW})


@pytest.mark.parametrize(("isr", "is_kept"), [(1, True), (2, False)])
def test_synced_records_without_topic_id_are_not_replaced_while_the_cluster_needs_them(
    world: World, isr: int, is_kept: bool
) -> None:
    """An empty log in their place would count as in sync."""
    at = TopicPartition("t", 0)
    world.logs.logs[at], world.logs.recovery_point = None, 5
    world.apply(*topic(NEW, 1, isr=isr))
    if is_kept:
        assert (world.logs.aside, world.logs.logs) == ([], {at: None})
        assert world.replicas.find("t", 0) is None
        assert world.placed == [(NEW, 0, DIRECTORY_LOST)]
    else:
        assert (world.logs.aside, world.logs.logs) == ([(at, "has no topic id")], {at: NEW})


@pytest.mark.parametrize("topic_id", [NEW, None])
def test_a_log_of_an_unknown_format_is_reported_as_lost_and_not_made_anew(world: World, topic_id: Uuid | None) -> None:
    at = TopicPartition("t", 0)
    world.logs.unreadable[at] = SimpleNamespace(topic_id=topic_id, why="/d/t-0 has version 1")
    world.apply(*topic(NEW, 1))
    assert (world.logs.aside, world.logs.logs) == ([], {})
    assert world.replicas.find("t", 0) is None
    assert world.placed == [(NEW, 0, DIRECTORY_LOST)]


def test_a_log_of_an_unknown_format_of_a_former_topic_is_set_aside(world: World) -> None:
    at = TopicPartition("t", 0)
    world.logs.unreadable[at] = SimpleNamespace(topic_id=OLD, why="/d/t-0 has version 1")
    world.apply(*topic(NEW, 1))
    assert world.logs.aside == [(at, "is the log of a former topic of that name")]
    assert world.logs.logs == {at: NEW}


def test_partitions_are_marked_as_opening_until_they_are_open(world: World) -> None:
    world.hold_jobs = True
    world.update(*topic(OLD, 1), *topic(NEW, 1, isr=2, name="u"))
    assert list(world.opening.partitions) == [TopicPartition("t", 0)], "the other one is followed"
    world.update(PartitionChangeRecord(partition_id=0, topic_id=OLD, leader=2, isr=[2]))
    assert not world.opening.partitions, "it is not to be led any more"
    world.update(PartitionChangeRecord(partition_id=0, topic_id=OLD, leader=1, isr=[1]))
    assert list(world.opening.partitions) == [TopicPartition("t", 0)]
    world.update(RemoveTopicRecord(topic_id=OLD), *topic(Uuid(bytes(15) + b"\x03"), 1))
    assert list(world.opening.partitions) == [TopicPartition("t", 0)], "the new topic's"
    world.hold_jobs = False
    while world.held or world.turns:
        held, world.held = world.held, []
        for finish in held:
            finish()
        world.finish()
    assert not world.opening.partitions
