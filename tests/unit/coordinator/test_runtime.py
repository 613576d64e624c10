"""The runtime of coordinators: writes and commits, who calls whom back, timeouts, election and resignation."""

from __future__ import annotations

from typing import Any

import pytest
from coordinator_world import CountingShard, FakeLog, counter_batch, error_of

from kalda.base.background import run_to_end
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.coordinator.internal_topics import coordinator_partition
from kalda.coordinator.runtime import CoordinatorRuntime

WRITE_TIMEOUT_MS = 5_000


class World:
    def __init__(self, partitions: int = 1) -> None:
        self.partitions = partitions
        self.log = FakeLog()
        self.runtime = CoordinatorRuntime(
            "__counters", CountingShard, self.log, lambda: self.partitions, WRITE_TIMEOUT_MS
        )
        self.log.on_high_watermark = self.runtime.on_high_watermark
        for partition in range(partitions):
            self.elect(partition)

    def elect(self, partition: int = 0, *batches: bytes) -> CountingShard:
        """Lead a partition whose log has these batches of one record."""
        self.runtime.on_elected(partition, 1, 0)
        (load,) = self.runtime.take_loads()
        for batch in batches:
            self.log.end += 1
            run_to_end(load.replay(batch, self.log.end, 0))
        load.finish(self.log.end, 0)
        return next(shard for shard in self.runtime.active_shards() if shard.partition.index == partition)

    @property
    def shard(self) -> CountingShard:
        return self.runtime.shard_for("key")


def test_a_write_is_answered_when_it_is_committed() -> None:
    world = World()
    world.log.replicated = False
    write = world.shard.partition.write_with([1, 2], "written")
    assert (world.shard.total, world.shard.committed_total(), write.done) == (3, 0, False)
    world.runtime.on_high_watermark(0, 2)
    assert (world.shard.committed_total(), write.value) == (3, "written")


def test_a_high_watermark_inside_an_append_waits_for_the_replay() -> None:
    """An append commits the write before it, whose answer brings another write: that one comes after the append's."""
    world = World()
    world.log.replicated = False
    partition = world.shard.partition
    partition.write([1]).then(lambda *_: partition.write([3]))
    world.log.replicated = True
    assert partition.write([2]).done
    assert world.shard.replayed == [(0, 1), (1, 2), (2, 3)]
    assert world.shard.committed_total() == 6


def test_an_answer_may_bring_the_next_write() -> None:
    """Callbacks of an answer run inside the commit; what they write is committed too, one after the other."""
    world = World()
    world.log.replicated = False
    seen: list[int] = []

    def next_write(_: object, error: ApiError | None) -> None:
        seen.append(world.shard.committed_total())
        if len(seen) < 5:
            world.shard.partition.write([1]).then(next_write)
            world.runtime.on_high_watermark(0, world.log.end)

    world.shard.partition.write([1]).then(next_write)
    world.runtime.on_high_watermark(0, 1)
    assert seen == [1, 2, 3, 4, 5]


def test_an_answer_may_end_the_leadership() -> None:
    world = World()
    world.log.replicated = False
    shard = world.shard
    first, second = shard.partition.write([1]), shard.partition.write([2])
    first.then(lambda *_: world.runtime.on_resigned(0))
    world.runtime.on_high_watermark(0, 2)
    assert error_of(second) in (None, "NOT_COORDINATOR")
    assert second.done
    assert shard.events == ["loaded", "unloaded"]


def test_an_append_that_fails_changes_nothing() -> None:
    world = World()
    world.log.failure = ErrorCode.NOT_ENOUGH_REPLICAS
    assert error_of(world.shard.partition.write([1])) == "NOT_ENOUGH_REPLICAS"
    assert world.shard.total == 0
    world.log.failure = None
    assert error_of(world.shard.partition.write([2])) is None
    assert world.shard.total == 2


def a_shard_that_fails_at(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    replay = CountingShard.replay

    def replay_most(self: CountingShard, record: int, offset: int, producer_id: int) -> None:
        replay(self, record, offset, producer_id)
        if record == number:
            raise KeyError("a fault of the program")

    monkeypatch.setattr(CountingShard, "replay", replay_most)


def test_a_partition_whose_state_lacks_a_record_of_its_log_is_loaded_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    world.log.replicated = False
    shard = world.shard
    earlier = shard.partition.write([1])
    a_shard_that_fails_at(monkeypatch, 2)
    faulty = shard.partition.write([2, 3])
    assert [error_of(each) for each in (earlier, faulty)] == ["NOT_COORDINATOR"] * 2
    assert shard.events == ["loaded", "unloaded"]
    with pytest.raises(ApiError, match="NOT_COORDINATOR"):
        world.runtime.shard_for("key")
    assert error_of(shard.partition.write([4])) == "NOT_COORDINATOR"
    assert world.log.end == 3, "nothing is appended for the old shard"
    (line,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "loaded again" in line.message
    assert line.exc_info is not None
    monkeypatch.undo()
    world.runtime.poll(2_000)
    (load,) = world.runtime.take_loads()
    run_to_end(load.replay(counter_batch(0, 1, 2, 3), 3, 2_000))
    load.finish(3, 2_000)
    assert world.shard is not shard
    assert world.shard.total == 6


def test_a_load_in_which_a_record_cannot_be_applied_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It must not end in silence: the partition would answer COORDINATOR_LOAD_IN_PROGRESS for ever."""
    world = World()
    a_shard_that_fails_at(monkeypatch, 2)
    world.runtime.on_elected(0, 2, 0)
    for attempt in range(3):
        (load,) = world.runtime.take_loads()
        assert not run_to_end(load.replay(counter_batch(0, 1, 2), 2, world.runtime.now_ms()))
        assert load.has_ended
        world.runtime.poll(world.runtime.next_deadline_ms() or 0)
        assert "cannot be applied" in caplog.text, attempt
    monkeypatch.undo()
    (load,) = world.runtime.take_loads()
    run_to_end(load.replay(counter_batch(0, 1, 2), 2, 0))
    load.finish(2, 0)
    assert world.shard.total == 3


def test_a_load_whose_shard_fails_at_its_end_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    monkeypatch.setattr(CountingShard, "on_loaded", lambda self: {}["a fault of the program"])
    world.runtime.on_elected(0, 2, 0)
    (load,) = world.runtime.take_loads()
    load.finish(0, 0)
    monkeypatch.undo()
    world.runtime.poll(world.runtime.next_deadline_ms() or 0)
    (load,) = world.runtime.take_loads()
    load.finish(0, 0)
    assert world.shard.events == ["loaded"]


def test_many_records_are_written_in_parts() -> None:
    world = World()
    assert world.shard.partition.write_in_parts([1] * 2_500).done
    assert (world.log.end, world.shard.total) == (2_500, 2_500)
    failing: list[int] = []
    append = world.log.append

    def append_once(*arguments: Any) -> int:
        failing.append(0)
        if len(failing) > 1:
            raise ApiError(ErrorCode.NOT_ENOUGH_REPLICAS)
        return append(*arguments)

    world.log.append = append_once  # type: ignore[method-assign]
    assert error_of(world.shard.partition.write_in_parts([1] * 2_500)) == "NOT_ENOUGH_REPLICAS"
    assert len(failing) == 2, "the third part was not tried"


def test_a_write_that_is_not_committed_in_time_fails_and_stays_written() -> None:
    world = World()
    world.log.replicated = False
    first = world.runtime.in_time(world.shard.partition.write([1]))
    world.runtime.advance(1_000)
    second = world.runtime.in_time(world.shard.partition.write([2]))
    assert world.runtime.next_deadline_ms() == WRITE_TIMEOUT_MS
    world.runtime.poll(WRITE_TIMEOUT_MS - 1)
    assert not first.done
    world.runtime.poll(WRITE_TIMEOUT_MS)
    assert (error_of(first), second.done) == ("REQUEST_TIMED_OUT", False)
    world.runtime.on_high_watermark(0, 2)
    assert (error_of(second), world.shard.committed_total()) == (None, 3)
    world.runtime.poll(WRITE_TIMEOUT_MS + 1_000)
    assert world.runtime.next_deadline_ms() is None


def test_resigning_takes_back_what_is_not_committed_before_it_is_answered() -> None:
    world = World()
    world.log.replicated = False
    shard = world.shard
    seen: list[int] = []
    write = shard.partition.write([1])
    write.then(lambda *_: seen.append(shard.total))
    world.runtime.on_resigned(0)
    assert (error_of(write), seen, shard.events) == ("NOT_COORDINATOR", [0], ["loaded", "unloaded"])
    assert error_of(shard.partition.write([1])) == "NOT_COORDINATOR"


def test_a_partition_that_is_led_again_begins_anew() -> None:
    world = World()
    former = world.shard
    shard = world.elect(0, counter_batch(0, 5))
    assert (shard.total, former.events, shard.events) == (5, ["loaded", "unloaded"], ["loaded"])


@pytest.mark.parametrize("key", ["a", "b", "some other key"])
def test_a_key_belongs_to_one_partition(key: str) -> None:
    world = World(partitions=5)
    assert world.runtime.shard_for(key).partition.index == coordinator_partition(key, 5)
    world.partitions = 0
    with pytest.raises(ApiError, match="NOT_COORDINATOR"):
        world.runtime.shard_for(key)


def test_deleted_topics_reach_the_shards_that_serve() -> None:
    world = World(partitions=2)
    serving, other = world.runtime.active_shards()
    world.runtime.on_elected(1, 2, 0)
    assert world.runtime.is_loading
    world.runtime.on_topics_deleted({"orders": Uuid(bytes(16))})
    assert (serving.deleted, other.deleted) == (["orders"], [])


def test_partitions_that_are_loaded_together_have_one_line(caplog: pytest.LogCaptureFixture) -> None:
    world = World(0)
    for partition in range(50):
        world.runtime.on_elected(partition, 1, 0)
    with caplog.at_level("INFO", "kalda.coordinator"):
        for load in world.runtime.take_loads():
            load.finish(0, 0)
    assert [record.getMessage() for record in caplog.records] == [
        "__counters: 50 partitions are loaded, of 50 that this node leads"
    ]
