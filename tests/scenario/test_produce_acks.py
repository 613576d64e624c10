"""Produce: what each `acks` waits for, what ends the wait, and what is refused before anything is written."""

from __future__ import annotations

from typing import Any

import pytest
from data_handlers import handler
from data_path_world import SELF, Assigned, World

from kalda.base.background import run_to_end
from kalda.base.errors import ErrorCode
from kalda.base.scheduling import Pending
from kalda.protocol.messages.partitions import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kalda.records.builder import build_batch
from kalda.records.compression import Compression
from kalda.replication import produce

TRIO = Assigned(SELF, 0, (SELF, 2, 3), (SELF, 2, 3))


def settled(answer: object) -> PartitionProduceResponse:
    """The answer of the one partition, which must be there."""
    if isinstance(answer, Pending):
        assert answer.done, "the produce waits"
        assert answer.value is not None
        answer = answer.value.responses[0].partition_responses[0]
    assert isinstance(answer, PartitionProduceResponse)
    return answer


def follow(world: World, broker_id: int, offset: int, topic: str = "a", index: int = 0) -> None:
    """A follower has everything below `offset`."""
    world.fetch((topic, index, offset), replica_id=broker_id, max_wait_ms=0)


def test_acks_all_without_followers_is_answered_at_once() -> None:
    world = World()
    world.assign("a")
    answers = [settled(world.produce("a", 3)), settled(world.produce("a", 2))]
    assert [(each.base_offset, each.log_start_offset, each.error_code) for each in answers] == [(0, 0, 0), (3, 0, 0)]


def test_acks_all_waits_for_every_member_of_the_isr() -> None:
    world = World()
    world.assign("a", assigned=TRIO)
    waiting = world.produce("a", 3)
    assert isinstance(waiting, Pending)
    follow(world, 2, 3)
    assert not waiting.done
    follow(world, 3, 3)
    assert settled(waiting).base_offset == 0
    assert world.timers == 0


def test_acks_1_does_not_wait() -> None:
    world = World()
    world.assign("a", assigned=TRIO)
    assert settled(world.produce("a", acks=1)).error_code == ErrorCode.NONE


def test_after_the_timeout_the_records_stay() -> None:
    world = World()
    world.assign("a", assigned=TRIO)
    waiting = world.produce("a", timeout_ms=100)
    world.advance(100)
    answer = settled(waiting)
    assert (answer.error_code, answer.base_offset) == (ErrorCode.REQUEST_TIMED_OUT, -1)
    assert world.replicas.get("a", 0).log.log_end_offset == 1


def test_losing_leadership_ends_the_wait() -> None:
    world = World()
    world.assign("a", assigned=TRIO)
    waiting = world.produce("a")
    world.assign("a", assigned=Assigned(2, 1, (SELF, 2, 3), (2, 3)))
    answer = settled(waiting)
    assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (answer.current_leader.leader_id, answer.current_leader.leader_epoch) == (-1, -1), "no version was given"


def test_new_leaders_are_named_where_leadership_was_lost_and_only_there() -> None:
    """With acks=all and with acks=1, where the flush of the latter is waited for."""
    for acks in (-1, 1):
        for is_lost in (False, True):
            world, completed = World(), list[ProduceResponse]()
            world.assign("a", assigned=TRIO, flush_messages="1")
            world.hold_jobs = True
            request = ProduceRequest(acks=acks, topic_data=[TopicProduceData(partition_data=[data()])])
            waiting = produce.run(
                world.replicas, request, ["a"], world.now_ms, add_leader_endpoints=completed.append
            ).finish(1000)
            assert isinstance(waiting, Pending)
            if is_lost:
                world.assign("a", assigned=Assigned(2, 1, (SELF, 2, 3), (2, 3)))
            else:
                world.let_jobs_run()
                follow(world, 2, 1)
                follow(world, 3, 1)
            answer = settled(waiting)
            assert bool(answer.error_code) is is_lost
            assert completed == ([waiting.value] if is_lost else [])
            assert answer.current_leader.leader_id == (2 if is_lost else -1)


def test_too_few_in_sync_is_refused_before_anything_is_written() -> None:
    world = World()
    world.assign("a", assigned=Assigned(SELF, 0, (SELF, 2, 3), (SELF,)), min_insync_replicas="2")
    assert settled(world.produce("a")).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert world.replicas.get("a", 0).log.log_end_offset == 0
    assert settled(world.produce("a", acks=1)).error_code == ErrorCode.NONE


def test_a_flush_that_the_topic_asks_for_is_waited_for() -> None:
    world = World()
    world.assign("a", flush_messages="1")
    world.hold_jobs = True
    waiting, other = world.produce("a"), world.produce("a", acks=1)
    assert isinstance(waiting, Pending)
    assert isinstance(other, Pending)
    assert not waiting.done
    world.let_jobs_run()
    assert (settled(waiting).base_offset, settled(other).base_offset) == (0, 1)
    assert world.replicas.get("a", 0).log.recovery_point == 2


@pytest.mark.parametrize(
    ("topic", "code"), [("nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), ("far", ErrorCode.NOT_LEADER_OR_FOLLOWER)]
)
def test_partitions_that_are_not_here(topic: str, code: ErrorCode) -> None:
    world = World()
    world.elsewhere.add("far")
    answer = settled(world.produce(topic))
    assert (answer.error_code, answer.base_offset, answer.log_start_offset) == (code, -1, -1)


def run(world: World, partitions: list[PartitionProduceData], name: str = "a", **how: bool) -> produce.Produce:
    request = ProduceRequest(acks=1, topic_data=[TopicProduceData(partition_data=partitions)])
    return produce.run(world.replicas, request, [name], world.now_ms, **how)


def data(index: int = 0, codec: Compression = Compression.NONE) -> PartitionProduceData:
    return PartitionProduceData(index=index, records=build_batch([(1, b"k", b"v", ())], compression=codec))


def test_one_partition_may_fail_alone() -> None:
    world = World()
    world.assign("a")
    done = run(world, [data(0), data(7), PartitionProduceData(index=0, records=b"")])
    answers = done.response.responses[0].partition_responses
    assert done.failed
    assert [(each.index, ErrorCode(each.error_code)) for each in answers] == [
        (0, ErrorCode.INVALID_RECORD),  # of a partition that is named twice, the last counts
        (7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]


def test_zstd_needs_a_version_that_allows_it() -> None:
    world = World()
    world.assign("a")
    for zstd, code in ((False, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE), (True, ErrorCode.NONE)):
        answer = run(world, [data(codec=Compression.ZSTD)], zstd=zstd).response.responses[0].partition_responses[0]
        assert answer.error_code == code


def test_timestamps_out_of_range_are_refused_in_apache_kafkas_words() -> None:
    world = World()
    world.assign("a", message_timestamp_before_max_ms="5000", message_timestamp_after_max_ms="1000")
    now = world.now_ms
    rows = [(timestamp, b"k", b"v", ()) for timestamp in (now - 5_001, now - 5_000, now + 1_000, now + 1_001)]
    answer = run(world, [PartitionProduceData(records=build_batch(rows))]).response.responses[0].partition_responses[0]
    assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
    assert answer.error_message == "One or more records have been rejected due to invalid timestamp"
    bounds = f"out of range. The timestamp should be within [{now - 5_000}, {now + 1_000}]"
    assert {each.batch_index: each.batch_index_error_message for each in answer.record_errors} == {
        0: f"Timestamp {now - 5_001} of message with offset 0 is {bounds}",
        3: f"Timestamp {now + 1_001} of message with offset 3 is {bounds}",
    }


def test_an_unknown_topic_is_unknown_by_id_where_ids_were_sent() -> None:
    world = World()
    for by_id, code in ((True, ErrorCode.UNKNOWN_TOPIC_ID), (False, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)):
        answer = run(world, [data()], "", by_id=by_id).response.responses[0].partition_responses[0]
        assert answer.error_code == code


def test_a_duplicate_batch_gets_the_answer_of_the_first() -> None:
    world = World()
    world.assign("a")
    answers = []
    for _ in range(2):
        batch = build_batch([(world.now_ms, None, b"v", ())], producer_id=7, producer_epoch=0, base_sequence=0)
        data = [PartitionProduceData(index=0, records=batch)]
        request = ProduceRequest(acks=1, topic_data=[TopicProduceData(partition_data=data)])
        answer = produce.run(world.replicas, request, ["a"], world.now_ms).finish(1000)
        assert not isinstance(answer, Pending)
        answers.append(answer.responses[0].partition_responses[0])
    assert [(each.base_offset, each.error_code) for each in answers] == [(0, 0), (0, 0)]
    assert world.assign("a").log.log_end_offset == 1


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state", "__share_group_state"])
def test_topics_of_coordinators_take_records_of_kafkas_admin_client_alone(topic: str) -> None:
    """Measured on Apache Kafka 4.3.1: other partitions of the request are appended, and a partition that does not
    exist is unknown."""
    world = World()
    world.assign("a")
    own = world.assign(topic)
    for client_id, code, end in (("", 17, 0), ("a-client", 17, 0), ("__admin_client", 0, 1)):
        handlers, context, connection = handler(world, client_id)
        for index, expected in ((0, code), (7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)):
            request = ProduceRequest(
                acks=1,
                topic_data=[
                    TopicProduceData(name=topic, partition_data=[data(index)]),
                    TopicProduceData(name="a", partition_data=[data()]),
                ],
            )
            response = handlers.produce(context, request)
            assert isinstance(response, ProduceResponse)
            refused, appended = (each.partition_responses[0] for each in response.responses)
            assert refused.error_code == expected
            assert appended.error_code == ErrorCode.NONE
            if expected:
                assert (refused.base_offset, refused.log_start_offset, refused.error_message) == (-1, -1, None)
        assert own.log.log_end_offset == end
        unanswered = ProduceRequest(acks=0, topic_data=[TopicProduceData(name=topic, partition_data=[data()])])
        assert handlers.produce(context, unanswered) is None
        assert connection.calls == (["close"] if code else [])


def test_a_topic_of_coordinators_that_another_broker_leads_takes_no_records() -> None:
    world = World()
    world.elsewhere.add("__consumer_offsets")
    done = run(world, [data()], "__consumer_offsets", refuses_internal_topics=True)
    assert done.response.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def of_many(world: World, acks: int) -> Any:
    """The steps of a produce to 100 partitions, and how to see how many have been appended to."""
    partitions = [world.assign("many", index, TRIO) for index in range(100)]
    topic = TopicProduceData(partition_data=[data(index) for index in range(100)])
    begun = produce.begin(world.replicas, ProduceRequest(acks=acks, topic_data=[topic]), world.now_ms)
    return begun.run_in_steps([topic], ["many"]), lambda: sum(each.log.log_end_offset for each in partitions)


def test_a_produce_to_many_partitions_is_appended_in_steps() -> None:
    steps, appended = of_many(World(), acks=1)
    before = 0
    while True:
        try:
            next(steps)
        except StopIteration as finished:
            answers = finished.value.response.responses[0].partition_responses
            break
        assert 0 < appended() - before <= 30
        before = appended()
    assert [(each.index, each.error_code) for each in answers] == [(index, 0) for index in range(100)]


def test_records_that_a_new_leader_epoch_may_have_dropped_between_two_steps_are_not_acknowledged() -> None:
    world = World()
    steps, _ = of_many(world, acks=-1)
    next(steps)
    world.assign("many", 0, Assigned(2, 1, (SELF, 2, 3), (2, 3)))
    world.assign("many", 0, Assigned(SELF, 2, (SELF, 2, 3), (SELF, 2, 3)))
    waiting = run_to_end(steps).finish(1_000)
    assert isinstance(waiting, Pending)
    for index in range(100):
        for follower in (2, 3):
            follow(world, follower, 1, topic="many", index=index)
    assert waiting.value is not None
    answers = waiting.value.responses[0].partition_responses
    assert [each.error_code for each in answers] == [ErrorCode.NOT_LEADER_OR_FOLLOWER, *[0] * 99]
