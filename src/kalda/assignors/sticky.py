"""The sticky assignors: as balanced as can be, and as many partitions as can be stay where they are.

Where all members subscribe to the same topics, quotas decide: every member gets the average, rounded down, and some
one more; owned partitions are kept within the quota, the others go round (`_Uniform`). Otherwise partitions are given
to the subscriber with the fewest, and then moved one by one while that makes the assignment more balanced (`_General`).

`cooperative-sticky` leaves out of an assignment what another member owns: its owner gives it up first, and it is
assigned in the rebalance that follows (KIP-429). `sticky` is eager, and its members send what they had in user data.

Ties are broken as Kafka breaks them, which includes the order of Java's hash tables (`java_order`).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from kalda.assignors.stateless import Assigned, Rebalance, Subscriber, uses_racks
from kalda.base.errors import InvalidRequest
from kalda.base.ids import TopicPartition
from kalda.base.java_order import java_order

_NO_GENERATION = -1


class _Owned(NamedTuple):
    """What a member had, and in which generation; None where it does not say."""

    partitions: tuple[TopicPartition, ...]
    generation: int | None


class _Racks:
    """Racks of members and partitions; empty where they make no difference."""

    def __init__(self, rebalance: Rebalance, partitions: Iterable[TopicPartition]) -> None:
        members = {s.member_id: s.rack for s in rebalance.subscribers if s.rack}
        found = {partition: frozenset(rebalance.topics.racks.get(partition, ())) for partition in partitions}
        is_used = bool(members) and uses_racks(set(members.values()), list(found.values()))
        self.of_member: dict[str, str] = members if is_used else {}
        self.of_partition: dict[TopicPartition, frozenset[str]] = found if is_used else {}
        sizes: dict[str, int] = {}
        for rack in members.values():
            sizes[rack] = sizes.get(rack, 0) + 1
        self._candidates = {
            partition: sum(sizes.get(rack, 0) for rack in racks) for partition, racks in found.items()
        } if members else {}  # fmt: skip
        """How many members are in a rack of the partition."""

    def mismatch(self, member_id: str, partition: TopicPartition) -> bool:
        rack = self.of_member.get(member_id)
        return rack is not None and rack not in self.of_partition.get(partition, ())

    def sorted(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Those that the fewest members have in their rack come first."""
        if not self._candidates:
            return partitions
        return sorted(partitions, key=lambda partition: self._candidates.get(partition, 0))

    def next_member(self, partition: TopicPartition, members: Sequence[str], first: int) -> int:
        """The index of the first of `members`, from `first` on and round, in a rack of the partition; -1: none."""
        racks = self.of_partition.get(partition)
        if racks:
            for step in range(len(members)):
                index = (first + step) % len(members)
                if self.of_member.get(members[index]) in racks:
                    return index
        return -1


class StickyAssignor:
    """`sticky`."""

    name = "sticky"
    is_cooperative = False

    def __init__(self) -> None:
        self._assignment: tuple[TopicPartition, ...] | None = None
        self._generation = _NO_GENERATION

    def user_data(self) -> bytes | None:
        """The last assignment, by topic."""
        if self._assignment is None:
            return None
        topics: dict[str, list[int]] = {}
        for topic, partition in self._assignment:
            topics.setdefault(topic, []).append(partition)
        return write_user_data(topics, self._generation)

    def on_assignment(self, partitions: Sequence[TopicPartition], generation: int) -> None:
        """Remember the assignment for the next rebalance."""
        self._assignment = tuple(partitions)
        self._generation = generation

    def assign(self, rebalance: Rebalance) -> Assigned:
        """See the module."""
        owned = {s.member_id: read_user_data(s.user_data) for s in rebalance.subscribers}
        return _assign(rebalance, owned)[0]


class CooperativeStickyAssignor:
    """`cooperative-sticky`."""

    name = "cooperative-sticky"
    is_cooperative = True

    def __init__(self) -> None:
        self._generation = _NO_GENERATION

    def user_data(self) -> bytes | None:
        """The generation of the last assignment."""
        return self._generation.to_bytes(4, "big", signed=True)

    def on_assignment(self, partitions: Sequence[TopicPartition], generation: int) -> None:
        """Remember the generation for the next rebalance."""
        self._generation = generation

    def assign(self, rebalance: Rebalance) -> Assigned:
        """See the module."""
        owned = {s.member_id: _Owned(s.owned, _generation_of(s)) for s in rebalance.subscribers}
        assigned, moving = _assign(rebalance, owned)
        if moving is None:
            owners = {partition for subscriber in rebalance.subscribers for partition in subscriber.owned}
            kept = {s.member_id: frozenset(s.owned) for s in rebalance.subscribers}
            released = {
                partition
                for subscriber in rebalance.subscribers
                for partition in subscriber.owned
                if partition not in frozenset(assigned[subscriber.member_id])
            }
            moving = {
                partition: member_id
                for member_id, partitions in assigned.items()
                for partition in partitions
                if partition not in kept[member_id] and partition in owners and partition in released
            }
        for partition, member_id in moving.items():
            assigned[member_id].remove(partition)
        return assigned


def _generation_of(subscriber: Subscriber) -> int | None:
    if subscriber.generation >= 0:
        return subscriber.generation
    data = subscriber.user_data
    if data is None:
        return None
    return int.from_bytes(data[:4], "big", signed=True) if len(data) >= 4 else _NO_GENERATION


def write_user_data(topics: dict[str, list[int]], generation: int) -> bytes:
    """The user data of `sticky`, version 1; it has no version number."""
    out = bytearray(len(topics).to_bytes(4, "big"))
    for topic, partitions in topics.items():
        name = topic.encode()
        out += len(name).to_bytes(2, "big") + name + len(partitions).to_bytes(4, "big")
        out += b"".join(partition.to_bytes(4, "big") for partition in partitions)
    return bytes(out + generation.to_bytes(4, "big", signed=True))


def read_user_data(data: bytes | None) -> _Owned:
    """What a member of `sticky` had; nothing where its bytes cannot be read."""
    if not data:
        return _Owned((), None)
    try:
        at, found = 4, []
        for _ in range(_int32(data, 0)):
            size = int.from_bytes(_bytes(data, at, 2), "big")
            name = _bytes(data, at + 2, size).decode()
            at += 2 + size
            count = _int32(data, at)
            at += 4
            found += [TopicPartition(name, _int32(data, at + 4 * index)) for index in range(min(count, len(data)))]
            at += 4 * count
        return _Owned(tuple(found), _int32(data, at) if at < len(data) else None)
    except (InvalidRequest, UnicodeDecodeError):
        return _Owned((), _NO_GENERATION)


def _bytes(data: bytes, at: int, size: int) -> bytes:
    if size < 0 or at + size > len(data):
        raise InvalidRequest(f"{size} bytes at {at} of {len(data)} bytes of user data")
    return data[at : at + size]


def _int32(data: bytes, at: int) -> int:
    return int.from_bytes(_bytes(data, at, 4), "big", signed=True)


def _assign(rebalance: Rebalance, owned: dict[str, _Owned]) -> tuple[Assigned, dict[TopicPartition, str] | None]:
    """The assignment, and the partitions that move from one owner to another (None: not known)."""
    counts = rebalance.partition_counts
    subscribers = {s.member_id: s for s in rebalance.subscribers}
    members = java_order(subscribers)
    racks = _Racks(rebalance, (TopicPartition(topic, i) for topic, count in counts.items() for i in range(count)))
    kept: Assigned = {}
    contested: set[TopicPartition] = set()
    owner_of: dict[TopicPartition, str] = {}
    for member_id in members:
        kept[member_id] = mine = []
        generation = _or_none(owned[member_id].generation)
        for partition in owned[member_id].partitions:
            if partition.topic not in counts:
                continue
            other = owner_of.get(partition)
            if other is None:
                mine.append(partition)
                owner_of[partition] = member_id
                continue
            others_generation = subscribers[other].generation
            if generation == others_generation:
                contested.add(partition)
                if partition in kept[other]:
                    kept[other].remove(partition)
                owner_of[partition] = member_id
            elif generation > others_generation:
                mine.append(partition)
                if partition in kept[other]:
                    kept[other].remove(partition)
                owner_of[partition] = member_id
    first = frozenset(subscribers[members[0]].topics) if members else frozenset()
    if all(
        len(subscribers[member_id].topics) == len(first) and first.issuperset(subscribers[member_id].topics)
        for member_id in members
    ):
        uniform = _Uniform(counts, racks, kept, contested)
        return uniform.assign(), uniform.moving
    return _General(counts, racks, kept, owned, subscribers, members).assign(), None


def _or_none(generation: int | None) -> int:
    return _NO_GENERATION if generation is None else generation


class _Uniform:
    """All members subscribe to the same topics."""

    def __init__(self, counts: dict[str, int], racks: _Racks, kept: Assigned, contested: set[TopicPartition]) -> None:
        self._racks = racks
        self._kept = kept
        self._contested = contested
        self._partitions = [TopicPartition(topic, index) for topic in sorted(counts) for index in range(counts[topic])]
        total, members = len(self._partitions), len(kept)
        self._least = total // members
        self._most = -(-total // members)
        self._over_expected = total % members
        """How many members get one more than `_least`."""
        self._over = 0
        self._under_least: list[str] = []
        self._at_least: list[str] = []
        """Members with exactly `_least` partitions that may get one more."""
        self._was_owned: dict[TopicPartition, str] = {}
        """Owners of partitions that they may lose."""
        self._assigned: Assigned = {member_id: [] for member_id in kept}
        self._next_under = 0
        """Index in `_under_least` of the next member."""
        self._next_in_rack = 0
        self.moving: dict[TopicPartition, str] = {}

    def assign(self) -> Assigned:
        for member_id in java_order(self._kept):
            self._keep_owned(member_id)
        taken = {partition for partitions in self._assigned.values() for partition in partitions}
        self._under_least.sort()
        self._at_least.sort()
        left = self._racks.sorted([partition for partition in self._partitions if partition not in taken])
        if self._racks.of_member:
            left = [partition for partition in left if not self._give_within_rack(partition)]
        for partition in left:
            self._give(partition)
        return self._assigned

    def _keep_owned(self, member_id: str) -> None:
        mine = []
        for partition in sorted(self._kept[member_id], key=lambda p: (p.partition, p.topic)):
            if self._racks.mismatch(member_id, partition):
                self._was_owned[partition] = member_id
            elif partition not in self._contested:
                mine.append(partition)
        if len(mine) < self._least:
            quota = len(mine)
            self._under_least.append(member_id)
        elif len(mine) >= self._most and self._over < self._over_expected:
            quota = self._most
            self._over += 1
            if self._over == self._over_expected:
                self._at_least.clear()
        else:
            quota = self._least
            if self._over < self._over_expected:
                self._at_least.append(member_id)
        self._assigned[member_id] += mine[:quota]
        for partition in mine[quota:]:
            self._was_owned[partition] = member_id

    def _give_within_rack(self, partition: TopicPartition) -> bool:
        """Give the partition to a member in a rack of its replicas that has room."""
        under = self._under_least
        index = self._racks.next_member(partition, under, self._next_in_rack)
        if index >= 0:
            member_id = under[index]
            size = len(self._assigned[member_id]) + 1
            if size >= self._least:
                under.pop(index)
                if size < self._most and self._over < self._over_expected:
                    self._at_least.append(member_id)
            else:
                index += 1
            self._next_in_rack = index % len(under) if under else 0
            self._add(partition, member_id)
            return True
        index = self._racks.next_member(partition, self._at_least, 0) if self._at_least else -1
        if index < 0:
            return False
        member_id = self._at_least[index]
        if len(self._assigned[member_id]) + 1 == self._most:
            self._at_least.pop(index)
            self._over += 1
            if self._over == self._over_expected:
                self._at_least.clear()
        self._add(partition, member_id)
        return True

    def _give(self, partition: TopicPartition) -> None:
        """Give the partition to the next member below its quota."""
        under = self._under_least
        if self._next_under >= len(under):
            if not under:
                assert self._at_least, "partitions are left, and every member has its quota"
                member_id = self._at_least.pop(0)
                if self._add(partition, member_id) == self._most:
                    self._over += 1
                return
            self._next_under = 0
        member_id = under[self._next_under]
        size = self._add(partition, member_id)
        if size == self._least:
            under.pop(self._next_under)
            self._at_least.append(member_id)
            return
        if size == self._most:
            self._over += 1
        self._next_under += 1

    def _add(self, partition: TopicPartition, member_id: str) -> int:
        self._assigned[member_id].append(partition)
        if self._was_owned.get(partition, member_id) != member_id or partition in self._contested:
            self.moving[partition] = member_id
        return len(self._assigned[member_id])


class _BySize:
    """Members sorted by the number of their partitions, then by id."""

    def __init__(self, assigned: Assigned, members: Iterable[str]) -> None:
        self._assigned = assigned
        self._keys = sorted((len(assigned[member_id]), member_id) for member_id in members)

    def remove(self, member_id: str) -> None:
        """Before the number of its partitions changes."""
        key = (len(self._assigned[member_id]), member_id)
        at = bisect_left(self._keys, key)
        if at < len(self._keys) and self._keys[at] == key:
            del self._keys[at]

    def add(self, member_id: str) -> None:
        insort(self._keys, (len(self._assigned[member_id]), member_id))

    @property
    def smallest(self) -> int:
        return self._keys[0][0]

    @property
    def largest(self) -> int:
        return self._keys[-1][0]

    def first(self, accepts: Callable[[str], bool]) -> str | None:
        return next((member_id for _, member_id in self._keys if accepts(member_id)), None)

    def __len__(self) -> int:
        return len(self._keys)


class _Movements:
    """Partitions that were moved, by topic and (from, to), so that two members do not exchange partitions."""

    def __init__(self) -> None:
        self._by_partition: dict[TopicPartition, tuple[str, str]] = {}
        self._by_pair: dict[str, dict[tuple[str, str], dict[TopicPartition, None]]] = {}
        self._largest: dict[tuple[str, tuple[str, str]], int] = {}
        """How many partitions a pair has had at most."""

    def move(self, partition: TopicPartition, source: str, target: str) -> None:
        known = self._by_partition.pop(partition, None)
        pairs = self._by_pair.setdefault(partition.topic, {})
        if known is not None:
            del pairs[known][partition]
            if not pairs[known]:
                del pairs[known]
                self._largest.pop((partition.topic, known), None)
            if known[0] == target:
                return
            source = known[0]
        pair = (source, target)
        self._by_partition[partition] = pair
        moved = pairs.setdefault(pair, {})
        moved[partition] = None
        key = (partition.topic, pair)
        self._largest[key] = max(self._largest.get(key, 0), len(moved))

    def actual(self, partition: TopicPartition, source: str, target: str) -> TopicPartition:
        """The partition to move instead: one of the topic that was moved from `target` to `source` before."""
        known = self._by_partition.get(partition)
        pair = (target, source if known is None else known[0])
        moved = self._by_pair.get(partition.topic, {}).get(pair)
        if not moved:
            return partition
        return java_order(moved, self._largest[partition.topic, pair])[0]


class _General:
    """Members subscribe to different topics."""

    def __init__(
        self,
        counts: dict[str, int],
        racks: _Racks,
        kept: Assigned,
        owned: dict[str, _Owned],
        subscribers: dict[str, Subscriber],
        members: list[str],
    ) -> None:
        self._counts = counts
        self._racks = racks
        self._assigned = kept
        self._owned = owned
        self._members = members
        self._topics_of = {m: [t for t in subscribers[m].topics if t in counts] for m in members}
        self._members_of: dict[str, list[str]] = {topic: [] for topic in counts}
        for member_id in members:
            for topic in self._topics_of[member_id]:
                self._members_of[topic].append(member_id)
        self._owner = {partition: m for m in members for partition in kept[m]}
        topics = sorted(counts, key=lambda topic: (len(self._members_of[topic]), topic))
        self._partitions = [TopicPartition(topic, index) for topic in topics for index in range(counts[topic])]
        self._revokes = False
        """Some partition cannot stay where it is."""
        self._previous: dict[TopicPartition, tuple[str, int]] = {}
        """The owner of an earlier generation."""
        self._movements = _Movements()

    def assign(self) -> Assigned:
        self._find_previous()
        kept: set[TopicPartition] = set()
        for member_id in self._members:
            self._drop_invalid(member_id, kept)
        left = [partition for partition in self._partitions if partition not in kept]
        self._by_size = _BySize(self._assigned, self._assigned)
        self._balance(left)
        return self._assigned

    def _find_previous(self) -> None:
        newest = max((_or_none(owned.generation) for owned in self._owned.values()), default=_NO_GENERATION)
        for member_id in self._members:
            owned = self._owned[member_id]
            generation = _or_none(owned.generation)
            if generation >= newest:
                continue
            for partition in owned.partitions:
                known = self._previous.get(partition)
                if known is None or generation > known[1]:
                    self._previous[partition] = (member_id, generation)

    def _drop_invalid(self, member_id: str, kept: set[TopicPartition]) -> None:
        mine = []
        for partition in self._assigned[member_id]:
            if partition.topic not in self._members_of:
                self._owner.pop(partition, None)
            elif partition.topic not in self._topics_of[member_id] or self._racks.mismatch(member_id, partition):
                self._revokes = True
            elif partition.partition < self._counts[partition.topic]:
                mine.append(partition)
                kept.add(partition)
        self._assigned[member_id][:] = mine

    def _balance(self, left: list[TopicPartition]) -> None:
        is_first = self._by_size.largest == 0
        to_give = deque(left)
        if self._racks.of_member:
            to_give = deque(p for p in left if not self._give(p, within_rack=True))
        for partition in to_give:
            self._give(partition, within_rack=False)
        movable = [p for p in self._partitions if len(self._members_of[p.topic]) >= 2]
        movable_left = [p for p in left if len(self._members_of[p.topic]) >= 2]
        fixed: Assigned = {}
        for member_id in self._members:
            if not self._can_change(member_id):
                self._by_size.remove(member_id)
                fixed[member_id] = self._assigned.pop(member_id)
        before = {member_id: list(partitions) for member_id, partitions in self._assigned.items()}
        if len(self._by_size):
            if not self._revokes:
                self._reassign(movable_left)
            has_moved = self._reassign(movable)
            if not is_first and has_moved and _imbalance(self._assigned) >= _imbalance(before):
                self._assigned.clear()
                self._assigned.update(before)
        self._assigned.update(fixed)

    def _give(self, partition: TopicPartition, *, within_rack: bool) -> bool:
        def accepts(member_id: str) -> bool:
            if partition.topic not in self._topics_of[member_id]:
                return False
            return not (within_rack and self._racks.mismatch(member_id, partition))

        member_id = self._by_size.first(accepts)
        if member_id is None:
            return False
        self._by_size.remove(member_id)
        self._assigned[member_id].append(partition)
        self._owner[partition] = member_id
        self._by_size.add(member_id)
        return True

    def _limit(self, member_id: str) -> int:
        return sum(self._counts[topic] for topic in self._topics_of[member_id])

    def _can_change(self, member_id: str) -> bool:
        mine = self._assigned[member_id]
        return len(mine) < self._limit(member_id) or any(len(self._members_of[p.topic]) >= 2 for p in mine)

    def _is_balanced(self) -> bool:
        if self._by_size.smallest >= self._by_size.largest - 1:
            return True
        sizes = {member_id: len(partitions) for member_id, partitions in self._assigned.items()}
        owner = {p: member_id for member_id, partitions in self._assigned.items() for p in partitions}
        for member_id, size in sizes.items():
            if size == self._limit(member_id):
                continue
            for topic in self._topics_of[member_id]:
                for index in range(self._counts[topic]):
                    other = owner.get(TopicPartition(topic, index))
                    if other is not None and other != member_id and size + 1 < sizes[other]:
                        return False
        return True

    def _reassign(self, partitions: list[TopicPartition]) -> bool:
        """Move partitions while that makes the assignment more balanced."""
        has_moved, goes_on = False, True
        while goes_on:
            goes_on = False
            for partition in partitions:
                if self._is_balanced():
                    break
                member_id = self._owner[partition]
                size = len(self._assigned[member_id])
                previous = self._previous.get(partition)
                if previous is not None and size > len(self._assigned[previous[0]]) + 1:
                    self._move(partition, previous[0])
                elif self._finds_better(partition, member_id, size):
                    self._move(partition, self._smallest_of(partition.topic))
                else:
                    continue
                has_moved = goes_on = True
        return has_moved

    def _smallest_of(self, topic: str) -> str:
        found = self._by_size.first(lambda member_id: topic in self._topics_of[member_id])
        assert found is not None
        return found

    def _finds_better(self, partition: TopicPartition, member_id: str, size: int) -> bool:
        return any(size > len(self._assigned[other]) + 1 for other in self._members_of[partition.topic])

    def _move(self, partition: TopicPartition, target: str) -> None:
        partition = self._movements.actual(partition, self._owner[partition], target)
        source = self._owner[partition]
        self._by_size.remove(source)
        self._by_size.remove(target)
        self._movements.move(partition, source, target)
        self._assigned[source].remove(partition)
        self._assigned[target].append(partition)
        self._owner[partition] = target
        self._by_size.add(target)
        if source != target:
            self._by_size.add(source)


def _imbalance(assigned: Assigned) -> int:
    """The differences of the sizes of all pairs of members."""
    sizes = sorted(map(len, assigned.values()))
    return sum(size * (2 * index - len(sizes) + 1) for index, size in enumerate(sizes))
