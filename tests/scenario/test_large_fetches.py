"""Fetches of many partitions are read in steps, and other requests are handled between two of them. Of records in
memory a fetch gets a bounded number of bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from by_hand import one_step_a_turn
from data_path_world import World, answers_of, offsets

from kalda.base.disk import FileSlice
from kalda.base.errors import ErrorCode
from kalda.base.ids import TopicPartition
from kalda.base.scheduling import Pending
from kalda.protocol.messages.partitions import FetchResponse
from kalda.replication import fetch
from kalda.replication.fetch import Fetch
from kalda.replication.fetch_session import FetchEntry

AT_ONCE = 2
COUNT = 5
ALL = [("a", index, 0) for index in range(COUNT)]


class Turns:
    """The turns of the event loop, taken one by one, and how many partitions each of them has read."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read: list[int] = []
        self._callbacks: list[Callable[[], None]] = []
        world.replicas.background = one_step_a_turn(self._callbacks.append)
        read = Fetch._read

        def counted(each: Fetch, entries: Sequence[FetchEntry], note_follower: bool) -> bool:
            self.read[-1] += len(entries)
            return read(each, entries, note_follower)

        monkeypatch.setattr(fetch, "READ_AT_ONCE", AT_ONCE)
        monkeypatch.setattr(fetch, "ITEMS_A_STEP", AT_ONCE)
        monkeypatch.setattr(Fetch, "_read", counted)

    def take(self, count: int = 100) -> None:
        """That many turns, or as many as there are."""
        while self._callbacks and count:
            self.read.append(0)
            self._callbacks.pop(0)()
            count -= 1


@pytest.fixture
def world() -> World:
    world = World()
    for index in range(COUNT):
        world.assign("a", index)
    return world


@pytest.fixture
def turns(world: World, monkeypatch: pytest.MonkeyPatch) -> Turns:
    return Turns(world, monkeypatch)


def base_offsets(response: FetchResponse | Pending[FetchResponse]) -> list[list[int]]:
    return [offsets(answer) for answer in answers_of(response).values()]


def test_a_turn_reads_a_bounded_number_of_partitions(world: World, turns: Turns) -> None:
    for index in range(COUNT):
        world.produce("a", index=index)
    answer = world.fetch(*ALL)
    turns.take()
    assert base_offsets(answer) == [[0]] * COUNT
    assert sum(turns.read) == COUNT
    assert max(turns.read) == AT_ONCE


def test_the_steps_share_the_bytes_of_the_response(world: World, turns: Turns) -> None:
    for index in range(COUNT):
        world.produce("a", index=index, size=400)
    answer = world.fetch(*ALL, max_bytes=1_200)
    turns.take()
    assert base_offsets(answer) == [[0], [0], [], [], []]


def test_records_that_are_appended_between_two_steps_are_answered_at_once(world: World, turns: Turns) -> None:
    answer = world.fetch(*ALL)
    turns.take(3)
    assert sum(turns.read) == 2 * AT_ONCE
    world.produce("a", index=0)
    turns.take()
    assert base_offsets(answer)[0] == [0]
    assert max(turns.read) == AT_ONCE
    assert world.timers == 0, "it has not waited"


def test_what_cannot_be_read_yet_does_not_end_the_wait(world: World, turns: Turns) -> None:
    """A consumer that is answered without records sends the same request again."""
    partition = world.replicas.find("a", 0)
    assert partition is not None
    answer = world.fetch(*ALL)
    turns.take(3)
    world.produce("a", index=0)
    partition.log.high_watermark = 0
    turns.take()
    assert isinstance(answer, Pending)
    assert not answer.done


def test_after_a_wait_it_is_read_in_steps_again(world: World, turns: Turns) -> None:
    answer = world.fetch(*ALL)
    turns.take()
    turns.read.clear()
    world.produce("a", index=4)
    assert isinstance(answer, Pending)
    assert not answer.done, "the produce is answered first"
    turns.take()
    assert base_offsets(answer) == [[], [], [], [], [0]]
    assert (sum(turns.read), max(turns.read)) == (COUNT, AT_ONCE)


def test_a_failed_partition_is_answered_without_a_wait(world: World, turns: Turns) -> None:
    world.replicas.remove(TopicPartition("a", 1))
    answer = world.fetch(*ALL)
    turns.take()
    assert answers_of(answer)["a", 1].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_fetch_that_is_abandoned_between_two_steps_reads_no_more(world: World, turns: Turns) -> None:
    answer = world.fetch(*ALL)
    turns.take(2)
    assert isinstance(answer, Pending)
    answer.abandon()
    turns.take()
    assert sum(turns.read) == AT_ONCE
    assert not answer.done


def large_batches(world: World, batches: int) -> None:
    for index in range(COUNT):
        for _ in range(batches):
            world.produce("a", index=index, size=90_000)


def in_memory(response: FetchResponse | Pending[FetchResponse]) -> list[int]:
    return [
        0 if isinstance(answer.records, FileSlice) else len(answer.records or b"")
        for answer in answers_of(response).values()
    ]


def test_records_in_memory_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each partition has a batch of 90 KB: the answer ends with the one that exceeds the bound, without a wait."""
    monkeypatch.setattr(fetch, "_COPIED_BYTES", 100_000)
    large_batches(world, 1)
    answer = world.fetch(*ALL, min_bytes=1 << 20)
    assert isinstance(answer, FetchResponse)
    assert base_offsets(answer) == [[0], [0], [], [], []]


def test_slices_take_no_memory(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_COPIED_BYTES", 100_000)
    large_batches(world, 4)
    answer = world.fetch(*ALL, max_bytes=1 << 30, min_bytes=1 << 20)
    assert all(each.records for each in answers_of(answer).values())
    assert in_memory(answer) == [0] * COUNT


def test_a_device_is_read_piece_by_piece(world: World) -> None:
    """What is not in the page cache is not read before it is sent."""
    large_batches(world, 4)
    hot = world.fetch(*ALL, max_bytes=1 << 30)
    for index in range(COUNT):
        partition = world.replicas.remove(TopicPartition("a", index))
        assert partition is not None
        partition.log.close()
        world.assign("a", index)
    world.disk.cold = world.hold_jobs = True
    answer = world.fetch(*ALL, max_bytes=1 << 30)
    assert isinstance(answer, Pending)
    world.let_jobs_run()
    assert in_memory(answer) == [0] * COUNT
    read = []
    for each in answers_of(answer).values():
        records: object = each.records
        assert isinstance(records, FileSlice)
        piece = records.read(1 << 20, lambda: None)
        if piece is None:
            world.let_jobs_run()
            piece = records.read(1 << 20, lambda: None)
        read.append(bytes(piece or b""))
    world.disk.cold = False
    expected = []
    for each in answers_of(hot).values():
        records = each.records
        assert isinstance(records, FileSlice)
        expected.append(bytes(records.read(1 << 20, lambda: None) or b""))
    assert read == expected


def test_nothing_is_read_for_a_broker_that_is_no_replica(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    large_batches(world, 1)
    monkeypatch.setattr(Fetch, "_read_one", lambda *_: pytest.fail("read"))
    answer = world.fetch(*ALL, replica_id=7)
    assert {each.error_code for each in answers_of(answer).values()} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
