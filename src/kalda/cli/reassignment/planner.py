"""An even placement of replicas that moves as few of them as possible.

The goals, in this order: the replicas of a partition are spread over racks as evenly as the brokers permit; the
replicas of each topic are spread over brokers, with a difference of at most one where racks permit it; so are the
replicas of all topics together. A replica that no goal requires to move stays, so a plan for an even placement is
empty. Where several replicas could move, the smallest does. At last the preferred leaders are spread in the same way,
which copies nothing.

A broker without a rack is a rack of its own. The plan is a function of its input; nothing is random.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from kalda.base.ids import TopicPartition


class ReplicaBroker(NamedTuple):
    """A broker that may have replicas."""

    node_id: int
    rack: str | None = None


Assignment = dict[TopicPartition, tuple[int, ...]]


def plan(
    current: Mapping[TopicPartition, Sequence[int]],
    brokers: Sequence[ReplicaBroker],
    *,
    others: Mapping[int, int] | None = None,
    sizes: Mapping[TopicPartition, int] | None = None,
    rack_aware: bool = True,
    replication_factor: int | None = None,
) -> Assignment:
    """The replicas of each partition, on `brokers` only. `others` is the number of replicas by broker that are not
    moved. Raises `ValueError` where a partition needs more replicas than there are brokers."""
    most = replication_factor or max((len(replicas) for replicas in current.values()), default=1)
    if most > len(brokers):
        raise ValueError(f"replicas of a partition: {most}; brokers to have one each: {len(brokers)}")
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
    """The placement of all replicas while the plan is made."""

    def __init__(
        self,
        current: Mapping[TopicPartition, Sequence[int]],
        brokers: Sequence[ReplicaBroker],
        others: Mapping[int, int],
        sizes: Mapping[TopicPartition, int],
        rack_aware: bool,
    ) -> None:
        self.brokers = sorted(broker.node_id for broker in brokers)
        self._rack: dict[int, object] = {
            broker.node_id: broker.rack if rack_aware and broker.rack is not None else broker.node_id
            for broker in brokers
        }
        """The rack of each broker; its own id where it has none."""
        smallest_first = sorted(current, key=lambda at: (sizes.get(at, 0), at))
        self.replicas = {at: [r for r in current[at] if r in self._rack] for at in smallest_first}
        """The brokers of each partition; the smallest partitions first, so that they are moved first."""
        self._total = Counter({node_id: others.get(node_id, 0) for node_id in self.brokers})
        """The number of replicas of each broker."""
        self._of_topic: dict[str, Counter[int]] = {at.topic: Counter() for at in smallest_first}
        """The number of replicas of each broker, by topic."""
        self._holds: dict[int, dict[TopicPartition, None]] = {node_id: {} for node_id in self.brokers}
        """The partitions of each broker; a dict, as its order has to be the same in each run."""
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
        """The sum of squares of the racks' replica counts: the smaller, the more even."""
        return sum(count * count for count in Counter(self._rack[replica] for replica in replicas).values())

    def _load(self, at: TopicPartition, replica: int) -> tuple[int, int, int]:
        return self._of_topic[at.topic][replica], self._total[replica], replica

    # -- one partition

    def fit(self, at: TopicPartition, count: int) -> None:
        """Remove replicas beyond `count`: from the fullest rack, then the fullest broker. The first replica stays."""
        replicas = self.replicas[at]
        while len(replicas) > count:
            worst = max(
                replicas[1:],
                key=lambda r: (-self._unevenness([other for other in replicas if other != r]), self._load(at, r)),
            )
            replicas.remove(worst)
            self._count(at, worst, -1)

    def fill(self, at: TopicPartition, count: int) -> None:
        """Add replicas until there are `count`."""
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
        """Move replicas to other racks as long as this makes the racks more even."""
        while True:
            replicas = self.replicas[at]
            before = self._unevenness(replicas)
            if before == len(replicas):
                return  # each replica is in a rack of its own
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

    # -- all partitions

    def balance(self) -> bool:
        """Balance each topic, then all topics together without unbalancing one. Returns whether anything moved.

        This ends: every move makes the sum of squares of the topics' loads smaller, or leaves it the same and makes the
        sum of squares of the total load smaller.
        """
        moved = False
        for topic, loads in (*self._of_topic.items(), (None, self._total)):
            while self._improve(topic, loads):
                moved = True
        return moved

    def _improve(self, topic: str | None, loads: Counter[int]) -> bool:
        """Make one move between brokers whose loads differ by at least two; False where there is none."""
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
    """Pairs of brokers whose loads differ by at least two, (more loaded, less loaded), the greatest loads first."""
    ascending = sorted(brokers, key=lambda node_id: (loads[node_id], node_id))
    for source in reversed(ascending):
        for target in ascending:
            if loads[source] - loads[target] < 2:
                break
            yield source, target


class _Leaders:
    """The order of replicas: the first one is the preferred leader."""

    def __init__(self, replicas: Mapping[TopicPartition, Sequence[int]]) -> None:
        self._replicas = {at: list(order) for at, order in replicas.items()}
        self._total = Counter(order[0] for order in self._replicas.values())
        self._of_topic: dict[str, Counter[int]] = {}
        for at, order in self._replicas.items():
            self._of_topic.setdefault(at.topic, Counter())[order[0]] += 1

    def balanced(self) -> Assignment:
        """Swap first replicas until no broker is preferred leader of two partitions more than another replica's
        broker, in a topic, and then in total."""
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
