"""What clients attempted, what they were promised, and what they have seen.

Every record has a value of its own, `producer:partition:number`, so that whatever comes out of a log names who wrote
it, and in which order. A promise once written down is never taken back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kalda.base.ids import TopicPartition
from kalda.sim.world import World


@dataclass(slots=True)
class Written:
    """One producer's records in one partition, by number."""

    idempotent: bool
    attempted: int = 0
    """How many numbers were used."""
    acked: dict[int, int] = field(default_factory=dict)
    """Offset by number; -1 where the answer could not say it."""


@dataclass(slots=True)
class Deleted:
    """What may, and what must, be gone from the beginning of a partition."""

    asked: int = 0
    """Below that, records may be deleted; somebody has asked for it."""
    promised: int = 0
    """Below that, they are, as long as no broker comes back: where a log begins is written down every so often only."""


class History:
    """Of one run."""

    def __init__(self, world: World) -> None:
        self.written: dict[tuple[str, TopicPartition], Written] = {}
        self.seen: dict[TopicPartition, dict[int, bytes]] = {}
        """Committed records by offset, as consumers have read them."""
        self.damaged: set[TopicPartition] = set()
        """Where a replica's file was damaged: reading may fail until somebody has repaired it, but not deceive."""
        self.deleted: dict[TopicPartition, Deleted] = {}
        self.retires = False
        """Whether retention deletes whatever is committed, sooner or later."""
        self.forgets_beginnings = False
        """Whether brokers come back, from disks that do not know yet what was deleted."""
        self.judged_elsewhere: set[str] = set()
        """Topics whose writers keep a history of their own."""
        self.from_followers = 0
        """How many records consumers had from replicas that do not lead."""
        self._world = world

    def may_begin_at(self, partition: TopicPartition, offset: int) -> bool:
        """Whether records below `offset` may be gone."""
        return self.retires or offset <= self.deletions(partition).asked

    def deletions(self, partition: TopicPartition) -> Deleted:
        """What was asked for and promised."""
        return self.deleted.setdefault(partition, Deleted())

    def of(self, producer: str, partition: TopicPartition, idempotent: bool) -> Written:
        """One producer's records."""
        return self.written.setdefault((producer, partition), Written(idempotent))

    @property
    def acked(self) -> int:
        """How many records were acknowledged."""
        return sum(len(written.acked) for written in self.written.values())

    def read(self, reader: str, partition: TopicPartition, records: Iterable[tuple[int, bytes]]) -> None:
        """A consumer has read records: what is committed does not change."""
        seen = self.seen.setdefault(partition, {})
        for offset, value in records:
            known = seen.setdefault(offset, value)
            if known != value:
                self._world.violated(
                    f"{reader} reads {_short(value)} at {offset} of {partition}, where {_short(known)} was committed"
                )

    def judge(self, partition: TopicPartition, log: dict[int, bytes], start: int = 0) -> None:
        """Hold a partition's final records, by offset from `start` on, against all that was promised."""
        if start and not self.may_begin_at(partition, start):
            self._world.violated(f"{partition} begins at {start}, and nobody asked for that")
        if start < (promised := self.deletions(partition).promised) and not self.forgets_beginnings:
            self._world.violated(f"{partition} begins at {start}, and was said to begin at {promised}")
        places: dict[bytes, list[int]] = {}
        for offset in sorted(log):
            places.setdefault(log[offset], []).append(offset)
        for offset, value in self.seen.get(partition, {}).items():
            if offset >= start and log.get(offset) != value:
                self._world.violated(
                    f"{_short(value)} was read at {offset} of {partition}, and now there is {_short(log.get(offset))}"
                )
        known: set[bytes] = set()
        for (producer, where), written in self.written.items():
            if where == partition:
                known.update(value_of(producer, partition, number) for number in range(written.attempted))
                self._judge_one(producer, partition, written, places, start)
        for value in places:
            if value not in known:
                self._world.violated(f"nobody wrote {_short(value)}, which is in {partition}")

    def _judge_one(
        self, producer: str, partition: TopicPartition, written: Written, places: dict[bytes, list[int]], start: int
    ) -> None:
        last = -1
        for number in range(written.attempted):
            found = places.get(value_of(producer, partition, number), [])
            what = f"{producer}'s record {number} of {partition}"
            if number in written.acked:
                promised = written.acked[number]
                if promised < start and (promised >= 0 or start):
                    pass  # deleted since, or perhaps deleted
                elif not found:
                    self._world.violated(f"{what} was acknowledged at {promised} and is lost")
                    continue
                elif promised >= 0 and promised not in found:
                    self._world.violated(f"{what} was acknowledged at {promised} and is at {found}")
            if not written.idempotent:
                continue
            if len(found) > 1:
                self._world.violated(f"{what} is there {len(found)} times, at {found}")
            if found:
                if found[0] <= last:
                    self._world.violated(f"{what} is at {found[0]}, before an earlier one")
                last = found[0]


def value_of(producer: str, partition: TopicPartition, number: int) -> bytes:
    """A record's value. Some span several sectors of a disk."""
    name = f"{producer}:{partition}:{number}".encode()
    return name if number % 5 else name + b"." * 1_500


def _short(value: bytes | None) -> str:
    return "nothing" if value is None else value.rstrip(b".").decode(errors="replace")
