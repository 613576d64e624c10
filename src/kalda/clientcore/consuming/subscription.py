"""Which partitions a consumer reads, and where it is in each.

A consumer subscribes to topics (by name, or by a pattern) and the group assigns partitions, or the application assigns
them itself; never both. Each partition has a `PartitionState`:

    UNPOSITIONED   its offset is not known: the committed one is fetched, else it is reset
    RESETTING      the offset of `reset` is being looked up at the leader
    VALIDATING     the leader is asked whether it has the record before the offset in the same epoch (KIP-320)
    FETCHING       records are fetched

Invariants: offset <= fetch_offset, and all records from `offset` up to `fetch_offset` are in chunks of this partition
that have its `seeks`. A seek changes `seeks`, which makes the chunks and the responses in flight stale.

Not obvious:

- `PartitionState.redirect_at_ms` survives seeks, `retry_at_ms` does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from kalda.base.ids import TopicPartition
from kalda.protocol.messages.partitions import OffsetSpec


class SubscriptionKind(Enum):
    """How partitions come to the consumer."""

    NONE = "none"
    TOPICS = "topics"
    PATTERN = "pattern"
    ASSIGNED = "assigned"


class Status(Enum):
    """What a partition waits for."""

    UNPOSITIONED = "unpositioned"
    RESETTING = "resetting"
    VALIDATING = "validating"
    FETCHING = "fetching"


class Reset(NamedTuple):
    """A reset policy: an `OffsetSpec`, or with `duration_ms` the first record of the last so many milliseconds."""

    spec: int
    duration_ms: int | None = None

    def timestamp(self, wall_ms: int) -> int:
        """For a ListOffsets request, at the wall clock's time."""
        return self.spec if self.duration_ms is None else max(0, wall_ms - self.duration_ms)


EARLIEST = Reset(OffsetSpec.EARLIEST)
LATEST = Reset(OffsetSpec.LATEST)


class OffsetAndEpoch(NamedTuple):
    """An offset, the leader epoch of the record before it (-1: unknown), and text that is committed with it."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class PartitionState:
    """One assigned partition."""

    __slots__ = (
        "asked_epoch", "buffered_bytes", "epoch", "fetch_epoch", "fetch_offset", "former_since_ms", "high_watermark",
        "is_new", "is_paused", "is_revoking", "last_stable_offset", "log_start_offset", "offset", "partition",
        "redirect_at_ms", "redirects", "replica", "replica_until_ms", "reset", "retry_at_ms", "seeks", "status",
        "until", "validated_epoch",
    )  # fmt: skip

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.status = Status.UNPOSITIONED
        self.offset = -1
        """Of the next record that the application receives; -1: unknown."""
        self.epoch = -1
        """The leader epoch of the record before `offset`; -1: unknown."""
        self.fetch_offset = -1
        """The offset of the next Fetch."""
        self.fetch_epoch = -1
        self.validated_epoch = -1
        """The leader's epoch when the position was validated last."""
        self.asked_epoch = -1
        """The epoch of the leader that was requested last to validate the position."""
        self.former_since_ms: int | None = None
        """When the first leader answered whose epoch is before the position's; None: none did."""
        self.reset: Reset | None = None
        """What is looked up while RESETTING."""
        self.retry_at_ms = 0
        """No request about this partition is sent before."""
        self.redirects = 0
        """Fetches in a row that were redirected to another node."""
        self.redirect_at_ms = 0
        """No Fetch is sent before. A seek does not change it."""
        self.is_paused = False
        self.is_new = False
        """It was assigned in a rebalance whose listener has not returned yet: nothing is fetched."""
        self.is_revoking = False
        """It will be revoked: no record of it is returned any more."""
        self.seeks = 0
        self.buffered_bytes = 0
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1
        self.replica = -1
        """The replica that the leader has named for reads (KIP-392); -1: the leader."""
        self.replica_until_ms = 0
        self.until: int | None = None
        """No Fetch is sent for records from this offset on; None: without an end."""

    @property
    def is_fetchable(self) -> bool:
        """Whether its records are fetched, as far as the buffers have room."""
        return self.status is Status.FETCHING and not (self.is_paused or self.is_new or self.is_revoking)

    @property
    def can_return(self) -> bool:
        """Whether its buffered records may be returned."""
        return self.is_fetchable

    def seek(self, position: OffsetAndEpoch) -> None:
        """Continue at an offset. With an epoch it is validated first."""
        self.drop_buffered()
        self.offset = self.fetch_offset = position.offset
        self.epoch = self.fetch_epoch = position.leader_epoch
        self.reset = None
        self.validated_epoch = -1
        self.status = Status.VALIDATING if position.leader_epoch >= 0 else Status.FETCHING

    def request_reset(self, reset: Reset) -> None:
        """Continue where `reset` says, once that was looked up."""
        self.drop_buffered()
        self.reset = reset
        self.status = Status.RESETTING
        self.retry_at_ms = 0

    def validate(self) -> None:
        """The leader has changed: check that it has the record before the position."""
        if self.status is Status.FETCHING and self.fetch_epoch >= 0:
            self.drop_buffered()
            self.fetch_offset, self.fetch_epoch = self.offset, self.epoch
            self.status = Status.VALIDATING if self.epoch >= 0 else Status.FETCHING

    def drop_buffered(self) -> None:
        """What is buffered, and what the Fetch in flight returns, is not used."""
        self.seeks += 1
        self.buffered_bytes = 0
        self.replica = -1
        self.former_since_ms = None
        self.retry_at_ms = 0


class Subscription:
    """What the consumer reads."""

    def __init__(self) -> None:
        self.kind = SubscriptionKind.NONE
        self.topics: frozenset[str] = frozenset()
        """Those subscribed to; with a pattern, those that match it."""
        self.pattern: re.Pattern[str] | None = None
        self.server_pattern: str | None = None
        """A regular expression that the coordinator evaluates (KIP-848)."""
        self.partitions: dict[TopicPartition, PartitionState] = {}
        self.version = 0
        """Increases with each change of what is subscribed to."""

    @property
    def is_by_group(self) -> bool:
        """Whether a group assigns the partitions."""
        return self.kind in (SubscriptionKind.TOPICS, SubscriptionKind.PATTERN)

    def subscribe(self, topics: Iterable[str]) -> None:
        """Topics by name. Raises `ValueError` where partitions were assigned, or topics subscribed by pattern."""
        self._change(SubscriptionKind.TOPICS)
        self.topics = frozenset(topics)
        self.version += 1

    def subscribe_pattern(self, pattern: re.Pattern[str]) -> None:
        """Topics whose whole name matches, of those that `match` is called with."""
        self._change(SubscriptionKind.PATTERN)
        self.pattern, self.server_pattern = pattern, None
        self.topics = frozenset()
        self.version += 1

    def subscribe_server_pattern(self, pattern: str) -> None:
        """Topics that the coordinator finds to match."""
        self._change(SubscriptionKind.PATTERN)
        self.pattern, self.server_pattern = None, pattern
        self.topics = frozenset()
        self.version += 1

    def match(self, topics: Iterable[str]) -> bool:
        """Of all topics of the cluster, subscribe to those that match the pattern. True where that is a change."""
        assert self.pattern is not None
        found = frozenset(topic for topic in topics if self.pattern.fullmatch(topic))
        if found == self.topics:
            return False
        self.topics = found
        self.version += 1
        return True

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Partitions that the application chose. Those that were assigned before keep their position."""
        self._change(SubscriptionKind.ASSIGNED)
        self.set_partitions(partitions)
        self.version += 1

    def set_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """What is assigned from now on."""
        known = self.partitions
        self.partitions = {each: known.get(each) or PartitionState(each) for each in partitions}
        for partition, state in known.items():
            if partition not in self.partitions:
                state.drop_buffered()

    def unsubscribe(self) -> None:
        """Nothing is read any more."""
        self.set_partitions(())
        self.kind = SubscriptionKind.NONE
        self.topics = frozenset()
        self.pattern = self.server_pattern = None
        self.version += 1

    def state(self, partition: TopicPartition) -> PartitionState:
        """Raises `ValueError` where the partition is not assigned to this consumer."""
        found = self.partitions.get(partition)
        if found is None:
            raise ValueError(f"partition {partition} is not assigned to this consumer")
        return found

    def positions(self) -> dict[TopicPartition, OffsetAndEpoch]:
        """The next offset of each partition that has one."""
        return {
            partition: OffsetAndEpoch(state.offset, state.epoch)
            for partition, state in self.partitions.items()
            if state.offset >= 0
        }

    def _change(self, kind: SubscriptionKind) -> None:
        if self.kind not in (SubscriptionKind.NONE, kind):
            raise ValueError(
                f"the consumer already reads by {self.kind.value}: subscribing to topics, to a pattern and assigning "
                f"partitions exclude each other; call unsubscribe first"
            )
        self.kind = kind
