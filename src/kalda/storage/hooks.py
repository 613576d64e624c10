"""The hooks of a log that no manager holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kalda.base.disk import Disk
from kalda.base.sensors import Counter
from kalda.storage.checkpoints import mark_failed
from kalda.storage.job import Job
from kalda.storage.state import LogState


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
