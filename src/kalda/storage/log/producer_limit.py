"""How many producer ids the logs of a node hold together: at `kalda.producer.ids.max` the oldest make room.

A log holds about half a kilobyte for each producer that has written to it, until it expires: any client may send
batches with as many producer ids as it likes. Apache Kafka has no limit, and runs out of memory.

Above the limit a client's first batch of a new id releases ids of the log that has most of them, those first that have
written to it least lately: they expire earlier than `producer.id.expiration.ms`. So who writes with very many ids
releases its own. A producer whose id was released goes on with any sequence, as after its expiry. Ids with an open
transaction are never released. Only where nothing can be released is the batch refused, with POLICY_VIOLATION: clients
report that error and its message to the application for this batch and go on, where an epoch error would have them
request new epochs or ids again and again, and a retriable one would keep the message from the application. Replicas and
transaction markers are never refused, so the ids held may exceed the limit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from kalda.base.errors import ApiError, ErrorCode

log = logging.getLogger("kalda.logs")

_GRANTED_AT_ONCE = 10_000
"""New ids between two counts over all logs."""
_REFUSED_AT_ONCE = 1_000
"""Refusals between two counts, unless some ids are released."""
_LOGS_AT_ONCE = 10
"""So many logs are asked to release ids after a count, those with most ids first."""


class Producers(Protocol):
    """Those of one log."""

    @property
    def log_name(self) -> str: ...

    @property
    def held(self) -> int: ...

    def release_oldest(self) -> int:
        """Release some ids, if there are any without an open transaction; how many."""
        ...


class ProducerIdLimit:
    """One node's. Belongs to the thread of the logs."""

    __slots__ = ("_free", "_logs", "_refusals", "limit")

    def __init__(self, limit: int, logs: Callable[[], Iterable[Producers]]) -> None:
        """`logs` returns the producers of each log."""
        self.limit = limit
        self._logs = logs
        self._free = 0
        """New ids that may be taken before the next count."""
        self._refusals = 0
        """New ids that were refused since the last count; 0: the next one is counted for first."""

    def check(self, producer_id: int, log_name: str) -> None:
        """A client's batch has a new id. Raises POLICY_VIOLATION where the logs hold too many, and can release none."""
        if self._free <= 0 and self._refusals % _REFUSED_AT_ONCE == 0:
            self._recount()
        if self._free > 0:
            self._free -= 1
            return
        self._refusals += 1
        raise ApiError(
            ErrorCode.POLICY_VIOLATION,
            f"producer id {producer_id} is new in {log_name}, and the logs of this broker hold kalda.producer.ids.max="
            f"{self.limit} producer ids already, all with an open transaction or being written to a snapshot: raise "
            "that limit, or send the batch again later",
        )

    def on_released(self) -> None:
        """Some ids have expired, or their log was deleted."""
        self._free = self._refusals = 0

    def _recount(self) -> None:
        logs = sorted(self._logs(), key=lambda each: each.held, reverse=True)
        held = sum(each.held for each in logs)
        free = self.limit - held
        if free <= 0:
            for each in logs[:_LOGS_AT_ONCE]:
                free += (released := each.release_oldest())
                if released:
                    log.warning(
                        "the logs hold %d producer ids, kalda.producer.ids.max is %d: %s releases %d, the oldest first",
                        held,
                        self.limit,
                        each.log_name,
                        released,
                    )
                if free > 0:
                    break
        self._free = min(_GRANTED_AT_ONCE, free)
        if self._free > 0:
            self._refusals = 0
        elif not self._refusals:
            log.warning(
                "the logs hold %d producer ids, kalda.producer.ids.max is %d, and none can be released: batches of new "
                "producer ids are refused",
                held,
                self.limit,
            )
