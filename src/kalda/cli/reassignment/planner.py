"""Where replicas should be, with as few of them moved as that allows.

In this order: a partition's replicas are spread over racks as evenly as its brokers permit; each topic's replicas are
spread over brokers, none having two more than another where racks permit it; so are the replicas of all topics. What
is where it may be stays, so a plan for brokers that hold everything already, and evenly, is empty. Of those that
could move, the smallest do. At last preferred leaders are spread the same way, which copies nothing.

A broker without a rack is a rack of its own. The plan follows from its input, without chance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from kalda.base.ids import TopicPartition


class Broker(NamedTuple):
    """One that may have replicas."""

    node_id: int
    rack: str | None = None


Assignment = dict[TopicPartition, tuple[int, ...]]


def plan(
    current: Mapping[TopicPartition, Sequence[int]],
    brokers: Sequence[Broker],
    *,
    others: Mapping[int, int] | None = None,
    sizes: Mapping[TopicPartition, int] | None = None,
    rack_aware: bool = True,
    replication_factor: int | None = None,
) -> Assignment:
    """Replicas of each partition, on `brokers` only. `others` counts replicas by broker that are not to be moved.
    Raises `ValueError` where there are more replicas than brokers."""
    widest = replication_factor or max((len(replicas) for replicas in current.values()), default=1)
    if widest > len(brokers):
        raise ValueError(f"{widest} replicas are wanted of a partition, and there are {len(brokers)} brokers for them")
    board = _Board(current, brokers, others or {}, sizes or {}, rack_aware)
    for at in board.replicas:
        board.fit(at, replication_factor or len(current[at]))
    for at in board.replicas:
        board.fill(at, replication_factor or len(current[at]))
    for at in board.replicas:
        board.spread_over_racks(at)
    while board.balance():
        pass
    return _Leaders(board.replicas).balanced()


class _Board:
    """Who has what, while it is moved about."""

    def __init__(
        self,
        current: Mapping[TopicPartition, Sequence[int]],
        brokers: Sequence[Broker],
        others: Mapping[int, int],
        sizes: Mapping[TopicPartition, int],
        rack_aware: bool,
    ) -> None:
        self.brokers = sorted(broker.node_id for broker in brokers)
        self._rack: dict[int, object] = {
            broker.node_id: broker.rack if rack_aware and broker.rack is not None else broker.node_id
            for broker in brokers
        }
        smallest_first = sorted(current, key=lambda at: (sizes.get(at, 0), at))
        self.replicas = {at: [r for r in current[at] if r in self._rack] for at in smallest_first}
        self._total = Counter({node_id: others.get(node_id, 0) for node_id in self.brokers})
        self._of_topic: dict[str, Counter[int]] = {at.topic: Counter() for at in smallest_first}
        self._holds: dict[int, dict[TopicPartition, None]] = {node_id: {} for node_id in self.brokers}
        for at, replicas in self.replicas.items():
            for replica in replicas:
                self._count(at, replica, 1)

    def _count(self, at: TopicPartition, replica: int, by: int) -> None:
        self._total[replica] += by
        self._of_topic[at.topic][replica] += by
        if by > 0:
            self._holds[replica][at] = None
        else:
            del self._holds[replica][at]

    def _move(self, at: TopicPartition, source: int, target: int) -> None:
        replicas = self.replicas[at]
        replicas[replicas.index(source)] = target
        self._count(at, source, -1)
        self._count(at, target, 1)

    def _unevenness(self, replicas: Sequence[int]) -> int:
        """How far from even the racks are; less is better."""
        return sum(count * count for count in Counter(self._rack[replica] for replica in replicas).values())

    def _load(self, at: TopicPartition, replica: int) -> tuple[int, int, int]:
        return self._of_topic[at.topic][replica], self._total[replica], replica

    # -- a partition by itself

    def fit(self, at: TopicPartition, count: int) -> None:
        """Take replicas away that are too many: of the fullest rack, of the fullest broker; the first one stays."""
        replicas = self.replicas[at]
        while len(replicas) > count:
            worst = max(
                replicas[1:],
                key=lambda r: (-self._unevenness([other for other in replicas if other != r]), self._load(at, r)),
            )
            replicas.remove(worst)
            self._count(at, worst, -1)

    def fill(self, at: TopicPartition, count: int) -> None:
        """Add what lacks."""
        replicas = self.replicas[at]
        while len(replicas) < count:
            racks = Counter(self._rack[replica] for replica in replicas)
            best = min(
                (node_id for node_id in self.brokers if node_id not in replicas),
                key=lambda node_id: (racks[self._rack[node_id]], self._load(at, node_id)),
            )
            replicas.append(best)
            self._count(at, best, 1)

    def spread_over_racks(self, at: TopicPartition) -> None:
        """Move replicas to other racks as long as that makes them more even."""
        while True:
            replicas = self.replicas[at]
            before = self._unevenness(replicas)
            if before == len(replicas):
                return  # each in a rack of its own
            moves = [
                (self._unevenness([target if r == source else r for r in replicas]), source, target)
                for source in replicas
                for target in self.brokers
                if target not in replicas and self._rack[target] != self._rack[source]
            ]
            best = min(
                moves,
                key=lambda move: (move[0], tuple(-x for x in self._load(at, move[1])), self._load(at, move[2])),
                default=None,
            )
            if best is None or best[0] >= before:
                return
            self._move(at, best[1], best[2])

    # -- partitions among each other

    def balance(self) -> bool:
        """Even out each topic, then all together without making one worse; whether anything moved. Every move makes
        the sum of squares of the topics' loads smaller, or leaves it and that of the total smaller: there is an end."""
        moved = False
        for topic, loads in (*self._of_topic.items(), (None, self._total)):
            while self._improve(topic, loads):
                moved = True
        return moved

    def _improve(self, topic: str | None, loads: Counter[int]) -> bool:
        """One move from a broker that has at least two more than the other; false where there is none."""
        for source, target in _pairs(loads, self.brokers):
            for at in self._holds[source]:
                if self._may_move(at, source, target, topic):
                    self._move(at, source, target)
                    return True
        return False

    def _may_move(self, at: TopicPartition, source: int, target: int, topic: str | None) -> bool:
        replicas = self.replicas[at]
        if target in replicas:
            return False
        if topic is not None:
            if at.topic != topic:
                return False
        elif self._of_topic[at.topic][source] <= self._of_topic[at.topic][target]:
            return False
        if self._rack[source] == self._rack[target]:
            return True
        moved = [target if replica == source else replica for replica in replicas]
        return self._unevenness(moved) <= self._unevenness(replicas)


def _pairs(loads: Mapping[int, int], brokers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The fullest with the emptiest first; at least two apart."""
    ascending = sorted(brokers, key=lambda node_id: (loads[node_id], node_id))
    for source in reversed(ascending):
        for target in ascending:
            if loads[source] - loads[target] < 2:
                break
            yield source, target


class _Leaders:
    """Which replica comes first."""

    def __init__(self, replicas: Mapping[TopicPartition, Sequence[int]]) -> None:
        self._replicas = {at: list(order) for at, order in replicas.items()}
        self._total = Counter(order[0] for order in self._replicas.values())
        self._of_topic: dict[str, Counter[int]] = {}
        for at, order in self._replicas.items():
            self._of_topic.setdefault(at.topic, Counter())[order[0]] += 1

    def balanced(self) -> Assignment:
        """Change first replicas where a broker has two more than another that could be it, per topic, then in all."""
        moved = True
        while moved:
            moved = False
            for at, order in self._replicas.items():
                moved = self._improve(at, order) or moved
        return {at: tuple(order) for at, order in self._replicas.items()}

    def _improve(self, at: TopicPartition, order: list[int]) -> bool:
        topic, first = self._of_topic[at.topic], order[0]
        best = min(order, key=lambda replica: (topic[replica], self._total[replica], replica))
        of_topic, in_all = topic[first] - topic[best], self._total[first] - self._total[best]
        if of_topic < 2 and not (of_topic == 1 and in_all >= 2):
            return False
        index = order.index(best)
        order[0], order[index] = best, first
        for loads in (topic, self._total):
            loads[first] -= 1
            loads[best] += 1
        return True
