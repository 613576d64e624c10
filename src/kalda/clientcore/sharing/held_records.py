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

from collections.abc import Collection, Sequence
from typing import NamedTuple

from kalda.base.errors import WrongState
from kalda.base.ids import TopicPartition, Uuid
from kalda.base.share_states import AcknowledgeType
from kalda.clientcore.sharing.acknowledgements import Run, chosen_runs, joined, runs_of
from kalda.records.consuming import Record


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
