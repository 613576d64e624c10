"""What of a log's files is not on the device yet, and the job that syncs it.

The recovery point may only pass what is synced: segments with their indexes, the snapshots and leader epochs that
recovery would otherwise rebuild from batches below it, and the directory's names, without which a synced file may be
gone.

A segment that has ended gets its last index entries then, which may be after all its batches were synced. Until the
indexes are as well, checkpoints do not vouch for its end: a start after a crash makes them anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kalda.base.disk import Disk, File
from kalda.storage.checkpoints import PARTITION_METADATA_FILE
from kalda.storage.job import Job
from kalda.storage.segment import Segment

if TYPE_CHECKING:
    from kalda.storage.log import Log


class Unsynced:
    """Kept by one log. `names`: counts changes of the directory's names; `truncations`: of what had been appended."""

    __slots__ = ("_disk", "_names_synced", "_sealed", "directory", "metadata", "names", "truncations")

    def __init__(self, disk: Disk, directory: str, names_changed: bool) -> None:
        self._disk = disk
        self.directory = directory
        self.names = 1 if names_changed else 0
        self._names_synced = 0
        # After an unclean stop nobody knows whether the file that was found had been synced.
        self.metadata = names_changed and disk.stat(self.metadata_path) is not None
        """`partition.metadata` is not synced yet: a recovery point must not pass it either."""
        self.truncations = 0
        self._sealed: list[Segment] = []
        """Segments whose last index entries are not synced yet."""

    def seal(self, segment: Segment) -> None:
        """The segment has ended."""
        segment.seal()
        if segment not in self._sealed:
            self._sealed.append(segment)

    def vouched(self, log: Log) -> int:
        """The log's recovery point, or a lower one where recovery must begin a segment earlier: it begins with the
        segment that would hold the recovery point.

        The log's end, in a segment with records, is never vouched for, however well that is synced: recovery and
        truncation write its indexes anew, and if it then ends just there, a start after a crash has to see to them.
        """
        segments, recovery_point = log.segments, log.recovery_point
        oldest = next((each for each in self._sealed if segments.floor(each.base_offset) is each), segments.active)
        holder = segments.floor(recovery_point) or segments.first
        if holder.base_offset < oldest.base_offset:
            oldest = holder
        following = segments.after(oldest)
        end = log.log_end_offset if following is None else following.base_offset
        return min(recovery_point, max(oldest.base_offset, min(recovery_point, end) - 1))

    @property
    def metadata_path(self) -> str:
        return f"{self.directory}/{PARTITION_METADATA_FILE}"

    def _sync_dirs(self) -> None:
        self._disk.sync_dir(self.directory)
        self._disk.sync_dir(self.directory.rpartition("/")[0])

    def job(self, log: Log, upto: int, now_ms: int | None, indexes: bool) -> Job[None]:
        """Sync what is below `upto`. The finish raises the log's recovery point, unless the log was cut meanwhile,
        and sets the time of its last flush, where `now_ms` is given."""
        snapshots, epochs = log.snapshots, log.leader_epochs
        files = self._files(log, upto, indexes)
        # Snapshots and epochs may be new files: synced ones, whose names a crash could still take.
        new_files = bool(snapshots.unsynced) or epochs.unsynced
        names, truncations = self.names, self.truncations
        sync_names = new_files or names != self._names_synced
        synced_snapshots, synced_epochs = set(snapshots.unsynced), epochs.writes
        sealed = list(self._sealed)

        def work() -> None:
            try:
                for file in files:
                    file.sync()
            finally:
                for file in files:
                    file.close()
            if sync_names:
                self._sync_dirs()

        synced_metadata = self.metadata

        def finish(_: None) -> None:
            if synced_metadata:
                self.metadata = False
            if truncations == self.truncations:
                self._sealed = [segment for segment in self._sealed if segment not in sealed]
                snapshots.unsynced = [offset for offset in snapshots.unsynced if offset not in synced_snapshots]
            if epochs.writes == synced_epochs:
                epochs.unsynced = False
            self._names_synced = max(self._names_synced, names)
            if truncations == self.truncations:
                log.raise_recovery_point(upto)
            if now_ms is not None:
                log.last_flush_ms = now_ms

        return Job(f"flush {log.topic_partition}", work, finish)

    def _files(self, log: Log, upto: int, indexes: bool) -> list[File]:
        """Handles of the job's own."""
        files: list[File] = []
        segments, snapshots, epochs = log.segments, log.snapshots, log.leader_epochs
        below = segments.between(log.recovery_point, upto) if upto > log.recovery_point else []
        sealed = [each for each in self._sealed if each not in below and segments.floor(each.base_offset) is each]
        for segment in sealed + below:
            files += segment.sync_files() if indexes else [segment.file().share()]
        for offset in snapshots.unsynced:
            files.append(self._disk.open(snapshots.path(offset)))
        if epochs.unwritten and epochs.write_below(upto):
            self.names += 1
        if epochs.unsynced:
            files.append(self._disk.open(epochs.path))
        if self.metadata:
            files.append(self._disk.open(self.metadata_path))
        return files
