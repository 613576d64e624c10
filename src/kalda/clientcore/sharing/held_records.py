"""Records that polls have returned and that are not acknowledged yet, of one partition as one broker has handed it out.

    add(records, spans)       records are returned; `spans` are the ranges of offsets that they have
    say(offset, type)         explicit mode: the application acknowledges
    accept(but)               implicit mode: all of them are processed, those of `but` excepted
    take()                    what is to be sent, ascending; it is not held any more

Offsets without a record, and records that cannot be decoded, are acknowledged without the application: `settle`. What
was said of a record may be said anew until it is taken. A renewed record is held again once a poll has returned it
again, behind the renewal's success.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from kalda.base.errors import WrongState
from kalda.base.ids import TopicPartition, Uuid
from kalda.base.share_states import AcknowledgeType
from kalda.records.consuming import Record

# Acknowledgements: what the application says of records that it was handed, by offset.
#
# A `Run` is a range of offsets of which the same is said. Requests name them as batches: a range with one type for
# all its offsets, or with one for each.

_LONG_RUN = 16
"""A run of so many offsets is a batch of its own; shorter ones that touch each other are one batch with many types."""


class Run(NamedTuple):
    """The offsets from `first` to `last`, both included."""

    first: int
    last: int
    type: AcknowledgeType


def runs_of(spans: Iterable[tuple[int, int]], kind: AcknowledgeType) -> list[Run]:
    """The same of all offsets of some ranges."""
    return [Run(first, last, kind) for first, last in spans]


def chosen_runs(types: Mapping[int, AcknowledgeType]) -> list[Run]:
    """What was said of single offsets."""
    return joined(Run(offset, offset, kind) for offset, kind in sorted(types.items()))


def joined(runs: Iterable[Run]) -> list[Run]:
    """The same with as few runs as possible; `runs` ascend and do not overlap."""
    out: list[Run] = []
    for run in runs:
        if out and out[-1].type is run.type and out[-1].last + 1 == run.first:
            out[-1] = Run(out[-1].first, run.last, run.type)
        else:
            out.append(run)
    return out


def batches_of(runs: Sequence[Run]) -> Iterator[tuple[int, int, list[int]]]:
    """First offset, last offset and types of each batch of a request; `runs` ascend and do not overlap."""
    open_runs: list[Run] = []
    for run in runs:
        is_long = run.last - run.first >= _LONG_RUN
        if open_runs and (is_long or open_runs[-1].last + 1 != run.first):
            yield _batch(open_runs)
            open_runs = []
        if is_long:
            yield run.first, run.last, [int(run.type)]
        else:
            open_runs.append(run)
    if open_runs:
        yield _batch(open_runs)


def _batch(runs: Sequence[Run]) -> tuple[int, int, list[int]]:
    if len(runs) == 1:
        types = [int(runs[0].type)]
    else:
        types = [int(run.type) for run in runs for _ in range(run.first, run.last + 1)]
    return runs[0].first, runs[-1].last, types


def offsets_of(runs: Iterable[Run]) -> frozenset[int]:
    """The offsets of records: those without one (GAP) are left out."""
    return frozenset(
        offset for run in runs if run.type is not AcknowledgeType.GAP for offset in range(run.first, run.last + 1)
    )


class ShareSource(NamedTuple):
    """Where records came from: a partition, by name and id, and the broker that has handed them out."""

    node_id: int
    topic_id: Uuid
    partition: TopicPartition


class HeldRecords:
    """What the application holds of one source."""

    def __init__(self, source: ShareSource) -> None:
        self.source = source
        self._spans: list[tuple[int, int]] = []
        """The offsets of the records that were returned, without those of `_settled`."""
        self._records: list[Record] = []
        self._by_offset: dict[int, Record | None] | None = None
        """Of `_records`, and None for an offset that is held without its record; made when the application names the
        first one."""
        self._said: dict[int, AcknowledgeType] = {}
        self._settled: list[Run] = []
        self.renewing: dict[int, Record] = {}
        """Those whose renewal is under way."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to say or to send."""
        return not (self._spans or self._said or self._settled)

    @property
    def has_unsaid(self) -> bool:
        """Whether the application has said nothing of some record, behind `take`."""
        return bool(self._spans)

    def add(self, records: Sequence[Record], spans: Sequence[tuple[int, int]]) -> None:
        """Records are returned; without records their offsets are, as columns."""
        self._spans += spans
        self._records += records
        if self._by_offset is not None:
            self._index(records, spans)

    def settle(self, runs: Sequence[Run]) -> None:
        """Say this without the application."""
        self._settled += runs

    def let_choose(self, offset: int, kind: AcknowledgeType) -> None:
        """Say this of a record that could not be returned, unless the application says something else."""
        self._said[offset] = kind

    def say(self, offset: int, kind: AcknowledgeType) -> None:
        """Raises `WrongState` where the record is not held."""
        if not self.holds(offset) and offset not in self._said:
            raise WrongState(
                f"the record at offset {offset} of {self.source.partition} cannot be acknowledged: no poll has "
                f"returned it, or its acknowledgement was sent"
            )
        if kind is AcknowledgeType.RENEW and self._index_all().get(offset) is None:
            raise WrongState(
                f"the record at offset {offset} of {self.source.partition} cannot be renewed: poll did not return it"
            )
        self._said[offset] = kind

    def accept(self, but: Collection[int] = ()) -> None:
        """All records are processed, but those at some offsets."""
        kept: list[tuple[int, int]] = []
        for first, last in self._spans:
            left = sorted(offset for offset in but if first <= offset <= last) if but else []
            for offset in left:
                if offset > first:
                    self._settled.append(Run(first, offset - 1, AcknowledgeType.ACCEPT))
                kept.append((offset, offset))
                first = offset + 1
            if first <= last:
                self._settled.append(Run(first, last, AcknowledgeType.ACCEPT))
        self._spans = kept
        self._records = [record for record in self._records if record.offset in but] if kept else []
        self._by_offset = None

    def take(self) -> list[Run]:
        """What is to be sent."""
        runs = self._settled + chosen_runs(self._said)
        if self._said:
            held = self._index_all()
            for offset, kind in self._said.items():
                record = held.pop(offset, None)
                if kind is AcknowledgeType.RENEW and record is not None:
                    self.renewing[offset] = record
            self._records = [record for record in held.values() if record is not None]
            self._spans = [(run.first, run.last) for run in chosen_runs(dict.fromkeys(held, AcknowledgeType.ACCEPT))]
        self._settled, self._said = [], {}
        return joined(sorted(runs))

    def on_answer(self, runs: Sequence[Run], *, succeeded: bool) -> list[Record]:
        """A request with these runs is answered. Returns the records that it has renewed, which are not held yet."""
        offsets = [
            offset for run in runs if run.type is AcknowledgeType.RENEW for offset in range(run.first, run.last + 1)
        ]
        renewed = [record for offset in offsets if (record := self.renewing.pop(offset, None)) is not None]
        return renewed if succeeded else []

    def release(self) -> None:
        """The records are not processed: some member gets them again."""
        self._settled += runs_of(self._spans, AcknowledgeType.RELEASE)
        self._spans, self._records, self._by_offset, self._said = [], [], None, {}

    def holds(self, offset: int) -> bool:
        """Whether the application may say something of the record."""
        return offset in self._index_all()

    def _index_all(self) -> dict[int, Record | None]:
        if self._by_offset is None:
            self._by_offset = {}
            self._index(self._records, self._spans)
        return self._by_offset

    def _index(self, records: Sequence[Record], spans: Sequence[tuple[int, int]]) -> None:
        assert self._by_offset is not None
        for first, last in spans:
            self._by_offset.update(dict.fromkeys(range(first, last + 1)))
        self._by_offset.update((record.offset, record) for record in records)
