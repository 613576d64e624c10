"""What one ShareFetch has brought of one partition: record batches, and which of their records are acquired.

Only acquired records are returned; a batch may have others, which other members hold. Offsets that were acquired and
have no record (control batches, compaction) are acknowledged as gaps. A batch that is damaged is rejected, a record
that a deserializer refuses is released: both are raised behind the records before them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from kalda.base.errors import CorruptRecord
from kalda.base.share_states import AcknowledgeType
from kalda.clientcore.consuming.consumer_errors import UndecodableRecord
from kalda.clientcore.consuming.fetcher import Taken, section_reader
from kalda.clientcore.sharing.held_records import Run, ShareSource
from kalda.protocol.messages.share import ShareFetchResponsePartitionData
from kalda.records.batch import BatchHeader, check_crc, iter_batches
from kalda.records.builder import with_range
from kalda.records.compression import MAX_DECOMPRESSED_BYTES
from kalda.records.consuming import Record, SectionReader

if TYPE_CHECKING:
    from kalda.records.consuming import Read

_REJECTED = "it was rejected, and no member gets it again"
_RELEASED = "it was released: a member gets it again, until its deliveries are used up"


class TakenRecords(NamedTuple):
    """Records, the ranges of offsets that they have, what is acknowledged without the application, and what failed."""

    records: list[Record]
    spans: list[tuple[int, int]]
    settled: list[Run]
    failure: Exception | None
    undecodable: int
    """The offset of a record that a deserializer has refused; -1: none."""


class TakenColumns(NamedTuple):
    """Acquired offsets, from `first` to `last`, whose records are in `taken`."""

    source: ShareSource
    taken: Taken
    first: int
    last: int


class ShareChunk:
    """Of one partition in one response."""

    def __init__(
        self,
        source: ShareSource,
        data: ShareFetchResponsePartitionData,
        readers: tuple[Read | None, Read | None],
        check_crcs: bool,
    ) -> None:
        """Damage is found here, and raised when its offsets are taken."""
        self.source = source
        self._readers = readers
        records = data.records
        self._data = memoryview(records) if isinstance(records, bytes | bytearray | memoryview) else memoryview(b"")
        self.size_bytes = len(self._data)
        self._acquired: deque[tuple[int, int, int]] = deque(_ascending(data.acquired_records))
        """First offset, last offset and delivery count of what was not taken."""
        self.acquired_count = sum(last - first + 1 for first, last, _ in self._acquired)
        self._damage: dict[int, Exception] = {}
        """By base offset, why a batch cannot be read."""
        self._batches: deque[tuple[int, BatchHeader]] = deque()
        self._reader: SectionReader | None = None
        """Of the first of `_batches`."""
        self._read_batches(check_crcs)

    def _read_batches(self, check_crcs: bool) -> None:
        end = -1
        try:
            for pos, header in iter_batches(self._data):
                if header.is_legacy:
                    with suppress(CorruptRecord):  # which is raised once its records are taken
                        header = with_range(header, self._data, pos, MAX_DECOMPRESSED_BYTES)
                if header.base_offset <= end or header.last_offset < header.base_offset:
                    raise CorruptRecord(f"the batch at offset {header.base_offset} is not in order")
                end = header.last_offset
                self._batches.append((pos, header))
                if check_crcs:
                    try:
                        check_crc(self._data, pos, header)
                    except CorruptRecord as error:
                        self._damage[header.base_offset] = error
        except CorruptRecord as error:
            # What follows cannot be found: acquired offsets behind `end` are rejected.
            self._cut_off: CorruptRecord | None = error
        else:
            self._cut_off = None

    @property
    def is_empty(self) -> bool:
        """Whether all that was acquired is taken."""
        return not self._acquired

    # -- records

    def take(self, limit: int) -> TakenRecords:
        """Up to `limit` records. With a failure, what is behind it stays."""
        out = TakenRecords([], [], [], None, -1)
        while self._acquired and len(out.records) < limit:
            first, last, count = self._acquired[0]
            header = self._first_batch(first, last, out.settled)
            if header is None:
                if self._cut_off is not None:
                    out.settled.append(Run(first, last, AcknowledgeType.REJECT))
                    self._advance(last)
                    return out._replace(failure=self._undecodable(first, self._cut_off, _REJECTED))
                out.settled.append(Run(first, last, AcknowledgeType.GAP))
                self._advance(last)
                continue
            first, end = max(first, header.base_offset), min(last, header.last_offset)
            if header.is_control:
                out.settled.append(Run(first, end, AcknowledgeType.GAP))
                self._advance(end)
                continue
            failed = self._take_range(first, end, count, limit - len(out.records), out)
            if failed is not None:
                return out._replace(failure=failed[0], undecodable=failed[1])
        return out

    def _take_range(
        self, first: int, end: int, count: int, room: int, out: TakenRecords
    ) -> tuple[Exception, int] | None:
        """Records of the first batch. Returns what has failed, and the offset of the record that is to be released."""
        pos, header = self._batches[0]
        before = len(out.records)
        error: Exception | None = self._damage.get(header.base_offset)
        failed_at = first
        through = end
        if error is None:
            try:
                through = self._read(pos, header, first, end, count, room, out.records)
            except Exception as failure:
                error = failure
                failed_at = max(first, self._reader.next_offset) if self._reader is not None else first
        if error is None or failed_at > end:  # behind `end` it is another member's
            self._note(out, before, first, through)
            self._advance(through)
            return None
        if failed_at > first:
            self._note(out, before, first, failed_at - 1)
        if isinstance(error, CorruptRecord):
            self._damage[header.base_offset] = error
            out.settled.append(Run(failed_at, end, AcknowledgeType.REJECT))
            self._advance(end)
            return self._undecodable(failed_at, error, _REJECTED), -1
        if self._reader is not None:
            self._reader.skip()
        self._advance(failed_at)
        return self._undecodable(failed_at, error, _RELEASED), failed_at

    def _read(
        self, pos: int, header: BatchHeader, first: int, end: int, count: int, room: int, out: list[Record]
    ) -> int:
        """Append records from `first` to `end`; the offset through which that is done."""
        is_dense = header.records_count == header.last_offset_delta + 1 and not header.is_legacy
        reader = self._reader
        if reader is None or not is_dense:
            # Of a batch with gaps each range is read anew: the reader may have passed the range's first record.
            self._reader = None
            partition = self.source.partition
            reader = self._reader = section_reader(
                partition, self._data, pos, header, self._readers, MAX_DECOMPRESSED_BYTES
            )
        reader.count_deliveries(count)
        if is_dense:
            through = min(end, first + room - 1)
            reader.take(out, through - first + 1, first)
            return through
        at = first
        while room > 0 and not reader.is_done and at <= end:
            if not reader.take(out, 1, at):
                break
            at = out[-1].offset + 1
            room -= 1
            if at > end + 1:
                out.pop()
                return end
        return end if room > 0 or reader.is_done else min(end, at - 1)

    def _note(self, out: TakenRecords, before: int, first: int, through: int) -> None:
        """The offsets from `first` through `through` are done, by the records from `before` on."""
        taken = len(out.records) - before
        if taken == through - first + 1:
            out.spans.append((first, through))
            return
        at = first
        for record in out.records[before:]:
            offset = record.offset
            if offset > at:
                out.settled.append(Run(at, offset - 1, AcknowledgeType.GAP))
            out.spans.append((offset, offset))
            at = offset + 1
        if at <= through:
            out.settled.append(Run(at, through, AcknowledgeType.GAP))

    def _first_batch(self, first: int, last: int, settled: list[Run]) -> BatchHeader | None:
        """The batch with the first acquired offset that has a record; offsets before it are gaps."""
        while self._batches and self._batches[0][1].last_offset < first:
            self._batches.popleft()
            self._reader = None
        if not self._batches or self._batches[0][1].base_offset > last:
            return None
        header = self._batches[0][1]
        if header.base_offset > first:
            settled.append(Run(first, header.base_offset - 1, AcknowledgeType.GAP))
        return header

    def _advance(self, through: int) -> None:
        _, last, count = self._acquired.popleft()
        if through < last:
            self._acquired.appendleft((through + 1, last, count))

    def _undecodable(self, offset: int, error: Exception, outcome: str) -> UndecodableRecord:
        failure = UndecodableRecord(self.source.partition, offset, error, outcome)
        failure.__cause__ = error
        return failure

    # -- columns

    def take_columns(self, limit: int) -> tuple[list[TakenColumns], list[Run], Exception | None]:
        """Up to `limit` offsets for columns, what is acknowledged without the application, and what failed."""
        out: list[TakenColumns] = []
        settled: list[Run] = []
        while self._acquired and limit > 0:
            first, last, _ = self._acquired[0]
            header = self._first_batch(first, last, settled)
            if header is None or header.is_control or header.base_offset in self._damage:
                error = self._cut_off if header is None else self._damage.get(header.base_offset)
                end = last if header is None else min(last, header.last_offset)
                kind = AcknowledgeType.GAP if error is None else AcknowledgeType.REJECT
                begin = first if header is None else max(first, header.base_offset)
                settled.append(Run(begin, end, kind))
                self._advance(end)
                if error is not None:
                    return out, settled, self._undecodable(begin, error, _REJECTED)
                continue
            first, end = max(first, header.base_offset), min(last, header.last_offset)
            end = min(end, first + limit - 1)
            pos = self._batches[0][0]
            buffer = self._data[pos : pos + header.size_bytes]
            topic, number = self.source.partition
            out.append(TakenColumns(self.source, Taken(topic, number, buffer, first, end + 1, None), first, end))
            limit -= end - first + 1
            self._advance(end)
        return out, settled, None


def _ascending(acquired: Sequence[Any]) -> list[tuple[int, int, int]]:
    """The acquired ranges; those that do not ascend are left out: their meaning is not defined."""
    found: list[tuple[int, int, int]] = []
    end = -1
    for each in acquired:
        if end < each.first_offset <= each.last_offset:
            found.append((each.first_offset, each.last_offset, each.delivery_count))
            end = each.last_offset
    return found
