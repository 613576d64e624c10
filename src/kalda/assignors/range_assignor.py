"""The assignor `range` of consumer groups (KIP-848): of each topic, neighbouring partitions to neighbouring members.

Members are taken by instance id, static ones first, then by member id. Topics with as many partitions and the same
subscribers are assigned alike, which is what joins of such topics need. Nothing is sticky but for that order.
"""

from __future__ import annotations

from kalda.assignors.server_assignor import GroupSpec, MemberPartitions, TargetAssignment
from kalda.base.background import Steps
from kalda.base.ids import Uuid


class RangeAssignor:
    """See the module."""

    name = "range"

    def assign(self, spec: GroupSpec) -> Steps[TargetAssignment]:
        """The target of each member; what does not change is the mapping that `spec.current` has."""

        def place(member_id: str) -> tuple[bool, str]:
            instance_id = spec.members[member_id].instance_id
            return (instance_id is None, member_id if instance_id is None else instance_id)

        subscribers: dict[Uuid, int] = {}
        for member in spec.members.values():
            for topic_id in member.topics:
                subscribers[topic_id] = subscribers.get(topic_id, 0) + 1
            yield
        quotas = {topic_id: divmod(spec.topics[topic_id].partitions, count) for topic_id, count in subscribers.items()}
        taken = dict.fromkeys(quotas, 0)
        """Subscribers of each topic that have had theirs."""
        target: TargetAssignment = {}
        for member_id in sorted(spec.members, key=place):
            made: MemberPartitions = {
                topic_id: partitions
                for topic_id in spec.members[member_id].topics
                if (partitions := _range(quotas[topic_id], taken[topic_id]))
            }
            for topic_id in spec.members[member_id].topics:
                taken[topic_id] += 1
            current = spec.current.get(member_id)
            target[member_id] = current if current is not None and current == made else made
            yield
        return target


def _range(quota: tuple[int, int], place: int) -> frozenset[int]:
    """Of the subscriber at `place`: `quota` partitions each, and one more for the first few."""
    least, larger = quota
    start = place * least + min(place, larger)
    return frozenset(range(start, start + least + (place < larger)))
