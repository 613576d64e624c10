"""The files of logs that stay open, and which of them are closed where descriptors run short.

A log keeps the file of its active segment open from the first read or append on, and those of a few older segments. A
node with more partitions in use than descriptors closes the files of logs that rest, and opens them again on a thread
when they are used.
"""

from __future__ import annotations

from collections.abc import Mapping

from kalda.base.ids import TopicPartition
from kalda.storage.log import Log


class OpenFiles:
    """Of one manager's logs, on its thread."""

    def __init__(self, logs: Mapping[TopicPartition, Log]) -> None:
        """`logs`: the manager's own mapping, which changes as logs come and go."""
        self._logs = logs
        self._ends: dict[Log, int] = {}
        """The end of each log whose file was left open by the last `release`."""

    def release(self) -> int:
        """Close the files of all logs that have had no append since the last call; and of others, where fewer than half
        of the open ones would be closed. Returns how many logs that concerns.

        Nothing is lost by that: what was written is in the page cache, and a flush opens the file again.
        """
        in_use = [log for log in self._logs.values() if log.segments.active.is_open]
        resting: list[Log] = []
        busy: list[Log] = []
        for log in in_use:
            (resting if self._ends.get(log) == log.log_end_offset else busy).append(log)
        count = max(len(resting), (len(in_use) + 1) // 2)
        chosen = (resting + busy)[:count]
        for log in chosen:
            log.segments.active.release()
            log.reads.release()
        self._ends = {log: log.log_end_offset for log in busy[count - len(resting) :]}
        return len(chosen)
