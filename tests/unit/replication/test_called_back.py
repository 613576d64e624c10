"""Replicas that are called back before their own call returns find, and show, complete state."""

from __future__ import annotations

import pytest
from data_path_world import SELF, Assigned, World, answers_of, offsets

from kalda.base.errors import ErrorCode
from kalda.base.ids import TopicPartition
from kalda.base.scheduling import Pending
from kalda.protocol.messages.partitions import (
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
    FetchResponse,
)
from kalda.records.builder import build_batch
from kalda.replication.counters import DelayedOperation
from kalda.replication.fetch import Fetch
from kalda.replication.partition import Partition
from kalda.replication.waiters import Waiter

TWO = Assigned(SELF, 0, (SELF, 2), (SELF, 2))
FOLLOWER = 2


def follower_fetch(
    world: World, *wanted: tuple[str, int, int], epoch: int = 0
) -> FetchResponse | Pending[FetchResponse]:
    """A fetch of `(topic, partition, offset)`s by the follower, in the leader epoch that it knows."""
    request = FetchRequest(
        replica_id=FOLLOWER,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1 << 20,
        session_epoch=-1,
        topics=[
            FetchRequestFetchTopic(
                topic=topic,
                partitions=[
                    FetchRequestFetchPartition(
                        partition=index, fetch_offset=offset, current_leader_epoch=epoch, partition_max_bytes=1 << 20
                    )
                ],
            )
            for topic, index, offset in wanted
        ],
    )
    return Fetch(world.replicas, request, world.sessions.context(request, False, world.ids.get, world.now_ms)).run()


def append(partition: Partition) -> None:
    partition.append(build_batch([(1, None, b"v", ())]), 1, 1)


class Caller(Waiter):
    """Calls something when its partition moves, once."""

    def __init__(self, call: object) -> None:
        super().__init__(DelayedOperation.PRODUCE)
        self._call = call

    def on_moved(self, partition: Partition, appended_bytes: int) -> None:
        if not self.done:
            self.stop()
            assert callable(self._call)
            self._call()

    def answer(self) -> None:
        """It has no answer."""


def test_a_fetch_that_a_new_epoch_ends_sees_that_epoch() -> None:
    world = World()
    world.assign("a", assigned=TWO)
    waiting = follower_fetch(world, ("a", 0, 0))
    assert isinstance(waiting, Pending)
    world.assign("a", assigned=Assigned(SELF, 1, (SELF, 2), (SELF, 2)))
    assert answers_of(waiting)["a", 0].error_code == ErrorCode.FENCED_LEADER_EPOCH


def test_the_high_watermark_is_reported_in_order() -> None:
    """What waits for the first advance leads to a second, within the first."""
    world = World()
    partition = world.assign("a", assigned=TWO)
    for _ in range(3):
        append(partition)
    reported: list[int] = []
    partition.on_high_watermark = reported.append
    caller = Caller(lambda: partition.on_follower_fetch(FOLLOWER, 7, 3, 0, epoch_known=True))
    caller.wait([partition], world, 1_000)
    partition.on_follower_fetch(FOLLOWER, 7, 1, 0, epoch_known=True)
    assert reported == [3]


def test_all_replicas_of_a_failed_directory_are_offline_before_the_first_answer() -> None:
    world = World()
    for index in (0, 1):
        world.assign("a", index)
    waiting = world.fetch(("a", 0, 0), ("a", 1, 0))
    world.replicas.take_offline([TopicPartition("a", 0), TopicPartition("a", 1)])
    assert [each.error_code for each in answers_of(waiting).values()] == [ErrorCode.KAFKA_STORAGE_ERROR] * 2


@pytest.mark.parametrize("committed", ["a", "b"])
def test_a_fetch_that_commits_gets_what_is_appended_for_that(committed: str) -> None:
    """As a coordinator does it, which writes its next records when the last ones are committed."""
    world = World()
    for topic in ("a", "b"):
        world.assign(topic, assigned=TWO)
    append(world.replicas.get(committed, 0))
    world.replicas.get(committed, 0).on_high_watermark = lambda _: append(world.replicas.get("a", 0))
    at = 1 if committed == "a" else 0
    answer = follower_fetch(world, ("a", 0, at), ("b", 0, 1 - at))
    assert isinstance(answer, FetchResponse), "it waits, although there are records"
    assert offsets(answers_of(answer)["a", 0]) == [at]
