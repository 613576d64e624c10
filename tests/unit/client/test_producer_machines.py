"""The producer's machines at model brokers, in virtual time: one rule a test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import FrameType

import pytest
from model_cluster import TOPIC_ID, World

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.clientcore.producing import accumulator
from kalda.clientcore.producing.producer_batch import FinalState
from kalda.clientcore.producing.producer_errors import DeliveryTimeout, RecordTooLarge
from kalda.protocol.apis import ApiKey
from kalda.records.batch import read_header


def batches(world: World) -> list[tuple[int, int, int, int]]:
    """(node, partition, base sequence, records) of all batches that were sent, in order."""
    found = []
    for node, key, request in world.requests:
        if key is ApiKey.PRODUCE:
            for topic in request.topic_data:
                for data in topic.partition_data:
                    header = read_header(bytes(data.records))
                    found.append((node, data.index, header.base_sequence, header.records_count))
    return found


def refuse_once(world: World, code: ErrorCode, times: int = 1) -> None:
    left = [times]

    def refuse(_partition: TopicPartition, _batch: bytes) -> ErrorCode | None:
        left[0] -= 1
        return code if left[0] >= 0 else None

    world.on_produce = refuse


def ready_world(**keys: object) -> World:
    """A producer that has metadata, a connection to each broker, and a producer id."""
    world = World(partitions=3, brokers=3, **keys)
    for partition in range(3):
        world.send(b"first", partition)
    world.run_until_idle()
    world.run(100)
    world.requests.clear()
    world.delivered.clear()
    return world


# -- readiness


def test_a_batch_waits_for_linger() -> None:
    world = ready_world(**{"linger.ms": 50})
    world.send(b"v", 0)
    world.run(49)
    assert not batches(world)
    world.run(20)
    assert len(batches(world)) == 1


def test_a_full_batch_does_not_end_the_linger_of_the_next_one() -> None:
    world = ready_world(**{"linger.ms": 50, "batch.size": 200})
    for _ in range(3):
        world.send(b"v" * 60, 0)
    world.run(49)
    assert [each[1:] for each in batches(world)] == [(0, 1, 2)]
    world.run(40)
    assert [each[1:] for each in batches(world)] == [(0, 1, 2), (0, 3, 1)]


def test_full_batches_of_a_partition_leave_in_one_turn() -> None:
    world = ready_world(**{"linger.ms": 60_000, "batch.size": 200, "delivery.timeout.ms": 200_000})
    for _ in range(4):
        world.send(b"v" * 110, 0)
    world.run(0)
    assert world.core.connections.in_flight == 3


def test_a_request_takes_what_its_node_has_beside_a_full_batch() -> None:
    world = World(partitions=2, brokers=1, **{"linger.ms": 60_000, "batch.size": 200, "delivery.timeout.ms": 200_000})
    for partition in (0, 1, 1):
        world.send(b"v" * 110, partition)
    world.run(100)
    assert sorted(each[1] for each in batches(world)) == [0, 1]


@pytest.mark.parametrize("why", ["full", "flush", "closed", "exhausted"])
def test_what_makes_a_batch_ready_before_linger(why: str) -> None:
    world = ready_world(**{"linger.ms": 60_000, "batch.size": 200, "buffer.memory": 1_000, "max.request.size": 200})
    world.send(b"v" * 60, 0)
    world.run(100)
    assert not batches(world)
    match why:
        case "full":
            world.send(b"v" * 90, 0)  # does not fit: the first batch is closed
        case "flush":
            world.core.accumulator.flushes += 1
        case "closed":
            world.core.accumulator.close()
        case "exhausted":
            world.core.pool.wait(900, lambda: None)
    world.run(100)
    assert batches(world)[0][1:] == (0, 1, 1)


class Interrupt(BaseException):
    """What a signal handler raises."""


@contextmanager
def interrupted_at(step: int) -> Iterator[None]:
    """Raise `Interrupt` before the step of the accumulator with this number, as a signal handler may."""
    left = step

    def on_line(frame: FrameType, event: str, _argument: object) -> object:
        nonlocal left
        if event == "line":
            left -= 1
            if left < 0:
                sys.settrace(None)
                raise Interrupt
        return on_line

    def on_call(frame: FrameType, _event: str, _argument: object) -> object:
        return on_line if frame.f_code.co_filename == accumulator.__file__ else None

    sys.settrace(on_call)
    try:
        yield
    finally:
        sys.settrace(None)


@pytest.mark.parametrize("partition", [0, None])
@pytest.mark.parametrize("value", [b"v", b"v" * 150])
def test_an_append_that_is_interrupted_at_any_step_leaves_a_producer_that_goes_on(
    partition: int | None, value: bytes
) -> None:
    """Behind another record, in its batch or in the next one."""
    for step in range(1_000):
        world = ready_world(**{"linger.ms": 5, "batch.size": 200})
        world.send(b"before", 0)
        try:
            with interrupted_at(step):
                world.send(value, partition)
            break
        except Interrupt:
            pass
        world.send(b"after", 0)
        world.run_until_idle()
        delivered = [each for each, _ in world.delivered if each != value]
        assert delivered == [b"before", b"after"], f"interrupted at step {step}"
        assert world.core.pool.available_bytes == world.core.pool.total_bytes, f"interrupted at step {step}"
        assert not world.core.accumulator.incomplete
    else:
        pytest.fail("the append is never done")
    assert step > 20


def test_records_sent_together_share_a_batch() -> None:
    world = ready_world()
    for _ in range(5):
        world.send(b"v", 1)
    world.run(50)
    assert batches(world) == [(1, 1, 1, 5)]


def test_a_request_has_one_batch_of_each_partition_of_the_node() -> None:
    world = World(partitions=4, brokers=1, **{"linger.ms": 50})
    for partition in (0, 1, 2, 3):
        world.send(b"v", partition)
    world.run_until_idle()
    produced = [request for _, key, request in world.requests if key is ApiKey.PRODUCE]
    assert [len(request.topic_data[0].partition_data) for request in produced] == [4]


def test_a_nodes_partitions_take_turns() -> None:
    keys = {"max.request.size": 250, "batch.size": 200, "linger.ms": 0}
    world = World(partitions=3, brokers=1, **keys, **{"max.in.flight.requests.per.connection": 1})
    for _ in range(3):
        for partition in range(3):
            world.send(b"v" * 110, partition)
    world.run_until_idle()
    assert [partition for _, partition, _, _ in batches(world)] == [0, 1, 2] * 3


def test_at_most_five_requests_are_in_flight() -> None:
    world = ready_world(**{"batch.size": 200})
    for _ in range(20):
        world.send(b"v" * 110, 0)
    most = 0
    while not world.core.sender.is_idle:
        world.run(1)
        most = max(most, world.core.connections.in_flight)
    assert most == 5


# -- results


def test_acks_0_is_done_when_it_is_written() -> None:
    world = World(acks="0", **{"enable.idempotence": False})
    world.send(b"v", 0)
    world.run_until_idle()
    assert [(batch.final_state, batch.base_offset) for batch in world.done] == [(FinalState.SUCCEEDED, -1)]


def test_acks_0_does_not_wait_where_all_requests_in_flight_were_written() -> None:
    """No response ends a turn's wait: more batches than may be in flight are sent at once all the same."""
    world = World(acks="0", brokers=1, **{"enable.idempotence": False, "batch.size": 200, "linger.ms": 0})
    world.send(b"first", 0)
    world.run_until_idle()
    for _ in range(20):
        world.send(b"v" * 110, 0)
    world.run(100)
    assert len(world.done) == 21


def test_acks_0_with_one_request_in_flight_sends_one_batch_after_another() -> None:
    keys = {"enable.idempotence": False, "batch.size": 200, "max.in.flight.requests.per.connection": 1}
    world = World(acks="0", brokers=1, partitions=2, **keys)
    for number in range(10):
        world.send(b"%d" % number * 110, number % 2)
    world.run_until_idle()
    world.run(200)
    assert [each[:1] for each in world.partitions[0].values] == [b"0", b"2", b"4", b"6", b"8"]
    assert [each[:1] for each in world.partitions[1].values] == [b"1", b"3", b"5", b"7", b"9"]


def test_acks_0_does_not_wait_for_the_response_of_another_request() -> None:
    world = World(acks="0", brokers=1, **{"enable.idempotence": False, "linger.ms": 0})
    world.send(b"first", 0)
    world.run_until_idle()
    answer = world._answer
    world._answer = lambda _node, key, *_: None if key is ApiKey.METADATA else answer(_node, key, *_)  # type: ignore[method-assign]
    world.core.metadata.request_update()
    world.run(200)
    assert world.requests[-1][1] is ApiKey.METADATA
    world.send(b"v", 0)
    world.run(100)
    assert world.requests[-1][1] is ApiKey.PRODUCE
    assert len(world.done) == 2


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.CORRUPT_MESSAGE,
    ],
)
def test_an_error_that_may_pass_is_retried_with_the_same_sequence(code: ErrorCode) -> None:
    world = ready_world()
    refuse_once(world, code)
    world.send(b"v", 0)
    world.run_until_idle()
    assert [(sequence, count) for _, _, sequence, count in batches(world)] == [(1, 1), (1, 1)]
    assert world.delivered == [(b"v", None)]


def test_a_record_behind_one_that_has_to_be_repeated_stays_behind_it() -> None:
    world = ready_world(**{"linger.ms": 0})
    refuse_once(world, ErrorCode.NOT_ENOUGH_REPLICAS)
    world.send(b"1", 0)
    world.run(0)
    world.send(b"2", 0)
    world.run_until_idle()
    assert world.partitions[0].values == [b"first", b"1", b"2"]
    assert [value for value, _ in world.delivered] == [b"1", b"2"]


def test_a_record_whose_response_is_lost_is_repeated_with_its_number() -> None:
    world = ready_world(**{"linger.ms": 0})
    world.send(b"1", 0)
    world.run(0)
    world.cut(0)
    world.run_until_idle()
    assert world.partitions[0].values == [b"first", b"1"]
    assert {each[2] for each in batches(world)} == {1}
    assert world.core.metrics.snapshot(world.now_ms)["requests-in-flight"] == 0


@pytest.mark.parametrize(
    "code", [ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_REQUIRED_ACKS, ErrorCode.INVALID_RECORD]
)
def test_a_final_error_fails_the_batch_at_once(code: ErrorCode) -> None:
    world = ready_world()
    refuse_once(world, code)
    world.send(b"v", 0)
    world.run_until_idle()
    ((value, error),) = world.delivered
    assert isinstance(error, ApiError)
    assert (value, error.code) == (b"v", code)
    assert len(batches(world)) == 1


def test_a_duplicate_succeeds_at_an_unknown_offset() -> None:
    world = ready_world()
    refuse_once(world, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
    world.send(b"v", 0)
    world.run_until_idle()
    assert world.delivered == [(b"v", None)]
    assert world.done[-1].base_offset == -1


def test_a_single_record_that_is_too_large_fails() -> None:
    world = ready_world()
    world.max_batch_bytes = 100
    world.send(b"v" * 200, 0)
    world.run_until_idle()
    assert isinstance(world.delivered[0][1], RecordTooLarge)


def test_a_split_charges_no_attempt_and_keeps_the_sequence() -> None:
    world = ready_world(retries=0, **{"enable.idempotence": False})
    world.max_batch_bytes = 110
    for value in (b"a" * 20, b"b" * 20, b"c" * 20):
        world.send(value, 0)
    world.run_until_idle()
    assert [error for _, error in world.delivered] == [None] * 3, "although no retry is allowed"
    assert world.partitions[0].values[1:] == [b"a" * 20, b"b" * 20, b"c" * 20]


def test_the_parts_of_a_split_batch_have_made_no_attempt() -> None:
    world = ready_world(retries=1, **{"enable.idempotence": False})
    codes = [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.NOT_ENOUGH_REPLICAS]
    world.on_produce = lambda _partition, _batch: codes.pop(0) if codes else None
    for value in (b"a", b"b"):
        world.send(value, 0)
    world.run_until_idle()
    assert [error for _, error in world.delivered] == [None, None]
    assert sorted(world.partitions[0].values[1:]) == [b"a", b"b"]


def test_retries_back_off_exponentially() -> None:
    world = ready_world(**{"retry.backoff.ms": 100, "retry.backoff.max.ms": 1_000})
    times: list[int] = []

    def refuse(_partition: TopicPartition, _batch: bytes) -> ErrorCode | None:
        times.append(world.now_ms)
        return ErrorCode.NOT_ENOUGH_REPLICAS if len(times) < 7 else None

    world.on_produce = refuse
    world.send(b"v", 0)
    world.run_until_idle()
    pauses = [later - earlier for earlier, later in pairwise(times)]
    for pause, plain in zip(pauses, (100, 200, 400, 800, 1_000, 1_000), strict=True):
        assert 0.8 * plain <= pause <= 1.2 * plain + 40


def test_retries_are_limited() -> None:
    world = ready_world(retries=2, **{"enable.idempotence": False})
    refuse_once(world, ErrorCode.NOT_ENOUGH_REPLICAS, times=10)
    world.send(b"v", 0)
    world.run_until_idle()
    assert len(batches(world)) == 3
    assert isinstance(world.delivered[0][1], ApiError)


def test_a_record_fails_when_its_time_is_over_wherever_it_is() -> None:
    world = ready_world(**{"delivery.timeout.ms": 2_000, "request.timeout.ms": 1_500})
    world.down = {0}
    world.cut(0)
    world.send(b"v", 0)
    world.run(1_999)
    assert not world.delivered
    world.run(2)
    assert isinstance(world.delivered[0][1], DeliveryTimeout)


def test_a_late_record_says_which_address_was_not_reached_where_other_brokers_are(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As an address in `advertised.listeners` that only some hosts reach."""
    world = ready_world(**{"delivery.timeout.ms": 8_000, "request.timeout.ms": 7_500})
    world.down = {0}
    world.cut(0)
    world.send(b"v", 0)
    world.run(8_001)
    address = world.core.metadata.brokers[0].address
    reason = f"at the address that the cluster gives: cannot connect to {address}: refused"
    assert f"Its leader is broker 0, {reason}" in str(world.delivered[0][1])
    (warning,) = [each.getMessage() for each in caplog.records if "not reached" in each.getMessage()]
    assert warning.endswith(f"a broker was not reached for 3 s, {reason}. Trying on")


def test_a_late_record_says_why_it_was_refused_until_then() -> None:
    world = ready_world(**{"delivery.timeout.ms": 2_000, "request.timeout.ms": 1_500})
    world.on_produce = lambda _partition, _batch: ErrorCode.NOT_ENOUGH_REPLICAS
    world.send(b"v", 0)
    world.run(2_100)
    assert isinstance(world.delivered[0][1], DeliveryTimeout)
    assert "attempts: NOT_ENOUGH_REPLICAS: fewer replicas are in sync" in str(world.delivered[0][1])


def test_a_late_record_says_that_its_partition_has_no_leader() -> None:
    world = ready_world(**{"delivery.timeout.ms": 2_000, "request.timeout.ms": 1_500})
    world.partitions[0].leader = -1
    world.on_produce = lambda _partition, _batch: ErrorCode.NOT_LEADER_OR_FOLLOWER
    world.send(b"v", 0)
    world.run(2_100)
    assert str(world.delivered[0][1]).endswith("The partition has no leader")


@pytest.mark.parametrize("linger_ms", [0, 400])
def test_records_do_not_wait_for_a_partition_that_a_topic_does_not_have_any_more(linger_ms: int) -> None:
    """The topic is deleted, and made again with fewer partitions, while the last one is the sticky one: its batch was
    refused, or is open yet."""
    world = ready_world(**{"delivery.timeout.ms": 2_000, "request.timeout.ms": 1_500, "linger.ms": linger_ms})
    appender, partitioner = world.core.accumulator.topic("t").appender, world.core.accumulator.topic("t").partitioner
    partitioner.next_partition = lambda _candidates: len(world.partitions) - 1  # type: ignore[method-assign]
    world.send(b"lost")
    del world.partitions[1:]
    world.core.metadata.request_update()
    world.run(300)
    assert appender.sticky is None, "no record is put into the open batch without a look at the metadata"
    world.run(700)
    for _ in range(20):
        world.send(b"later")
    world.run(1_100)
    assert [error for value, error in world.delivered if value == b"later"] == [None] * 20
    (error,) = [str(error) for value, error in world.delivered if value == b"lost"]
    assert error.endswith("The topic has 1 partitions now")


def test_memory_of_an_expired_batch_is_free_when_its_request_has_ended() -> None:
    world = ready_world(**{"delivery.timeout.ms": 2_000, "request.timeout.ms": 1_900, "linger.ms": 0})
    answer = world._answer
    world._answer = lambda node, key, request, has_faults: (  # type: ignore[method-assign]
        None if key is ApiKey.PRODUCE else answer(node, key, request, has_faults)
    )
    world.run(200)
    world.send(b"a", 0)
    world.run(150)
    batch = next(iter(world.core.accumulator.incomplete))
    batch.created_ms -= 2_000  # it is over while its request is in flight
    world.run(1)
    assert isinstance(world.delivered[0][1], DeliveryTimeout)
    assert world.core.pool.available_bytes < world.core.pool.total_bytes, "the request may still be read from it"
    world.run(2_500)
    assert world.core.pool.available_bytes == world.core.pool.total_bytes


# -- sequences


def test_a_gap_is_closed_by_the_next_epoch() -> None:
    world = ready_world(**{"delivery.timeout.ms": 2_000, "request.timeout.ms": 500, "linger.ms": 0})
    world.on_produce = lambda _partition, _batch: ErrorCode.NOT_ENOUGH_REPLICAS
    world.send(b"lost", 0)
    world.run(2_500)
    assert isinstance(world.delivered[0][1], DeliveryTimeout)
    world.on_produce = lambda _partition, _batch: None
    world.requests.clear()
    world.send(b"v", 0)
    world.run_until_idle()
    assert world.core.idempotence is not None
    assert world.core.idempotence.epoch == 1
    assert [sequence for _, _, sequence, _ in batches(world)] == [0], "it begins anew in the next epoch"
    assert world.delivered[-1] == (b"v", None)


def test_a_partition_that_lost_its_producers_state_goes_on_in_the_next_epoch() -> None:
    world = ready_world()
    world.partitions[0].producers.clear()
    refused: list[bool] = []

    def refuse(_partition: TopicPartition, batch: bytes) -> ErrorCode | None:
        is_old = read_header(batch).producer_epoch == 0
        refused.append(is_old)
        return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER if is_old else None

    world.on_produce = refuse
    for value in (b"a", b"b", b"c"):
        world.send(value, 0)
        world.run(7)
    world.run_until_idle()
    assert True in refused
    assert world.partitions[0].values[-3:] == [b"a", b"b", b"c"]
    assert [error for _, error in world.delivered] == [None] * 3


def test_after_the_last_epoch_a_new_producer_id_is_fetched() -> None:
    world = ready_world()
    idempotence = world.core.idempotence
    assert idempotence is not None
    before = idempotence.producer_id
    idempotence.epoch = 2**15 - 1
    for sequence in idempotence._sequences.values():
        sequence.epoch = 2**15 - 1
    world.partitions[0].producers.clear()
    refuse_once(world, ErrorCode.UNKNOWN_PRODUCER_ID)
    world.on_produce = lambda _partition, batch: (
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER if read_header(batch).producer_id == before else None
    )
    world.send(b"v", 0)
    world.run_until_idle()
    assert idempotence.producer_id not in (before, -1)
    assert idempotence.epoch == 0
    assert world.delivered == [(b"v", None)]


# -- metadata and leaders


def test_a_leader_that_an_error_names_is_used_without_metadata_or_backoff() -> None:
    world = ready_world(**{"retry.backoff.ms": 10_000, "retry.backoff.max.ms": 10_000})
    world.names_leaders = True
    stale = world._metadata()
    world._metadata = lambda: stale  # type: ignore[method-assign]
    world.partitions[0].leader, world.partitions[0].epoch = 2, 7
    world.send(b"v", 0)
    world.run(200)
    assert world.delivered == [(b"v", None)], "long before the backoff is over"
    assert [node for node, _, _, _ in batches(world)] == [0, 2]
    assert not world.core.metadata.update_leader("t", 0, 1, 6, []), "an earlier epoch is stale"


def test_a_topic_that_is_wanted_is_in_the_next_request_at_once() -> None:
    world = ready_world()
    world.core.metadata.want("other", world.now_ms)
    world.run(20)
    (asked,) = [request for _, key, request in world.requests if key is ApiKey.METADATA]
    assert {topic.name for topic in asked.topics} == {"other"}


@pytest.mark.parametrize(("topic", "requests"), [("other", 1), ("t", 2)])
def test_an_unknown_leader_is_asked_for_once(topic: str, requests: int) -> None:
    """The first response about a topic has all of its partitions; a cached topic without a leader is out of date."""
    world = ready_world()
    metadata = world.core.metadata
    metadata.want(topic, world.now_ms)
    metadata.next_request(world.now_ms)
    metadata.request_leader(topic)
    answer = world._metadata()
    answer.topics[0].name = topic
    metadata.on_response(answer, world.now_ms)
    world.run(1_000)
    assert 1 + len([key for _, key, _ in world.requests if key is ApiKey.METADATA]) == requests


def test_metadata_is_fetched_again_when_it_is_old() -> None:
    world = ready_world(**{"metadata.max.age.ms": 5_000})
    world.run(4_000)
    assert not world.requests
    world.run(2_000)
    assert [key for _, key, _ in world.requests] == [ApiKey.METADATA]


def test_topics_that_are_not_used_are_dropped() -> None:
    world = ready_world(**{"metadata.max.idle.ms": 5_000, "metadata.max.age.ms": 3_000})
    world.run(12_000)
    assert "t" not in world.core.metadata.topics
    assert TOPIC_ID not in world.core.metadata.topic_names


def test_where_no_broker_is_usable_the_bootstrap_servers_are() -> None:
    world = ready_world(**{"metadata.max.age.ms": 1_000})
    world.nodes = [5, 6]
    world.down = {0, 1, 2}
    for node in (0, 1, 2):
        world.cut(node)
    world.run(3_000)
    world.down = set()
    for partition in world.partitions:
        partition.leader, partition.epoch = 5, 9
    world.send(b"v", 0)
    world.run_until_idle()
    assert set(world.core.metadata.brokers) == {5, 6}
    assert world.delivered == [(b"v", None)]


def test_a_leader_that_stays_unreachable_is_asked_for_again_until_another_is_elected() -> None:
    """The first response behind the failure still names the old leader: later ones have to be requested as well."""
    world = ready_world()
    world.down = {0}
    world.cut(0)
    world.send(b"v", 0)
    world.run(2_000)
    world.partitions[0].leader, world.partitions[0].epoch = 1, 1
    world.run(2_000)
    assert world.delivered == [(b"v", None)]


def test_a_leader_that_is_missing_is_asked_for_without_another_event() -> None:
    """The sender finds it missing after the turn's request for metadata was decided: the next turn is due at once."""
    world = ready_world()
    world.partitions[0].leader, world.partitions[0].epoch = -1, 1
    world.core.metadata.request_update()
    world.run(500)
    world.send(b"v", 0)
    world.partitions[0].leader, world.partitions[0].epoch = 1, 2
    world.run(5_000)
    assert world.delivered == [(b"v", None)]


def test_a_cluster_that_refuses_metadata_says_why_until_it_does_not() -> None:
    world = ready_world()
    metadata = world.core.metadata
    metadata.request_update()
    whole, refusal = world._metadata, world._metadata()
    refusal.error_code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    world._metadata = lambda: refusal  # type: ignore[method-assign]
    world.run(300)
    error = metadata.refusal_of("t")
    assert error is not None
    assert error.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    world._metadata = whole  # type: ignore[method-assign]
    world.run(3_000)
    assert metadata.refusal_of("t") is None


# -- connections


def test_connecting_backs_off() -> None:
    world = World(brokers=1, **{"reconnect.backoff.ms": 100, "reconnect.backoff.max.ms": 1_000})
    world.down = {0}
    times: list[int] = []
    connect = world._connect
    world._connect = lambda connection_id, node: (times.append(world.now_ms), connect(connection_id, node))[1]  # type: ignore[method-assign]
    world.core.metadata.want("t", world.now_ms)
    world.run(10_000)
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert 70 <= pauses[0] <= 130
    assert all(750 <= pause <= 1_300 for pause in pauses[5:])


def test_a_request_without_a_response_in_time_closes_its_connection() -> None:
    world = ready_world(**{"request.timeout.ms": 500, "linger.ms": 0})
    silent = [True]
    answer = world._answer

    def hold(node: int, key: ApiKey, request: object, has_faults: bool) -> object:
        return None if silent[0] and key is ApiKey.PRODUCE else answer(node, key, request, has_faults)

    world._answer = hold  # type: ignore[method-assign]
    world.send(b"v", 0)
    world.run(450)
    assert world.core.connections.is_connected(0)
    silent[0] = False
    world.run_until_idle()
    assert world.delivered == [(b"v", None)]
    assert len(batches(world)) == 2


@pytest.mark.parametrize("frame", [b"", b"\0", b"\xff" * 40, b"\0\0\0\x63" + bytes(30), bytes(4)])
def test_an_invalid_response_closes_the_connection_and_the_request_is_sent_again(frame: bytes) -> None:
    world = ready_world(**{"linger.ms": 0})
    garbage = [True]
    process = world._process

    def answer_garbage(connection_id: int, request: bytes) -> None:
        if garbage[0] and request[:2] == b"\0\0":
            garbage[0] = False
            world.core.at(world.now_ms).on_frame(connection_id, memoryview(frame), world.now_ms)
        else:
            process(connection_id, request)

    world._process = answer_garbage  # type: ignore[method-assign]
    world.send(b"v", 0)
    world.run_until_idle()
    assert world.delivered == [(b"v", None)]


def test_a_response_that_nobody_waits_for_closes_the_connection() -> None:
    world = ready_world()
    connection = next(each for each, node in world._connected.items() if node == 0)
    world.core.at(world.now_ms).on_frame(connection, memoryview(bytes(20)), world.now_ms)
    world.run(1)
    assert not world.core.connections.is_connected(0)


def test_a_throttled_connection_is_left_alone() -> None:
    world = ready_world(**{"linger.ms": 0})
    world.core.connections.throttle(0, 1_000, world.now_ms)
    world.send(b"v", 0)
    world.run(990)
    assert not batches(world)
    world.run(100)
    assert len(batches(world)) == 1


def test_idle_connections_are_closed() -> None:
    world = ready_world(**{"connections.max.idle.ms": 2_000})
    world.run(3_000)
    assert not any(world.core.connections.is_connected(node) for node in (0, 1, 2))


# -- metrics


def test_counters_have_every_record() -> None:
    world = ready_world(**{"linger.ms": 0})
    before = world.core.metrics.snapshot(world.now_ms)
    for _ in range(3):
        world.send(b"v", 0)
        world.run(20)
    after = world.core.metrics.snapshot(world.now_ms)
    names = ("record-send-total", "request-total", "response-total", "t.record-send-total")
    assert [after[name] - before[name] for name in names] == [3] * 4
    assert after["requests-in-flight"] == 0


def test_metrics_have_kafkas_names() -> None:
    world = ready_world()
    refuse_once(world, ErrorCode.NOT_ENOUGH_REPLICAS)
    for _ in range(4):
        world.send(b"v", 0)
    world.run_until_idle()
    found = world.core.metrics.snapshot(world.now_ms)
    assert found["record-send-total"] == 3 + 4 + 4
    assert found["record-retry-total"] == 4
    assert found["record-error-total"] == 0
    assert found["t.record-send-total"] == 11
    assert found["buffer-available-bytes"] == found["buffer-total-bytes"]
    assert found["record-send-rate"] > 0
    assert {"batch-size-avg", "request-latency-avg", "records-per-request-avg", "compression-rate-avg"} <= set(found)
