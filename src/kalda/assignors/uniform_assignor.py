"""The assignor `uniform` of consumer groups (KIP-848): balanced first, then sticky.

Where all members subscribe to the same topics, each keeps what it has up to its quota, and the rest goes to those below
theirs; two members differ by one partition at most. Where subscriptions differ, partitions without an owner go to the
least loaded subscriber, topic by topic, and then partitions move from the most to the least loaded subscribers of each
topic until nothing improves, or for sixteen rounds.

The rules, and with them the result, are those of Apache Kafka 4.3, which leaves open in which order it takes members
and topics: they are taken by ascending id here, so that one specification has one result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from kalda.assignors.server_assignor import GroupSpec, MemberPartitions, TargetAssignment
from kalda.base.background import Steps
from kalda.base.ids import Uuid

_MAX_ROUNDS = 16
"""Of balancing. Overlapping subscriptions may need many; each about halves what is out of balance."""


class UniformAssignor:
    """See the module."""

    name = "uniform"

    def assign(self, spec: GroupSpec) -> Steps[TargetAssignment]:
        """The target of each member; what does not change is the mapping that `spec.current` has."""
        members = sorted(spec.members)
        if not members:
            return {}
        first = spec.members[members[0]].topics
        if all(member.topics == first for member in spec.members.values()):
            return (yield from _level(spec, members, first))
        return (yield from _Balance(spec, members).steps())


class _Share:
    """What one member is to have: the mapping that it has, copied when it first changes."""

    __slots__ = ("_copy", "_shared")

    def __init__(self, shared: MemberPartitions) -> None:
        self._shared = shared
        self._copy: dict[Uuid, set[int]] | None = None

    def _own(self) -> dict[Uuid, set[int]]:
        if self._copy is None:
            self._copy = {topic_id: set(partitions) for topic_id, partitions in self._shared.items()}
        return self._copy

    def add(self, topic_id: Uuid, partition: int) -> None:
        self._own().setdefault(topic_id, set()).add(partition)

    def remove(self, topic_id: Uuid, partitions: Iterable[int]) -> None:
        self._own()[topic_id].difference_update(partitions)

    def made(self) -> MemberPartitions:
        if self._copy is None:
            return self._shared
        return {topic_id: frozenset(partitions) for topic_id, partitions in self._copy.items() if partitions}


def _level(spec: GroupSpec, members: Sequence[str], topic_ids: frozenset[Uuid]) -> Steps[TargetAssignment]:
    """All members subscribe to the same topics."""
    sizes = {topic_id: spec.topics[topic_id].partitions for topic_id in sorted(topic_ids)}
    owned: dict[Uuid, set[int]] = defaultdict(set)
    for member_id in members:
        for topic_id, partitions in spec.current.get(member_id, {}).items():
            owned[topic_id] |= partitions
        yield
    free = [
        (topic_id, index) for topic_id, size in sizes.items() for index in range(size) if index not in owned[topic_id]
    ]
    quota, larger = divmod(sum(sizes.values()), len(members))
    shares: dict[str, _Share] = {}
    room: list[tuple[str, int]] = []
    for left, member_id in zip(range(len(members), 0, -1), members, strict=True):
        has = spec.current.get(member_id, {})
        share = shares[member_id] = _Share(has)
        may_be_larger = larger > 0
        rest = quota + may_be_larger
        for topic_id in sorted(has):
            kept = sorted(each for each in has[topic_id] if each < sizes[topic_id])[:rest] if topic_id in sizes else []
            rest -= len(kept)
            if len(kept) < len(has[topic_id]):
                gone = has[topic_id].difference(kept)
                share.remove(topic_id, gone)
                free += [(topic_id, index) for index in sorted(gone) if index < sizes.get(topic_id, 0)]
        if rest and may_be_larger and left > larger:  # another member may have it, as enough of them follow
            rest -= 1
            may_be_larger = False
        larger -= may_be_larger
        if rest:
            room.append((member_id, rest))
        yield
    position = 0
    for member_id, rest in room:
        for topic_id, index in free[position : position + rest]:
            shares[member_id].add(topic_id, index)
        position += rest
        yield
    return {member_id: share.made() for member_id, share in shares.items()}


class _Balance:
    """The assignment of members whose subscriptions differ. A member is its index in the order of ids."""

    def __init__(self, spec: GroupSpec, members: Sequence[str]) -> None:
        self._spec = spec
        self._members = members
        self._shares = [_Share(spec.current.get(member_id, {})) for member_id in members]
        self._loads = [0] * len(members)
        self._subscribers: dict[Uuid, list[int]] = defaultdict(list)
        for member, member_id in enumerate(members):
            for topic_id in spec.members[member_id].topics:
                self._subscribers[topic_id].append(member)
        self._owners = {topic_id: [-1] * spec.topics[topic_id].partitions for topic_id in self._subscribers}

    def _crowded_last(self, topic_ids: Iterable[Uuid]) -> list[Uuid]:
        """Topics in the order in which they are assigned: most partitions a subscriber first."""

        def key(topic_id: Uuid) -> tuple[float, int, Uuid]:
            count = len(self._subscribers[topic_id])
            return (-self._spec.topics[topic_id].partitions / count, count, topic_id)

        return sorted(topic_ids, key=key)

    def steps(self) -> Steps[TargetAssignment]:
        yield from self._keep()
        loads = _Loads(self._loads)
        for topic_id in self._crowded_last(self._subscribers):
            free = [index for index, owner in enumerate(self._owners[topic_id]) if owner < 0]
            if free:
                loads.start(self._subscribers[topic_id])
            for index in free:
                self._give(topic_id, index, loads.next_least())
            yield
        yield from self._balance(loads)
        return {member_id: share.made() for member_id, share in zip(self._members, self._shares, strict=True)}

    def _keep(self) -> Steps[None]:
        """Each member keeps what it has of the topics that it subscribes to."""
        for member, member_id in enumerate(self._members):
            topics = self._spec.members[member_id].topics
            for topic_id, partitions in self._spec.current.get(member_id, {}).items():
                if topic_id not in topics:
                    self._shares[member].remove(topic_id, partitions)
                    continue
                owners = self._owners[topic_id]
                kept = {index for index in partitions if index < len(owners)}
                if len(kept) < len(partitions):
                    self._shares[member].remove(topic_id, partitions - kept)
                self._loads[member] += len(kept)
                for index in kept:
                    owners[index] = member
            yield

    def _give(self, topic_id: Uuid, index: int, member: int) -> None:
        owner = self._owners[topic_id][index]
        if owner >= 0:
            self._shares[owner].remove(topic_id, (index,))
            self._loads[owner] -= 1
        self._owners[topic_id][index] = member
        self._shares[member].add(topic_id, index)
        self._loads[member] += 1

    def _balance(self, loads: _Loads) -> Steps[None]:
        """Round after round over the topics, until a whole round changes nothing."""
        topics = self._crowded_last(each for each, members in self._subscribers.items() if len(members) > 1)
        changed_last = -1
        for _ in range(_MAX_ROUNDS):
            for position, topic_id in enumerate(topics):
                if position == changed_last:
                    return
                moved = self._balance_topic(topic_id, loads)
                if moved or changed_last < 0:
                    changed_last = position
                yield

    def _balance_topic(self, topic_id: Uuid, loads: _Loads) -> bool:
        """Move partitions of a topic from its most to its least loaded subscribers; True where one has moved."""
        if loads.start(self._subscribers[topic_id]) <= 1:
            return False
        held: dict[int, list[int]] = defaultdict(list)
        for index, owner in enumerate(self._owners[topic_id]):
            held[owner].append(index)
        moved = False
        while True:
            most = loads.next_most()
            while most is not None and not held[most]:
                loads.exclude_most()
                most = loads.next_most()
            if most is None:
                return moved
            index = held[most].pop()
            least = loads.next_least()
            if loads.is_level:
                return moved
            self._give(topic_id, index, least)
            moved = True


class _Loads:
    """Subscribers of one topic by load: who is next to be given a partition, and who to give one up.

    Two ranges of the sorted members are kept, within each of which all began with the same load. The range of the least
    loaded grows to the right: once each of it has been given a partition, its level rises by one, and members that have
    as many join. The range of the most loaded grows to the left in the same way, and loses at its right end those that
    have nothing to give up.
    """

    def __init__(self, loads: list[int]) -> None:
        self._loads = loads
        self._sorted: list[int] = []
        self._least_end = self._least_next = self._least_level = 0
        self._most_start = self._most_end = self._most_next = self._most_level = 0

    def start(self, members: Sequence[int]) -> int:
        """Begin with these members; the difference between the largest and the smallest load is returned."""
        self._sorted = sorted(members, key=lambda member: (self._loads[member], member))
        smallest, largest = self._loads[self._sorted[0]], self._loads[self._sorted[-1]]
        self._least_end, self._least_next, self._least_level = 0, 0, smallest - 1
        self._most_start = self._most_end = len(self._sorted)
        self._most_next, self._most_level = len(self._sorted) - 1, largest + 1
        return largest - smallest

    @property
    def is_level(self) -> bool:
        """Whether another move would improve nothing."""
        return self._most_level - self._least_level <= 1

    def next_least(self) -> int:
        """The member that is given a partition next."""
        if self._least_next >= self._least_end:
            self._least_level += 1
            while self._least_end < len(self._sorted) and self._load_at(self._least_end) == self._least_level:
                self._least_end += 1
            self._least_next = 0
        self._least_next += 1
        return self._sorted[self._least_next - 1]

    def next_most(self) -> int | None:
        """The member that gives up a partition next; None where no one can."""
        if self._most_next < self._most_start:
            if self._most_end <= self._most_start and self._most_start > 0:
                self._most_level = self._load_at(self._most_start - 1)  # all of the range were excluded
            else:
                self._most_level -= 1
            while self._most_start > 0 and self._load_at(self._most_start - 1) == self._most_level:
                self._most_start -= 1
            self._most_next = self._most_end - 1
        if self._most_next < 0:
            return None
        self._most_next -= 1
        return self._sorted[self._most_next + 1]

    def exclude_most(self) -> None:
        """The member that `next_most` named has nothing to give up."""
        last, excluded = self._most_end - 1, self._most_next + 1
        self._sorted[last], self._sorted[excluded] = self._sorted[excluded], self._sorted[last]
        self._most_end = last

    def _load_at(self, position: int) -> int:
        return self._loads[self._sorted[position]]
