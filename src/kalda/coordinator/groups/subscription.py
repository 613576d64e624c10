"""Which topics a group's consumers subscribe to, out of their opaque metadata.

The coordinator reads the consumer protocol for one purpose: offsets of a topic in use do not expire. Every version of
the subscription starts as version 0 does, so only that prefix is read, and metadata of a version from the future, or
with user data of any kind, is as good as any other. Metadata that cannot be read makes the topics unknown; it never
fails the group, since a client may name its protocol as it likes.
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
    """Layout: int16 version, int32 count, then as many int16-length strings; what follows is not looked at."""
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
