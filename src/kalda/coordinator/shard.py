"""What is common to every coordinator's state: the shard, one for each partition of the internal topic.

A shard holds replayed state. Records of its partition are decoded and replayed in the order of the log, both when the
partition is loaded and when this node has just appended them; nothing else changes what is replayed. What a shard
keeps besides (sessions, requests that wait, timers) it rebuilds in `on_loaded` and ends in `on_unloaded`.

Not obvious:

- `replay` calls nothing out: a response that a record makes due is sent by a timer without delay.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar

from kalda.base.ids import Uuid

Rec = TypeVar("Rec")


class Shard(Protocol[Rec]):
    """The state of one partition, of whichever kind of coordinator."""

    def encode(self, record: Rec) -> tuple[bytes, bytes | None]:
        """Key and value as they are appended; no value is a tombstone."""
        ...

    def decode(self, key: bytes, value: bytes | None) -> Rec:
        """The record that these bytes hold. Raises `UnknownRecordType` for a type or version of a later release, and
        `InvalidRequest` where the bytes are malformed; while a partition is loaded, either is skipped."""
        ...

    def replay(self, record: Rec, offset: int, producer_id: int) -> None:
        """Apply one record of the log. `producer_id` is that of the transaction it belongs to, -1 outside of one.

        Called in the middle of a write: it must not call out. An answer that the record makes due is given later, by
        a timer.
        """
        ...

    def on_transaction_end(self, producer_id: int, *, committed: bool) -> None:
        """Apply the marker that ends the producer's transaction in this partition."""
        ...

    def on_loaded(self) -> None:
        """Every record has been replayed, and requests come from now on. Called once, before any request."""
        ...

    def on_unloaded(self) -> None:
        """This node no longer leads the partition: disarm the timers, and answer with NOT_COORDINATOR what waits for
        anything but a write. Called once, after `on_loaded`. The runtime fails the writes that wait."""
        ...

    def on_topics_deleted(self, topics: Mapping[str, Uuid]) -> None:
        """Topics of the cluster were deleted, by name and id."""
        ...
