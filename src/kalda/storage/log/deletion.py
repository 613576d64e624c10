"""What is taken off a log: at its end by truncation, at its beginning by retention.

Truncation is taking back what was appended, in a follower whose log has diverged from its leader's.

Everything is synced before the next append, the removal of later segments before the cut in an earlier one. So a loss
of power leaves a prefix of the log before the truncation, or of the one after it. Otherwise it could leave a piece of
the one beside a piece of the other, which no CRC would detect.

A `Truncation` goes in steps. What changes the log or names and lengths of files is done on the thread that owns the
log. Between two steps it waits for the device: a sync, or reading the producers anew. `start_truncations` has threads
wait, for many logs at a time. While `Log.truncation` is set, nothing is fetched for the log; whatever else is to append
to it (a replica that becomes leader) does the remaining steps at once (`Log.unblock`). That is safe even while a thread
waits for the same step, as threads only sync and read.

1. checkpoints with a recovery point or a log start offset above the new end are replaced durably
2. in memory the log ends; later segments are renamed, the last one first; the directory is synced
3. the file of the last segment is cut, and synced
4. later leader epochs are dropped, and the producers are those as of the new end
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator, Sequence

from kalda.base.disk import Buffer, Disk
from kalda.base.errors import ApiError, CorruptRecord
from kalda.base.scheduling import Jobs
from kalda.records.batch import read_header
from kalda.storage.config import MAX_INT64
from kalda.storage.file_names import DELETED_SUFFIX
from kalda.storage.job import Job
from kalda.storage.log.loader import replay_producers
from kalda.storage.log.log import Log
from kalda.storage.log.producer_snapshot import SnapshotFiles
from kalda.storage.log.producer_state import ProducerStates
from kalda.storage.log.segment import Segment, Segments
from kalda.storage.values import AppendInfo, UnexpectedAppendOffset

logger = logging.getLogger("kalda.logs")

_LOGS_AT_ONCE = 32
"""So many logs take a step in one callback, and wait for their device in one job."""

Wait = Callable[[], None]
"""Waits for the device, on any thread; may be called twice, even at the same time."""


class Truncation:
    """One truncation of one log; set as its `Log.truncation` until it is complete."""

    __slots__ = ("_steps", "_waits_for", "has_lower_checkpoint", "log", "lowers_recovery_point", "offset")

    def __init__(self, log: Log, offset: int, steps: Iterator[Wait]) -> None:
        self.log = log
        self.offset = offset
        """What is below it stays, and may be flushed meanwhile."""
        self._steps = steps
        self._waits_for: Wait | None = None
        """What the step that was taken last has to wait for; None: no step was taken yet."""
        self.lowers_recovery_point = offset < log.recovery_point
        """A checkpoint may have a recovery point above `offset`."""
        self.has_lower_checkpoint = not self.lowers_recovery_point
        """That is not, or no more, so."""
        log.truncation = self
        log.blocked = True

    def advance(self) -> Wait | None:
        """Take the next step; what it waits for, None where the truncation is complete, also because the log was closed
        or something else has completed it. Raises KAFKA_STORAGE_ERROR: the log is offline then, whatever the cause, as
        one that was cut in part must not be appended to."""
        log = self.log
        if log.truncation is not self or log.offline:
            return None
        try:
            self._waits_for = next(self._steps, None)
        except Exception as error:
            raise self._failed(error) from error
        if self._waits_for is None:
            log.truncation = None
            log.blocked = log.offline
        return self._waits_for

    def complete(self) -> None:
        """Do here and now what is left. Raises KAFKA_STORAGE_ERROR."""
        wait = self._waits_for or self.advance()
        while wait is not None:
            try:
                wait()
            except Exception as error:
                raise self._failed(error) from error
            wait = self.advance()

    def _failed(self, error: Exception) -> ApiError:
        if isinstance(error, OSError):
            return self.log.failed(error)
        logger.error("the truncation of %s to %d failed", self.log.topic_partition, self.offset, exc_info=error)
        return self.log.failed(OSError(errno.EIO, f"a truncation failed: {error!r}", self.log.directory))


# Beginning


def truncate_to(log: Log, offset: int) -> bool:
    """Drop everything from `offset` on; False where the log ends there or before. For followers."""
    truncation = begin_truncation(log, offset)
    if truncation is None:
        return False
    truncation.complete()
    return True


def truncate_fully_and_start_at(log: Log, offset: int, log_start_offset: int | None = None) -> None:
    """Empty the log: the next record gets `offset`. The log start offset is `log_start_offset`, which is at most that,
    or `offset`."""
    begin_anew_at(log, offset, log_start_offset).complete()


def begin_truncation(log: Log, offset: int) -> Truncation | None:
    """A truncation to `offset`, still to be done; None where the log ends there or before. Raises `CorruptRecord`, and
    changes nothing, where the place to cut cannot be found among damaged batches."""
    assert offset >= 0, f"truncating {log.topic_partition} to {offset}"
    log.unblock()
    if offset >= log.log_end_offset:
        # A former leader that appended nothing in its epoch has an entry for that epoch all the same.
        try:
            log.leader_epochs.truncate_from_end(log.log_end_offset)
        except OSError as error:
            raise log.refused(error) from error
        log.refresh()
        return None
    if log.segments.first.base_offset > offset:
        return begin_anew_at(log, offset)
    try:
        last = log.segments.from_floor(offset)[0]
        last.open_all()
        last.check_cut(offset)
    except OSError as error:
        raise log.refused(error) from error
    return Truncation(log, offset, _steps_to_cut(log, offset))


def begin_anew_at(log: Log, offset: int, log_start_offset: int | None = None) -> Truncation:
    """As `truncate_fully_and_start_at`, still to be done."""
    log.unblock()
    start = offset if log_start_offset is None else log_start_offset
    return Truncation(log, offset, _steps_to_empty(log, offset, start))


def append_fetched(log: Log, records: Buffer, leader_epoch: int) -> AppendInfo:
    """`Log.append_as_follower`, also where the log ends within the first batch.

    It does where it was emptied or cut back to the leader's log start, and that is within a batch: the records before
    it were deleted in the leader. The log is cut back to where the batch begins, and the batch is appended; log start
    and high watermark stay. What follows the batch has not been checked, and is to be fetched again.
    """
    try:
        return log.append_as_follower(records, leader_epoch)
    except UnexpectedAppendOffset as error:
        if not error.first_offset < log.log_end_offset <= error.last_offset:
            raise
        first_offset = error.first_offset
    start, high_watermark = log.log_start_offset, log.high_watermark
    logger.info(
        "%s ends at %d, within a batch of its leader: it is cut back to %d, where that begins",
        log.topic_partition,
        log.log_end_offset,
        first_offset,
    )
    if first_offset <= start:
        truncate_fully_and_start_at(log, first_offset)
    else:
        truncate_to(log, first_offset)
    info = log.append_as_follower(memoryview(records)[: read_header(records).size_bytes], leader_epoch)
    log.update_high_watermark(high_watermark)
    log.advance_log_start_offset(start)
    return info._replace(log_start_offset=start)


# Many at a time


def start_truncations(jobs: Jobs, truncations: Sequence[Truncation], done: Callable[[], None]) -> None:
    """Complete them, with threads that wait for the device; then `done` is called on the logs' thread. A disk that
    fails under one of them takes its log directory offline."""
    _run(jobs, _jobs(truncations), truncations, done)


def _run(jobs: Jobs, steps: Iterator[Job[None]], truncations: Sequence[Truncation], done: Callable[[], None]) -> None:
    try:
        job = next(steps, None)
    except Exception:
        logger.exception("truncations failed, and are completed one by one")
        for truncation in truncations:
            _complete(truncation)
        job = None
    if job is None:
        done()
        return

    def finish(_: None, error: BaseException | None) -> None:
        try:
            job.finish()
        except (ApiError, OSError) as failure:
            logger.error("%s failed: %s", job.description, failure)
        _run(jobs, steps, truncations, done)

    jobs.run(job.run, finish)


def _jobs(truncations: Sequence[Truncation]) -> Iterator[Job[None]]:
    """Jobs to be run and finished one after another."""
    lowering = [each for each in truncations if each.lowers_recovery_point]
    for each in lowering:
        # Flush jobs that are under way must not raise it again, nor checkpoints name a higher one.
        each.log.unsynced.truncations += 1
        each.log.recovery_point = min(each.log.recovery_point, each.offset)
    for hooks in dict.fromkeys(each.log.hooks for each in lowering):
        yield from hooks.lowering_jobs([each.log for each in lowering if each.log.hooks is hooks])
    for each in lowering:
        each.has_lower_checkpoint = True
    for at in range(0, len(truncations), _LOGS_AT_ONCE):
        waits = _advance_all(truncations[at : at + _LOGS_AT_ONCE])
        while waits:
            failed: list[Truncation] = []
            yield _waiting_job(waits, failed)
            for each in failed:
                _complete(each)
            waits = _advance_all([each for each, _ in waits])


def _advance_all(truncations: Sequence[Truncation]) -> list[tuple[Truncation, Wait]]:
    waits: list[tuple[Truncation, Wait]] = []
    for each in truncations:
        try:
            wait = each.advance()
        except ApiError as error:
            logger.error("%s is not truncated: %s", each.log.topic_partition, error)
            continue
        if wait is not None:
            waits.append((each, wait))
    return waits


def _waiting_job(waits: list[tuple[Truncation, Wait]], failed: list[Truncation]) -> Job[None]:
    def work() -> None:
        for each, wait in waits:
            try:
                wait()
            except Exception:
                # Its directory may have been renamed. If the disk has failed, it fails again where that is reported.
                failed.append(each)

    return Job(f"truncate {len(waits)} logs", work, lambda _: None)


def _complete(truncation: Truncation) -> None:
    try:
        if truncation.log.truncation is truncation and not truncation.log.offline:
            truncation.complete()
    except ApiError as error:
        logger.error("%s is not truncated: %s", truncation.log.topic_partition, error)


# Steps


def lower_recovery_point(log: Log, offset: int, checkpoint: bool) -> None:
    """Lower the log start offset and the recovery point to `offset`, where they are above it, before anything is cut
    there. The hooks replace checkpoints with higher ones, that of the recovery point where `checkpoint` is true, and
    raise `OSError`."""
    if offset < log.log_start_offset:
        log.log_start_offset = offset
        log.hooks.on_log_start_lowered(log)
    log.recovery_point = min(log.recovery_point, offset)
    if checkpoint:
        log.hooks.on_recovery_point_lowered(log)


def _lower(log: Log, offset: int) -> None:
    truncation = log.truncation
    assert isinstance(truncation, Truncation)
    lower_recovery_point(log, offset, not truncation.has_lower_checkpoint)
    truncation.has_lower_checkpoint = True


def _steps_to_cut(log: Log, offset: int) -> Iterator[Wait]:
    had_producers = len(log.producer_states) > 0
    high_watermark = log.high_watermark
    undecided_from = None
    if had_producers:
        # What is cut may hold the ends of transactions. Those of which a part is below the high watermark have not
        # ended below it, unless that is cut too.
        undecided_from = log.first_unstable_offset if offset >= high_watermark else log.log_start_offset
    _lower(log, offset)
    log.on_segments_changed()
    removals = _rename_away(log, log.segments.above(offset))
    file, position = log.segments.active.shorten_to(offset)
    log.end_at(offset)
    log.producer_states.clear(offset, undecided_from)
    _refresh(log)
    if removals:
        yield _removal(log, removals)
    if position is not None:
        file.truncate(position)
    yield file.sync
    assert log.segments.active.base_offset <= offset, f"{log.topic_partition}: {offset} is below its last segment"
    # The files end at `offset`. Only now are later epochs dropped: other replicas find by them what the files hold.
    log.leader_epochs.truncate_from_end(offset)
    log.snapshots.remove_outside(log.log_start_offset, offset)
    if had_producers:
        reading = _ReadProducers(log, offset)
        yield reading
        log.snapshots.keep(reading.snapshots.offsets)
        log.producer_states.adopt(reading.states)
    _refresh(log)


def _steps_to_empty(log: Log, offset: int, log_start_offset: int) -> Iterator[Wait]:
    _lower(log, offset)
    yield from log.leader_epochs.forget()
    log.on_segments_changed()
    removals = _rename_away(log, list(log.segments))
    log.segments.add(Segment.create(log.disk, log.directory, offset, log.config, 0))
    log.snapshots.remove_outside(offset, offset)
    log.producer_states.clear(offset)
    log.begin_anew_at(offset, log_start_offset)
    _refresh(log)
    yield _removal(log, removals)


def _rename_away(log: Log, segments: Sequence[Segment]) -> list[Callable[[Disk], None]]:
    """Take these segments out of the log, the last one first; functions that remove their files."""
    removals: list[Callable[[Disk], None]] = []
    for segment in reversed(segments):
        log.segments.remove(segment)
        segment.close()
        segment.change_suffix(DELETED_SUFFIX)
        removals.append(segment.files())
    return removals


def _removal(log: Log, removals: list[Callable[[Disk], None]]) -> Wait:
    disk, directory = log.disk, log.directory

    def wait() -> None:
        for remove in removals:
            remove(disk)
        disk.sync_dir(directory)

    return wait


def _refresh(log: Log) -> None:
    log.producer_states.on_high_watermark(log.high_watermark)
    log.refresh()


class _ReadProducers:
    """Reads the producers as of `offset`: the last snapshot that is below it and below the high watermark, and the
    batches after that. None is expired by this. Works on copies."""

    def __init__(self, log: Log, offset: int) -> None:
        self._name = str(log.topic_partition)
        self._start = log.log_start_offset
        self._offset = offset
        files = log.snapshots
        self.snapshots = SnapshotFiles(log.disk, log.directory, files.offsets)
        """The files that are left: damaged ones are removed."""
        self._high_watermark = log.high_watermark
        first = self.snapshots.latest_at(log.high_watermark) or 0
        self._segments = Segments([segment.snapshot() for segment in log.segments.from_floor(first)])
        self.states = ProducerStates(self._name)

    def __call__(self) -> None:
        states = ProducerStates(self._name)
        self.snapshots.load_latest(states, self._start, self._offset, 0, MAX_INT64, self._high_watermark)
        try:
            replay_producers(states, self._segments, self._offset)
        except CorruptRecord as error:
            logger.error("%s: its producers are known as of a damaged batch only: %s", self._name, error)
            states.map_end_offset = self._offset
        self.states = states


# Which segments are deleted, by time, by size, by log start offset; and deleting them.
#
# Whole segments are deleted, from the old end, and only below the high watermark. The active segment is deleted too
# where all its records are over age; the log then goes on in a new one.
#
# The rules of age and size delete first, and the log start follows; the third rule deletes what is below a log start
# that was raised otherwise. The files are renamed here, and removed after `file.delete.delay.ms`, or by the next
# start.
#
# A loss of power may bring segments back whose renames were not synced. That does no harm: the log begins with them,
# or above them where the checkpoint of log starts says so, and the next call deletes them. The name of a new segment
# precedes the renames, and filesystems keep the changes of a directory in their order, so one that names the log's
# end is always left; the flush that its roll asks for syncs the names (`Unsynced.job`).

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
