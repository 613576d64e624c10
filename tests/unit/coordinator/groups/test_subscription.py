"""Only the prefix that all versions of a subscription share is read, and nothing in it is trusted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kalda.coordinator.groups.classic_group import subscribed_topics_of
from kalda.protocol.codec import encode
from kalda.protocol.messages.client_protocol import ConsumerProtocolSubscription


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_every_version_is_read(version: int) -> None:
    body = ConsumerProtocolSubscription(topics=["orders", "κάλντα"], user_data=b"\xff")
    metadata = version.to_bytes(2, "big") + encode(body, version)
    assert subscribed_topics_of([metadata]) == {"orders", "κάλντα"}


def test_a_version_from_the_future_is_read_too() -> None:
    metadata = b"\x00\x09" + b"\x00\x00\x00\x01" + b"\x00\x01t" + b"whatever follows"
    assert subscribed_topics_of([metadata]) == {"t"}


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        b"\x00\x01",
        b"\x00\x00\x7f\xff\xff\xff",
        b"\x00\x00\xff\xff\xff\xff",
        b"\xff\xff\x00\x00\x00\x00",
        b"\x00\x00\x00\x00\x00\x01\x00\x05ab",
        b"\x00\x00\x00\x00\x00\x01\xff\xffab",
        b"\x00\x00\x00\x00\x00\x01\x00\x02\xff\xfe",
    ],
)
def test_what_cannot_be_read_makes_the_topics_unknown(metadata: bytes) -> None:
    good = b"\x00\x00\x00\x00\x00\x01\x00\x01t"
    assert subscribed_topics_of([good, metadata]) is None


@given(st.binary(max_size=80))
def test_no_bytes_raise(metadata: bytes) -> None:
    subscribed_topics_of([metadata])
