"""How many elements a message has, and which of many things one request names."""

from __future__ import annotations

from kalda.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from kalda.protocol.messages.partitions import OffsetForLeaderPartition, OffsetForLeaderTopic
from kalda.protocol.naming import elements_of, turn_of, within_one_request


def test_elements_of_all_lists_count() -> None:
    assert elements_of(MetadataRequest(topics=None)) == 0
    assert elements_of(MetadataRequest(topics=[MetadataRequestTopic(name="a"), MetadataRequestTopic(name="b")])) == 2
    partitions = [OffsetForLeaderPartition(partition=index) for index in range(3)]
    assert elements_of([OffsetForLeaderTopic(topic="t", partitions=partitions)]) == 4


def test_a_session_grows_by_what_one_request_can_name() -> None:
    wanted = dict.fromkeys(range(10), 0)
    held = within_one_request(wanted, {}, int.__ne__, 4)
    assert held == dict.fromkeys(range(4), 0)
    held = within_one_request(wanted, held, int.__ne__, 4)
    assert held == dict.fromkeys(range(8), 0)
    assert within_one_request(wanted, held, int.__ne__, 4) == wanted


def test_what_changed_or_goes_is_named_first() -> None:
    held = dict.fromkeys(range(6), 0)
    wanted = {0: 1, 1: 0, 2: 0, 3: 0, 4: 0, 10: 0, 11: 0, 12: 0}  # 5 goes, 0 has changed
    assert within_one_request(wanted, held, int.__ne__, 4) == {0: 1, 1: 0, 2: 0, 3: 0, 4: 0, 10: 0, 11: 0}


def test_more_changes_than_one_request_can_name_need_a_new_session() -> None:
    held = dict.fromkeys(range(6), 0)
    assert within_one_request(dict.fromkeys(range(6), 1), held, int.__ne__, 4) is None


def test_all_have_their_turn() -> None:
    wanted = dict.fromkeys(range(5), "")
    assert list(turn_of(wanted, 0, 2)) == [0, 1]
    assert list(turn_of(wanted, 4, 2)) == [4, 0]
    assert turn_of(wanted, 3, 5) is wanted
