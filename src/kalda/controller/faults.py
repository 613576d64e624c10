"""What follows from an exception that the program did not foresee.

There are two kinds of faults, each with a handler, as in Apache Kafka:

- *fatal*: the state can no longer follow the metadata log. The node stops.
- *non-fatal*: one event of the controller failed before it had records, and has changed nothing. The controller goes
  on. In Apache Kafka it gives up its leadership; then a client that sends the same request again and again leaves the
  cluster without a controller.

Either is logged with its cause. An expected failure is an `ApiError`, and no fault.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)

QUIET_MS = 1_000
"""Of the non-fatal faults in this time after one that was logged, the next line has the number: a client may cause them
in a loop."""


class Faults:
    """Handles the faults of one controller."""

    def __init__(self, on_fatal: Callable[[BaseException], None], elapsed_ms: Callable[[], int]) -> None:
        """`on_fatal(error)` stops the node. `elapsed_ms()` is any clock."""
        self._on_fatal = on_fatal
        self._elapsed_ms = elapsed_ms
        self._logged_ms: int | None = None
        """When a non-fatal fault was logged last."""
        self._unlogged = 0
        """Non-fatal faults since then."""
        self.count = 0
        """The number of faults of both kinds since the start; Kafka's metric MetadataErrorCount."""

    def fatal(self, what: str, cause: BaseException) -> None:
        """Log the fault, and stop the node."""
        self.count += 1
        log.critical("Encountered fatal fault: %s", what, exc_info=cause)
        self._on_fatal(cause)

    def non_fatal(self, what: str, cause: BaseException) -> None:
        """Log the fault, unless one was logged just before."""
        self.count += 1
        now_ms = self._elapsed_ms()
        if self._logged_ms is not None and now_ms - self._logged_ms < QUIET_MS:
            self._unlogged += 1
            return
        more = f" ({self._unlogged} more since the last line)" if self._unlogged else ""
        self._logged_ms, self._unlogged = now_ms, 0
        log.error("Encountered non-fatal fault: %s%s", what, more, exc_info=cause)

    def on_failure(self, event: str, error: Exception) -> None:
        """An event failed with an exception that was not foreseen, before it had records."""
        self.non_fatal(f"{event}: event failed with {type(error).__name__}, and has changed nothing.", error)

    @contextmanager
    def contained(self, event: str) -> Iterator[None]:
        """What is raised inside goes no further."""
        try:
            yield
        except Exception as error:
            self.on_failure(event, error)
