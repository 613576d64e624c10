"""A fetcher's session against the leader's: both hold the same partitions, and only changes are sent."""

from __future__ import annotations

import random

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.protocol.messages.partitions import FetchRequest, FetchRequestFetchPartition, FetchResponse
from kalda.protocol.naming import MAX_PARTITIONS_FETCHED
from kalda.replication.fetch_session import FetchSessionCache, FetchSessionHandler, Key

IDS = [Uuid(bytes(15) + bytes([number])) for number in (1, 2)]


def asked(index: int, offset: int) -> FetchRequestFetchPartition:
    return FetchRequestFetchPartition(partition=index, fetch_offset=offset, current_leader_epoch=3)


class Leader:
    """Answers without records, and returns the partitions that its session holds."""

    def __init__(self, slots: int = 10) -> None:
        self.cache = FetchSessionCache(slots, random.Random(1).randint)
        self.sent = 0

    def wanted(
        self, session: FetchSessionHandler, want: dict[Key, FetchRequestFetchPartition]
    ) -> dict[Key, int] | None:
        """The offsets that the leader reads from; None where it refuses the request."""
        request = FetchRequest()
        session.fill(request, want)
        self.sent = sum(len(topic.partitions) for topic in request.topics)
        try:
            context = self.cache.context(request, True, lambda topic_id: "t", 0)
        except ApiError as refused:
            usable = session.on_response(FetchResponse(error_code=refused.code))
            return {} if usable else None
        assert session.on_response(FetchResponse(session_id=context.session_id))
        return {(entry.topic_id, entry.index): entry.asked.fetch_offset for entry in context.entries}


def test_only_changes_are_sent() -> None:
    leader, session = Leader(), FetchSessionHandler()
    want = {(IDS[0], 0): asked(0, 5), (IDS[0], 1): asked(1, 6), (IDS[1], 0): asked(0, 7)}
    assert leader.wanted(session, dict(want)) == {(IDS[0], 0): 5, (IDS[0], 1): 6, (IDS[1], 0): 7}
    assert leader.sent == 3
    want[IDS[0], 1] = asked(1, 9)
    assert leader.wanted(session, dict(want)) == {(IDS[0], 0): 5, (IDS[0], 1): 9, (IDS[1], 0): 7}
    assert leader.sent == 1
    del want[IDS[1], 0]
    assert leader.wanted(session, dict(want)) == {(IDS[0], 0): 5, (IDS[0], 1): 9}
    assert leader.sent == 0
    want[IDS[1], 3] = asked(3, 1)
    assert leader.wanted(session, dict(want)) == {(IDS[0], 0): 5, (IDS[0], 1): 9, (IDS[1], 3): 1}
    assert leader.sent == 1


def test_an_evicted_session_begins_again() -> None:
    leader, session = Leader(), FetchSessionHandler()
    want: dict[Key, FetchRequestFetchPartition] = {(IDS[0], 0): asked(0, 5)}
    assert leader.wanted(session, want)
    leader = Leader()
    assert leader.wanted(session, want) is None
    assert leader.wanted(session, want) == {(IDS[0], 0): 5}
    assert leader.wanted(session, want) == {(IDS[0], 0): 5}
    assert leader.sent == 0


def test_a_lost_answer_begins_a_new_session_and_closes_the_old() -> None:
    leader, session = Leader(), FetchSessionHandler()
    want: dict[Key, FetchRequestFetchPartition] = {(IDS[0], 0): asked(0, 5)}
    assert leader.wanted(session, want)
    session.restart()
    assert leader.wanted(session, want) == {(IDS[0], 0): 5}
    assert leader.sent == 1
    assert len(leader.cache) == 1


def test_a_leader_without_room_gets_all_partitions_each_time() -> None:
    leader, session = Leader(slots=0), FetchSessionHandler()
    want: dict[Key, FetchRequestFetchPartition] = {(IDS[0], 0): asked(0, 5)}
    for _ in range(3):
        assert leader.wanted(session, want) == {(IDS[0], 0): 5}
        assert leader.sent == 1


def test_an_error_of_another_kind_keeps_the_id_to_close_it() -> None:
    leader, session = Leader(), FetchSessionHandler()
    want: dict[Key, FetchRequestFetchPartition] = {(IDS[0], 0): asked(0, 5)}
    assert leader.wanted(session, want)
    session.fill(FetchRequest(), want)
    assert not session.on_response(FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH))
    request = FetchRequest()
    session.fill(request, want)
    assert request.session_epoch == 0
    assert request.session_id != 0


def test_of_very_many_partitions_a_request_names_some_and_the_next_ones_the_others() -> None:
    leader, session = Leader(), FetchSessionHandler()
    ids = [Uuid(number.to_bytes(16, "big")) for number in range(1, 2 * MAX_PARTITIONS_FETCHED + 3)]
    want: dict[Key, FetchRequestFetchPartition] = {(topic_id, 0): asked(0, 5) for topic_id in ids}
    for held in (MAX_PARTITIONS_FETCHED, 2 * MAX_PARTITIONS_FETCHED, len(ids)):
        found = leader.wanted(session, dict(want))
        assert found is not None
        assert leader.sent <= MAX_PARTITIONS_FETCHED
        assert len(found) == held
    assert leader.wanted(session, dict(want)) == dict.fromkeys(want, 5)
    assert leader.sent == 0


def test_without_sessions_all_of_very_many_partitions_have_their_turn() -> None:
    leader, session = Leader(slots=0), FetchSessionHandler()
    want: dict[Key, FetchRequestFetchPartition] = {
        (IDS[0], index): asked(index, 5) for index in range(MAX_PARTITIONS_FETCHED + 7)
    }
    found: set[Key] = set()
    for _ in range(2):
        found |= (leader.wanted(session, dict(want)) or {}).keys()
        assert leader.sent == MAX_PARTITIONS_FETCHED
    assert found == want.keys()
