"""Which topics a group's consumers subscribe to, out of their opaque metadata.

The coordinator reads the consumer protocol for one purpose: offsets of a topic that is subscribed to do not expire.
Every version of the subscription starts as version 0 does, so only that prefix is read, whatever the version and the
user data behind it. Where metadata cannot be read the topics are unknown; the group goes on, since a client may use any
metadata under any protocol name.
"""

from __future__ import annotations

from collections.abc import Iterable

_MAX_TOPICS = 1_000_000


def subscribed_topics_of(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """The union of the topics in these subscriptions; None where one of them cannot be read."""
    topics: set[str] = set()
    for subscription in metadata:
        names = _topics_in(subscription)
        if names is None:
            return None
        topics.update(names)
    return frozenset(topics)


def _topics_in(subscription: bytes) -> list[str] | None:
    """Layout: int16 version, int32 count, then as many int16-length strings; what follows is not read."""
    if len(subscription) < 6 or subscription[0] & 0x80:
        return None
    count = int.from_bytes(subscription[2:6], "big", signed=True)
    if not 0 <= count <= min(_MAX_TOPICS, (len(subscription) - 6) // 2):
        return None
    names: list[str] = []
    at = 6
    for _ in range(count):
        length = int.from_bytes(subscription[at : at + 2], "big", signed=True)
        at += 2
        if length < 0 or at + length > len(subscription):
            return None
        try:
            names.append(subscription[at : at + length].decode("utf-8"))
        except UnicodeDecodeError:
            return None
        at += length
    return names
