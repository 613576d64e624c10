"""What clients attempted, what was acknowledged, and what they have read.

Every record has a unique value, `producer:partition:number`, so that each record of a log shows its producer and its
place in the producer's order. An acknowledgement that was recorded is never removed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kalda.base.ids import TopicPartition
from kalda.sim.world import World


@dataclass(slots=True)
class WrittenRecords:
    """One producer's records in one partition, by number."""

    idempotent: bool
    attempted: int = 0
    """How many numbers were used."""
    acked: dict[int, int] = field(default_factory=dict)
    """Offset by number; -1 where the response had no offset, as for a duplicate."""


@dataclass(slots=True)
class Deleted:
    """The offsets below which the records of a partition may, and must, be deleted."""

    requested: int = 0
    """Records below this may be deleted: the deletion was requested."""
    acknowledged: int = 0
    """Records below this are deleted, as long as no broker restarts: the log start offset is checkpointed only at
    intervals."""


class RunHistory:
    """The history of one run."""

    def __init__(self, world: World) -> None:
        self.written: dict[tuple[str, TopicPartition], WrittenRecords] = {}
        self.seen: dict[TopicPartition, dict[int, bytes]] = {}
        """Committed records by offset, as consumers have read them."""
        self.damaged: set[TopicPartition] = set()
        """Partitions with a damaged file of a replica: reading may fail until it is repaired, but must not return wrong
        records."""
        self.deleted: dict[TopicPartition, Deleted] = {}
        self.retires = False
        """Retention deletes committed records."""
        self.forgets_beginnings = False
        """Brokers restart, and may have a log start offset that was not checkpointed."""
        self.judged_elsewhere: set[str] = set()
        """Topics whose writers have a history of their own."""
        self._world = world

    def may_begin_at(self, partition: TopicPartition, offset: int) -> bool:
        """Whether the records below `offset` may have been deleted."""
        return self.retires or offset <= self.deletions(partition).requested

    def deletions(self, partition: TopicPartition) -> Deleted:
        """The requested and acknowledged deletions of a partition."""
        return self.deleted.setdefault(partition, Deleted())

    def of(self, producer: str, partition: TopicPartition, idempotent: bool) -> WrittenRecords:
        """One producer's records in one partition."""
        return self.written.setdefault((producer, partition), WrittenRecords(idempotent))

    @property
    def acked(self) -> int:
        """How many records were acknowledged."""
        return sum(len(written.acked) for written in self.written.values())

    def read(self, reader: str, partition: TopicPartition, records: Iterable[tuple[int, bytes]]) -> None:
        """A consumer has read these records. A record that was read before at an offset must be the same."""
        seen = self.seen.setdefault(partition, {})
        for offset, value in records:
            earlier = seen.setdefault(offset, value)
            if earlier != value:
                self._world.violated(
                    f"{reader} reads {_short(value)} at {offset} of {partition}, where {_short(earlier)} was committed"
                )

    def judge(self, partition: TopicPartition, log: dict[int, bytes], start: int = 0) -> None:
        """Compare a partition's final records, by offset from `start` on, with the history."""
        if start and not self.may_begin_at(partition, start):
            self._world.violated(f"{partition} begins at {start}, and no deletion up to there was requested")
        if start < (deleted := self.deletions(partition).acknowledged) and not self.forgets_beginnings:
            self._world.violated(f"{partition} begins at {start}, but deletion up to {deleted} was acknowledged")
        places: dict[bytes, list[int]] = {}
        for offset in sorted(log):
            places.setdefault(log[offset], []).append(offset)
        for offset, value in self.seen.get(partition, {}).items():
            if offset >= start and log.get(offset) != value:
                self._world.violated(
                    f"{_short(value)} was read at {offset} of {partition}, and now {_short(log.get(offset))} is there"
                )
        attempted: set[bytes] = set()
        for (producer, where), written in self.written.items():
            if where == partition:
                attempted.update(value_of(producer, partition, number) for number in range(written.attempted))
                self._judge_producer(producer, partition, written, places, start)
        for value in places:
            if value not in attempted:
                self._world.violated(f"no producer wrote {_short(value)}, which is in {partition}")

    def _judge_producer(
        self,
        producer: str,
        partition: TopicPartition,
        written: WrittenRecords,
        places: dict[bytes, list[int]],
        start: int,
    ) -> None:
        last = -1
        for number in range(written.attempted):
            found = places.get(value_of(producer, partition, number), [])
            what = f"{producer}'s record {number} of {partition}"
            if number in written.acked:
                offset = written.acked[number]
                if offset < start and (offset >= 0 or start):
                    pass  # it was deleted or, without an offset, may have been
                elif not found:
                    self._world.violated(f"{what} was acknowledged at {offset} and is lost")
                    continue
                elif offset >= 0 and offset not in found:
                    self._world.violated(f"{what} was acknowledged at {offset} and is at {found}")
            if not written.idempotent:
                continue
            if len(found) > 1:
                self._world.violated(f"{what} was written {len(found)} times, at {found}")
            if found:
                if found[0] <= last:
                    self._world.violated(f"{what} is at {found[0]}, before a record with a smaller number")
                last = found[0]


def value_of(producer: str, partition: TopicPartition, number: int) -> bytes:
    """A record's value; every fifth is longer than a disk's sector."""
    name = f"{producer}:{partition}:{number}".encode()
    return name if number % 5 else name + b"." * 1_500


def _short(value: bytes | None) -> str:
    return "nothing" if value is None else value.rstrip(b".").decode(errors="replace")
