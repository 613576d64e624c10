"""Incremental fetch sessions (KIP-227): what is sent again, what is left out, which sessions are evicted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from data_handlers import handler
from data_path_world import SELF, Assigned, World, answers_of, offsets

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending
from kalda.broker.metadata_cache import MetadataCache
from kalda.protocol.messages.partitions import (
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
    FetchRequestForgottenTopic,
    FetchResponse,
)
from kalda.replication.fetch_session import FetchSessionCache
from kalda.replication.partition import Partition
from kalda.storage.log.snapshot_jobs import ColdRead
from kalda.storage.values import FetchInfo

A, B = ("a", 0, 0), ("b", 0, 0)


def opened(world: World, *wanted: tuple[str, int, int]) -> int:
    """A new session's id."""
    response = world.fetch(*wanted, session=(0, 0), max_wait_ms=0)
    assert isinstance(response, FetchResponse)
    return response.session_id


@pytest.fixture
def world() -> World:
    world = World()
    world.assign("a")
    world.assign("b")
    return world


def test_the_first_answer_names_every_partition_and_the_next_only_changes(world: World) -> None:
    first = world.fetch(A, B, session=(0, 0), max_wait_ms=0)
    assert isinstance(first, FetchResponse)
    assert first.session_id > 0
    assert list(answers_of(first)) == [("a", 0), ("b", 0)]
    assert answers_of(world.fetch(session=(first.session_id, 1), max_wait_ms=0)) == {}
    world.produce("b")
    answers = answers_of(world.fetch(session=(first.session_id, 2)))
    assert {key: offsets(answer) for key, answer in answers.items()} == {("b", 0): [0]}


def test_the_session_reads_from_the_last_offset_that_was_named(world: World) -> None:
    world.produce("a", 3)
    session = opened(world, A)
    assert offsets(answers_of(world.fetch(session=(session, 1)))["a", 0]) == [0], "no request has named another offset"
    assert answers_of(world.fetch(("a", 0, 3), session=(session, 2), max_wait_ms=0)) == {}
    world.produce("a")
    assert offsets(answers_of(world.fetch(session=(session, 3)))["a", 0]) == [3]


def test_partitions_come_and_go(world: World) -> None:
    session = opened(world, A)
    assert list(answers_of(world.fetch(B, session=(session, 1), max_wait_ms=0))) == [("b", 0)]
    world.produce("a")
    world.produce("b")
    answers = answers_of(world.fetch(session=(session, 2), forget=(("a", 0),)))
    assert list(answers) == [("b", 0)]


def test_a_new_log_start_is_a_change(world: World) -> None:
    session = opened(world, A, B)
    world.produce("a", 2)
    world.fetch(("a", 0, 2), session=(session, 1), max_wait_ms=0)
    partition = world.replicas.get("a", 0)
    assert partition.delete_records(2) == 2
    answers = answers_of(world.fetch(session=(session, 2), max_wait_ms=0))
    assert [(key, answer.log_start_offset) for key, answer in answers.items()] == [(("a", 0), 2)]


def test_an_error_is_in_every_response_and_its_end_in_one(world: World) -> None:
    session = opened(world, ("a", 0, 5))
    for epoch in (1, 2):
        answers = answers_of(world.fetch(session=(session, epoch)))
        assert answers["a", 0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    answers = answers_of(world.fetch(A, session=(session, 3), max_wait_ms=0))
    assert answers["a", 0].error_code == ErrorCode.NONE
    assert answers_of(world.fetch(session=(session, 4), max_wait_ms=0)) == {}


def test_a_partition_with_records_is_read_last_next_time(world: World) -> None:
    for topic in ("a", "b"):
        world.produce(topic, size=500)
    session = opened(world, A, B)
    for epoch, served in ((1, "a"), (2, "b"), (3, "a")):
        answers = answers_of(world.fetch(session=(session, epoch), max_bytes=1))
        assert [topic for (topic, _), answer in answers.items() if offsets(answer)] == [served], epoch


def test_the_epoch_must_be_the_next_one(world: World) -> None:
    session = opened(world, A)
    for epoch in (2, 7):
        with pytest.raises(ApiError) as refused:
            world.fetch(session=(session, epoch))
        assert refused.value.code is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert answers_of(world.fetch(session=(session, 1), max_wait_ms=0)) == {}
    with pytest.raises(ApiError) as refused:
        world.fetch(session=(session + 1, 1))
    assert refused.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_final_epoch_ends_the_session(world: World) -> None:
    session = opened(world, A)
    closed = world.fetch(session=(session, -1), max_wait_ms=0)
    assert isinstance(closed, FetchResponse)
    assert closed.session_id == 0
    with pytest.raises(ApiError) as refused:
        world.fetch(session=(session, 1))
    assert refused.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_an_incremental_fetch_waits_like_any_other(world: World) -> None:
    session = opened(world, A, B)
    waiting = world.fetch(session=(session, 1))
    assert isinstance(waiting, Pending)
    assert not waiting.done
    world.produce("b")
    assert list(answers_of(waiting)) == [("b", 0)]


def test_a_full_cache_evicts_stale_sessions_only() -> None:
    world = World(slots=1)
    world.assign("a")
    session = opened(world, A)
    assert opened(world, A) == 0, "no session, but an answer"
    world.advance(120_001)
    newer = opened(world, A)
    assert newer not in (0, session)
    assert world.sessions.evictions == 1
    with pytest.raises(ApiError) as refused:
        world.fetch(session=(session, 1))
    assert refused.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_partitions_read_to_their_end_are_not_read_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.produce("a", 3)
    world.produce("b", 2)
    session = opened(world, ("a", 0, 3), ("b", 0, 2))
    read: list[str] = []
    original = Partition.read

    def counted(partition: Partition, *how: Any) -> FetchInfo | ColdRead:
        read.append(partition.topic_partition.topic)
        return original(partition, *how)

    monkeypatch.setattr(Partition, "read", counted)
    waiting = world.fetch(session=(session, 1))
    assert isinstance(waiting, Pending)
    assert read == []
    world.produce("b")
    assert {key: offsets(answer) for key, answer in answers_of(waiting).items()} == {("b", 0): [2]}
    assert read == ["b"]
    world.replicas.get("a", 0).delete_records(1)
    assert list(answers_of(world.fetch(("b", 0, 3), session=(session, 2), max_wait_ms=0))) == [("a", 0)], (
        "its log start is another"
    )


def test_a_lost_leadership_is_answered_at_the_end_of_the_log_too(world: World) -> None:
    session = opened(world, A, B)
    waiting = world.fetch(session=(session, 1))
    world.assign("a", assigned=Assigned(SELF + 1, 1, (SELF, SELF + 1), (SELF + 1,)))
    answers = answers_of(waiting)
    assert {key: answer.error_code for key, answer in answers.items()} == {("a", 0): ErrorCode.NOT_LEADER_OR_FOLLOWER}


def requested(count: int, *, prefix: str = "made-up", follower: bool = False, **fields: Any) -> FetchRequest:
    topics = [
        FetchRequestFetchTopic(topic=f"{prefix}-{n}", partitions=[FetchRequestFetchPartition(partition=0)])
        for n in range(count)
    ]
    fields.setdefault("session_epoch", 0)
    return FetchRequest(replica_id=1 if follower else -1, topics=topics, **fields)


class Cache(FetchSessionCache):
    """With room for some 100 partitions, 12 of them in a consumer's session."""

    def __init__(self) -> None:
        ids = iter(range(1, 1000))
        super().__init__(1000, lambda low, high: next(ids), 100 * 310)

    def make(self, count: int, now_ms: int = 0, **fields: Any) -> int:
        context = self.context(requested(count, **fields), False, lambda _: None, now_ms)
        assert len(context.entries) == count or fields.get("session_epoch", 0) > 0
        self.check()
        return context.session_id

    def check(self) -> None:
        assert self.size_bytes == sum(each.size_bytes for each in self._sessions.values()) <= self._max_bytes


def test_partitions_beyond_the_room_for_sessions_are_fetched_without_one() -> None:
    cache = Cache()
    assert cache.make(13) == 0, "it is too large for a consumer"
    ids = [cache.make(10) for _ in range(11)]
    assert [bool(each) for each in ids] == [True] * 10 + [False]
    assert len(cache) == 10
    cache.make(0, session_id=ids[0], session_epoch=-1)
    assert cache.make(10) > 0


def test_unused_sessions_make_room_for_new_ones_and_consumers_for_followers() -> None:
    cache = Cache()
    for _ in range(9):
        cache.make(10)
    used = cache.make(5, now_ms=100_000)
    assert cache.make(10, now_ms=120_001) > 0
    assert len(cache) == 10
    assert cache.make(50, follower=True, now_ms=120_002) > 0
    cache.make(0, session_id=used, session_epoch=1, now_ms=120_003)
    assert cache.make(41, follower=True, now_ms=120_004) > 0
    assert cache.make(60, follower=True, now_ms=120_005) == 0, "followers do not evict each other"


def test_a_session_that_outgrows_its_room_ends() -> None:
    """Its fetcher begins another one, or goes on without."""
    cache = Cache()
    session = cache.make(10)
    assert cache.make(2, prefix="more", session_id=session, session_epoch=1) == session
    with pytest.raises(ApiError) as refused:
        cache.make(2, prefix="yet-more", session_id=session, session_epoch=2)
    assert refused.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert not len(cache)
    cache.check()


def test_partitions_that_are_forgotten_make_room() -> None:
    cache = Cache()
    session = cache.make(12)
    forgotten = [FetchRequestForgottenTopic(topic=f"made-up-{n}", partitions=[0]) for n in range(5)]
    cache.make(0, session_id=session, session_epoch=1, forgotten_topics_data=forgotten)
    assert cache.make(5, session_id=session, session_epoch=2) == session
    assert cache.make(5, session_id=session, session_epoch=3) == session, "they are in it already"


def test_sessions_share_the_names_of_topics() -> None:
    cache = Cache()
    first, second = (
        cache.context(requested(1, prefix="a-name"), False, lambda _: None, 0).entries[0].topic for _ in range(2)
    )
    assert first is second


@pytest.mark.parametrize(("follower", "calls"), [(True, ["follower"]), (False, [])])
def test_the_first_fetch_of_a_followers_session_enlarges_its_send_buffer(follower: bool, calls: list[str]) -> None:
    world = World()
    world.assign("a-0")
    handlers, context, connection = handler(world)
    handlers._metadata = cast(MetadataCache, SimpleNamespace(topic_name=lambda _: None))
    first = requested(1, prefix="a", follower=follower, max_wait_ms=0, max_bytes=1 << 20)
    answer = handlers.fetch(context, first)
    assert isinstance(answer, FetchResponse)
    assert connection.calls == calls
    later = requested(0, follower=follower, max_wait_ms=0, session_id=answer.session_id, session_epoch=1)
    handlers.fetch(context, later)
    assert connection.calls == calls


# -- throttled answers


def test_a_throttled_answer_is_sent_again_whole() -> None:
    """A consumer that has to pause gets an answer without records; the session must not count the other as sent."""
    world = World()
    world.assign("orders")
    world.produce("orders")
    handlers, context, _ = handler(world)
    handlers._metadata = cast(MetadataCache, SimpleNamespace(topic_name=lambda _: None))
    ask = FetchRequestFetchTopic(topic="orders", partitions=[FetchRequestFetchPartition(partition=0)])
    full = FetchRequest(session_epoch=0, max_bytes=1 << 20, topics=[ask])
    ask.partitions[0].partition_max_bytes = 1 << 20
    answer = handlers.fetch(context, full)
    assert isinstance(answer, FetchResponse)
    sent = world.replicas.find("orders", 0).topic_counters.bytes_out  # type: ignore[union-attr]
    assert answer.session_id
    assert sent.value > 0
    throttled = handlers.throttled_fetch(full, answer)
    assert (throttled.session_id, throttled.responses, sent.value, len(world.sessions)) == (0, [], 0, 0)

    answer = handlers.fetch(context, full)
    assert isinstance(answer, FetchResponse)
    ask.partitions[0] = FetchRequestFetchPartition(partition=0, fetch_offset=1, partition_max_bytes=1 << 20)
    caught_up = FetchRequest(session_id=answer.session_id, session_epoch=1, max_bytes=1 << 20, topics=[ask])
    assert handlers.fetch(context, caught_up).responses == []  # type: ignore[union-attr]
    world.produce("orders")
    again = FetchRequest(session_id=answer.session_id, session_epoch=2, max_bytes=1 << 20)
    answer = handlers.fetch(context, again)
    assert isinstance(answer, FetchResponse)
    assert answer.responses[0].partitions[0].high_watermark == 2
    throttled = handlers.throttled_fetch(again, answer)
    assert (throttled.session_id, throttled.responses) == (answer.session_id, [])
    ask.partitions[0] = FetchRequestFetchPartition(partition=0, fetch_offset=2, partition_max_bytes=1 << 20)
    later = FetchRequest(session_id=answer.session_id, session_epoch=3, max_bytes=1 << 20, topics=[ask])
    answer = handlers.fetch(context, later)
    assert isinstance(answer, FetchResponse)
    assert answer.responses[0].partitions[0].high_watermark == 2, "though nothing has changed since the unsent answer"
