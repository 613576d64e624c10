"""One rule for objects that call out and may be called back: a body that never runs inside itself.

A synchronous object that owns state and calls out (it sends, appends to a log, moves a high watermark, settles a
`Pending`) may be called again before its own call returns. So it completes its change of state first, or works in a
`Reentrancy`. What such a second call finds is state in the middle of a change. A `Reentrancy` gives the
object one place where it does its work: `run` does it, a call of `run` that arrives meanwhile makes the running one do
it once more, and while a change is under way (`held`) the work waits until the change is complete.

Invariant: the body is not on the stack twice, and no call of `run` is lost: the body begins at least once after it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType


class Reentrancy:
    """Runs `body` one at a time. What the body raises leaves `run`; calls that waited for it are dropped then."""

    __slots__ = ("_again", "_body", "_depth")

    def __init__(self, body: Callable[[], None]) -> None:
        self._body = body
        self._depth = 0
        self._again = False

    def run(self) -> None:
        """Run the body now, or as soon as the run or the change that is under way ends."""
        self._again = True
        if not self._depth:
            self._drain()

    def held(self) -> Reentrancy:
        """A context: the body does not run inside it, and runs at its end where that was asked for meanwhile."""
        return self

    def __enter__(self) -> Reentrancy:
        self._depth += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if not self._depth and self._again:
            self._drain()

    def _drain(self) -> None:
        self._depth += 1
        try:
            while self._again:
                self._again = False
                self._body()
        finally:
            self._depth -= 1
            self._again = False
