"""Truncation: taking back what was appended, in a follower whose log has diverged from its leader's.

Everything is synced before the next append, the removal of later segments before the cut in an earlier one. So a loss
of power leaves a prefix of the log before the truncation, or of the one after it. Otherwise it could leave a piece of
the one beside a piece of the other, which no CRC would detect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kalda.base.disk import Buffer
from kalda.records.batch import read_header
from kalda.storage.config import MAX_INT64
from kalda.storage.job import Job
from kalda.storage.loading import replay_producers
from kalda.storage.segment import Segment
from kalda.storage.values import AppendInfo, UnexpectedAppendOffset

if TYPE_CHECKING:
    from kalda.storage.log import Log


def truncate_to(log: Log, offset: int) -> bool:
    """Drop everything from `offset` on; False where the log ends there or before. For followers."""
    assert offset >= 0, f"truncating {log.topic_partition} to {offset}"
    if offset >= log.log_end_offset:
        # A former leader that appended nothing in its epoch has an entry for that epoch all the same.
        log.check_online()
        try:
            log.leader_epochs.truncate_from_end(log.log_end_offset)
        except OSError as error:
            raise log.failed(error) from error
        log.refresh()
        return False
    _change(log, lambda: _cut(log, offset))
    return True


def truncate_fully_and_start_at(log: Log, offset: int, log_start_offset: int | None = None) -> None:
    """Empty the log: the next record gets `offset`. The log start offset is `log_start_offset`, which is at most that,
    or `offset`."""
    _change(log, lambda: _empty(log, offset, offset if log_start_offset is None else log_start_offset))


def cut_job(log: Log, offset: int) -> Job[None]:
    """A job that drops everything from `offset` on, for a log that is not appended to or read until the job is
    finished. The log ends at `offset` at once; its epochs and producers are cut when the files have been."""
    assert log.segments.first.base_offset <= offset < log.log_end_offset, f"{log.topic_partition} has no {offset}"
    works: list[Callable[[], None]] = []
    _change(log, lambda: works.append(_shorten(log, offset)))
    return Job(f"truncate {log.topic_partition}", works[0], lambda _: _change(log, lambda: _settle(log, offset)))


def start_within(log: Log, records: Buffer, leader_epoch: int, first: UnexpectedAppendOffset) -> AppendInfo:
    """Append the first batch of `records` to an empty log that starts within that batch, as the batch's first records
    were deleted in the leader. What follows the batch has not been checked, and is to be fetched again."""
    start = log.log_end_offset
    truncate_fully_and_start_at(log, first.first_offset)
    info = log.append_as_follower(memoryview(records)[: read_header(records).size_bytes], leader_epoch)
    log.update_high_watermark(start)
    log.advance_log_start_offset(start)
    return info._replace(log_start_offset=start)


def _change(log: Log, work: Callable[[], None]) -> None:
    """Do `work`, which cuts or removes segments, between what has to be done before it and after it."""
    log.check_online()
    try:
        log.on_segments_changed()
        work()
    except OSError as error:
        raise log.failed(error) from error
    log.producer_states.on_high_watermark(log.high_watermark)
    log.refresh()


def lower_recovery_point(log: Log, offset: int) -> None:
    """Lower the log start offset and the recovery point to `offset`, where they are above it, before anything is cut
    there. The hooks replace checkpoints with higher ones, and raise `OSError`."""
    if offset < log.log_start_offset:
        log.log_start_offset = offset
        log.hooks.on_log_start_lowered(log)
    if offset < log.recovery_point:
        log.recovery_point = offset
        log.hooks.on_recovery_point_lowered(log)


def _cut(log: Log, offset: int) -> None:
    """Drop everything from `offset` on."""
    if log.segments.first.base_offset > offset:
        _empty(log, offset, offset)
        return
    _shorten(log, offset)()
    _settle(log, offset)


def _shorten(log: Log, offset: int) -> Callable[[], None]:
    """The log ends at `offset` from now on. Returns what cuts its files and syncs that: for any thread, before the next
    append."""
    lower_recovery_point(log, offset)
    later = log.segments.above(offset)
    for segment in later:
        log.segments.remove(segment)
        segment.close()
    removers = [segment.files() for segment in reversed(later)]
    cut_off = log.segments.active.shorten_to(offset)
    log.end_at(offset)
    log.producer_states.clear(offset)
    disk, directory = log.disk, log.directory

    def work() -> None:
        for remove in removers:
            remove(disk)
        if removers:
            disk.sync_dir(directory)
        cut_off()

    return work


def _settle(log: Log, offset: int) -> None:
    """The files end at `offset`. Only now are later epochs dropped: other replicas find by them what the files hold."""
    log.leader_epochs.truncate_from_end(offset)
    # The producers as of `offset`: the last snapshot below it, and the batches after that. None is expired by this.
    log.snapshots.load_latest(log.producer_states, log.log_start_offset, offset, 0, MAX_INT64)
    replay_producers(log.producer_states, log.segments, offset)


def _empty(log: Log, offset: int, log_start_offset: int) -> None:
    """Drop everything; the next record gets `offset`."""
    lower_recovery_point(log, offset)
    log.leader_epochs.forget()
    for segment in reversed(list(log.segments)):
        _remove(log, segment)
    log.disk.sync_dir(log.directory)
    log.segments.add(Segment.create(log.disk, log.directory, offset, log.config, 0))
    for taken in list(log.snapshots.offsets):
        log.snapshots.remove(taken)
    log.producer_states.clear(offset)
    log.begin_anew_at(offset, log_start_offset)


def _remove(log: Log, segment: Segment) -> None:
    log.segments.remove(segment)
    segment.close()
    segment.files()(log.disk)
