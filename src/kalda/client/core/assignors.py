"""Which member of a group gets which partitions. In a classic group the leader computes this for all members."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kalda.base.ids import TopicPartition


class Subscriber(NamedTuple):
    """A member of the group and its subscription: the input of an assignor."""

    member_id: str
    topics: tuple[str, ...]
    instance_id: str | None = None

    @property
    def order(self) -> tuple[int, str]:
        """Static members come first, sorted by instance id, so that a restart changes no assignment."""
        return (1, self.member_id) if self.instance_id is None else (0, self.instance_id)


def assign_range(subscribers: list[Subscriber], partition_counts: Mapping[str, int]) -> dict[str, list[TopicPartition]]:
    """The range assignor: every subscriber of a topic gets one consecutive range of its partitions.

    Where the count does not divide evenly, the first subscribers get one partition more. In topics with the same
    partition count and the same subscribers, equal partition numbers go to the same member, so that it can join them.
    Unknown topics, and topics without partitions, are left out. Racks of replicas are ignored (KIP-881 is not done).
    """
    assigned: dict[str, list[TopicPartition]] = {subscriber.member_id: [] for subscriber in subscribers}
    in_order = sorted(subscribers, key=lambda subscriber: subscriber.order)
    for topic in sorted({topic for subscriber in subscribers for topic in subscriber.topics}):
        members = [subscriber.member_id for subscriber in in_order if topic in subscriber.topics]
        share, remainder = divmod(partition_counts.get(topic, 0), len(members))
        start = 0
        for index, member_id in enumerate(members):
            end = start + share + (index < remainder)
            assigned[member_id] += [TopicPartition(topic, partition) for partition in range(start, end)]
            start = end
    return assigned
