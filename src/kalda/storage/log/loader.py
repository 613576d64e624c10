"""Opening a log: cheaply after a clean stop, by recovery after any other.

After a clean stop the files are complete: sizes are taken from the directory's entries, the log's end is found from the
last index entry, the producers' state from the last snapshot. After any other stop everything from the recovery point
on is read: batches must follow one another and have the CRC that their header names. The log ends before the first one
that does not, later segments are removed, and indexes, transaction index, leader epochs and producers' state are made
anew from what was read. After a failure of the disk that is what the device has, not what the page cache returns.
Whatever is cut off or dropped is named in a warning, and kept for a while (`corrupt_files.py`).

What is of a format that is not known need not be damaged: a batch of a later magic, a leader epoch checkpoint, a
producer snapshot, a transaction index or a `partition.metadata` of a later version. Then `UnsupportedFormat` is raised,
before anything of it is changed.

A recovery that cuts nothing syncs nothing and leaves the recovery point where it was, as Kafka does: a start after the
next crash reads the same again, and a node with thousands of logs does not wait for as many syncs. What was read may
thus not be on the device yet: where durability is promised, it is flushed first (`Log.flush_due`, `MetadataLog.open`).
Indexes that were missing below the recovery point are synced: no later recovery would make them anew.

All functions here work on their own objects and may run on any thread.

Not obvious:

- Producer snapshots lack transactions whose marker is above the high watermark: one at or below it is loaded.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple

from kalda.base.disk import Buffer, Disk, File
from kalda.base.errors import CorruptRecord, UnsupportedFormat
from kalda.base.ids import TopicPartition, Uuid
from kalda.records.batch import (
    ATTRIBUTES_POSITION,
    CRC_POSITION,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MIN_BATCH_LENGTH,
    MIN_BATCH_SIZE,
    BatchHeader,
    check_crc,
    crc32c,
    read_header,
)
from kalda.storage.config import DAY_MS, LogConfig
from kalda.storage.file_names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TXN_INDEX_SUFFIX,
    file_name,
    offset_of,
)
from kalda.storage.log.corrupt_files import CorruptFiles
from kalda.storage.log.index import read_waiting
from kalda.storage.log.offsets import LeaderEpochs
from kalda.storage.log.producer_snapshot import SnapshotFiles
from kalda.storage.log.producer_state import ProducerIdLimit, ProducerStates
from kalda.storage.log.segment import MAX_GAP, MAX_RELATIVE_OFFSET, Segment, Segments

# Recovering one segment: which of its batches are undamaged, and its indexes made anew from them.
#
# Works on the segment alone, and cuts nothing: what is done with the rest is decided by `loader.py`.

_RECOVERY_CHUNK_BYTES = 4 * 1024 * 1024


def recover_segment(
    segment: Segment, producers: ProducerStates, epochs: LeaderEpochs, upto: int | None, synced_upto: int = 0
) -> tuple[int, str]:
    """Make the indexes of a segment anew, up to its first damaged batch. Returns the position of that batch, where the
    caller has to cut the segment, and what is wrong there; the segment's size where nothing is.

    `upto` is the next segment's base offset, which no batch may reach. `producers` are those at this segment's base
    offset; the batches that are kept are applied to them. Raises `UnsupportedFormat` at a batch that follows the ones
    before it, is of a magic that this version cannot read, and begins below `synced_upto` or is whole by its CRC, where
    magic 2 has that. Otherwise a loss of power may have left it, and the magic is no better than the rest: that is
    damage, as for Apache Kafka.
    """
    offset_index, time_index = segment.offset_index, segment.time_index
    offset_index.reset()
    time_index.reset()
    segment.txn_index.reset()
    interval = segment.config.index_interval_bytes
    largest = (-1, segment.base_offset)
    position = last_entry = 0
    batches = _UndamagedBatches(segment, synced_upto)
    for at, header, chunk in batches:
        if upto is not None and header.last_offset >= upto:
            batches.why = f"a batch ends at offset {header.last_offset}, and the next segment begins at {upto}"
            break
        if header.max_timestamp > largest[0]:
            largest = (header.max_timestamp, header.last_offset)
        if at - last_entry > interval and not offset_index.is_full and not time_index.is_full:
            offset_index.append(header.last_offset, at)
            time_index.maybe_append(*largest)
            last_entry = at
        note_epoch(epochs, header)
        producers.replay(header, chunk, segment.txn_index)
        position = at + header.size_bytes
    segment.reset_state(segment.size, largest)
    if largest[0] >= 0:
        time_index.maybe_append(*largest)
    offset_index.release()
    time_index.release()
    return position, batches.why


def count_batches(segment: Segment, position: int) -> tuple[int, int]:
    """How many batches there seem to be from `position` on, by their lengths, and the last offset of the last one."""
    batches, last = 0, segment.base_offset - 1
    with contextlib.suppress(CorruptRecord):
        for _, base, delta, _ in segment.walk(position, read_waiting):
            batches, last = batches + 1, max(last, base + delta)
    return batches, last


def note_epoch(epochs: LeaderEpochs, header: BatchHeader) -> None:
    """Make the epochs those of this batch, too."""
    if header.partition_leader_epoch >= 0:
        epochs.correct(header.partition_leader_epoch, header.base_offset)


class _UndamagedBatches:
    """(position, header, bytes) of each batch up to the first that is cut off, out of place, or fails its CRC. `why`
    says what is wrong with that one."""

    def __init__(self, segment: Segment, synced_upto: int) -> None:
        self._segment = segment
        self._synced_upto = synced_upto
        self.why = "it ends within a batch's header"

    def __iter__(self) -> Iterator[tuple[int, BatchHeader, Buffer]]:
        segment = self._segment
        file, size = segment.file(), segment.size
        position, expected = 0, segment.base_offset
        chunk: Buffer = b""
        start = 0
        while size - position >= MIN_BATCH_SIZE:
            at = position - start
            wanted = min(HEADER_SIZE, size - position)
            if len(chunk) - at < wanted:
                chunk, start, at = file.read(position, min(_RECOVERY_CHUNK_BYTES, size - position)), position, 0
            try:
                header = read_header(chunk, at)
                length = header.batch_length + LOG_OVERHEAD
                if length > size - position:
                    self.why = f"a batch of {length} bytes at offset {header.base_offset} is cut off"
                    return
                if len(chunk) - at < length:
                    wanted = min(max(length, _RECOVERY_CHUNK_BYTES), size - position)
                    chunk, start, at = file.read(position, wanted), position, 0
                check_crc(chunk, at, header)
            except UnsupportedFormat as error:
                if self._is_whole(file, position, expected):
                    raise UnsupportedFormat(
                        f"{segment.path(LOG_SUFFIX)}, position {position}: {error.message}"
                    ) from error
                self.why = error.message
                return
            except CorruptRecord as error:
                self.why = error.message
                return
            if header.base_offset < expected or header.last_offset_delta < 0:
                self.why = f"a batch of offsets {header.base_offset} to {header.last_offset} follows {expected - 1}"
                return
            if header.last_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
                self.why = f"offset {header.last_offset} is too far from the segment's base offset"
                return
            yield position, header, memoryview(chunk)[at : at + length]
            position += length
            expected = header.next_offset

    def _is_whole(self, file: File, position: int, expected: int) -> bool:
        """Whether offset and length, which all formats have in the same place, may be those of the next batch, which
        was synced, or whose CRC, where magic 2 has it, is right."""
        head = file.read(position, ATTRIBUTES_POSITION)
        offset = int.from_bytes(head[:8], "big", signed=True)
        length = int.from_bytes(head[8:LOG_OVERHEAD], "big", signed=True)
        upto = position + LOG_OVERHEAD + length
        if not expected <= offset <= self._segment.base_offset + MAX_RELATIVE_OFFSET:
            return False
        if length < MIN_BATCH_LENGTH or upto > self._segment.size:
            return False
        if expected < self._synced_upto:
            return True
        crc = 0
        for start in range(position + ATTRIBUTES_POSITION, upto, _RECOVERY_CHUNK_BYTES):
            crc = crc32c(file.read(start, min(_RECOVERY_CHUNK_BYTES, upto - start)), crc)
        return crc == int.from_bytes(head[CRC_POSITION:], "big")


log = logging.getLogger("kalda.logs")

_MAX_UNREPLICATED = 1_000_000
"""Offsets between the high watermark and a snapshot that are searched for markers: their headers are read."""


class Loaded(NamedTuple):
    """What `load` found. Offsets as in `LogOffsets`; `next_offset` is the log's end."""

    segments: Segments
    epochs: LeaderEpochs
    producers: ProducerStates
    snapshots: SnapshotFiles
    log_start_offset: int
    next_offset: int
    recovery_point: int
    changed: bool
    """names in the directory may not be synced"""


class Unopened(NamedTuple):
    """A log that is about to be opened: where its files are, and what is known of it before."""

    disk: Disk
    directory: str
    """The path of the partition's own directory; made where it is missing."""
    config: LogConfig
    topic_partition: TopicPartition
    now_ms: int
    clean: bool
    """Whether the process that had it open before stopped cleanly; otherwise the log is recovered from `recovery_point`
    on, on a thread."""
    topic_id: Uuid | None = None
    """None where it may be any topic's."""
    recovery_point: int = 0
    """From the checkpoint; everything below it was synced."""
    log_start_offset: int = 0
    """From the checkpoint; 0 where that does not name the log."""
    high_watermark: int | None = None
    """From the checkpoint; None where that does not name the log. The caller sets it in the open log."""
    compacted_upto: int | None = None
    """As in `LogDir.compacted_upto`."""
    corrupt_files: CorruptFiles | None = None
    """Of the whole log directory; None: of this log."""
    cache_is_unreliable: bool = False
    """The disk failed, see `DISK_FAILED_FILE`: what is above the recovery point may be in the page cache only, and
    count as synced there."""
    producer_expiration_ms: int = DAY_MS
    producer_limit: ProducerIdLimit | None = None
    verify_transactions: bool = False
    """As `Log.verify_transactions`."""
    jitter: Callable[[int], int] = lambda _: 0
    """As `Log` keeps it: a random number below its argument."""
    segment_disk: Disk | None = None
    """The same disk, for the files of segments; None: `disk`."""

    @property
    def segment_jitter_ms(self) -> int:
        """How much earlier than `segment.ms` the segment after the active one is begun; random."""
        return self.jitter(min(self.config.segment_jitter_ms, self.config.segment_ms))


class Loading:
    """One opening."""

    def __init__(self, given: Unopened) -> None:
        self._given = given
        self._disk = given.disk
        self._segment_disk = given.disk if given.segment_disk is None else given.segment_disk
        self._directory = given.directory
        self._config = given.config
        self._name = str(given.topic_partition)
        """For messages."""
        self._corrupt_files = given.corrupt_files or CorruptFiles()
        self._changed = given.cache_is_unreliable
        """Names in the directory were changed."""
        self._truncated = False
        """Records were cut off, or segments removed."""
        self._recovery_begin = 0
        """Base offset of the segment that holds the recovery point: recovery reads from there on."""
        self._recovered_from = 0
        """Base offset of the first segment that was recovered; lower where one before that had no index."""
        self._producers = ProducerStates(self._name)

    def load(self) -> Loaded:
        """Raises `OSError` where the disk fails."""
        given, start = self._given, self._given.log_start_offset
        names = self._clean_up(self._disk.list_dir(self._directory))
        self._corrupt_files.note(self._disk, self._directory, names)
        segments, unindexed = self._open_segments(names)
        self._snapshots = SnapshotFiles(self._disk, self._directory, _offsets(names, SNAPSHOT_SUFFIX))
        if not given.clean:
            self._snapshots.check_versions()
        self._epochs = self._load_epochs(segments)
        stored_epochs = self._epochs.entries
        producers = self._producers
        to_recover = self._to_recover(segments, unindexed)
        next_offset = -1
        if not to_recover and len(segments):
            try:
                next_offset = segments.active.next_offset()
            except UnsupportedFormat:
                raise
            except CorruptRecord as error:
                log.warning("%s: %s; the segment is recovered, although the last stop was clean", self._name, error)
                to_recover = [segments.active]
        if to_recover:
            next_offset = self._recover(segments, to_recover)
        first = max(start, segments.first.base_offset) if len(segments) else start
        if len(segments) and next_offset < first:
            # The log's end was lost, down to below its start: all that is left was deleted on purpose.
            log.warning(
                "%s ends at offset %d, before its log start offset %d: it begins anew there",
                self._name,
                next_offset,
                first,
            )
            for segment in list(segments):
                self._drop(segments, segment)
        if not len(segments):
            first = next_offset = start
            segments.add(
                Segment.create(
                    self._segment_disk, self._directory, first, self._config, given.now_ms, given.segment_jitter_ms
                )
            )
            self._changed = True
        self._epochs.truncate_from_end(next_offset)
        self._epochs.truncate_from_start(first)
        self._report_epochs(stored_epochs, first)
        self._snapshots.remove_strays([segment.base_offset for segment in segments])
        if not to_recover or producers.map_end_offset != next_offset:
            self._load_producers(segments, first, next_offset)
        producers.on_log_start_offset(first)
        for segment in segments:
            segment.close()  # a partition without requests has no file open
        made_anew = bool(to_recover) and (given.clean or self._recovered_from < self._recovery_begin)
        if self._truncated or made_anew:
            self._sync(segments)
        if given.corrupt_files is None:
            for path in self._corrupt_files.prune():
                self._disk.remove(path)
        whole = self._truncated or made_anew or given.clean
        recovery_point = next_offset if whole else min(given.recovery_point, next_offset)
        return Loaded(
            segments, self._epochs, producers, self._snapshots, first, next_offset, recovery_point, self._changed
        )

    # Files

    def _clean_up(self, names: list[str]) -> list[str]:
        """Finish or undo what was under way when the process before this one stopped; the names that remain."""
        if not any(name.endswith((DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX, ".tmp")) for name in names):
            return names
        self._changed = True
        cleaned = _offsets(names, CLEANED_SUFFIX)
        swaps = []
        for name in names:
            path = f"{self._directory}/{name}"
            if name.endswith((DELETED_SUFFIX, CLEANED_SUFFIX, ".tmp")):
                self._disk.remove(path)
            elif name.endswith(SWAP_SUFFIX) and (offset := offset_of(name)) is not None:
                if cleaned and offset >= min(cleaned):
                    self._disk.remove(path)  # its siblings were not all renamed: the originals are still whole
                else:
                    swaps.append(name)
        self._finish_swaps(swaps, names)
        return self._disk.list_dir(self._directory)

    def _finish_swaps(self, swaps: list[str], names: list[str]) -> None:
        """Cleaned segments that were complete get their final names; the segments that they replace are removed
        first."""
        for name in swaps:
            if not name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
                continue
            base = offset_of(name)
            assert base is not None
            upto = self._swap_end(base)
            replaced = [
                other
                for other in names
                if (offset := offset_of(other)) is not None
                and base <= offset < upto
                and other.endswith(SEGMENT_SUFFIXES)
            ]
            for other in replaced:
                self._disk.remove(f"{self._directory}/{other}")
            log.warning(
                "%s: compaction was interrupted when it had written %s, which replaces offsets up to %d; removed: %s",
                self._name,
                name,
                upto,
                ", ".join(replaced) or "nothing",
            )
        for name in swaps:
            self._disk.rename(f"{self._directory}/{name}", f"{self._directory}/{name[: -len(SWAP_SUFFIX)]}")

    def _swap_end(self, base: int) -> int:
        size = self._size_of(f"{file_name(base, LOG_SUFFIX)}{SWAP_SUFFIX}")
        segment = Segment(self._disk, self._directory, base, self._config, size=size, suffix=SWAP_SUFFIX, fresh=True)
        end = base + 1
        for _, batch_base, delta, _ in segment.walk(0, read_waiting):
            end = batch_base + delta + 1
        segment.close()
        return end

    def _size_of(self, name: str) -> int:
        """Of a file that the directory lists."""
        path = f"{self._directory}/{name}"
        found = self._disk.stat(path)
        if found is None:
            raise OSError(errno.ENOENT, "the directory lists the file, but it cannot be found", path)
        return found.size_bytes

    def _open_segments(self, names: list[str]) -> tuple[Segments, set[int]]:
        """Every segment, and the base offsets of those that lack an offset index."""
        known = set(names)
        segments, unindexed = [], set()
        for name in names:
            offset = offset_of(name)
            if offset is None:
                continue
            if name.endswith(LOG_SUFFIX):
                if file_name(offset, INDEX_SUFFIX) not in known:
                    unindexed.add(offset)
                segments.append(
                    Segment(
                        self._segment_disk,
                        self._directory,
                        offset,
                        self._config,
                        size=self._size_of(name),
                        created_ms=self._given.now_ms,
                        jitter_ms=self._given.segment_jitter_ms,
                        has_txn_index=file_name(offset, TXN_INDEX_SUFFIX) in known,
                    )
                )
            elif name.endswith(SEGMENT_SUFFIXES) and file_name(offset, LOG_SUFFIX) not in known:
                self._disk.remove(f"{self._directory}/{name}")
        return Segments(segments), unindexed

    def _load_epochs(self, segments: Segments) -> LeaderEpochs:
        # A young log that was not flushed yet has no such file: that is no damage.
        why, is_damaged = "it has no entries", self._given.clean or self._given.recovery_point > 0
        try:
            epochs = LeaderEpochs.load(self._disk, self._directory)
            if self._given.cache_is_unreliable:
                epochs.write()
            if epochs.entries or not segments.size_bytes:
                return epochs
        except ValueError as error:
            why, is_damaged = str(error), True
        # A loss of power may have torn the file, or emptied it. Each batch has its epoch: read them all.
        epochs = LeaderEpochs(self._disk, self._directory)
        for segment in _with_epochs(segments):
            try:
                for _, header in segment.headers():
                    note_epoch(epochs, header)
            except CorruptRecord as error:
                synced = self._given.clean or segment.base_offset < self._edge(segments)
                if synced and isinstance(error, UnsupportedFormat):
                    raise  # in the others recovery finds out whether the batch is damaged
                break
        epochs.write()
        log.log(
            # Batches of magic 0 and 1 have no epoch: then there was none in the file either.
            logging.WARNING if is_damaged and epochs.entries else logging.DEBUG,
            "%s: the leader epochs are read from all batches, %d entries, as their file cannot be used: %s",
            self._name,
            len(epochs.entries),
            why,
        )
        return epochs

    def _edge(self, segments: Segments) -> int:
        """Where the first segment begins that was not synced whole."""
        return (segments.floor(self._given.recovery_point) or segments.first).base_offset

    def _report_epochs(self, stored: list[tuple[int, int]], first: int) -> None:
        """Name the epochs of the file that the log, which begins at `first`, does not have any more."""
        current = set(self._epochs.entries)
        lost = [entry for entry in stored if entry not in current and entry[1] > first]
        if lost:
            log.warning(
                "%s: leader epochs that the batches do not have, or that begin beyond the log's end, are dropped: %s",
                self._name,
                ", ".join(f"{epoch} from offset {offset}" for epoch, offset in lost),
            )

    def _drop(self, segments: Segments, segment: Segment) -> None:
        segments.remove(segment)
        segment.close()
        kept = self._corrupt_files.keep_segment(
            self._disk, self._directory, segment.base_offset, segment.path(LOG_SUFFIX), segment.size
        )
        if segment.size:
            log.warning(
                "%s: the segment of %d bytes at offset %d is removed, as records before it are missing%s",
                self._name,
                segment.size,
                segment.base_offset,
                _where_kept(kept),
            )
        segment.files()(self._disk)
        self._snapshots.remove(segment.base_offset)
        self._changed = self._truncated = True

    # Recovery

    def _to_recover(self, segments: Segments, unindexed: set[int]) -> list[Segment]:
        if self._given.clean:
            return [
                segment for segment in segments if segment.base_offset in unindexed or not segment.txn_index.is_sane()
            ]
        if not len(segments):
            return []
        begin = self._recovery_begin = self._edge(segments)
        return [segment for segment in segments if segment.base_offset >= begin or segment.base_offset in unindexed]

    def _recover(self, segments: Segments, to_recover: list[Segment]) -> int:
        """Recover these segments in order; the log's end. Segments after one that was cut are removed.

        Of a segment that only lacks an index, and was synced whole, nothing is cut: neither its records nor those after
        it depend on the index."""
        producers = self._producers
        self._recovered_from = to_recover[0].base_offset
        # A crash during a deletion may leave snapshots from before the first segment: batches after them are missing.
        start = max(self._given.log_start_offset, segments.first.base_offset - 1)
        for segment in to_recover:
            base = segment.base_offset
            if producers.map_end_offset != base or not base:
                self._load_producers(segments, start, base)
            later = segments.above(base)
            is_synced = bool(later) and (self._given.clean or base < self._recovery_begin)
            cut = self._recover_segment(segment, later[0].base_offset if later else None, is_synced)
            if is_synced:
                self._changed = True
                continue
            if not cut and later and self._lacks_end(producers.map_end_offset, later[0].base_offset):
                cut = True
                log.warning(
                    "%s: offsets %d to %d are missing, the end of a segment that was not synced",
                    self._name,
                    producers.map_end_offset,
                    later[0].base_offset - 1,
                )
            self._changed = True
            self._snapshots.take(producers)
            if cut:
                self._truncated = True
                for other in later:
                    self._drop(segments, other)
                break
        try:
            return segments.active.next_offset()
        except CorruptRecord:
            self._load_producers(segments, self._given.log_start_offset, segments.active.base_offset)
            self._recover_segment(segments.active, None)
            self._truncated = True
            return segments.active.next_offset()

    def _recover_segment(self, segment: Segment, upto: int | None, is_synced: bool = False) -> bool:
        """`recover_segment`; whether something was cut off, which is kept and reported. Of a segment that `is_synced`,
        damage is only reported."""
        if self._given.cache_is_unreliable:
            segment.file().sync()
            segment.file().drop_cache()
        position, why = recover_segment(segment, self._producers, self._epochs, upto, self._given.recovery_point)
        cut = segment.size - position
        if cut and is_synced:
            log.warning(
                "%s: %s is damaged at position %d: %s. It is left as it is, since it was synced whole; its new index "
                "ends there",
                self._name,
                segment.path(LOG_SUFFIX),
                position,
                why,
            )
            return False
        if cut:
            end = max(self._producers.map_end_offset, segment.base_offset)
            lost = count_batches(segment, position)
            kept = self._corrupt_files.keep_tail(
                self._disk, self._directory, end, segment.file(), position, segment.size
            )
            log.warning(
                "%s: recovery cuts %d bytes off %s at position %d: %s. The log ends at offset %d now%s%s",
                self._name,
                cut,
                segment.path(LOG_SUFFIX),
                position,
                why,
                end,
                f"; {lost[0]} batches up to offset {lost[1]} are lost" if lost[0] else "",
                _where_kept(kept),
            )
            segment.file().truncate(position)
            segment.size = segment.hot_from = position
        return cut > 0

    def _sync(self, segments: Segments) -> None:
        """Sync what recovery cut and rebuilt: the recovery point is raised to the log's end.

        Otherwise a second crash could bring the cut bytes back, behind what was appended in their place.
        """
        if self._epochs.unwritten:
            self._epochs.write()
        for segment in segments.above(self._recovered_from - 1):
            for file in segment.sync_files(self._disk):
                try:
                    file.sync()
                finally:
                    file.close()
        if self._epochs.unsynced:
            file = self._disk.open(self._epochs.path)
            try:
                file.sync()
            finally:
                file.close()
            self._epochs.unsynced = False
        self._disk.sync_dir(self._directory)

    def _lacks_end(self, end: int, next_base: int) -> bool:
        """Whether records are missing between a segment that ends at `end` and the next: its end was never synced.

        Compaction leaves such gaps too: below the recovery point, and, as Kafka may compact beyond that, below the
        offset up to which the log was compacted. Where neither is known, any gap may be compaction's.
        """
        if self._given.compacted_upto is None and self._config.compacts:
            return False
        return (
            self._given.recovery_point < next_base > (self._given.compacted_upto or 0)
            and end < next_base <= end + MAX_GAP
        )

    # Producers

    def _load_producers(self, segments: Segments, start: int, upto: int) -> None:
        """Producer state at `upto`: the last snapshot, and the batches after it."""
        producers = self._producers
        if self._given.clean and not self._snapshots.offsets and not self._truncated and upto:
            # A clean stop writes a snapshot where there is any producer.
            producers.clear(upto)
            return
        load = self._snapshots.load_latest
        load(producers, start, upto, self._given.now_ms, self._given.producer_expiration_ms)
        high_watermark, known_to = self._given.high_watermark, self._snapshots.latest
        try:
            if (
                high_watermark is not None
                and known_to is not None
                and 0 < known_to - high_watermark <= _MAX_UNREPLICATED
                and self._has_undecided(segments, high_watermark, known_to)
            ):
                load(producers, start, upto, self._given.now_ms, self._given.producer_expiration_ms, high_watermark)
            replay_producers(producers, segments, upto)
        except CorruptRecord as error:
            if self._given.clean or isinstance(error, UnsupportedFormat):
                raise  # the log is opened anew, and recovered, or it is not opened
            log.warning("%s: its producers are known as of a damaged batch only: %s", self._name, error)
            producers.map_end_offset = upto

    def _has_undecided(self, segments: Segments, high_watermark: int, upto: int) -> bool:
        """Whether transactions may have ended in [high watermark, upto), and the batches from the snapshot below the
        high watermark on tell which.

        Where compaction has removed some of these batches, nothing follows from the others: a transaction without
        its marker would stay open. Only what is committed is compacted, so the high watermark of the checkpoint is an
        old one then."""
        begin = high_watermark
        if self._config.compacts:
            begin = self._snapshots.latest_at(high_watermark) or self._given.log_start_offset
        expected, found = begin, False
        for segment in segments.between(begin, upto):
            position = segment.locate(max(begin, segment.base_offset), read_waiting)
            if position is None:
                continue
            for _, header in segment.headers(position):
                if header.base_offset >= upto:
                    break
                if header.base_offset > expected or (header.is_control and not header.records_count):
                    return False
                expected = header.next_offset
                found = found or (header.is_control and header.base_offset >= high_watermark)
        return found and expected >= upto


def _with_epochs(segments: Segments) -> list[Segment]:
    """The segments from the last one on that begins with a batch of magic 0 or 1: those before it were written earlier,
    and had no epochs either."""
    found: list[Segment] = []
    for segment in reversed(list(segments)):
        found.insert(0, segment)
        with contextlib.suppress(CorruptRecord):
            first = segment.header_at(0, read_waiting)
            if first is not None and first.is_legacy:
                break
    return found


def _offsets(names: list[str], suffix: str) -> list[int]:
    found = (offset_of(name) for name in names if name.endswith(suffix))
    return [offset for offset in found if offset is not None]


def replay_producers(producers: ProducerStates, segments: Segments, upto: int) -> None:
    """Apply the batches from the end of `producers` up to `upto`."""
    if producers.map_end_offset >= upto:
        return
    for segment in segments.between(producers.map_end_offset, upto):
        start = max(producers.map_end_offset, segment.base_offset)
        position = segment.locate(start, read_waiting)
        if position is None:
            continue
        for at, header in segment.headers(position):
            if header.base_offset >= upto:
                break
            if header.producer_id >= 0:
                whole = segment.file().read(at, header.size_bytes) if header.is_control else None
                producers.replay(header, whole, None)
    producers.map_end_offset = max(producers.map_end_offset, upto)


def _where_kept(path: str | None) -> str:
    return "" if path is None else f"; it is kept in {path}"
