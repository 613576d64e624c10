"""A checkpoint that is replaced now and then, while the one before may still be on its way to the device.

A job writes and syncs a file of its own on its thread; the owner's half renames it into place, unless newer contents
were asked for meanwhile. So the newest contents win in whatever order the threads get there, and no two jobs ever
write to the same file. The rename is not synced: a loss of power may bring the contents before back, whole.
"""

from __future__ import annotations

from collections.abc import Iterable

from kalda.base.disk import Disk
from kalda.base.ids import TopicPartition
from kalda.storage.checkpoints import write_offsets
from kalda.storage.job import Job

_TEMPORARY = ".new"


class CheckpointFile:
    """Belongs to one thread. `offsets`: what the file says, or will once the newest job is finished. `durable`: what it
    says after a loss of power, if nothing newer."""

    __slots__ = ("_disk", "_number", "durable", "offsets", "path")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path
        self.offsets: dict[TopicPartition, int] | None = None
        self.durable: dict[TopicPartition, int] = {}
        self._number = 0

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
        """Jobs that replace the contents for good, to be done one after the other. Where newer contents come between,
        `durable` does not tell of these. All halves raise `OSError`."""
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
        """Here and now, and for good, whatever jobs under way are about to say."""
        for job in self.durable_jobs(offsets):
            job.complete()


def leftovers(names: Iterable[str]) -> list[str]:
    """What jobs that were never finished have left in a directory."""
    return [name for name in names if name.endswith((_TEMPORARY, f"{_TEMPORARY}.tmp"))]
