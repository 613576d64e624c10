"""Which segments are deleted, by time, by size, by log start offset; and deleting them.

Whole segments are deleted, from the old end, and only below the high watermark. The active segment is deleted too where
all its records are over age; the log then goes on in a new one.

The rules of age and size delete first, and the log start follows; the third rule deletes what is below a log start that
was raised otherwise. The files are renamed here, and removed after `file.delete.delay.ms`, or by the next start.

A loss of power may bring segments back whose renames were not synced. That does no harm: the log begins with them, or
above them where the checkpoint of log starts says so, and the next call deletes them. The name of a new segment
precedes the renames, and filesystems keep the changes of a directory in their order, so one that names the log's end is
always left; the flush that its roll asks for syncs the names (`Unsynced.job`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kalda.base.disk import Disk
from kalda.storage.file_names import DELETED_SUFFIX
from kalda.storage.log.log import Log
from kalda.storage.log.segment import Segment

MAX_DELETED = 50
"""Segments that one rule deletes in one call. The files of each are renamed on the calling thread."""


def delete_old_segments(log: Log, now_ms: int) -> int:
    """Apply the topic's retention; the number of segments deleted. Where that is `MAX_DELETED` or more, there may be
    further ones for the next call.

    A compacted topic without `delete` only loses what is below its log start offset.
    """
    deleted = 0
    if log.config.deletes:
        deleted += _delete_over_age(log, now_ms)
        deleted += _delete_over_size(log, now_ms)
    return deleted + _delete_below_start(log, now_ms)


def _delete_over_age(log: Log, now_ms: int) -> int:
    limit = log.config.retention_ms
    if limit < 0:
        return 0
    return _delete_while(log, now_ms, lambda segment, _: now_ms - segment.largest_timestamp() > limit)


def _delete_over_size(log: Log, now_ms: int) -> int:
    limit = log.config.retention_bytes
    if limit < 0:
        return 0
    excess = log.size_bytes - limit

    def too_much(segment: Segment, _: Segment | None) -> bool:
        nonlocal excess
        if excess - segment.size < 0:
            return False
        excess -= segment.size
        return True

    return _delete_while(log, now_ms, too_much) if excess > 0 else 0


def _delete_below_start(log: Log, now_ms: int) -> int:
    start = log.log_start_offset
    return _delete_while(log, now_ms, lambda _, following: following is not None and following.base_offset <= start)


def _delete_while(log: Log, now_ms: int, doomed: Callable[[Segment, Segment | None], bool]) -> int:
    chosen: list[Segment] = []
    all_segments = list(log.segments)
    for at, segment in enumerate(all_segments):
        following = all_segments[at + 1] if at + 1 < len(all_segments) else None
        upto = log.log_end_offset if following is None else following.base_offset
        if log.high_watermark < upto or (following is None and not segment.size):
            break
        if len(chosen) == MAX_DELETED or not doomed(segment, following):
            break
        chosen.append(segment)
    if not chosen:
        return 0
    if len(chosen) == len(all_segments):
        log.roll(now_ms)
    assert log.segments.active is not chosen[-1], f"{log.topic_partition} would have no segment"
    delete_segments(log, chosen)
    first = log.segments.first.base_offset
    if first > log.log_start_offset:
        log.advance_log_start_offset(first)
    return len(chosen)


def delete_segments(log: Log, segments: Sequence[Segment], *, kept_snapshot: int = -1) -> None:
    """Take segments out of the log and have their files deleted after `file.delete.delay.ms`.

    At least one must be left, or be added at once. The caller moves the log start offset. `kept_snapshot`: the offset
    of a snapshot of the producers' state that stays, of all that stand at the beginning of these segments.
    """
    doomed: list[str] = []
    removers: list[Callable[[Disk], None]] = []
    try:
        for segment in segments:
            log.segments.remove(segment)
            segment.close()
            segment.change_suffix(DELETED_SUFFIX)
            removers.append(segment.files())
            if segment.base_offset != kept_snapshot:
                doomed += log.snapshots.mark_deleted(segment.base_offset)
    except OSError as error:
        raise log.failed(error) from error
    log.on_segments_changed()

    def remove(disk: Disk) -> None:
        for remover in removers:
            remover(disk)
        for path in doomed:
            disk.remove(path)

    if segments:
        log.hooks.delete_later(log, log.config.file_delete_delay_ms, remove)
