"""Which member of a group gets which partitions: decided by the group's leader, on its members' behalf."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kalda.base.ids import TopicPartition


class Subscriber(NamedTuple):
    """A member, as the assignor sees it."""

    member_id: str
    topics: tuple[str, ...]
    instance_id: str | None = None

    @property
    def order(self) -> tuple[int, str]:
        """Static members come first, by instance, so that a restart changes nothing."""
        return (1, self.member_id) if self.instance_id is None else (0, self.instance_id)


def assign_range(subscribers: list[Subscriber], partition_counts: Mapping[str, int]) -> dict[str, list[TopicPartition]]:
    """The range assignor: of each topic, every member gets one run of partitions; the first ones get one more.

    Partition 0 of topics with equally many partitions goes to the same member, so that they can be joined. Topics
    without partitions (unknown ones) are left out. Replicas' racks are not looked at (KIP-881).
    """
    assigned: dict[str, list[TopicPartition]] = {subscriber.member_id: [] for subscriber in subscribers}
    in_order = sorted(subscribers, key=lambda subscriber: subscriber.order)
    for topic in sorted({topic for subscriber in subscribers for topic in subscriber.topics}):
        members = [subscriber.member_id for subscriber in in_order if topic in subscriber.topics]
        each, more = divmod(partition_counts.get(topic, 0), len(members))
        first = 0
        for index, member_id in enumerate(members):
            last = first + each + (index < more)
            assigned[member_id] += [TopicPartition(topic, partition) for partition in range(first, last)]
            first = last
    return assigned
