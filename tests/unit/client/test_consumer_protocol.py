"""Subscriptions and assignments of classic groups: round trips, and bytes that are neither."""

from __future__ import annotations

import pytest

from kalda.assignors.consumer_protocol import (
    read_assignment,
    read_member_subscription,
    write_assignment,
    write_subscription,
)
from kalda.base.ids import TopicPartition

PARTITIONS = (TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 1))


def test_round_trip() -> None:
    assert read_member_subscription(write_subscription(["a", "b"], b"extra")).topics == ("a", "b")
    assert read_assignment(write_assignment(PARTITIONS)) == PARTITIONS


def test_the_bytes_are_kafkas() -> None:
    assert write_subscription(["a"]).hex() == "000100000001000161ffffffff00000000"
    assert write_assignment(PARTITIONS[:1]).hex() == "0001000000010001610000000100000000ffffffff"


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\1", b"\0\1\xff\xff\xff\xff", b"\0\1\x7f\xff\xff\xff", b"nonsense"])
def test_other_bytes_are_read_as_empty(data: bytes) -> None:
    assert read_member_subscription(data).topics == ()
    assert read_assignment(data) == ()


def test_a_newer_version_is_decoded_as_version_3() -> None:
    of_version_0 = write_assignment(PARTITIONS)[2:]
    assert read_assignment(b"\0\7" + of_version_0) == PARTITIONS
