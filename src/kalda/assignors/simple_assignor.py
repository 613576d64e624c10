"""The assignor `simple` of share groups (KIP-932): partitions have several members where there are more members than
partitions.

Each partition is to have as many members as it takes for none to be idle, each member its part of these places.
Balance comes first, then members keep what they have. Where all members subscribe to the same topics, all partitions
are shared out together; elsewhere each topic is, among its own subscribers.

The result is that of Apache Kafka 4.3 where Kafka does not leave it to the order of its hash tables, but for two cases
that are faults there: a partition that no member with room could take in passing is left to itself no longer, and a
topic to which no one subscribes any more is given up also where subscriptions differ.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from kalda.assignors.server_assignor import GroupSpec, MemberPartitions, TargetAssignment
from kalda.base.background import Steps
from kalda.base.ids import Uuid

_Place: TypeAlias = tuple[Uuid, int]


class SimpleAssignor:
    """See the module."""

    name = "simple"

    def assign(
        self, spec: GroupSpec, assignable: Mapping[Uuid, Collection[int]] | None = None
    ) -> Steps[TargetAssignment]:
        """The target of each member; what does not change is the mapping that `spec.current` has.

        `assignable` has the partitions whose share state is initialized, by topic; None where all are.
        """
        members = sorted(spec.members)
        pools: dict[Uuid, list[_Place]] = {
            topic_id: [
                (topic_id, index)
                for index in range(shape.partitions)
                if assignable is None or index in assignable.get(topic_id, ())
            ]
            for topic_id, shape in sorted(spec.topics.items())
        }
        held: dict[str, list[_Place]] = {
            member_id: [
                (key, n) for key, indexes in sorted(spec.current.get(member_id, {}).items()) for n in sorted(indexes)
            ]
            for member_id in members
        }
        found: dict[str, list[_Place]] = defaultdict(list)
        if len({member.topics for member in spec.members.values()}) == 1:
            everything = [place for pool in pools.values() for place in pool]
            yield from _share_out(everything, members, held, found)
        else:
            for topic_id, pool in pools.items():
                subscribers = [each for each in members if topic_id in spec.members[each].topics]
                of_topic = {each: [place for place in held[each] if place[0] == topic_id] for each in subscribers}
                yield from _share_out(pool, subscribers, of_topic, found)
        target: TargetAssignment = {}
        for member_id in members:
            by_topic: dict[Uuid, set[int]] = defaultdict(set)
            for topic_id, index in found[member_id]:
                by_topic[topic_id].add(index)
            made: MemberPartitions = {topic_id: frozenset(indexes) for topic_id, indexes in by_topic.items()}
            current = spec.current.get(member_id)
            target[member_id] = current if current is not None and current == made else made
            yield
        return target


def _share_out(
    pool: Sequence[_Place],
    members: Sequence[str],
    held: Mapping[str, Sequence[_Place]],
    found: dict[str, list[_Place]],
) -> Steps[None]:
    """Share out the partitions of `pool` among `members`, who keep of what is held what they can."""
    if not pool or not members:
        return
    sharing = -(-len(members) // len(pool))
    places = sharing * len(pool)
    wanted = [
        -(-places * (index + 1) // len(members)) + (-places * index // len(members)) for index in range(len(members))
    ]
    sharers: dict[_Place, list[int]] = {place: [] for place in pool}
    counts = [0] * len(members)
    for member, member_id in enumerate(members):
        kept = [place for place in held[member_id] if place in sharers]
        for place in kept[max(0, len(kept) - wanted[member]) :]:
            sharers[place].append(member)
            counts[member] += 1
        yield
    for shared in sharers.values():
        for member in shared[: max(0, len(shared) - sharing)]:
            counts[member] -= 1
        del shared[: max(0, len(shared) - sharing)]
    room = [member for member, count in enumerate(counts) if count < wanted[member]]
    position = 0
    for shared in sharers.values():
        passed = 0
        while len(shared) < sharing and room and passed < len(room):
            position %= len(room)
            member = room[position]
            if member in shared:
                passed += 1
                position += 1
                continue
            passed = 0
            shared.append(member)
            counts[member] += 1
            if counts[member] >= wanted[member]:
                del room[position]
            else:
                position += 1
        yield
    for place, shared in sharers.items():
        for member in shared:
            found[members[member]].append(place)
