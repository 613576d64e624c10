"""Loading a partition: what is replayed, what is skipped, what fails the load, and what comes after a failure."""

from __future__ import annotations

import pytest
from coordinator_world import KEY, LATER_KEY, LATER_VALUE, CountingShard, FakeLog, batch_of, counter_batch, error_of

from kalda.base.background import run_to_end
from kalda.base.errors import ApiError
from kalda.coordinator.partition import Load
from kalda.coordinator.runtime import CoordinatorRuntime
from kalda.records.control import transaction_marker_batch


class World:
    """A runtime of one partition."""

    def __init__(self) -> None:
        self.log = FakeLog()
        self.runtime = CoordinatorRuntime("__counters", CountingShard, self.log, lambda: 1, 5_000)
        self.log.on_high_watermark = self.runtime.on_high_watermark

    def elect(self, epoch: int = 1) -> Load[int]:
        self.runtime.on_elected(0, epoch, 0)
        (load,) = self.runtime.take_loads()
        return load

    def load(self, *slices: bytes, high_watermark: int = 100) -> bool:
        """Elect and load; whether all slices were taken."""
        load = self.elect()
        taken = all(run_to_end(load.replay(each, high_watermark, 0)) for each in slices)
        load.finish(high_watermark, 0)
        return taken

    @property
    def shard(self) -> CountingShard:
        return self.runtime.shard_for("key")

    def error(self) -> str:
        """What a request gets."""
        try:
            self.runtime.shard_for("key")
        except ApiError as error:
            return error.code.name
        return "NONE"


def transaction(base_offset: int, *numbers: int) -> bytes:
    return counter_batch(base_offset, *numbers, producer_id=7, producer_epoch=0, is_transactional=True)


def marker(base_offset: int, *, commit: bool) -> bytes:
    return bytes(
        transaction_marker_batch(
            producer_id=7,
            producer_epoch=0,
            commit=commit,
            coordinator_epoch=1,
            timestamp_ms=0,
            base_offset=base_offset,
        )
    )


def flipped(batch: bytes, at: int) -> bytes:
    return batch[:at] + bytes([batch[at] ^ 1]) + batch[at + 1 :]


def test_slices_are_replayed_in_order_and_the_partition_serves() -> None:
    world = World()
    assert world.error() == "NOT_COORDINATOR"
    load = world.elect()
    assert world.error() == "COORDINATOR_LOAD_IN_PROGRESS"
    assert run_to_end(load.replay(counter_batch(0, 1, 2) + counter_batch(2, 3), 100, 0))
    assert run_to_end(load.replay(counter_batch(9, 4), 100, 0))
    load.finish(100, 0)
    assert (world.error(), world.shard.total, world.shard.events) == ("NONE", 10, ["loaded"])


def test_transactions_count_when_their_marker_is_loaded() -> None:
    world = World()
    world.load(transaction(0, 1, 2), marker(2, commit=True), transaction(3, 5), marker(4, commit=False))
    assert world.shard.total == 3


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ((LATER_KEY, b"5"), "record type later is unknown: it may be left over from an aborted upgrade"),
        ((KEY, b"five"), "it is malformed: not a number"),
        ((KEY, None), "it is malformed: not a number"),
        ((None, b"5"), "it is malformed: it has no key"),
    ],
)
def test_one_bad_record_is_skipped(
    record: tuple[bytes | None, bytes | None], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    assert world.load(batch_of(0, (KEY, b"1"), record, (KEY, b"2")))
    assert world.shard.total == 3
    (line,) = [each for each in caplog.records if each.levelname == "WARNING"]
    assert line.getMessage() == f"__counters-0: the record at offset 1 is skipped: {reason}"


def test_a_value_of_a_later_version_fails_the_load() -> None:
    """Without it an older value would count, and be written over."""
    world = World()
    assert not world.load(counter_batch(0, 1), batch_of(1, (KEY, LATER_VALUE)), counter_batch(2, 3))
    assert world.error() == "NOT_COORDINATOR"


def test_a_malformed_marker_is_skipped() -> None:
    world = World()
    broken = batch_of(2, (b"\x00", b""), producer_id=7, producer_epoch=0, is_transactional=True, is_control=True)
    world.load(transaction(0, 1, 2), broken, marker(3, commit=True))
    assert world.shard.total == 3


def test_many_bad_records_do_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.load(batch_of(0, *[(LATER_KEY, b"")] * 1_000), counter_batch(1_000, 1))
    assert world.shard.total == 1
    assert len(caplog.records) == 101
    assert caplog.messages[-1] == "__counters-0: 1000 records in all were skipped"


@pytest.mark.parametrize("at", [17, 21, 23, 57, 61, -1], ids=lambda at: f"byte {at}")
def test_a_batch_with_a_wrong_crc_fails_the_load(at: int) -> None:
    world = World()
    good = counter_batch(1, 2)
    assert not world.load(counter_batch(0, 1), flipped(good, at % len(good)), counter_batch(2, 3))
    assert world.error() == "NOT_COORDINATOR"


@pytest.mark.parametrize(
    "after",
    [
        counter_batch(0, 5),
        counter_batch(2, 5)[:-1],
        b"\x00" * 30,
        flipped(counter_batch(2, 5), 16),
    ],
    ids=["offsets go back", "cut off", "zeros", "of another magic"],
)
def test_a_log_that_does_not_go_on_fails_the_load(after: bytes) -> None:
    world = World()
    assert not world.load(counter_batch(0, 1, 2) + after)
    assert world.error() == "NOT_COORDINATOR"


def test_a_failed_load_is_tried_again_after_longer_and_longer_times() -> None:
    world = World()
    load = world.elect()
    for delay_ms in (1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000):
        assert world.error() == "COORDINATOR_LOAD_IN_PROGRESS"
        run_to_end(load.replay(counter_batch(0, 1), 100, world.runtime.now_ms()))
        load.fail("no disk", world.runtime.now_ms())
        assert world.error() == "NOT_COORDINATOR"
        assert world.runtime.next_deadline_ms() == world.runtime.now_ms() + delay_ms
        world.runtime.poll(world.runtime.now_ms() + delay_ms)
        (load,) = world.runtime.take_loads()
    assert run_to_end(load.replay(counter_batch(0, 1), 1, 0))
    load.finish(1, 0)
    assert world.shard.total == 1, "nothing is left of the attempts before"
    world.log.end = 1
    assert world.shard.partition.write([2]).done


def test_a_failed_load_is_not_tried_again_after_leadership_is_lost() -> None:
    world = World()
    world.elect().fail("no disk", 0)
    world.runtime.on_resigned(0)
    world.runtime.poll(3_600_000)
    assert world.runtime.take_loads() == []
    assert world.runtime.next_deadline_ms() is None


def test_a_slice_of_a_former_load_changes_nothing() -> None:
    world = World()
    old = world.elect(epoch=1)
    new = world.elect(epoch=2)
    assert not run_to_end(old.replay(counter_batch(0, 9), 100, 0))
    old.finish(100, 0)
    assert world.error() == "COORDINATOR_LOAD_IN_PROGRESS"
    old.fail("no disk", 0)
    new.finish(100, 0)
    assert world.shard.total == 0


def test_a_load_that_is_over_in_the_middle_of_a_slice_replays_no_more_of_it() -> None:
    world = World()
    old = world.elect(epoch=1)
    steps = old.replay(counter_batch(0, 9) + counter_batch(1, 9) + counter_batch(2, 9), 100, 0)
    next(steps)
    new = world.elect(epoch=2)
    assert not run_to_end(steps)
    assert run_to_end(new.replay(counter_batch(0, 1), 100, 0))
    new.finish(100, 0)
    assert world.shard.total == 1


def test_what_is_loaded_beyond_the_high_watermark_may_be_taken_back() -> None:
    world = World()
    world.log.end = 4
    world.load(counter_batch(0, 1, 2), counter_batch(2, 3), counter_batch(3, 4), high_watermark=2)
    shard = world.shard
    assert (shard.total, shard.committed_total(), shard.partition.predecessor_hw_unknown) == (10, 3, True)
    world.runtime.on_high_watermark(0, 3)
    assert (shard.committed_total(), shard.partition.predecessor_hw_unknown) == (6, True)
    world.log.replicated = False
    write = shard.partition.write([5])
    world.runtime.on_high_watermark(0, 4)
    assert (shard.committed_total(), shard.partition.predecessor_hw_unknown) == (10, False)
    world.runtime.on_resigned(0)
    assert (shard.total, error_of(write)) == (10, "NOT_COORDINATOR")
