"""The time by which a node measures how long its peers take. It does not pass while the node's event loop does not run.

A process that is stopped by a signal, a machine that sleeps, a disk that blocks the loop: meanwhile requests of peers
arrive and wait in the sockets, and the loop's timers run before its sockets are read. By the machine's time the first
thing after such a stall would be to end each session whose heartbeat waits there. So no deadline that a node keeps for
a peer counts a stall: sessions, joins, transactions, requests that wait, fetches of the quorum.

The loop reports its turns, every `TURN_MS`. The time runs at most `RUN_ON_MS` beyond the last one. The turn after a
longer pause ends a stall. Then the time stands still a little longer, for as long as the stall lasted but at most
`GRACE_MS`, so that what waits in the sockets is handled first. A pause that is shorter than `RUN_ON_MS` counts.

A loop that has too much to do turns all the time, but slowly. It reads its sockets in each turn, so there a pause
proves no stall, and the session of a dead peer has to end. So after a longer pause the time may run on for twice its
length beyond each turn, but at most for `MAX_RUN_ON_MS`; with each turn in time that gets shorter by a twentieth. A
loop whose turns take up to `MAX_RUN_ON_MS` loses time in its first long pause only; of slower turns that much counts.
A stall that follows another one within a few seconds costs a peer at most that much too, which is less than what is
left of the shortest session as long as its heartbeats are in time.

Pure: the caller brings the machine's time, in ms. Invariant: the time never goes back, and it never runs faster than
the machine's.
"""

from __future__ import annotations

TURN_MS = 100
RUN_ON_MS = 300
MAX_RUN_ON_MS = 2_000
GRACE_MS = 500
UNLIMITED_MS = 2**62


class LoopTime:
    """The time of one loop."""

    __slots__ = ("_last_ms", "_resumes_ms", "_run_on_ms", "limit_ms", "lost_ms")

    def __init__(self) -> None:
        self.limit_ms = UNLIMITED_MS
        """The machine's time up to which this one runs."""
        self.lost_ms = 0
        """By so much it is behind the machine's, as long as that is below `limit_ms`."""
        self._last_ms: int | None = None
        """The machine's time at the last turn; None: no turns are reported."""
        self._run_on_ms = RUN_ON_MS
        """How long it runs beyond a turn."""
        self._resumes_ms: int | None = None
        """The machine's time at which it runs again; None while it has not stood still since the last turn."""

    def read(self, machine_ms: int) -> int:
        """The time."""
        return min(machine_ms, self.limit_ms) - self.lost_ms

    def stands_still(self, machine_ms: int) -> bool:
        """Whether there is a stall, or what has arrived meanwhile is still to be handled."""
        return machine_ms > self.limit_ms

    def turn(self, machine_ms: int) -> int:
        """The loop turns. Returns for how long the time has stood still in the stall that has ended just now, in ms:
        each is returned once."""
        pause_ms = 0 if self._last_ms is None else machine_ms - self._last_ms
        self._last_ms = machine_ms
        could_run_on_ms = self._run_on_ms
        if pause_ms > RUN_ON_MS:
            self._run_on_ms = min(MAX_RUN_ON_MS, max(could_run_on_ms, 2 * pause_ms))
        else:
            self._run_on_ms = max(RUN_ON_MS, could_run_on_ms * 19 // 20)
        if machine_ms <= self.limit_ms:
            self.limit_ms = machine_ms + self._run_on_ms
            return 0
        stood_still_ms = 0
        if self._resumes_ms is None:
            stood_still_ms = machine_ms - self.limit_ms
            self._resumes_ms = machine_ms + min(pause_ms, GRACE_MS)
        if machine_ms >= self._resumes_ms:
            is_late = pause_ms > RUN_ON_MS  # and counts as any other such turn: the sockets have been read before it
            self._run_on(max(self._resumes_ms, machine_ms - could_run_on_ms) if is_late else machine_ms)
            self.limit_ms = machine_ms + self._run_on_ms
        return stood_still_ms

    def free(self, machine_ms: int) -> None:
        """The loop reports no more turns: the time runs as the machine's does."""
        self._run_on(machine_ms)
        self.limit_ms = UNLIMITED_MS
        self._last_ms = None
        self._run_on_ms = RUN_ON_MS

    def _run_on(self, machine_ms: int) -> None:
        """The time runs on from that moment."""
        self.lost_ms += max(0, machine_ms - self.limit_ms)
        self._resumes_ms = None
