"""What one log has: its offsets, its files, who waits for them, and whether its disk still works.

`Log` derives from it, and appends, reads and rolls. What is done with a log's files on another thread
(`snapshot_jobs`), and what a log asks of whoever holds it, needs no more than a `LogState`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from kalda.base.disk import Disk, File, NoHandleLeft
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.base.sensors import Counter
from kalda.storage.checkpoints import PARTITION_METADATA_FILE, mark_failed
from kalda.storage.job import Job
from kalda.storage.log.loader import Loaded, Unopened
from kalda.storage.log.offsets import LeaderEpochs, LogOffsets
from kalda.storage.log.producer_snapshot import SnapshotFiles
from kalda.storage.log.reads import Reads, RecentAppends
from kalda.storage.log.segment import Segment, Segments


class Unsynced:
    """What of one log's files is not on the device yet, and the job that syncs it.

    The recovery point may only pass what is synced: segments with their indexes, the snapshots and leader epochs that
    recovery would otherwise rebuild from batches below it, and the names in the directory: a crash may lose a synced
    file whose name was not synced.

    A segment that is not active any more has got its last index entries, perhaps after all its batches were synced.
    Until its indexes are synced too, the recovery point in the checkpoint stays below its end: a start after a crash
    makes them anew.
    """

    __slots__ = (
        "_disk", "_epochs", "_names_synced", "_sealed", "_segments", "_snapshots", "directory", "last_flush_ms",
        "metadata", "names", "truncations",
    )  # fmt: skip

    def __init__(
        self,
        disk: Disk,
        directory: str,
        segments: Segments,
        epochs: LeaderEpochs,
        snapshots: SnapshotFiles,
        *,
        names_changed: bool,
        now_ms: int,
    ) -> None:
        """`segments`, `epochs`, `snapshots`: the log's own."""
        self._disk = disk
        self._segments = segments
        self._epochs = epochs
        self._snapshots = snapshots
        self.directory = directory
        self.last_flush_ms = now_ms
        """When a flush that was given the time ended; when the log was opened, before."""
        self.names = 1 if names_changed else 0
        """Counts the changes of names in the directory."""
        self._names_synced = 0
        """The value of `names` at the last sync of the directory."""
        self.metadata = names_changed and disk.stat(self.metadata_path) is not None
        """`partition.metadata` may not be synced: the recovery point must not be raised before it is. After an unclean
        stop that holds for the file that was found, too."""
        self.truncations = 0
        """Counts what takes back something that had been appended, or its names: a flush job from before it does not
        raise the recovery point."""
        self._sealed: list[Segment] = []
        """Segments before the active one whose last index entries are not synced yet."""

    def seal(self, segment: Segment) -> None:
        """The segment is not appended to any more: complete its indexes."""
        segment.seal()
        if segment not in self._sealed:
            self._sealed.append(segment)

    def checkpoint_recovery_point(self, offsets: LogOffsets) -> int:
        """The recovery point that a checkpoint may name: the log's, or a lower one where recovery must begin a segment
        earlier. Recovery begins with the segment that would hold the recovery point.

        It is below the log's end where the last segment has records, even if all of these are synced: recovery and
        truncation write its indexes anew without syncing them, so a start after a crash has to make them once more.
        """
        segments, recovery_point = self._segments, offsets.recovery_point
        if len(segments) == 1:
            # What follows gives the same. Most logs are so, and a checkpoint visits all of a directory in one turn.
            return min(recovery_point, max(segments.active.base_offset, recovery_point - 1))
        oldest = next((each for each in self._sealed if segments.floor(each.base_offset) is each), segments.active)
        holder = segments.floor(recovery_point) or segments.first
        if holder.base_offset < oldest.base_offset:
            oldest = holder
        following = segments.after(oldest)
        end = offsets.log_end_offset if following is None else following.base_offset
        return min(recovery_point, max(oldest.base_offset, min(recovery_point, end) - 1))

    @property
    def metadata_path(self) -> str:
        return f"{self.directory}/{PARTITION_METADATA_FILE}"

    def _sync_dirs(self) -> None:
        self._disk.sync_dir(self.directory)
        self._disk.sync_dir(self.directory.rpartition("/")[0])

    def job(
        self,
        offsets: LogOffsets,
        upto: int,
        now_ms: int | None,
        *,
        indexes: bool,
        name: str,
        failed: Callable[[OSError], ApiError],
    ) -> Job[None]:
        """Sync what is below `upto` in the log of that `name` and those offsets. The finish raises its recovery point,
        unless the log was cut meanwhile, and sets the time of the last flush, where `now_ms` is given. Where the
        log's directory was removed, the error is `failed` of what the system says."""
        snapshots, epochs = self._snapshots, self._epochs
        files = self._files(offsets.recovery_point, upto, indexes)
        # Snapshots and epochs may be new files, whose names have to be synced too.
        new_files = bool(snapshots.unsynced) or epochs.unsynced
        names, truncations = self.names, self.truncations
        sync_names = new_files or names != self._names_synced
        synced_snapshots, synced_epochs = set(snapshots.unsynced), epochs.writes
        sealed = list(self._sealed)

        def work() -> FileNotFoundError | None:
            try:
                for file in files:
                    file.sync()
            finally:
                for file in files:
                    file.close()
            try:
                if sync_names:
                    self._sync_dirs()
            except FileNotFoundError as error:
                return error
            return None

        synced_metadata = self.metadata

        def finish(missing: FileNotFoundError | None) -> None:
            if missing is not None and truncations == self.truncations:
                raise failed(missing)  # otherwise the log's directory was renamed meanwhile
            if synced_metadata:
                self.metadata = False
            if truncations == self.truncations:
                self._sealed = [segment for segment in self._sealed if segment not in sealed]
                snapshots.unsynced = [offset for offset in snapshots.unsynced if offset not in synced_snapshots]
            if epochs.writes == synced_epochs:
                epochs.unsynced = False
            self._names_synced = max(self._names_synced, names)
            if truncations == self.truncations:
                offsets.raise_recovery_point(upto)
            if now_ms is not None:
                self.last_flush_ms = now_ms

        return Job(f"flush {name}", work, finish)

    def _files(self, recovery_point: int, upto: int, indexes: bool) -> list[File]:
        """Handles of the job's own on what it syncs."""
        files: list[File] = []
        segments, snapshots, epochs = self._segments, self._snapshots, self._epochs
        below = segments.between(recovery_point, upto) if upto > recovery_point else []
        sealed = [each for each in self._sealed if each not in below and segments.floor(each.base_offset) is each]
        for segment in sealed + below:
            files += segment.sync_files(self._disk) if indexes else [segment.sync_file(self._disk)]
        for offset in snapshots.unsynced:
            files.append(self._disk.open(snapshots.path(offset)))
        if epochs.unwritten and epochs.write_below(upto):
            self.names += 1
        if epochs.unsynced:
            files.append(self._disk.open(epochs.path))
        if self.metadata:
            files.append(self._disk.open(self.metadata_path))
        return files


class LogHooks(Protocol):
    """What a log calls in the manager that holds it. All calls are made on the thread that owns the log."""

    conversions: Counter
    """Counts the records of produced batches that are compressed anew."""

    def on_io_error(self, log: LogState, error: OSError) -> None:
        """The disk failed under `log`: its whole log directory is not used any more."""
        ...

    def on_rolled(self, log: LogState) -> None:
        """Segments before the active one are to be flushed soon (`LogState.flush_job`), and the snapshot of many
        producers is to be written (`LogState.snapshot_job`)."""
        ...

    def on_recovery_point_lowered(self, log: LogState) -> None:
        """`log` is about to be cut below the recovery point that it had: checkpoints with a higher one must be replaced
        first. Raises `OSError`: then nothing is cut."""
        ...

    def lowering_jobs(self, logs: Sequence[LogState]) -> Iterator[Job[None]]:
        """Jobs to be run and finished one after another that do the same for several logs. They raise nothing: a disk
        that fails takes the logs offline."""
        ...

    def on_log_start_lowered(self, log: LogState) -> None:
        """`log` is about to be cut below the log start offset that it had: likewise. Otherwise a start after a crash
        would drop what is appended there. Raises `OSError`."""
        ...

    def delete_later(self, log: LogState, delay_ms: int, remove: Callable[[Disk], None]) -> None:
        """Run `remove` on some thread when the delay has passed: reads under way may still have these files open."""
        ...


class Unfinished(Protocol):
    """A truncation of which not everything is done and synced."""

    offset: int
    """What is below it stays, and may be flushed meanwhile."""

    def complete(self) -> None:
        """Do here and now what is left. Raises KAFKA_STORAGE_ERROR."""
        ...


class LogState(LogOffsets):
    """Made as a `Log`, by `Log.open`."""

    __slots__ = (
        "__weakref__",
        "_latest_epoch",
        "blocked",
        "cold",
        "config",
        "directory",
        "disk",
        "hooks",
        "leader_epochs",
        "offline",
        "producer_states",
        "reads",
        "recent",
        "segment_disk",
        "segments",
        "snapshots",
        "topic_id",
        "topic_partition",
        "truncation",
        "unsynced",
    )

    def __init__(self, given: Unopened, topic_id: Uuid | None, loaded: Loaded, hooks: LogHooks) -> None:
        super().__init__(loaded.log_start_offset, loaded.next_offset, loaded.recovery_point)
        self.disk = given.disk
        self.segment_disk = given.disk if given.segment_disk is None else given.segment_disk
        """The same disk, for the files of segments."""
        self.directory = given.directory
        """The path of the partition's own directory; another one after `Log.rename_dir`."""
        self.config = given.config
        self.topic_partition = given.topic_partition
        self.topic_id = topic_id
        """As in `partition.metadata`; None where there is no such file yet."""
        self.segments: Segments = loaded.segments
        self.leader_epochs = loaded.epochs
        self.producer_states = loaded.producers
        self.snapshots = loaded.snapshots
        """Files with the producers' state."""
        self.unsynced = Unsynced(
            self.disk,
            self.directory,
            self.segments,
            self.leader_epochs,
            self.snapshots,
            names_changed=loaded.changed,
            now_ms=given.now_ms,
        )
        """What of the files has been written and not synced."""
        self.reads = Reads(self.segments)
        """What earlier reads have left for later ones."""
        self.recent: RecentAppends | None = None
        """Where large batches are kept for followers; None where there are no followers."""
        self.hooks = hooks
        self.offline = False
        """Closed, or failed by its disk: every call raises KAFKA_STORAGE_ERROR, for good."""
        self.truncation: Unfinished | None = None
        """A truncation whose files are not all synced yet: it has to be completed before the next append."""
        self.blocked = False
        """The log is offline, or is being truncated; see `unblock`."""
        self.cold = False
        """The files of the active segment have not been opened yet: `open_logs` opens them, before an append."""
        self._latest_epoch = -1
        """The latest leader epoch, -1 for none; kept for appends, by `refresh`."""
        self.refresh()

    def refresh(self) -> None:
        """Derive the latest epoch and the first unstable offset anew: leader epochs or producers have changed."""
        latest = self.leader_epochs.latest
        self._latest_epoch = -1 if latest is None else latest
        first = self.producer_states.first_unstable_offset
        self.first_unstable_offset = None if first is None else max(first, self.log_start_offset)

    # What may be done now

    def check_online(self) -> None:
        """Raise KAFKA_STORAGE_ERROR where the log is closed or its disk failed."""
        if self.offline:
            raise ApiError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"the log {self.topic_partition} is closed or its disk failed"
            )

    def check_range(self, offset: int) -> None:
        """Raise where the log does not have `offset`, which may be its end, or is offline."""
        self.check_online()
        start, end = self.log_start_offset, self.log_end_offset
        if not start <= offset <= end:
            why = f"offset {offset} of {self.topic_partition} is not within [{start}, {end}]"
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, why)

    def unblock(self) -> None:
        """To be called before an append. Complete a truncation that is under way. Raises KAFKA_STORAGE_ERROR."""
        self.check_online()
        if self.truncation is not None:
            self.truncation.complete()

    # What is kept in memory

    def keep_recent(self, recent: RecentAppends | None) -> None:
        """From now on, keep the large batches that are appended as leader there, for followers; with None, none."""
        if self.recent is not None and self.recent is not recent:
            self.recent.forget(self)
        self.recent = recent

    def on_segments_changed(self) -> None:
        """Segments are, or are about to be, removed or cut: positions in them are not valid any more, and flush jobs
        under way do not raise the recovery point."""
        self.reads.forget()
        if self.recent is not None:
            self.recent.forget(self)
        self.unsynced.names += 1
        self.unsynced.truncations += 1

    # Flushing

    @property
    def checkpoint_recovery_point(self) -> int:
        """The recovery point that a checkpoint may name; see `Unsynced.checkpoint_recovery_point`."""
        return self.unsynced.checkpoint_recovery_point(self)

    def flush_job(
        self, upto: int | None = None, now_ms: int | None = None, *, indexes: bool = True, is_promised: bool = False
    ) -> Job[None]:
        """A job that syncs everything below `upto` (the log's end); its finish raises the recovery point to it.
        `now_ms` is noted as the time of the last flush. Only a log whose indexes are made anew by each opening is
        flushed without its `indexes`. `is_promised`: records wait for it before they count as
        committed. Where a file cannot be opened for it, that is a failure of the disk; any other flush comes again."""
        self.check_online()
        upto = self.log_end_offset if upto is None else min(upto, self.log_end_offset)
        if self.truncation is not None:
            upto = min(upto, self.truncation.offset)
        try:
            return self._sync_job(upto, now_ms, indexes)
        except OSError as error:
            raise (self.failed(error) if is_promised else self.refused(error)) from error

    def _sync_job(self, upto: int, now_ms: int | None = None, indexes: bool = True) -> Job[None]:
        name = str(self.topic_partition)
        return self.unsynced.job(self, upto, now_ms, indexes=indexes, name=name, failed=self.failed)

    def snapshot_job(self) -> Job[None] | None:
        """A job that writes the producer snapshot of a roll; None where there is none to write."""
        job, self.snapshots.pending = self.snapshots.pending, None
        return None if job is None else job.on_failure(self.on_io_error)

    # Failures

    def on_io_error(self, error: BaseException) -> None:
        """A job raised this, which has changed nothing: as `refused`."""
        if isinstance(error, OSError):
            self.refused(error)

    def refused(self, error: OSError) -> ApiError:
        """As `failed`, in a call that has changed nothing: where a file could merely not be opened, the log stays
        online, and only this call fails."""
        if isinstance(error, NoHandleLeft):
            return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.directory}: {error}")
        return self.failed(error)

    def failed(self, error: OSError) -> ApiError:
        """The disk failed: the log is offline from now on, and the hooks are called, once. Returns what to raise."""
        if not self.offline:
            self.offline = self.blocked = True
            self.hooks.on_io_error(self, error)
        return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.directory}: {error}")


class StandaloneHooks:
    """`LogHooks` of the metadata log, tools, tests. Deletes at once."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.conversions = Counter()

    def on_io_error(self, log: LogState, error: OSError) -> None:
        mark_failed(self._disk, log.directory)

    def on_rolled(self, log: LogState) -> None:
        if (job := log.snapshot_job()) is not None:
            job.complete()

    def on_recovery_point_lowered(self, log: LogState) -> None:
        pass

    def lowering_jobs(self, logs: Sequence[LogState]) -> Iterator[Job[None]]:
        return iter(())

    def on_log_start_lowered(self, log: LogState) -> None:
        pass

    def delete_later(self, log: LogState, delay_ms: int, remove: Callable[[Disk], None]) -> None:
        remove(self._disk)
