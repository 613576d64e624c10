"""Requests for a partition that this broker is to lead, and has not opened yet, wait for it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from by_hand import one_step_a_turn
from data_path_world import World, answers_of

from kalda.base.errors import ErrorCode
from kalda.base.ids import TopicPartition
from kalda.base.scheduling import Clock, Pending
from kalda.broker.handlers.data import DataHandlers
from kalda.broker.handlers.offsets import OffsetHandlers
from kalda.broker.metadata_cache import MetadataCache
from kalda.broker.replicas.opening import MAX_WAIT_MS, MAX_WAITING, OpeningPartitions
from kalda.broker.requests.context import Encoded, RequestContext
from kalda.protocol.messages.partitions import (
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetSpec,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kalda.records.builder import build_batch
from kalda.replication import fetch

AT = TopicPartition("a", 0)


class Connection:
    """What handlers do to a connection."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def answer_alone(self) -> None:
        self.calls.append("alone")

    def begin_answer(self, begin: Callable[[], Any]) -> Any:
        return begin()

    def send_to_follower(self) -> None:
        self.calls.append("follower")

    def close(self) -> None:
        self.calls.append("close")


class Broker:
    """The handlers of a broker that knows topic `a`, whose partition 0 it is to lead."""

    def __init__(self) -> None:
        self.world = World()
        self.world.elsewhere.add("a")
        self.opening = OpeningPartitions(self.world, self.world.replicas.background)
        self.opening.add(AT)
        clock = cast(Clock, SimpleNamespace(wall_ms=lambda: self.world.now_ms, mono_ms=lambda: self.world.now_ms))
        metadata = cast(MetadataCache, SimpleNamespace(topic_name=lambda topic_id: None))
        self.data = DataHandlers(
            self.world.replicas, metadata, self.world.sessions, clock, self.world.verifier, None, self.opening
        )
        self.offsets = OffsetHandlers(self.world.replicas, self.opening)
        self.connection = Connection()
        fields = {
            "connection": self.connection,
            "api_version": 9,
            "listener_name": "PLAINTEXT",
            "client_id": "",
            "authorizer": None,
        }
        self.context = cast(RequestContext, SimpleNamespace(**fields))

    def open(self) -> None:
        """As the publisher does."""
        self.world.assign("a")
        self.opening.remove(AT)
        self.world.advance(0)

    def produce(self, acks: int = 1, timeout_ms: int = 30_000) -> Any:
        batch = build_batch([(self.world.now_ms, None, b"v", ())])
        topic = TopicProduceData(name="a", partition_data=[PartitionProduceData(index=0, records=batch)])
        request = ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=[topic])
        return self.data.produce(self.context, request)

    def fetch(self, max_wait_ms: int = 500, replica_id: int = -1, partitions: int = 1) -> Any:
        asked = [
            FetchRequestFetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20)
            for index in range(partitions)
        ]
        topic = FetchRequestFetchTopic(topic="a", partitions=asked)
        request = FetchRequest(
            replica_id=replica_id, min_bytes=1, max_wait_ms=max_wait_ms, max_bytes=1 << 20, topics=[topic]
        )
        return self.data.fetch(self.context, request)

    def list_offsets(self) -> Any:
        asked = ListOffsetsPartition(partition_index=0, timestamp=OffsetSpec.LATEST)
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="a", partitions=[asked])])
        return self.offsets.list_offsets(self.context, request)


@pytest.fixture
def broker() -> Broker:
    return Broker()


def produced(waiting: Pending[Any]) -> tuple[int, int]:
    assert waiting.done
    assert waiting.error is None
    (answer,) = cast(Any, waiting.value).responses[0].partition_responses
    return answer.error_code, answer.base_offset


def test_a_produce_is_appended_when_the_partition_is_open(broker: Broker) -> None:
    waiting = broker.produce()
    assert not waiting.done
    assert broker.connection.calls == ["alone"], "the next request of the producer must not overtake it"
    broker.open()
    assert produced(waiting) == (ErrorCode.NONE, 0)
    assert not isinstance(broker.produce(), Pending)
    assert broker.world.timers == 0


def test_a_produce_without_acks_is_appended_too(broker: Broker) -> None:
    waiting = broker.produce(acks=0)
    broker.open()
    assert isinstance(waiting.value, Encoded)
    assert waiting.value.buffers == []
    partition = broker.world.replicas.find("a", 0)
    assert partition is not None
    assert partition.log.log_end_offset == 1
    assert broker.connection.calls == ["alone"]


def test_a_consumer_gets_what_is_written_meanwhile(broker: Broker) -> None:
    produce, fetch, list_offsets = broker.produce(), broker.fetch(), broker.list_offsets()
    broker.open()
    assert produced(produce)[0] == ErrorCode.NONE
    assert answers_of(fetch)["a", 0].high_watermark == 1
    assert list_offsets.value.topics[0].partitions[0].offset == 1


@pytest.mark.parametrize(("timeout_ms", "waits_ms"), [(60_000, MAX_WAIT_MS), (200, 200)])
def test_the_wait_is_bounded(broker: Broker, timeout_ms: int, waits_ms: int) -> None:
    waiting = broker.produce(timeout_ms=timeout_ms)
    broker.world.advance(waits_ms - 1)
    assert not waiting.done
    broker.world.advance(1)
    assert produced(waiting)[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
    broker.open()
    assert broker.world.timers == 0


def test_a_partition_that_cannot_be_opened_is_not_waited_for_any_longer(broker: Broker) -> None:
    waiting = broker.produce()
    broker.opening.remove(AT)
    broker.world.advance(0)
    assert produced(waiting)[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_whoever_cannot_wait_is_answered_at_once(broker: Broker) -> None:
    assert answers_of(broker.fetch(max_wait_ms=0))["a", 0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert not isinstance(broker.produce(timeout_ms=0), Pending)


def test_a_follower_waits_shortly_and_not_while_many_partitions_are_opened(broker: Broker) -> None:
    """Producers wait for what it fetches of other partitions."""
    waiting = broker.fetch(replica_id=2)
    broker.world.advance(100)
    assert answers_of(waiting)["a", 0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    for index in range(1, 200):
        broker.opening.add(TopicPartition("a", index))
    assert answers_of(broker.fetch(replica_id=2))["a", 0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert isinstance(broker.fetch(), Pending), "a consumer"


def test_requests_for_other_partitions_do_not_wait(broker: Broker) -> None:
    broker.world.assign("b")
    broker.opening.add(TopicPartition("c", 7))
    broker.opening.remove(AT)
    assert not isinstance(broker.produce(), Pending)


def test_the_number_of_waiting_requests_is_bounded(broker: Broker) -> None:
    waiting = [broker.produce() for _ in range(MAX_WAITING)]
    assert all(isinstance(each, Pending) and not each.done for each in waiting)
    assert not isinstance(broker.produce(), Pending)
    broker.open()
    assert all(each.done for each in waiting)
    broker.opening.add(AT)
    assert isinstance(broker.produce(), Pending), "their places are free again"


def test_a_request_whose_connection_ends_leaves_nothing_behind(broker: Broker) -> None:
    waiting = broker.produce()
    waiting.abandon()
    assert broker.world.timers == 0
    broker.open()
    assert not waiting.done
    partition = broker.world.replicas.find("a", 0)
    assert partition is not None
    assert partition.log.log_end_offset == 0


def test_a_wait_for_followers_goes_on_after_the_wait_for_the_partition(broker: Broker) -> None:
    """A fetch that finds nothing in the new partition waits for records as ever."""
    fetch = broker.fetch()
    broker.open()
    assert not fetch.done
    broker.world.produce("a")
    assert answers_of(fetch)["a", 0].high_watermark == 1


def test_a_large_fetch_is_read_in_steps_after_its_wait(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "READ_AT_ONCE", 1)
    answer = broker.fetch(partitions=2)
    broker.world.assign("a")
    broker.world.produce("a")
    broker.opening.remove(AT)
    broker.world.advance(0)
    assert answers_of(answer)["a", 0].high_watermark == 1


def test_requests_that_waited_for_the_same_partition_do_not_hold_the_loop_together(broker: Broker) -> None:
    turns: list[Callable[[], None]] = []
    opening = OpeningPartitions(broker.world, one_step_a_turn(turns.append))
    opening.add(AT)
    handled: list[int] = []
    waiting = []
    for number in range(4):
        request = ProduceRequest(timeout_ms=number)
        replied = opening.wait(
            broker.context, request, lambda _, request: handled.append(request.timeout_ms), [AT], MAX_WAIT_MS
        )
        assert replied is not None
        waiting.append(replied)
    opening.remove(AT)
    assert not handled
    turns.pop()()
    assert handled == [0]
    waiting[1].abandon()
    while turns:
        turns.pop()()
    assert handled == [0, 2, 3]
