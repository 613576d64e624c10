"""What a log calls in the manager that holds it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from kalda.base.disk import Disk
from kalda.base.sensors import Counter
from kalda.storage.checkpoints import mark_failed
from kalda.storage.job import Job

if TYPE_CHECKING:
    from kalda.storage.log import Log


class LogHooks(Protocol):
    """All calls are made on the thread that owns the log."""

    conversions: Counter
    """Counts the records of produced batches that are compressed anew."""

    def on_io_error(self, log: Log, error: OSError) -> None:
        """The disk failed under `log`: its whole log directory is not used any more."""
        ...

    def on_rolled(self, log: Log) -> None:
        """Segments before the active one are to be flushed soon (`Log.flush_job`), and the snapshot of many producers
        is to be written (`Log.snapshot_job`)."""
        ...

    def on_recovery_point_lowered(self, log: Log) -> None:
        """`log` is about to be cut below the recovery point that it had: checkpoints with a higher one must be replaced
        first. Raises `OSError`: then nothing is cut."""
        ...

    def lowering_jobs(self, logs: Sequence[Log]) -> Iterator[Job[None]]:
        """Jobs to be run and finished one after another that do the same for several logs. They raise nothing: a disk
        that fails takes the logs offline."""
        ...

    def on_log_start_lowered(self, log: Log) -> None:
        """`log` is about to be cut below the log start offset that it had: likewise. Otherwise a start after a crash
        would drop what is appended there. Raises `OSError`."""
        ...

    def delete_later(self, log: Log, delay_ms: int, remove: Callable[[Disk], None]) -> None:
        """Run `remove` on some thread when the delay has passed: reads under way may still have these files open."""
        ...


class StandaloneHooks:
    """For a log without a manager: the metadata log, tools, tests. Deletes at once."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.conversions = Counter()

    def on_io_error(self, log: Log, error: OSError) -> None:
        mark_failed(self._disk, log.directory)

    def on_rolled(self, log: Log) -> None:
        if (job := log.snapshot_job()) is not None:
            job.complete()

    def on_recovery_point_lowered(self, log: Log) -> None:
        pass

    def lowering_jobs(self, logs: Sequence[Log]) -> Iterator[Job[None]]:
        return iter(())

    def on_log_start_lowered(self, log: Log) -> None:
        pass

    def delete_later(self, log: Log, delay_ms: int, remove: Callable[[Disk], None]) -> None:
        remove(self._disk)
