"""Log lines about exceptions that a request handler must not raise: with their cause, a limited number.

A client may send the same request in a loop. The traceback is logged once in `QUIET_S` seconds; what came meanwhile is
counted, and the next line has the count.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from kalda.base.errors import ApiError

log = logging.getLogger("kalda.requests")

QUIET_S = 1.0


class RequestFaults:
    """The log lines of one pipeline."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._quiet_until_s = 0.0
        """Nothing is logged before."""
        self._unlogged = 0
        """Faults since the last line."""

    def report(self, api: str, client: object, error: ApiError) -> None:
        """A request failed with `error`, whose cause was not foreseen."""
        now_s = self._now_s()
        if now_s < self._quiet_until_s:
            self._unlogged += 1
            return
        self._quiet_until_s = now_s + QUIET_S
        log.error(
            "%s of %s fails with %s%s",
            api,
            client,
            error,
            f" ({self._unlogged} more requests have failed like this)" if self._unlogged else "",
            exc_info=error.__cause__,
        )
        self._unlogged = 0
