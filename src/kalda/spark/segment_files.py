"""Log directories on disk to pieces of segments, and pieces to tasks.

A log directory may be that of a stopped node, of a dead one, or a copy; it is only read. A task reads whole segments:
small ones are put together, and one that is larger than `max_split_bytes` is cut at batches that its offset index
names. A cut is taken only where a whole batch with a right CRC begins, so a wrong index costs parallelism, never rows.

A partition that several of the directories have is read once, from its longest replica. Directories of replicas that
are to be deleted, are stray or are being moved are left out. Compaction that a crash interrupted is read as a start of
the node would complete it: a `.log.swap` replaces the segments within its offsets.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from kalda.base.errors import CorruptRecord, UnsupportedFormat
from kalda.base.ids import TopicPartition
from kalda.broker.process.disk import RealDisk
from kalda.records.batch import HEADER_SIZE, MIN_BATCH_SIZE, check_crc, read_header
from kalda.spark.partitions import Narrowing
from kalda.storage.checkpoints import LEADER_EPOCH_FILE, LOG_START_OFFSET_FILE, read_epochs, read_offsets
from kalda.storage.file_names import (
    DELETE_DIR_SUFFIX,
    FUTURE_DIR_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    STRAY_DIR_SUFFIX,
    SWAP_SUFFIX,
    offset_of,
    parse_dir_name,
)
from kalda.storage.log.index import OffsetIndex

MAX_OFFSET = 2**63 - 1
OPEN_COST_BYTES = 4 * 1024 * 1024
"""What opening a file counts for where small segments are put together, as spark.sql.files.openCostInBytes."""
_MARKS = (DELETE_DIR_SUFFIX, FUTURE_DIR_SUFFIX, STRAY_DIR_SUFFIX)


class SegmentPiece(NamedTuple):
    """The batches of one segment that begin in [start, end)."""

    topic: str
    partition: int
    log_dir: str
    path: str
    base_offset: int
    start: int
    end: int
    log_start_offset: int
    """Records before it were deleted by a client."""


@dataclass(frozen=True, slots=True)
class SegmentFile:
    path: str
    base_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ReplicaDir:
    """One partition's directory in one log directory; its segments by base offset."""

    partition: TopicPartition
    log_dir: str
    path: str
    segments: tuple[SegmentFile, ...]
    log_start_offset: int = 0


def find_replicas(
    paths: Iterable[str], narrowing: Narrowing, *, all_replicas: bool = False, deleted_records: bool = False
) -> list[ReplicaDir]:
    """The partitions' directories below `paths`, each a log directory, a partition's directory or a `.log` file.

    Raises `ValueError` where there is no log, naming the path.
    """
    found: list[ReplicaDir] = []
    for path in paths:
        path = os.path.abspath(path)
        if not os.path.exists(path):
            raise ValueError(f"{path}: there is no such directory or file")
        replicas = list(_replicas_at(path))
        if not replicas:
            raise ValueError(
                f"{path}: no directory named TOPIC-PARTITION with a {LOG_SUFFIX} file in it; give a node's log "
                f"directory (log.dirs), a partition's directory or a segment"
            )
        starts = {} if deleted_records else _log_starts({replica.log_dir for replica in replicas})
        for replica in replicas:
            if narrowing.includes(*replica.partition):
                start = starts.get((replica.log_dir, replica.partition), 0)
                found.append(
                    ReplicaDir(replica.partition, replica.log_dir, replica.path, replica.segments, start)
                    if start
                    else replica
                )
    found.sort(key=lambda replica: (replica.partition, replica.log_dir))
    return found if all_replicas else _longest(found)


def _replicas_at(path: str) -> Iterator[ReplicaDir]:
    if os.path.isfile(path):
        directory = os.path.dirname(path)
        base = offset_of(os.path.basename(path))
        if base is not None and path.endswith(LOG_SUFFIX):
            segment = SegmentFile(path, base, os.path.getsize(path))
            yield ReplicaDir(_partition_of(directory), os.path.dirname(directory), directory, (segment,))
        return
    segments = _segments_in(path)
    if segments:
        yield ReplicaDir(_partition_of(path), os.path.dirname(path), path, segments)
        return
    with os.scandir(path) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir())
    for name in names:
        partition = None if name.endswith(_MARKS) else parse_dir_name(name)
        if partition is not None and (segments := _segments_in(os.path.join(path, name))):
            yield ReplicaDir(partition, path, os.path.join(path, name), segments)


def _partition_of(directory: str) -> TopicPartition:
    name = os.path.basename(directory)
    return parse_dir_name(name) or TopicPartition(name, 0)


def _segments_in(directory: str) -> tuple[SegmentFile, ...]:
    logs: list[SegmentFile] = []
    swapped: list[SegmentFile] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            base = offset_of(entry.name)
            if base is None:
                continue
            if entry.name.endswith(LOG_SUFFIX):
                logs.append(SegmentFile(entry.path, base, entry.stat().st_size))
            elif entry.name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
                swapped.append(SegmentFile(entry.path, base, entry.stat().st_size))
    for swap in swapped:
        end = max(_end_offset(swap), swap.base_offset + 1)
        logs = [log for log in logs if not swap.base_offset <= log.base_offset < end]
    return tuple(sorted((*logs, *swapped), key=lambda segment: segment.base_offset))


def _end_offset(segment: SegmentFile) -> int:
    """The offset after the segment's last batch that can be read."""
    end = segment.base_offset
    with open(segment.path, "rb") as file:
        position = 0
        while position + MIN_BATCH_SIZE <= segment.size_bytes:
            try:
                header = read_header(os.pread(file.fileno(), HEADER_SIZE, position))
            except CorruptRecord:
                break
            end, position = max(end, header.next_offset), position + header.size_bytes
    return end


def _log_starts(log_dirs: Iterable[str]) -> dict[tuple[str, TopicPartition], int]:
    starts: dict[tuple[str, TopicPartition], int] = {}
    disk = RealDisk()
    for log_dir in log_dirs:
        try:
            offsets = read_offsets(disk, f"{log_dir}/{LOG_START_OFFSET_FILE}")
        except (ValueError, OSError, UnsupportedFormat):
            continue  # a damaged checkpoint: all records that are there are read
        starts.update({(log_dir, partition): offset for partition, offset in offsets.items()})
    return starts


def _longest(replicas: Sequence[ReplicaDir]) -> list[ReplicaDir]:
    """One replica a partition: that of the latest leader epoch, then the longest."""
    best: dict[TopicPartition, ReplicaDir] = {}
    several = {one.partition for one in replicas if best.setdefault(one.partition, one) is not one}
    for partition in several:
        best[partition] = max((one for one in replicas if one.partition == partition), key=_length)
    return list(best.values())


def _length(replica: ReplicaDir) -> tuple[int, int]:
    try:
        epochs = read_epochs(RealDisk(), f"{replica.path}/{LEADER_EPOCH_FILE}")
    except (ValueError, OSError, UnsupportedFormat):
        epochs = []
    return (epochs[-1][0] if epochs else -1), _end_offset(replica.segments[-1])


def plan_tasks(replicas: Iterable[ReplicaDir], narrowing: Narrowing, max_split_bytes: int) -> list[list[SegmentPiece]]:
    """The pieces of each task, in the order of partitions and offsets; none has more than `max_split_bytes`, except
    where a segment cannot be cut."""
    tasks: list[list[SegmentPiece]] = []
    current: list[SegmentPiece] = []
    size = 0
    for piece in _pieces(replicas, narrowing, max_split_bytes):
        cost = piece.end - piece.start + OPEN_COST_BYTES
        if current and size + cost > max_split_bytes + OPEN_COST_BYTES:
            tasks.append(current)
            current, size = [], 0
        current.append(piece)
        size += cost
    return [*tasks, current] if current else tasks


def _pieces(replicas: Iterable[ReplicaDir], narrowing: Narrowing, max_split_bytes: int) -> Iterator[SegmentPiece]:
    for replica in replicas:
        following = [segment.base_offset for segment in replica.segments[1:]]
        first = max(narrowing.start_offset, replica.log_start_offset)
        for segment, end_offset in zip(replica.segments, [*following, MAX_OFFSET], strict=True):
            if not segment.size_bytes or end_offset <= first or segment.base_offset >= narrowing.end_offset:
                continue
            edges = [0, *_cuts(segment, max_split_bytes), segment.size_bytes]
            for start, end in pairwise(edges):
                yield SegmentPiece(
                    *replica.partition,
                    replica.log_dir,
                    segment.path,
                    segment.base_offset,
                    start,
                    end,
                    replica.log_start_offset,
                )


def _cuts(segment: SegmentFile, max_split_bytes: int) -> list[int]:
    """Positions at which the segment is cut: each begins a whole batch."""
    if segment.size_bytes <= max_split_bytes + max_split_bytes // 10:
        return []
    pieces = -(-segment.size_bytes // max_split_bytes)
    index = segment.path.removesuffix(SWAP_SUFFIX).removesuffix(LOG_SUFFIX) + INDEX_SUFFIX
    try:
        entries = OffsetIndex(RealDisk(), index, segment.base_offset, 0).entries()
    except (OSError, CorruptRecord, ValueError):
        return []
    cuts: list[int] = []
    wanted = segment.size_bytes / pieces
    with open(segment.path, "rb") as file:
        for _, position in entries:
            if position >= wanted * (len(cuts) + 1) and begins_batch(file.fileno(), position, segment):
                cuts.append(position)
            if len(cuts) == pieces - 1:
                break
    return cuts


def begins_batch(fd: int, position: int, segment: SegmentFile) -> bool:
    """Whether a whole batch with a right CRC begins at the position."""
    if not 0 < position <= segment.size_bytes - MIN_BATCH_SIZE:
        return False
    try:
        header = read_header(os.pread(fd, HEADER_SIZE, position))
        if position + header.size_bytes > segment.size_bytes or header.base_offset < segment.base_offset:
            return False
        check_crc(os.pread(fd, header.size_bytes, position), 0, header)
    except CorruptRecord:
        return False
    return True
