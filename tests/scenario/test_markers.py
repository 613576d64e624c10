"""WriteTxnMarkers at the leaders of partitions: what is appended, what is refused, when it is answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from data_path_world import SELF, Assigned, World, answers_of, offsets

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending
from kalda.protocol.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kalda.records.builder import build_batch
from kalda.replication.markers import MarkerWriter
from kalda.replication.partition import Partition
from kalda.storage.log.snapshot_jobs import collect_aborted
from kalda.storage.values import TransactionEnd

Errors = dict[tuple[str, int], str]
COMMITTED = 1


def writer(
    world: World, delegate: Callable[[str, int, TransactionEnd], Pending[None] | None] = lambda *_: None
) -> MarkerWriter:
    return MarkerWriter(world.replicas, lambda: world.now_ms, 30_000, delegate)


def marker(
    *at: tuple[str, int], producer: tuple[int, int] = (7, 0), commit: bool = True, epoch: int = 0, version: int = 0
) -> WritableTxnMarker:
    return WritableTxnMarker(
        producer_id=producer[0],
        producer_epoch=producer[1],
        transaction_result=commit,
        coordinator_epoch=epoch,
        transaction_version=version,
        topics=[WritableTxnMarkerTopic(name=name, partition_indexes=[index]) for name, index in at],
    )


def errors(done: WriteTxnMarkersResponse | Pending[WriteTxnMarkersResponse]) -> Errors:
    if isinstance(done, Pending):
        assert done.done, "the answer waits"
        assert done.value is not None
        done = done.value
    return {
        (topic.name, each.partition_index): ErrorCode(each.error_code).name
        for found in done.markers
        for topic in found.topics
        for each in topic.partitions
    }


def write(world: World, *markers: WritableTxnMarker) -> Errors:
    return errors(writer(world).write(WriteTxnMarkersRequest(markers=list(markers))))


def produce(
    world: World, partition: Partition, *, producer: tuple[int, int] = (7, 0), sequence: int = 0, count: int = 1
) -> None:
    """Append a batch of a transaction."""
    rows: list[Any] = [(world.now_ms, b"k", b"v", ())] * count
    partition.append(
        build_batch(
            rows, producer_id=producer[0], producer_epoch=producer[1], base_sequence=sequence, is_transactional=True
        ),
        -1,
        world.now_ms,
    )


def visible(world: World, topic: str) -> int:
    """The last stable offset, as a read_committed consumer gets it."""
    response = world.fetch((topic, 0, 0), isolation_level=COMMITTED, max_wait_ms=0)
    return answers_of(response)[topic, 0].last_stable_offset


def test_markers_end_transactions_and_make_them_visible() -> None:
    world = World()
    one, other = world.assign("one"), world.assign("other")
    produce(world, one, count=3)
    produce(world, other)
    assert (visible(world, "one"), visible(world, "other")) == (0, 0)
    assert write(world, marker(("one", 0), ("other", 0))) == {("one", 0): "NONE", ("other", 0): "NONE"}
    assert (visible(world, "one"), visible(world, "other")) == (4, 2)
    assert collect_aborted(one.log.segments, 0, 10) == []


def test_an_abort_marker_is_in_the_index_that_consumers_get() -> None:
    world = World()
    partition = world.assign("one")
    produce(world, partition, count=2)
    produce(world, partition, producer=(8, 0))
    write(world, marker(("one", 0), producer=(8, 0)), marker(("one", 0), commit=False))
    answer = answers_of(world.fetch(("one", 0, 0), isolation_level=COMMITTED))["one", 0]
    assert offsets(answer) == [0, 2, 3, 4]
    assert [(each.producer_id, each.first_offset) for each in answer.aborted_transactions or ()] == [(7, 0)]


def test_a_cold_index_of_aborted_transactions_is_read_by_a_job() -> None:
    """The loop does not wait for the device; the records may be in the page cache all the same."""
    world = World()
    partition = world.assign("one")
    produce(world, partition, count=2)
    write(world, marker(("one", 0), commit=False))
    partition.log.segments.active.txn_index.close()
    world.hold_jobs = True
    waiting = world.fetch(("one", 0, 0), isolation_level=COMMITTED)
    assert isinstance(waiting, Pending)
    assert not waiting.done
    world.let_jobs_run()
    answer = answers_of(waiting)["one", 0]
    assert offsets(answer) == [0, 2]
    assert [(each.producer_id, each.first_offset) for each in answer.aborted_transactions or ()] == [(7, 0)]


def test_results_of_one_producer_are_together() -> None:
    """Coordinators of Apache Kafka read one result for each producer id."""
    world = World()
    world.assign("one")
    world.assign("one", 1)
    request = WriteTxnMarkersRequest(
        markers=[marker(("one", 0)), marker(("nope", 0), producer=(8, 0)), marker(("one", 1))]
    )
    done = writer(world).write(request)
    assert isinstance(done, WriteTxnMarkersResponse)
    assert [(each.producer_id, len(each.topics)) for each in done.markers] == [(7, 1), (8, 1)]
    assert errors(done) == {("one", 0): "NONE", ("one", 1): "NONE", ("nope", 0): "UNKNOWN_TOPIC_OR_PARTITION"}


def test_an_old_coordinator_is_fenced() -> None:
    world = World()
    partition = world.assign("one")
    produce(world, partition)
    assert write(world, marker(("one", 0), epoch=5)) == {("one", 0): "NONE"}
    produce(world, partition, sequence=1)
    assert write(world, marker(("one", 0), epoch=4)) == {("one", 0): "TRANSACTION_COORDINATOR_FENCED"}
    assert visible(world, "one") == 2
    assert write(world, marker(("one", 0), epoch=5)) == {("one", 0): "NONE"}


def test_the_epoch_of_the_coordinator_lasts_over_a_restart() -> None:
    world = World()
    partition = world.assign("one")
    produce(world, partition)
    write(world, marker(("one", 0), epoch=5))
    partition.log.close()
    world.replicas.remove(partition.topic_partition)
    world.assign("one")
    assert write(world, marker(("one", 0), epoch=4)) == {("one", 0): "TRANSACTION_COORDINATOR_FENCED"}


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_marker_may_come_twice(version: int) -> None:
    """The coordinator sends it again where the answer was lost."""
    world = World()
    partition = world.assign("one")
    produce(world, partition)
    epoch = 1 if version == 2 else 0
    for _ in range(2):
        assert write(world, marker(("one", 0), producer=(7, epoch), version=version)) == {("one", 0): "NONE"}
    produce(world, partition, producer=(7, epoch), sequence=0 if version == 2 else 1)
    assert visible(world, "one") == 3


def test_a_late_marker_does_not_end_the_next_transaction_of_version_2() -> None:
    world = World()
    partition = world.assign("one")
    produce(world, partition)
    write(world, marker(("one", 0), producer=(7, 1), version=2))
    produce(world, partition, producer=(7, 1))
    late = marker(("one", 0), producer=(7, 1), version=2)
    assert write(world, late) == {("one", 0): "INVALID_PRODUCER_EPOCH"}
    assert visible(world, "one") == 2


def test_a_fenced_producers_marker_is_refused() -> None:
    world = World()
    partition = world.assign("one")
    produce(world, partition, producer=(7, 3))
    assert write(world, marker(("one", 0), producer=(7, 2))) == {("one", 0): "INVALID_PRODUCER_EPOCH"}


def test_a_marker_of_an_unknown_producer_is_appended() -> None:
    """Retention may have removed all that the producer wrote."""
    world = World()
    world.assign("one")
    assert write(world, marker(("one", 0), producer=(99, 4), commit=False)) == {("one", 0): "NONE"}
    assert visible(world, "one") == 1


@pytest.mark.parametrize("producer", [(-1, 0), (7, -1)])
def test_the_marker_of_no_producer_is_refused(producer: tuple[int, int]) -> None:
    world = World()
    partition = world.assign("one")
    with pytest.raises(ApiError):
        write(world, marker(("one", 0)), marker(("one", 0), producer=producer))
    assert partition.log.log_end_offset == 0


def test_a_follower_refuses() -> None:
    world = World()
    world.assign("one", 0, Assigned(2, 0, (SELF, 2), (SELF, 2)))
    assert write(world, marker(("one", 0))) == {("one", 0): "NOT_LEADER_OR_FOLLOWER"}


def test_the_answer_waits_for_the_followers() -> None:
    world = World()
    partition = world.assign("one", 0, Assigned(SELF, 0, (SELF, 2), (SELF, 2)))
    produce(world, partition)
    done = writer(world).write(WriteTxnMarkersRequest(markers=[marker(("one", 0))]))
    assert isinstance(done, Pending)
    assert not done.done
    partition.on_follower_fetch(2, -1, 2, 0, False)
    assert errors(done) == {("one", 0): "NONE"}
    assert visible(world, "one") == 2


def test_a_marker_that_is_not_replicated_is_not_visible_and_times_out() -> None:
    world = World()
    partition = world.assign("one", 0, Assigned(SELF, 0, (SELF, 2), (SELF, 2)))
    produce(world, partition)
    partition.on_follower_fetch(2, -1, 1, 0, False)
    done = writer(world).write(WriteTxnMarkersRequest(markers=[marker(("one", 0))]))
    assert visible(world, "one") == 0, "a new leader may lack the marker"
    world.advance(30_000)
    assert errors(done) == {("one", 0): "REQUEST_TIMED_OUT"}


def test_a_leader_that_resigns_reports_it() -> None:
    world = World()
    partition = world.assign("one", 0, Assigned(SELF, 0, (SELF, 2), (SELF, 2)))
    done = writer(world).write(WriteTxnMarkersRequest(markers=[marker(("one", 0))]))
    partition.become_follower(2, 1, 1, (SELF, 2), (SELF, 2))
    assert errors(done) == {("one", 0): "NOT_LEADER_OR_FOLLOWER"}


def test_too_few_in_sync_replicas_append_nothing() -> None:
    world = World()
    partition = world.assign("one", 0, Assigned(SELF, 0, (SELF, 2), (SELF,)), min_insync_replicas="2")
    assert write(world, marker(("one", 0))) == {("one", 0): "NOT_ENOUGH_REPLICAS"}
    assert partition.log.log_end_offset == 0


def test_very_many_markers_are_appended_in_steps() -> None:
    """The partition whose leader changes meanwhile is not waited for."""
    world = World()
    replicated = Assigned(SELF, 0, (SELF, 2), (SELF, 2))
    lost, one = world.assign("lost", 0, replicated), world.assign("one")
    markers = [marker(("lost", 0)), *(marker(("one", 0), producer=(100 + each, 0)) for each in range(600))]
    done = writer(world).write(WriteTxnMarkersRequest(markers=markers))
    assert isinstance(done, Pending)
    assert one.log.log_end_offset < 600, "the others are appended in the background"
    lost.become_follower(2, 1, 1, (SELF, 2), (SELF, 2))
    lost.become_leader(2, 2, (SELF, 2), (SELF, 2))
    world.advance(0)
    found = errors(done)
    assert one.log.log_end_offset == 600
    assert found == {("lost", 0): "NOT_LEADER_OR_FOLLOWER", ("one", 0): "NONE"}


# -- coordinators append to their own logs


def test_a_coordinators_log_gets_its_marker_from_the_coordinator() -> None:
    world, asked = World(), []
    world.assign("__consumer_offsets", 3)
    world.assign("one")
    ended: Pending[None] = Pending()

    def delegate(topic: str, index: int, end: TransactionEnd) -> Pending[None] | None:
        if topic != "__consumer_offsets":
            return None
        asked.append((index, end))
        return ended

    request = WriteTxnMarkersRequest(markers=[marker(("__consumer_offsets", 3), ("one", 0), epoch=2, version=2)])
    done = writer(world, delegate).write(request)
    assert isinstance(done, Pending)
    assert asked == [(3, TransactionEnd(7, 0, True, 2, 2))]
    assert not done.done
    ended.complete(None)
    assert errors(done) == {("__consumer_offsets", 3): "NONE", ("one", 0): "NONE"}


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (ErrorCode.NOT_COORDINATOR, "NOT_LEADER_OR_FOLLOWER"),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "NOT_LEADER_OR_FOLLOWER"),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, "NOT_LEADER_OR_FOLLOWER"),
        (ErrorCode.INVALID_PRODUCER_EPOCH, "INVALID_PRODUCER_EPOCH"),
    ],
)
def test_errors_of_coordinators_are_those_of_partitions(code: ErrorCode, expected: str) -> None:
    world = World()
    world.assign("__consumer_offsets")
    refused: Pending[None] = Pending()
    refused.fail(ApiError(code))
    request = WriteTxnMarkersRequest(markers=[marker(("__consumer_offsets", 0))])
    assert errors(writer(world, lambda *_: refused).write(request)) == {("__consumer_offsets", 0): expected}


def test_cold_logs_are_opened_first() -> None:
    world = World()
    partition = world.assign("one")
    partition.log.cold = True
    world.hold_jobs = True
    done = writer(world).write(WriteTxnMarkersRequest(markers=[marker(("one", 0))]))
    assert isinstance(done, Pending)
    assert partition.log.log_end_offset == 0
    world.let_jobs_run()
    assert errors(done) == {("one", 0): "NONE"}
