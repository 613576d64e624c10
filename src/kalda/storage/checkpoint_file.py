"""A checkpoint that is replaced now and then, while a job that writes the contents before it may still run.

The `run` of a job writes and syncs a file of its own; its `finish` renames that into place, unless a newer job was made
meanwhile. So the newest contents win in whatever order jobs end, and no two jobs write to the same file. The rename is
not synced: after a loss of power the file may have the contents before it, whole.
"""

from __future__ import annotations

from collections.abc import Iterable

from kalda.base.disk import Disk
from kalda.base.ids import TopicPartition
from kalda.storage.checkpoints import write_offsets
from kalda.storage.job import Job

_TEMPORARY = ".new"


class CheckpointFile:
    """Belongs to one thread."""

    __slots__ = ("_disk", "_number", "durable", "offsets", "path")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path
        self.offsets: dict[TopicPartition, int] | None = None
        """The contents once the newest job is finished; None where they are not known, and the next job must write."""
        self.durable: dict[TopicPartition, int] = {}
        """The contents that a loss of power leaves, if it does not leave newer ones."""
        self._number = 0
        """The number of jobs that were made; the last one made wins."""

    def job(self, offsets: dict[TopicPartition, int]) -> Job[None] | None:
        """A job that replaces the contents; None where they are the same. Both halves raise `OSError`."""
        if offsets == self.offsets:
            return None
        self.offsets = offsets
        self._number += 1
        number = self._number
        temporary = f"{self.path}.{number}{_TEMPORARY}"

        def work() -> None:
            try:
                write_offsets(self._disk, temporary, offsets)
            except OSError:
                self.offsets = None
                raise

        def finish(_: None) -> None:
            if number == self._number:
                self._disk.rename(temporary, self.path)
            else:
                self._disk.remove(temporary)

        return Job(f"checkpoint {self.path}", work, finish)

    def durable_jobs(self, offsets: dict[TopicPartition, int]) -> list[Job[None]]:
        """Jobs that replace the contents durably, to be done one after the other. Where a newer job is made between
        them, `durable` stays as it was. All halves raise `OSError`."""
        self.offsets = None
        write = self.job(offsets)
        assert write is not None
        number = self._number

        def finish(_: None) -> None:
            if number == self._number:
                self.durable = offsets

        directory = self.path.rpartition("/")[0]
        return [write, Job(f"sync {directory}", lambda: self._disk.sync_dir(directory), finish)]

    def replace_durably(self, offsets: dict[TopicPartition, int]) -> None:
        """`durable_jobs`, here and now; jobs under way do not replace these contents."""
        for job in self.durable_jobs(offsets):
            job.complete()


def leftovers(names: Iterable[str]) -> list[str]:
    """The temporary files of jobs that were never finished."""
    return [name for name in names if name.endswith((_TEMPORARY, f"{_TEMPORARY}.tmp"))]
