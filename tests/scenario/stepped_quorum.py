"""A simulated quorum that a test moves on until something holds."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from kalda.sim.quorum import QuorumNode, SimQuorum


class SteppedQuorum(SimQuorum):
    """Its time goes from event to event."""

    def run_until(self, condition: Callable[[], bool], limit_ms: int = 60_000) -> None:
        until = self.now + limit_ms
        while not condition():
            assert self.queue, "no event is scheduled"
            assert self.queue[0][0] <= until, f"not within {limit_ms} ms"
            self.now, _, action = heapq.heappop(self.queue)
            action()

    def elect(self) -> QuorumNode:
        """The first leader."""
        self.run_until(lambda: self.leader is not None)
        assert self.leader is not None
        return self.leader
