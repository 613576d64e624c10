"""What of a log's files is not on the device yet, and the job that syncs it.

The recovery point may only pass what is synced: segments with their indexes, the snapshots and leader epochs that
recovery would otherwise rebuild from batches below it, and the names in the directory: a crash may lose a synced file
whose name was not synced.

A segment that is not active any more has got its last index entries, perhaps after all its batches were synced. Until
its indexes are synced too, the recovery point in the checkpoint stays below its end: a start after a crash
makes them anew.
"""

from __future__ import annotations

from collections.abc import Callable

from kalda.base.disk import Disk, File
from kalda.base.errors import ApiError
from kalda.storage.checkpoints import PARTITION_METADATA_FILE
from kalda.storage.job import Job
from kalda.storage.leader_epochs import LeaderEpochs
from kalda.storage.offsets import LogOffsets
from kalda.storage.producer_snapshot import SnapshotFiles
from kalda.storage.segment import Segment
from kalda.storage.segments import Segments


class Unsynced:
    """One log's."""

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
        unless the log was cut meanwhile, and sets the time of the last flush, where `now_ms` is given. It raises what
        `failed` makes of an error where the log's directory is gone."""
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
