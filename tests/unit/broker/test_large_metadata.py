"""Metadata answers with very many topics and partitions, which are made in steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from unittest.mock import Mock

import pytest
from by_hand import HandTime, one_step_a_turn
from paper_connection import PaperConnection, read_answer

from kalda.base.ids import Uuid
from kalda.broker.handlers import metadata
from kalda.broker.handlers.metadata import MetadataHandlers
from kalda.broker.metadata_cache import MetadataCache
from kalda.broker.requests.api_versions import Features
from kalda.broker.requests.pipeline import RequestPipeline
from kalda.metadata.image import EMPTY, MetadataDelta
from kalda.metadata.publisher import Provenance
from kalda.network.server.connection import Connection
from kalda.protocol.messages.metadata import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestTopicRequest,
    MetadataRequest,
    MetadataRequestTopic,
)
from kalda.protocol.messages.metadata import (
    DescribeTopicPartitionsRequestCursor as Cursor,
)
from kalda.protocol.messages.metadata_records import (
    BrokerEndpoint,
    BrokerRegistrationChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from kalda.protocol.notation import Request

LARGE, SMALL = Uuid(bytes(15) + b"\x01"), Uuid(bytes(15) + b"\x02")


class World:
    """One broker that leads 5,000 partitions of a topic and 1 of another; turns of the loop are taken by hand."""

    def __init__(self) -> None:
        self.turns: list[Callable[[], None]] = []
        self.cache = MetadataCache(HandTime())
        endpoint = BrokerEndpoint(name="PLAINTEXT", host="h", port=9092)
        self.update(
            RegisterBrokerRecord(broker_id=1, broker_epoch=1, end_points=[endpoint], fenced=False),
            TopicRecord(name="large", topic_id=LARGE),
            TopicRecord(name="small", topic_id=SMALL),
            *(
                PartitionRecord(partition_id=index, topic_id=topic, replicas=[1], isr=[1], leader=1)
                for topic, count in ((LARGE, 5_000), (SMALL, 1))
                for index in range(count)
            ),
        )
        handlers = MetadataHandlers(self.cache, "cluster", Mock(), lambda key: None, 2_000)
        self.pipeline = RequestPipeline(
            handlers.rows(), lambda: Features({}, {}, 0), one_step_a_turn(self.turns.append)
        )

    def update(self, *records: Any) -> None:
        delta = MetadataDelta(self.cache.image if self.cache.image is not None else EMPTY)
        for record in records:
            delta.replay(record)
        self.cache.set_image(delta.apply(Provenance(self.cache.image.offset + 1, 1, 0)))

    def send(self, request: Request, version: int) -> Any:
        connection: Connection = PaperConnection()  # type: ignore[assignment]
        return self.pipeline.on_frame(connection, connection.frame(request, version))  # type: ignore[attr-defined]

    def take_turns(self) -> int:
        count = 0
        while self.turns:
            self.turns.pop(0)()
            count += 1
        return count


def missing(count: int) -> list[MetadataRequestTopic]:
    return [MetadataRequestTopic(name=f"m-{number % 3_000}") for number in range(count)]


def descriptions(names: Iterable[str], cursor: Cursor | None = None) -> DescribeTopicPartitionsRequest:
    topics = [DescribeTopicPartitionsRequestTopicRequest(name=name) for name in names]
    return DescribeTopicPartitionsRequest(topics=topics, cursor=cursor)


@pytest.mark.parametrize(
    "topics",
    [None, [MetadataRequestTopic(name="large"), MetadataRequestTopic(name="small")], missing(4_500), missing(399)],
    ids=["all", "named", "missing", "small"],
)
def test_an_answer_in_steps_is_the_one_that_is_made_at_once(
    topics: list[MetadataRequestTopic] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
    world = World()
    answer = world.send(request, 9)
    turns = world.take_turns()
    assert (turns > 3) == (topics is None or len(topics) != 399)
    got = read_answer(answer, request, 9)
    monkeypatch.setattr(metadata, "_STEP_ITEMS", 100_000)
    world = World()
    answer = world.send(request, 9)
    world.take_turns()
    assert got == read_answer(answer, request, 9)


def test_an_answer_in_steps_is_kept() -> None:
    world = World()
    request = MetadataRequest(topics=None)
    first = world.send(request, 9)
    world.take_turns()
    again = world.send(request, 9)
    assert isinstance(again, list), "answered at once"
    assert read_answer(again, request, 9) == read_answer(first, request, 9)


def test_an_answer_is_not_kept_where_something_changed_meanwhile() -> None:
    world = World()
    request = MetadataRequest(topics=None)
    stale = world.send(request, 9)
    world.turns.pop(0)()
    world.update(BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=1, fenced=1))
    world.take_turns()
    assert stale.done
    fresh = world.send(request, 9)
    world.take_turns()
    leaders = {each.leader_id for topic in read_answer(fresh, request, 9).topics for each in topic.partitions}
    assert leaders == {-1}


def test_descriptions_of_very_many_topics_are_sorted_and_each_is_there_once() -> None:
    names = [f"m-{number * 7 % 5_000}" for number in range(5_600)] + ["small"]
    request = descriptions(names)
    world = World()
    answer = world.send(request, 0)
    assert world.take_turns() > 3
    topics = read_answer(answer, request, 0).topics
    assert [topic.name for topic in topics] == sorted(set(names))
    assert [len(topic.partitions) for topic in topics if topic.name == "small"] == [1]


def test_a_page_of_very_many_topics_begins_at_its_cursor() -> None:
    world = World()
    names = [*(f"m-{number}" for number in range(5_000)), "small"]
    request = descriptions(names, Cursor(topic_name="m-998"))
    answer = world.send(request, 0)
    world.take_turns()
    topics = [topic.name for topic in read_answer(answer, request, 0).topics]
    assert topics == sorted(name for name in names if name >= "m-998")


def test_a_page_of_descriptions_is_made_in_steps() -> None:
    world = World()
    request = DescribeTopicPartitionsRequest(topics=[])
    answer = world.send(request, 0)
    assert world.take_turns() >= 4
    response = read_answer(answer, request, 0)
    assert [each.partition_index for each in response.topics[0].partitions] == list(range(2_000))
    assert response.next_cursor.partition_index == 2_000


def test_a_topic_that_is_deleted_between_two_steps_is_left_out() -> None:
    world = World()
    request = DescribeTopicPartitionsRequest(topics=[], cursor=Cursor(topic_name="large", partition_index=4_400))
    answer = world.send(request, 0)
    world.update(RemoveTopicRecord(topic_id=SMALL))
    world.take_turns()
    assert [topic.name for topic in read_answer(answer, request, 0).topics] == ["large"]
