"""Recovering one segment: which of its batches are undamaged, and its indexes made anew from them.

Works on the segment alone, and cuts nothing: what is done with the rest is decided by `loader.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from kalda.base.disk import Buffer, File
from kalda.base.errors import CorruptRecord, UnsupportedFormat
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
from kalda.storage.file_names import LOG_SUFFIX
from kalda.storage.log.index import read_waiting
from kalda.storage.log.leader_epochs import LeaderEpochs
from kalda.storage.log.producer_state import ProducerStates
from kalda.storage.log.segment import MAX_RELATIVE_OFFSET, Segment

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
