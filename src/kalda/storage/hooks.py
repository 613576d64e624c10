"""What a log asks of whoever keeps it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from kalda.base.disk import Disk

if TYPE_CHECKING:
    from kalda.storage.log import Log


class LogHooks(Protocol):
    """Calls back on the thread that owns the log."""

    def on_io_error(self, log: Log, error: OSError) -> None:
        """The disk failed under `log`: its whole directory is not to be trusted any more."""
        ...

    def on_rolled(self, log: Log) -> None:
        """Segments before the active one want to be flushed soon (`Log.flush_job`)."""
        ...

    def on_recovery_point_lowered(self, log: Log) -> None:
        """`log` is about to be cut below its recovery point: a checkpoint that says more must be replaced first."""
        ...

    def on_log_start_lowered(self, log: Log) -> None:
        """`log` is about to be cut below its log start offset: likewise, or what is appended there would be dropped."""
        ...

    def delete_later(self, log: Log, delay_ms: int, remove: Callable[[Disk], None]) -> None:
        """Run `remove` on some thread when the delay has passed: readers may still hold these files."""
        ...


class StandaloneHooks:
    """For a log that nobody keeps: tools and tests. Deletes at once."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def on_io_error(self, log: Log, error: OSError) -> None:
        pass

    def on_rolled(self, log: Log) -> None:
        pass

    def on_recovery_point_lowered(self, log: Log) -> None:
        pass

    def on_log_start_lowered(self, log: Log) -> None:
        pass

    def delete_later(self, log: Log, delay_ms: int, remove: Callable[[Disk], None]) -> None:
        remove(self._disk)
