"""What follows from an exception that the program did not foresee.

There are two kinds of faults, each with a handler, as in Apache Kafka:

- *fatal*: the state can no longer follow the metadata log. The node stops.
- *non-fatal*: one event of the controller failed. The node goes on, and its controller gives up its leadership, so that
  another one takes over with a state made from the log.

Either is logged with its cause. An expected failure is an `ApiError`, and no fault.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

log = logging.getLogger(__name__)


class Faults:
    """Handles the faults of one controller."""

    def __init__(self, on_fatal: Callable[[BaseException], None]) -> None:
        """`on_fatal(error)` stops the node."""
        self._on_fatal = on_fatal
        self.count = 0
        """The number of faults of both kinds since the start; Kafka's metric MetadataErrorCount."""

    def fatal(self, what: str, cause: BaseException) -> None:
        """Log the fault, and stop the node."""
        self.count += 1
        log.critical("Encountered fatal fault: %s", what, exc_info=cause)
        self._on_fatal(cause)

    def non_fatal(self, what: str, cause: BaseException) -> None:
        """Log the fault."""
        self.count += 1
        log.error("Encountered non-fatal fault: %s", what, exc_info=cause)
