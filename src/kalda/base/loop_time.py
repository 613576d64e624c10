"""The time by which a node measures how long its peers take. It does not pass while the node's event loop does not run.

A process that is stopped by a signal, a machine that sleeps, a disk that blocks the loop: meanwhile requests of peers
arrive and wait in the sockets, and the loop's timers run before its sockets are read. By the machine's time the first
thing after such a stall would be to end each session whose heartbeat waits there. So no deadline that a node keeps for
a peer counts a stall: sessions, joins, transactions, requests that wait, fetches of the quorum.

The loop reports its turns, every `TURN_MS`. The time runs at most `RUN_ON_MS` beyond the last one. The turn after a
longer pause ends a stall. Then the time stands still a little longer, for as long as the stall lasted but at most
`GRACE_MS`, so that what waits in the sockets is handled first. A pause that is shorter than `RUN_ON_MS` counts.

Pure: the caller brings the machine's time, in ms. Invariant: the time never goes back, and it never runs faster than
the machine's.
"""

from __future__ import annotations

TURN_MS = 100
RUN_ON_MS = 300
GRACE_MS = 500
UNLIMITED_MS = 2**62


class LoopTime:
    """The time of one loop."""

    __slots__ = ("_resumes_ms", "limit_ms", "lost_ms")

    def __init__(self) -> None:
        self.limit_ms = UNLIMITED_MS
        """The machine's time up to which this one runs."""
        self.lost_ms = 0
        """By so much it is behind the machine's, as long as that is below `limit_ms`."""
        self._resumes_ms: int | None = None
        """The machine's time at which it runs again; None while it has not stood still since the last turn."""

    def read(self, machine_ms: int) -> int:
        """The time."""
        return min(machine_ms, self.limit_ms) - self.lost_ms

    def stands_still(self, machine_ms: int) -> bool:
        """Whether there is a stall, or what has arrived meanwhile is still to be handled."""
        return machine_ms > self.limit_ms

    def turn(self, machine_ms: int) -> int:
        """The loop turns. Returns the length of the stall that has ended just now, in ms: each is returned once."""
        if machine_ms <= self.limit_ms:
            self.limit_ms = machine_ms + RUN_ON_MS
            return 0
        stall_ms = 0
        if self._resumes_ms is None:
            stall_ms = machine_ms - (self.limit_ms - RUN_ON_MS)
            self._resumes_ms = machine_ms + min(stall_ms, GRACE_MS)
        if machine_ms >= self._resumes_ms:
            self._run_on(machine_ms)
            self.limit_ms = machine_ms + RUN_ON_MS
        return stall_ms

    def free(self, machine_ms: int) -> None:
        """The loop reports no more turns: the time runs as the machine's does."""
        self._run_on(machine_ms)
        self.limit_ms = UNLIMITED_MS

    def _run_on(self, machine_ms: int) -> None:
        self.lost_ms += max(0, machine_ms - self.limit_ms)
        self._resumes_ms = None
