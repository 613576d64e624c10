"""Logs that were found on the disk: a job opens their files before the first append, those of one request together,
and no later request overtakes it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from data_handlers import handler
from data_path_world import SELF, Assigned, World, answers_of, offsets

from kalda.base.background import run_to_end
from kalda.base.errors import ErrorCode
from kalda.base.ids import TopicPartition, Uuid
from kalda.base.scheduling import Pending
from kalda.broker.handlers.offsets import OffsetHandlers
from kalda.broker.requests.context import Encoded, RequestContext
from kalda.protocol.messages.partitions import (
    FetchableTopicResponse,
    FetchResponse,
    FetchResponsePartitionData,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kalda.records.builder import build_batch
from kalda.replication.partition import Partition
from kalda.replication.replica_fetcher import FetcherConfig, ReplicaFetcher
from kalda.storage.log.deletion import truncate_to

PARTITIONS = 3


def restarted(assigned: Assigned | None = None) -> tuple[World, list[Partition]]:
    """A broker with a record in each partition, which it has found on its disk."""
    world = World()
    for index in range(PARTITIONS):
        world.assign("a", index)
        world.produce("a", index=index)
        partition = world.replicas.remove(TopicPartition("a", index))
        assert partition is not None
        partition.log.close()
    world.hold_jobs = True
    return world, [world.assign("a", index, assigned) for index in range(PARTITIONS)]


def request(world: World, acks: int, *indexes: int) -> ProduceRequest:
    data = [
        PartitionProduceData(index=index, records=build_batch([(world.now_ms, None, b"v", ())])) for index in indexes
    ]
    return ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[TopicProduceData(name="a", partition_data=data)])


def test_the_logs_of_a_request_are_opened_together() -> None:
    world, partitions = restarted()
    handlers, context, connection = handler(world)
    waiting = handlers.produce(context, request(world, 1, 0, 1, 2))
    assert isinstance(waiting, Pending)
    assert not waiting.done
    assert connection.calls == ["alone"], "the next request of this connection waits"
    assert len(world.waiting) == 1
    assert [each.log.log_end_offset for each in partitions] == [1, 1, 1]
    world.let_jobs_run()
    answers = cast(Any, waiting.value).responses[0].partition_responses
    assert [(each.index, each.base_offset, each.error_code) for each in answers] == [(0, 1, 0), (1, 1, 0), (2, 1, 0)]
    again = handlers.produce(context, request(world, 1, 0, 1, 2))
    assert not isinstance(again, Pending)
    assert connection.calls == ["alone"]


def test_a_produce_without_an_answer_opens_them_too() -> None:
    world, partitions = restarted()
    handlers, context, connection = handler(world)
    waiting = handlers.produce(context, request(world, 0, 1))
    assert isinstance(waiting, Pending)
    world.let_jobs_run()
    assert isinstance(waiting.value, Encoded)
    assert waiting.value.buffers == []
    assert partitions[1].log.log_end_offset == 2
    assert connection.calls == ["alone"]
    assert handlers.produce(context, request(world, 0, 1)) is None


def test_leadership_lost_while_the_log_is_opened_is_an_error() -> None:
    world, partitions = restarted()
    waiting = world.produce("a", acks=1)
    assert isinstance(waiting, Pending)
    world.assign("a", 0, Assigned(2, 1, (SELF, 2), (SELF, 2)))
    world.let_jobs_run()
    assert waiting.value is not None
    answer = waiting.value.responses[0].partition_responses[0]
    assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert partitions[0].log.log_end_offset == 1


def half_open() -> tuple[World, list[Partition], Pending[Any]]:
    """A request for two partitions with a follower each: it has been appended to the first, whose log is open, and the
    other's log is being opened."""
    world, partitions = restarted(Assigned(SELF, 0, (SELF, 2), (SELF, 2)))
    world.produce("a", acks=1)
    world.let_jobs_run()
    handlers, context, _ = handler(world)
    waiting = handlers.produce(context, request(world, -1, 0, 1))
    assert isinstance(waiting, Pending)
    assert [each.log.log_end_offset for each in partitions] == [3, 1, 1]
    return world, partitions, waiting


def test_records_committed_while_another_log_is_opened_are_not_waited_for() -> None:
    world, partitions, waiting = half_open()
    partitions[0].on_follower_fetch(2, 7, 3, 0, epoch_known=True)
    world.let_jobs_run()
    assert not waiting.done
    partitions[1].on_follower_fetch(2, 7, 2, 0, epoch_known=True)
    answers = cast(Any, waiting.value).responses[0].partition_responses
    assert [(each.index, each.base_offset, each.error_code) for each in answers] == [(0, 2, 0), (1, 1, 0)]


def test_records_of_another_leader_at_their_offsets_do_not_acknowledge_records() -> None:
    world, partitions, waiting = half_open()
    deposed = partitions[0]
    world.assign("a", 0, Assigned(2, 1, (SELF, 2), (SELF, 2)))
    world.let_jobs_run()
    truncate_to(deposed.log, 2)
    deposed.append_as_follower(build_batch([(0, None, b"x", ())], base_offset=2, leader_epoch=1), 1, 3, 0)
    assert deposed.is_committed(3)
    partitions[1].on_follower_fetch(2, 7, 2, 0, epoch_known=True)
    answers = cast(Any, waiting.value).responses[0].partition_responses
    assert [(each.index, each.error_code) for each in answers] == [(0, ErrorCode.NOT_LEADER_OR_FOLLOWER), (1, 0)]


def test_a_read_opens_logs_by_a_job() -> None:
    world, _ = restarted()
    waiting = world.fetch(("a", 0, 0), ("a", 1, 0), max_bytes=1 << 22, max_wait_ms=0)
    assert isinstance(waiting, Pending)
    assert len(world.waiting) == 1
    world.let_jobs_run()
    assert [offsets(answer) for answer in answers_of(waiting).values()] == [[0], [0]]
    at_once = world.fetch(("a", 0, 0), ("a", 1, 0), max_bytes=1 << 22, max_wait_ms=0)
    assert [offsets(answer) for answer in answers_of(at_once).values()] == [[0], [0]]


def test_a_fetcher_has_logs_opened_before_their_first_records() -> None:
    _, partitions = restarted(Assigned(2, 0, (SELF, 2), (SELF, 2)))
    fetcher = ReplicaFetcher(2, FetcherConfig(SELF, "cluster"), lambda: 1)
    for partition in partitions:
        fetcher.add(partition)
    fetcher.remove(partitions[2])
    topic_id: Uuid = partitions[0].topic_id
    answer = FetchResponse(
        responses=[
            FetchableTopicResponse(
                topic_id=topic_id,
                partitions=[
                    FetchResponsePartitionData(partition_index=index, records=records)
                    for index, records in ((0, b"x"), (1, b""), (2, b"x"))
                ],
            )
        ]
    )
    assert fetcher.cold_logs(answer) == [partitions[0].log]
    assert fetcher.cold_logs(answer) == []


def test_a_search_whose_disk_fails_leaves_the_others_their_answers() -> None:
    world, partitions = restarted()
    context = cast(RequestContext, SimpleNamespace(api_version=7))
    asked = [ListOffsetsPartition(partition_index=index, timestamp=0) for index in range(PARTITIONS)]
    wanted = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="a", partitions=asked)])
    steps: Any = OffsetHandlers(world.replicas).list_offsets(context, wanted)
    waiting: Pending[Any] = run_to_end(steps)
    world.disk.fail(partitions[0].log.directory, operations=frozenset({"read"}))
    world.let_jobs_run()
    response = run_to_end(waiting.value)
    assert [partition.log.offline for partition in partitions] == [True, False, False]
    answers = {each.partition_index: (each.error_code, each.offset) for each in response.topics[0].partitions}
    assert answers == {0: (ErrorCode.KAFKA_STORAGE_ERROR, -1), 1: (0, 0), 2: (0, 0)}
