"""How many producer ids the logs of a node hold together, and the refusal of new ones above `kalda.producer.ids.max`.

A log holds about half a kilobyte for each producer that has written to it, until it expires: any client may send
batches with as many producer ids as it likes. Apache Kafka has no limit, and runs out of memory.

Only a client's first batch of a new id is refused, with POLICY_VIOLATION. Clients report that error and its message to
the application for this batch and go on: an epoch error would have them request new epochs or ids again and again, a
retriable one would keep the message from the application. Replicas and transaction markers are never refused, so
the ids held may exceed the limit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kalda.base.errors import ApiError, ErrorCode

log = logging.getLogger("kalda.logs")

_GRANTED_AT_ONCE = 10_000
"""New ids between two counts over all logs."""
_REFUSED_AT_ONCE = 1_000
"""Refusals between two counts, unless some ids are released."""


class ProducerIdLimit:
    """One node's. Belongs to the thread of the logs."""

    __slots__ = ("_count", "_free", "_refusals", "limit")

    def __init__(self, limit: int, count: Callable[[], int]) -> None:
        """`count` returns how many ids the logs hold."""
        self.limit = limit
        self._count = count
        self._free = 0
        """New ids that may be taken before the next count."""
        self._refusals = 0
        """New ids that were refused since the last count; 0: the next one is counted for first."""

    def check(self, producer_id: int, log_name: str) -> None:
        """Raise POLICY_VIOLATION where the logs hold too many ids for another new one."""
        if self._free <= 0 and self._refusals % _REFUSED_AT_ONCE == 0:
            self._recount()
        if self._free > 0:
            self._free -= 1
            return
        self._refusals += 1
        raise ApiError(
            ErrorCode.POLICY_VIOLATION,
            f"producer id {producer_id} is new in {log_name}, and the logs of this broker hold kalda.producer.ids.max="
            f"{self.limit} producer ids already: raise that limit, or wait until some expire after "
            "producer.id.expiration.ms",
        )

    def on_released(self) -> None:
        """Some ids have expired, or their log was deleted."""
        self._free = self._refusals = 0

    def _recount(self) -> None:
        held = self._count()
        self._free = min(_GRANTED_AT_ONCE, self.limit - held)
        if self._free > 0:
            self._refusals = 0
        elif not self._refusals:
            log.warning(
                "the logs hold %d producer ids, kalda.producer.ids.max is %d: batches of new producer ids are refused",
                held,
                self.limit,
            )
