"""Taking back what was appended: a follower whose log has parted from its leader's.

Everything here is synced before the next append, later segments before earlier bytes. Otherwise a loss of power could
bring back a piece of the old log beside a piece of the new one, which no CRC would notice; so it leaves a prefix of the
one or of the other.
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


def cut(log: Log, offset: int) -> None:
    """Everything from `offset` on goes."""
    assert offset >= 0, f"truncating {log.topic_partition} to {offset}"
    if log.segments.first.base_offset > offset:
        empty(log, offset, None)
        return
    _shorten(log, offset)()
    _settle(log, offset)


def cut_job(log: Log, offset: int) -> Job[None]:
    """A job that takes back everything from `offset` on, for a log that nobody appends to or reads until it is done.
    The log ends at `offset` at once; its epochs and producers follow when the files do."""
    assert log.segments.first.base_offset <= offset < log.log_end_offset, f"{log.topic_partition} has no {offset}"
    works: list[Callable[[], None]] = []
    log.cut_with(lambda: works.append(_shorten(log, offset)))
    return Job(f"truncate {log.topic_partition}", works[0], lambda _: log.cut_with(lambda: _settle(log, offset)))


def _shorten(log: Log, offset: int) -> Callable[[], None]:
    """The log ends at `offset`. What does the same to its files, durably, is given back: for any thread, as soon as
    may be."""
    log.lower_recovery_point(offset)
    later = log.segments.above(offset)
    for segment in later:
        log.segments.remove(segment)
        segment.close()
    removers = [segment.files() for segment in reversed(later)]
    cut_off = log.segments.active.shorten_to(offset)
    log.log_end_offset = offset
    log.high_watermark = min(log.high_watermark, offset)
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
    """The files end there: only now may epochs be forgotten, by which others see what is in them."""
    log.leader_epochs.truncate_from_end(offset)
    # The producers as they were: the last snapshot below, and the batches after it. Nobody has expired meanwhile.
    log.snapshots.load_latest(log.producer_states, log.log_start_offset, offset, 0, MAX_INT64)
    replay_producers(log.producer_states, log.segments, offset)


def start_within(log: Log, records: Buffer, leader_epoch: int, first: UnexpectedAppendOffset) -> AppendInfo:
    """The log, which is empty, starts within the first batch of `records`, whose first records were deleted: take that
    batch whole. What follows has to be sent again: were it damaged, the log would be left ending before its start."""
    start = log.log_end_offset
    log.truncate_fully_and_start_at(first.first_offset, start)
    return log.append_as_follower(memoryview(records)[: read_header(records).size_bytes], leader_epoch)


def empty(log: Log, offset: int, log_start_offset: int | None) -> None:
    """Everything goes; the log goes on at `offset`."""
    log.lower_recovery_point(offset)
    log.leader_epochs.forget()
    for segment in reversed(list(log.segments)):
        _remove(log, segment)
    log.disk.sync_dir(log.directory)
    log.segments.add(Segment.create(log.disk, log.directory, offset, log.config, 0))
    for taken in list(log.snapshots.offsets):
        log.snapshots.remove(taken)
    log.producer_states.clear(offset)
    log.log_end_offset = offset
    log.log_start_offset = offset if log_start_offset is None else log_start_offset
    log.high_watermark = max(log.log_start_offset, min(log.high_watermark, offset))


def _remove(log: Log, segment: Segment) -> None:
    log.segments.remove(segment)
    segment.close()
    segment.files()(log.disk)
