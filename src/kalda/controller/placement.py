"""Placement of new replicas: striped over racks and brokers.

Three aims, in this order: spread the replicas of a partition over racks; spread replicas over brokers; prefer brokers
that are not fenced. Two rules: a broker has at most one replica of a partition, and the first replica, the preferred
leader, is on a broker that is not fenced.

Racks are used in turn, and the brokers of a rack in turn: each partition starts one rack further, and uses the next
broker of each rack. Both start at a random position; otherwise all topics with one partition would be on broker 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from kalda.base.errors import ApiError, ErrorCode


class Random(Protocol):
    """A random source; `random.Random` is one. It is an argument, so that the same seed gives the same placement."""

    def randrange(self, stop: int, /) -> int: ...

    def shuffle(self, values: list[str | None], /) -> None: ...


class UsableBroker(NamedTuple):
    """A broker for new replicas: registered, not shutting down, with a directory that is not cordoned."""

    id: int
    rack: str | None
    fenced: bool


class _Turns:
    """Brokers of one rack, each once in an epoch: the placement of one partition. Each epoch starts one broker
    further."""

    __slots__ = ("_brokers", "_epoch", "_offset", "_taken")

    def __init__(self, brokers: list[int], rng: Random) -> None:
        self._brokers = sorted(brokers)
        self._epoch = 0
        self._taken = 0
        self._offset = rng.randrange(len(brokers)) if brokers else 0

    def next(self, epoch: int) -> int | None:
        brokers = self._brokers
        count = len(brokers)
        if not count:
            return None
        taken = self._taken
        if self._epoch != epoch:
            self._epoch = epoch
            self._offset = (self._offset + 1) % count
            taken = 0
        if taken == count:
            return None
        self._taken = taken + 1
        return brokers[(taken + self._offset) % count]

    @property
    def is_empty(self) -> bool:
        return not self._brokers

    def rounds(self, size: int) -> list[tuple[int, ...]]:
        """The first `size` brokers of each epoch, until they are again those of this one."""
        count = len(self._brokers)
        return [
            tuple(self._brokers[(self._offset + epoch + taken) % count] for taken in range(size))
            for epoch in range(count)
        ]

    def restart(self, rng: Random) -> None:
        self._epoch = 0
        self._taken = 0
        self._offset = rng.randrange(len(self._brokers)) if self._brokers else 0


class _Rack:
    __slots__ = ("fenced", "unfenced")

    def __init__(self, unfenced: list[int], fenced: list[int], rng: Random) -> None:
        self.unfenced = _Turns(unfenced, rng)
        self.fenced = _Turns(fenced, rng)

    def next(self, epoch: int) -> int | None:
        broker = self.unfenced.next(epoch)
        return self.fenced.next(epoch) if broker is None else broker


class _Racks:
    """All racks. `_epoch` is the number of partitions that were placed since the racks were last shuffled."""

    def __init__(self, brokers: list[UsableBroker], rng: Random) -> None:
        self._rng = rng
        names = sorted({broker.rack for broker in brokers}, key=lambda name: (name is not None, name or ""))
        self._names: list[str | None] = names
        self._racks = {
            name: _Rack(
                [broker.id for broker in brokers if broker.rack == name and not broker.fenced],
                [broker.id for broker in brokers if broker.rack == name and broker.fenced],
                rng,
            )
            for name in names
        }
        self._unfenced = sum(not broker.fenced for broker in brokers)
        self._offset = rng.randrange(len(names))
        self._epoch = 0

    def place(self, replication_factor: int) -> list[int]:
        if self._epoch == self._unfenced > 1:
            self._shuffle()  # every unfenced broker was a preferred leader once: continue in another order
        if self._offset == len(self._names):
            self._offset = 0
        leader_rack = self._offset
        leader = self._racks[self._names[leader_rack]].unfenced.next(self._epoch)
        if leader is None:
            leader_rack, leader = self._first_unfenced()
        replicas = [leader]
        at, skip = self._offset, leader_rack
        while len(replicas) < replication_factor:
            if at == skip:
                skip = -1  # in the first round, the leader is the replica of this rack
            else:
                broker = self._racks[self._names[at]].next(self._epoch)
                if broker is not None:
                    replicas.append(broker)
            at = (at + 1) % len(self._names)
        self._epoch += 1
        self._offset += 1
        return replicas

    def place_many(self, partitions: int, replication_factor: int) -> Sequence[Sequence[int]]:
        """What `place` returns, so many times after the racks were made. Brokers of one rack are used in rounds, and
        partitions with the same replicas share them."""
        rack = self._racks[self._names[0]]
        if len(self._names) > 1 or not rack.fenced.is_empty:
            return [self.place(replication_factor) for _ in range(partitions)]
        if self._unfenced == 1:
            return rack.unfenced.rounds(replication_factor) * partitions
        placed = rack.unfenced.rounds(replication_factor)
        while len(placed) < partitions:
            self._shuffle()
            placed += rack.unfenced.rounds(replication_factor)
        return placed[:partitions]

    def _first_unfenced(self) -> tuple[int, int]:
        for step in range(len(self._names)):
            at = (self._offset + step) % len(self._names)
            broker = self._racks[self._names[at]].unfenced.next(self._epoch)
            if broker is not None:
                return at, broker
        raise AssertionError("one broker at least is unfenced")

    def _shuffle(self) -> None:
        self._rng.shuffle(self._names)
        for name in self._names:
            self._racks[name].unfenced.restart(self._rng)
            self._racks[name].fenced.restart(self._rng)
        self._epoch = 0


def place_replicas(
    brokers: Iterable[UsableBroker], partitions: int, replication_factor: int, rng: Random
) -> Sequence[Sequence[int]]:
    """Replicas of each of `partitions` new partitions. Raises `ApiError` INVALID_REPLICATION_FACTOR."""
    usable = list(brokers)
    if replication_factor <= 0:
        raise _refused(f"Invalid replication factor {replication_factor}: the replication factor must be positive.")
    if not any(not broker.fenced for broker in usable):
        raise _refused("All brokers are currently fenced, or have all their log directories cordoned.")
    if replication_factor > len(usable):
        raise _refused(
            f"The target replication factor of {replication_factor} cannot be reached because only "
            f"{len(usable)} broker(s) are registered or some brokers have all their log directories cordoned."
        )
    return _Racks(usable, rng).place_many(partitions, replication_factor)


def _refused(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, message)
