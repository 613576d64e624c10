"""Dead letters of share groups: headers, partitions, what holds them up, and when a record may be archived."""

from __future__ import annotations

from typing import Any

import pytest
from by_hand import HandTime

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.base.scheduling import Pending
from kalda.base.sensors import Sensors
from kalda.base.share_states import SharePartitionKey
from kalda.broker.channels.dead_letter_writer import DeadLetterWriter, Missing, Refusal, Target
from kalda.protocol.messages.partitions import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from kalda.records.builder import Record, read_records
from kalda.replication.share.dead_letters import Cause, DeadRecords, Sources

SOURCE = Uuid(b"orders".ljust(16, b"."))
KEY = SharePartitionKey("g", SOURCE, 5)
TARGET = Target("dlq.g", Uuid(b"letters".ljust(16, b".")), 3, 1_000_000, False)
NOW_MS = 1_700_000_000_000


class Clock(HandTime):
    def mono_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return NOW_MS


class World:
    """Requests wait until a test answers them."""

    def __init__(self) -> None:
        self.found: Target | Missing | Refusal | None = TARGET
        self.time = Clock()
        self.sensors = Sensors()
        self.leader: int | None = 7
        self.requests: list[tuple[int, ProduceRequest]] = []
        self.answers: list[Pending[Any]] = []
        self.created: list[str] = []
        self.reads: list[tuple[str, int, int, int]] = []
        self.sources: Sources | None = None
        self.is_wanted = True
        self.writer = DeadLetterWriter(
            self,  # type: ignore[arg-type]
            {SOURCE: "orders"}.get,
            self._read,
            lambda topic, partition: self.leader,
            self._send,
            self.created.append,
            self.time,
            self.time,  # type: ignore[arg-type]
            self.sensors,
            30_000,
        )

    def find(self, group_id: str) -> Target | Missing | Refusal | None:
        return self.found

    def _read(self, topic: str, partition: int, first: int, last: int) -> Pending[Sources]:
        self.reads.append((topic, partition, first, last))
        answer: Pending[Sources] = Pending()
        if self.sources is None:
            answer.fail(ApiError(ErrorCode.OFFSET_OUT_OF_RANGE))
        else:
            answer.complete(self.sources)
        return answer

    def _send(self, broker: int, request: ProduceRequest) -> Pending[Any]:
        self.requests.append((broker, request))
        self.answers.append(Pending())
        return self.answers[-1]

    def write(self, first: int, last: int, key: SharePartitionKey = KEY) -> Pending[None]:
        written = self.writer.write(key, DeadRecords(first, last, 2, Cause.REJECTED), lambda: self.is_wanted)
        self.time.advance(0)
        return written

    def answer(self, code: ErrorCode = ErrorCode.NONE) -> None:
        """Answer the latest request."""
        partition = PartitionProduceResponse(error_code=int(code))
        self.answers[-1].complete(ProduceResponse(responses=[TopicProduceResponse(partition_responses=[partition])]))
        self.time.advance(0)

    def sent(self, number: int = -1) -> list[Record]:
        (topic,) = self.requests[number][1].topic_data
        (data,) = topic.partition_data
        assert data.records is not None
        return read_records(bytes(data.records))  # type: ignore[arg-type]

    def count(self, name: str) -> int:
        return self.sensors.counter("kafka.server:type=ShareGroupMetrics", name, (("group", "g"),)).value


def test_a_letter_says_where_its_record_is_from() -> None:
    world = World()
    written = world.write(10, 11)
    ((broker, request),) = world.requests
    assert (broker, request.acks, request.timeout_ms) == (7, -1, 30_000)
    (topic,) = request.topic_data
    assert (topic.name, topic.topic_id, topic.partition_data[0].index) == ("dlq.g", TARGET.topic_id, 5 % 3)
    first, second = world.sent()
    assert (first.key, first.value, first.timestamp) == (None, None, NOW_MS)
    assert list(first.headers) == [
        ("__dlq.errors.topic", b"orders"),
        ("__dlq.errors.partition", b"5"),
        ("__dlq.errors.offset", b"10"),
        ("__dlq.errors.group", b"g"),
        ("__dlq.errors.delivery.count", b"2"),
        ("__dlq.errors.message", b"Offset rejected by client."),
    ]
    assert second.headers[2] == ("__dlq.errors.offset", b"11")
    assert not written.done, "the in-sync replicas have not acknowledged it"
    world.answer()
    assert (written.done, written.error) == (True, None)
    assert world.count("DeadLetterQueueRecordCount") == 2
    assert world.count("DeadLetterQueueTotalProduceRequestsPerSec") == 1


@pytest.mark.parametrize(
    "code", [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.INVALID_RECORD]
)
def test_what_fails_is_written_again_until_it_is_acknowledged(code: ErrorCode) -> None:
    world = World()
    written = world.write(0, 0)
    for attempt in range(20):
        assert len(world.requests) == attempt + 1
        world.answer(code)
        world.time.advance(30_000)
    assert not written.done
    assert world.count("DeadLetterQueueFailedProduceRequestsPerSec") == 20
    world.answer()
    assert written.done


def test_letters_of_a_partition_share_the_batch_after_the_one_that_is_under_way() -> None:
    world = World()
    outcomes = [world.write(offset, offset) for offset in (1, 4, 9)]
    assert [record.headers[2][1] for record in world.sent()] == [b"1"]
    world.answer()
    assert [record.headers[2][1] for record in world.sent()] == [b"4", b"9"]
    assert [each.done for each in outcomes] == [True, False, False]
    world.answer()
    assert len(world.requests) == 2
    assert all(each.done for each in outcomes)


def test_a_range_that_is_too_large_for_a_batch_goes_in_several() -> None:
    world = World()
    world.found = TARGET._replace(max_message_bytes=2_000)
    written = world.write(0, 9)
    offsets: list[bytes | None] = []
    while not written.done:
        records = world.sent()
        assert 0 < len(records) < 10
        offsets += [record.headers[2][1] for record in records]
        world.answer()
    assert offsets == [str(offset).encode() for offset in range(10)]
    assert world.count("DeadLetterQueueRecordCount") == 10


def test_copies_are_read_for_what_is_written_next() -> None:
    world = World()
    world.found = TARGET._replace(copies_records=True, max_message_bytes=10_000)
    world.sources = Sources({3: (b"k", b"v"), 4: (None, b"x" * 20_000)}, 5)
    written = world.write(3, 6)
    world.time.advance(0)
    assert world.reads == [("orders", 5, 3, 6)]
    assert [(each.key, each.value) for each in world.sent()] == [(b"k", b"v"), (None, None), (None, None)]
    world.sources = None
    world.answer()
    world.time.advance(0)
    assert world.reads[1:] == [("orders", 5, 6, 6)], "the first read ended before it"
    assert [(each.key, each.value) for each in world.sent()] == [(None, None)]
    world.answer()
    assert written.done


def test_a_topic_that_is_missing_is_created() -> None:
    world = World()
    world.found = Missing("dlq.g")
    written = world.write(0, 0)
    assert world.created == ["dlq.g"]
    world.found = TARGET
    world.time.advance(30_000)
    world.answer()
    assert written.done


def test_a_topic_that_is_refused_holds_its_letters_until_that_is_mended() -> None:
    world = World()
    world.found = Refusal("the topic does not set errors.deadletterqueue.group.enable=true")
    written = world.write(0, 0)
    world.time.advance(600_000)
    assert (world.requests, written.done) == ([], False)
    world.found = TARGET
    world.time.advance(30_000)
    world.answer()
    assert written.done


def test_a_group_that_names_no_topic_any_more_archives_without_letters() -> None:
    world = World()
    world.leader = None
    written = world.write(0, 0)
    world.found = None
    world.time.advance(30_000)
    assert (world.requests, written.done, written.error) == ([], True, None)


def test_a_share_partition_that_has_ended_writes_nothing_more() -> None:
    world = World()
    world.leader = None
    written = world.write(0, 0)
    world.is_wanted = False
    world.leader = 7
    world.time.advance(30_000)
    assert world.requests == []
    assert written.error is not None
    assert written.error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    world.writer.close()
    assert world.write(1, 1).error is not None


def test_a_fault_in_one_group_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    find = world.find
    faulty = True

    def find_or_fail(group_id: str) -> Any:
        if faulty and group_id == "bad":
            raise RuntimeError("thrown on purpose")
        return find(group_id)

    monkeypatch.setattr(world, "find", find_or_fail)
    bad = [world.write(0, 0, KEY._replace(group_id="bad"))]
    good = world.write(1, 1)
    faulty = False
    bad.append(world.write(2, 2, KEY._replace(group_id="bad")))  # waits behind the batch that is under way
    also_good = world.write(3, 3)
    faulty = True
    world.answer()
    assert [record.headers[2][1] for record in world.sent()] == [b"3"]
    world.answer()
    assert good.done
    assert also_good.done
    assert not any(each.done for each in bad)
    faulty = False
    world.time.advance(30_000)
    while not all(each.done for each in bad):
        world.answer()
        world.time.advance(30_000)


def test_a_fault_in_what_follows_a_letter_is_its_own() -> None:
    world = World()
    first, second = world.write(0, 0), world.write(1, 1)
    world.answer()

    def fail(*_: object) -> None:
        raise RuntimeError("thrown on purpose")

    second.then(fail)
    third = world.write(2, 2)
    with pytest.raises(RuntimeError, match="on purpose"):
        world.answer()
    world.time.advance(0)
    world.answer()
    assert first.done
    assert third.done
