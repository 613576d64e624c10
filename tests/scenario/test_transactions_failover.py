"""Coordinators that are replaced in the middle of transactions, and markers that do not arrive at once."""

from __future__ import annotations

import pytest
from transactions_world import TIMEOUT_MS, Marker, World

from kalda.base.errors import ErrorCode
from kalda.coordinator.transactions.markers import NO_LEADER


def _committing(version: int = 2) -> World:
    """A transaction over three brokers whose commit is decided; no marker is sent yet."""
    world = World(version=version)
    world.init()
    world.begin((1000, 0), 0, 1, 2)
    world.commit((1000, 0))
    return world


# -- the coordinator


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("reached", [(), (0,), (0, 1), (0, 1, 2)])
def test_the_successor_writes_the_markers(version: int, reached: tuple[int, ...]) -> None:
    """Killed between PrepareCommit and the last marker: every partition gets its marker, with the same outcome."""
    world = _committing(version)
    world.down = {0, 1, 2} - set(reached)
    world.log.failure = ErrorCode.NOT_LEADER_OR_FOLLOWER
    world.settle(100)
    world.log.failure, world.down = None, set()
    world.elect()
    world.settle()
    assert world.label() == "CompleteCommit"
    epoch = int(version == 2)
    by_successor = {marker for marker in world.written if marker.coordinator_epoch == 2}
    client_version = 2 if version == 2 else 0
    assert by_successor == {Marker("orders", index, 1000, epoch, True, 2, client_version) for index in range(3)}
    assert world.begin((1000, epoch)) == "NONE"


def test_a_commit_that_is_not_replicated_is_as_if_it_had_not_been_sent() -> None:
    """Killed between the record and its acknowledgement, and the record is lost: the transaction is open."""
    world = World()
    world.init()
    world.begin((1000, 0))
    world.log.replicated = False
    ending = world.end_later((1000, 0), committed=True)
    world.resign()
    assert ErrorCode(ending.value.error_code) is ErrorCode.NOT_COORDINATOR
    world.log.batches[0].pop()
    world.log.ends[0] -= 1
    world.log.replicated = True
    world.elect()
    assert world.label() == "Ongoing"
    assert not world.written
    assert world.commit((1000, 0)) == (1000, 1)


def test_a_commit_that_is_replicated_but_not_answered_is_completed() -> None:
    """Killed between the record and its acknowledgement, and the record survives."""
    world = World()
    world.init()
    world.begin((1000, 0))
    world.log.replicated = False
    ending = world.end_later((1000, 0), committed=True)
    world.resign()
    assert ErrorCode(ending.value.error_code) is ErrorCode.NOT_COORDINATOR
    world.elect()
    world.settle(1_000)
    assert not world.written, "the successor has not replicated the record yet"
    assert world.commit((1000, 0)) == "CONCURRENT_TRANSACTIONS"
    world.replicate()
    world.settle()
    world.replicate()
    assert [marker.committed for marker in world.written] == [True]
    assert world.commit((1000, 0)) == (1000, 1)


def test_a_coordinator_that_resigned_sends_no_markers() -> None:
    world = _committing()
    world.resign()
    world.settle(1_000)
    assert not world.written
    assert world.label() == "NOT_COORDINATOR"


def test_the_answer_to_markers_arrives_after_the_resignation() -> None:
    world = _committing()
    requests = world.markers.requests(world.now)
    world.resign()
    for broker, request in requests:
        world.markers.on_response(broker, world.write_markers(broker, request), world.now)
    assert world.markers.size == 0
    assert world.label() == "NOT_COORDINATOR"


def test_a_new_producer_id_survives_the_coordinator() -> None:
    """The client of version 2 has got its new id with the answer to EndTxn, before the transaction was complete."""
    world = World()
    world.init()
    world.shard.write("t", world.state()._replace(producer_epoch=32_766))
    world.begin((1000, 32_766))
    assert world.commit((1000, 32_766)) == (1001, 0)
    world.elect()
    world.settle()
    assert world.begin((1001, 0)) == "NONE"
    world.elect()
    assert world.commit((1001, 0)) == (1001, 1)


def test_a_repeated_end_after_a_rotation_survives_the_coordinator() -> None:
    world = World()
    world.init()
    world.shard.write("t", world.state()._replace(producer_epoch=32_766))
    world.begin((1000, 32_766))
    world.commit((1000, 32_766))
    world.settle()
    world.elect()
    assert world.commit((1000, 32_766)) == (1001, 0)


def test_an_open_transaction_times_out_on_the_successor() -> None:
    world = World()
    world.init()
    world.begin((1000, 0))
    world.pass_ms(TIMEOUT_MS - 1_000)
    world.elect()
    world.pass_ms(10_000)
    world.settle()
    assert world.label() == "CompleteAbort"


def test_a_retried_init_after_a_failover_is_fenced() -> None:
    """The epoch before the last bump is not in the log, as in Apache Kafka."""
    world = World()
    world.init()
    assert world.init(expected=(1000, 0)) == (1000, 1)
    world.elect()
    assert world.init(expected=(1000, 0)) == "PRODUCER_FENCED"


@pytest.mark.parametrize(("before", "after"), [(0, 1), (0, 2), (1, 2), (2, 1), (2, 0), (1, 0)])
def test_the_feature_changes_while_a_transaction_is_open(before: int, after: int) -> None:
    """The client ends the transaction in the version in which it began it; the next one follows the new level."""
    world = World(version=before)
    world.init()
    world.begin((1000, 0), 0, 1)
    world.version = after
    world.elect()
    assert world.label() == "Ongoing"
    answer = world.commit((1000, 0), version=5 if before == 2 else 4)
    assert answer == ((1000, 1) if before == 2 else (-1, -1))
    world.elect()
    world.settle()
    assert world.label() == "CompleteCommit"
    epoch = world.state().producer_epoch
    assert epoch == int(before == 2)
    assert {marker.epoch for marker in world.written} == {epoch}
    assert world.begin((1000, epoch)) == "NONE"
    assert world.abort((1000, epoch)) == ((1000, epoch + 1) if after == 2 else (-1, -1))


# -- markers


def test_a_broker_that_is_away_holds_up_only_its_own_transactions() -> None:
    world = World()
    first, second = world.producer("a"), world.producer("b")
    world.begin(first, 0, 1, transactional_id="a")
    world.begin(second, 1, transactional_id="b")
    world.down.add(0)
    world.commit(first, transactional_id="a")
    world.commit(second, transactional_id="b")
    world.settle(60_000)
    assert (world.label("a"), world.label("b")) == ("PrepareCommit", "CompleteCommit")
    world.down.clear()
    world.settle(1_000)
    assert world.label("a") == "CompleteCommit"


def test_markers_follow_the_leader() -> None:
    world = _committing()
    world.leaders["orders", 0] = NO_LEADER
    world.settle(5_000)
    assert world.markers.retries == 1
    assert world.label() == "PrepareCommit"
    assert {marker.partition for marker in world.written} == {1, 2}
    world.leaders["orders", 0] = 2
    world.settle(1_000)
    assert world.label() == "CompleteCommit"


def test_a_leader_that_changes_while_markers_are_queued() -> None:
    world = _committing()
    world.leaders["orders", 0] = 1
    world.settle()
    assert world.label() == "CompleteCommit"
    assert len(world.written) == 3


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_markers_that_are_sent_again(code: ErrorCode) -> None:
    world = _committing()
    world.codes["orders", 1] = code
    world.settle(60_000)
    assert world.label() == "PrepareCommit"
    assert len(world.written) == 2, "the others are written once"
    world.codes.clear()
    world.settle(1_000)
    assert world.label() == "CompleteCommit"


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    ],
)
def test_partitions_that_take_no_marker_count_as_done(code: ErrorCode) -> None:
    world = _committing()
    world.codes["orders", 1] = code
    world.settle()
    assert world.label() == "CompleteCommit"


def test_a_deleted_topic_does_not_hold_a_transaction_up() -> None:
    world = _committing()
    world.down = {0, 1, 2}
    world.settle(1_000)
    world.leaders.clear()
    world.settle(1_000)
    assert world.label() == "CompleteCommit"
    assert world.markers.size == 0


def test_describe_shows_the_partitions_that_lack_their_marker() -> None:
    world = _committing()
    world.down.add(1)
    world.settle(100)
    described = world.coordinator.describe("t")
    assert [(topic.topic, topic.partitions) for topic in described.topics] == [("orders", [1])]


def test_markers_that_wait_leave_in_one_request() -> None:
    world = World()
    producers = {name: world.producer(name) for name in ("a", "b", "c")}
    for name, producer in producers.items():
        world.begin(producer, 0, transactional_id=name)
        world.commit(producer, transactional_id=name)
    assert world.deliver() == 1
    assert len(world.requests[0][1].markers) == 3


def test_a_very_large_transaction_lets_others_pass() -> None:
    world = World()
    world.leaders = {("orders", index): 0 for index in range(10_000)}
    large, small = world.producer("large"), world.producer("small")
    world.begin(large, *range(10_000), transactional_id="large")
    world.begin(small, 0, transactional_id="small")
    world.commit(large, transactional_id="large")
    world.commit(small, transactional_id="small")
    world.deliver()
    assert sum(len(topic.partition_indexes) for topic in world.requests[0][1].markers[0].topics) == 2_000
    world.deliver()
    assert world.label("small") == "CompleteCommit"
    world.settle()
    assert world.label("large") == "CompleteCommit"
    assert len(world.written) == 10_001


def test_a_complete_state_that_cannot_be_appended_is_tried_again() -> None:
    world = _committing()
    world.log.failure = ErrorCode.NOT_ENOUGH_REPLICAS
    world.settle(60_000)
    assert world.label() == "PrepareCommit"
    assert len(world.written) == 3
    assert world.coordinator.unwritten == 1
    world.log.failure = None
    world.pass_ms(1_000)
    assert world.label() == "CompleteCommit"
    assert len(world.written) == 3
