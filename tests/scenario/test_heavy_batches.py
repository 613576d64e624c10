"""Batches whose records take long to check: a job checks them, other requests are served meanwhile, no later request of
the connection overtakes them, and the outcome is that of a small batch."""

from __future__ import annotations

from typing import Any, cast

import pytest
from data_handlers import handler
from data_path_world import SELF, Assigned, World

from kalda.base.errors import ErrorCode
from kalda.base.scheduling import Pending
from kalda.broker.requests.context import Encoded
from kalda.protocol.messages.partitions import PartitionProduceData, ProduceRequest, TopicProduceData
from kalda.records.batch import HEADER_SIZE, read_header
from kalda.records.builder import build_batch, read_records, seal
from kalda.records.compression import Compression

RECORDS = 25
VALUE = bytes(100_000)


def heavy(world: World) -> bytearray:
    """A small batch that decompresses to 2.5 MB."""
    return build_batch([(world.now_ms, b"k", VALUE, ())] * RECORDS, compression=Compression.ZSTD)


def bomb(world: World) -> bytearray:
    """A batch of a million records in a few hundred bytes, all of them with the offset delta 0."""
    header = read_header(build_batch([(world.now_ms, b"k", b"v", ())], compression=Compression.ZSTD))
    counts = {"records_count": 1_000_000, "last_offset_delta": 999_999}
    return seal(bytearray(HEADER_SIZE) + bytes([12, 0, 0, 0, 1, 1, 0]) * 1_000_000, header._replace(**counts))


def request(batch: bytearray, acks: int = 1) -> ProduceRequest:
    data = [PartitionProduceData(index=0, records=batch)]
    return ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[TopicProduceData(name="a", partition_data=data)])


def answer_of(waiting: object) -> Any:
    return cast(Any, waiting).value.responses[0].partition_responses[0]


@pytest.fixture
def world() -> World:
    world = World()
    world.assign("a")
    world.hold_jobs = True
    return world


def test_a_heavy_batch_is_checked_by_a_job_while_others_are_served(world: World) -> None:
    handlers, context, connection = handler(world)
    waiting = handlers.produce(context, request(heavy(world)))
    assert isinstance(waiting, Pending)
    assert not waiting.done
    assert connection.calls == ["alone"], "the next request of this connection waits"
    other = world.produce("a", acks=1)
    assert not isinstance(other, Pending)
    assert other.base_offset == 0
    world.let_jobs_run()
    assert (answer_of(waiting).error_code, answer_of(waiting).base_offset) == (ErrorCode.NONE, 1)
    partition = world.replicas.get("a", 0)
    assert partition.log.log_end_offset == 1 + RECORDS
    stored = partition.log.read(1, 1 << 20, 1 + RECORDS, True).records
    assert [(record.offset, record.value) for record in read_records(bytes(stored))] == [
        (1 + at, VALUE) for at in range(RECORDS)
    ]


@pytest.mark.parametrize("acks", [1, 0])
def test_a_bomb_is_refused_after_its_job(world: World, acks: int) -> None:
    handlers, context, connection = handler(world)
    waiting = handlers.produce(context, request(bomb(world), acks))
    assert isinstance(waiting, Pending)
    world.let_jobs_run()
    assert world.replicas.get("a", 0).log.log_end_offset == 0
    if acks:
        assert answer_of(waiting).error_code == ErrorCode.INVALID_RECORD
    else:
        assert isinstance(waiting.value, Encoded)
        assert connection.calls == ["alone", "close"]


def test_leadership_that_is_lost_meanwhile_is_an_error(world: World) -> None:
    handlers, context, _ = handler(world)
    waiting = handlers.produce(context, request(heavy(world)))
    world.assign("a", 0, Assigned(2, 1, (SELF, 2), (SELF, 2)))
    world.let_jobs_run()
    assert answer_of(waiting).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert world.replicas.get("a", 0).log.log_end_offset == 0


def test_rules_that_are_altered_meanwhile_apply(world: World) -> None:
    handlers, context, _ = handler(world)
    waiting = handlers.produce(context, request(heavy(world)))
    log = world.replicas.get("a", 0).log
    log.update_config(type(log.config)(max_message_bytes=50))
    world.let_jobs_run()
    assert answer_of(waiting).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert log.log_end_offset == 0
