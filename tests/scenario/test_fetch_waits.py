"""Fetches that find too few bytes: what they wait for, and what ends the wait."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from by_hand import one_step_a_turn
from data_path_world import SELF, Assigned, World, answers_of, offsets

from kalda.base.errors import ErrorCode
from kalda.base.ids import TopicPartition
from kalda.base.scheduling import Pending
from kalda.records.builder import build_batch
from kalda.replication.fetch import Fetch
from kalda.replication.markers import append_marker
from kalda.storage.values import TransactionEnd

A, B = ("a", 0, 0), ("b", 0, 0)


def test_records_are_answered_at_once() -> None:
    world = World()
    world.assign("a")
    world.produce("a", 3)
    world.produce("a", 2)
    answer = answers_of(world.fetch(A))["a", 0]
    assert (offsets(answer), answer.high_watermark, answer.log_start_offset) == ([0, 3], 5, 0)
    assert world.timers == 0


def test_a_fetch_without_records_waits_for_an_append() -> None:
    world = World()
    world.assign("a")
    waiting = world.fetch(A)
    assert isinstance(waiting, Pending)
    assert not waiting.done
    world.produce("a")
    assert offsets(answers_of(waiting)["a", 0]) == [0]
    assert world.timers == 0, "the timer left with the request"


def test_a_fetch_that_is_abandoned_stops_waiting() -> None:
    world = World()
    world.assign("a")
    waiting = world.fetch(A, max_wait_ms=2**31 - 1)
    assert isinstance(waiting, Pending)
    waiting.abandon()
    assert world.timers == 0
    world.produce("a")
    assert not waiting.done


def test_a_fetch_waits_for_max_wait_ms_at_most() -> None:
    world = World()
    world.assign("a")
    waiting = world.fetch(A, max_wait_ms=500)
    assert isinstance(waiting, Pending)
    world.advance(499)
    assert not waiting.done
    world.advance(1)
    assert offsets(answers_of(waiting)["a", 0]) == []


def test_a_fetch_waits_for_min_bytes_over_all_partitions() -> None:
    world = World()
    world.assign("a")
    world.assign("b")
    waiting = world.fetch(A, B, min_bytes=250)
    assert isinstance(waiting, Pending)
    world.produce("a", size=50)
    assert not waiting.done
    world.produce("b", size=50)
    assert not waiting.done
    world.produce("a", size=50)
    answers = answers_of(waiting)
    assert (offsets(answers["a", 0]), offsets(answers["b", 0])) == ([0, 1], [0])


@pytest.mark.parametrize("begun_before", [True, False])
def test_a_read_committed_fetch_waits_for_the_end_of_the_transaction(begun_before: bool) -> None:
    """Each batch of a long transaction would else be answered by an empty response, which the consumer sends again."""
    world = World()
    log = world.assign("a")

    def append(sequence: int) -> None:
        batch = build_batch(
            [(world.now_ms, b"k", b"v" * 30, ())],
            producer_id=7,
            producer_epoch=0,
            base_sequence=sequence,
            is_transactional=True,
        )
        log.append(batch, -1, world.now_ms)

    if begun_before:
        append(0)
    waiting = world.fetch(A, isolation_level=1, min_bytes=200)
    assert isinstance(waiting, Pending)
    for sequence in range(1 if begun_before else 0, 5):
        append(sequence)
    assert not waiting.done
    append_marker(log, TransactionEnd(7, 0, True, 0, 0), world.now_ms)
    answer = answers_of(waiting)["a", 0]
    assert offsets(answer) == [0, 1, 2, 3, 4, 5]
    assert answer.last_stable_offset == 6
    assert world.timers == 0


def test_a_fetch_without_max_wait_or_partitions_does_not_wait() -> None:
    world = World()
    world.assign("a")
    assert offsets(answers_of(world.fetch(A, max_wait_ms=0))["a", 0]) == []
    assert answers_of(world.fetch(max_wait_ms=500)) == {}


def test_an_error_is_answered_at_once() -> None:
    world = World()
    world.assign("a")
    world.elsewhere.add("c")
    answers = answers_of(world.fetch(A, ("a", 7, 0), ("c", 0, 0), ("b", 0, 0), ("a", 0, 9)))
    assert {key: answer.error_code for key, answer in answers.items()} == {
        ("a", 0): ErrorCode.OFFSET_OUT_OF_RANGE,  # of a partition that is named twice, the last counts
        ("a", 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("c", 0): ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ("b", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert all(answer.high_watermark == -1 for answer in answers.values())


def test_losing_leadership_ends_the_wait() -> None:
    world = World()
    world.assign("a", assigned=Assigned(SELF, 0, (SELF, 2), (SELF, 2)))
    waiting = world.fetch(A)
    assert isinstance(waiting, Pending)
    world.assign("a", assigned=Assigned(2, 1, (SELF, 2), (SELF, 2)))
    assert answers_of(waiting)["a", 0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_deleting_the_topic_ends_the_wait() -> None:
    world = World()
    world.assign("a")
    waiting = world.fetch(A)
    world.replicas.remove(TopicPartition("a", 0))
    assert answers_of(waiting)["a", 0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_only_what_is_committed_is_shown() -> None:
    world = World()
    world.assign("a", assigned=Assigned(SELF, 0, (SELF, 2), (SELF, 2)))
    world.produce("a", acks=1)
    waiting = world.fetch(A)
    assert isinstance(waiting, Pending)
    assert not waiting.done, "the follower does not have it"
    world.fetch(("a", 0, 1), replica_id=2, max_wait_ms=0)
    assert offsets(answers_of(waiting)["a", 0]) == [0]


def test_the_first_batch_goes_out_whole_and_the_rest_by_the_limits() -> None:
    world = World()
    world.assign("a")
    world.assign("b")
    for topic in ("a", "b"):
        for _ in range(3):
            world.produce(topic, size=500)
    answers = answers_of(world.fetch(A, B, max_bytes=1))
    assert (offsets(answers["a", 0]), offsets(answers["b", 0])) == ([0], [])
    answers = answers_of(world.fetch(A, B, partition_bytes=1200))
    assert (offsets(answers["a", 0]), offsets(answers["b", 0])) == ([0, 1], [0, 1])
    answers = answers_of(world.fetch(("a", 0, 3), B, max_bytes=1))
    assert (offsets(answers["a", 0]), offsets(answers["b", 0])) == ([], [0])


@pytest.fixture
def cold() -> World:
    """A batch in each of two partitions, outside the page cache."""
    world = World()
    for topic in ("a", "b"):
        world.assign(topic)
        world.produce(topic)
    world.disk.cold = world.hold_jobs = True
    return world


def test_records_outside_the_page_cache_are_read_by_a_job(cold: World) -> None:
    waiting = cold.fetch(A, B, partition_bytes=1000)
    assert isinstance(waiting, Pending)
    assert not waiting.done
    cold.let_jobs_run()
    answers = answers_of(waiting)
    assert (offsets(answers["a", 0]), offsets(answers["b", 0])) == ([0], [0])


def test_a_disk_that_fails_during_a_read_is_a_storage_error(cold: World) -> None:
    waiting = cold.fetch(A)
    cold.disk.fail("/data")
    cold.let_jobs_run()
    assert answers_of(waiting)["a", 0].error_code == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_log_that_cannot_be_opened_is_a_storage_error(cold: World) -> None:
    cold.disk.fail("/data/a-0", operations=frozenset({"read"}))
    waiting = cold.fetch(A, B, partition_bytes=1000)
    cold.let_jobs_run()
    answers = answers_of(waiting)
    assert answers["a", 0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert offsets(answers["b", 0]) == [0]


def test_fetches_that_an_append_completes_do_not_hold_the_loop_together() -> None:
    world = World()
    turns: list[Callable[[], None]] = []
    world.replicas.background = one_step_a_turn(turns.append)
    world.assign("a")
    waiting = [world.fetch(A) for _ in range(400)]
    world.produce("a")
    for count in (1, 2, 3):
        answered = [each for each in waiting if isinstance(each, Pending) and each.done]
        assert answered == waiting[:count], "each of them uses up a turn"
        turns.pop()()
    late = waiting[-1]
    assert isinstance(late, Pending)
    late.abandon()
    while turns:
        turns.pop()()
    assert not late.done
    assert all(offsets(answers_of(each)["a", 0]) == [0] for each in waiting[:-1])
    assert world.timers == 0
    again = world.fetch(("a", 0, 1))
    world.produce("a")
    while turns:
        turns.pop()()
    assert isinstance(again, Pending)
    assert again.done


def test_a_fetch_that_fails_when_it_reads_again_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.assign("a")
    first = world.fetch(A)
    assert isinstance(first, Pending)
    monkeypatch.setattr(Fetch, "read_again", lambda _: {}["a bug"])
    world.produce("a")
    assert first.error is not None
    assert first.error.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert world.timers == 0


def test_an_answer_that_cannot_be_passed_on_holds_no_other_fetch(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.assign("a")
    waiting = [world.fetch(A) for _ in range(400)]
    broken = waiting[300]
    assert isinstance(broken, Pending)
    broken.then(lambda *_: {}["a bug"])
    world.produce("a")
    world.advance(0)
    assert all(offsets(answers_of(each)["a", 0]) == [0] for each in waiting)
    assert "a bug" in caplog.text
    again = world.fetch(("a", 0, 1))
    world.produce("a")
    assert isinstance(again, Pending)
    assert again.done
