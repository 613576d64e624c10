"""An answer that comes later, without asyncio.

`Pending` is a one-shot cell that the pure floors hand out where Java would hand out a future: a produce that waits
for its replicas, a fetch that waits for bytes, a controller write that waits for its commit. Whoever decides calls
`complete` or `fail` exactly once; whoever waits gives a callback with `then`, which runs at once where the answer is
already there. Callbacks run in the order in which they were added, on the caller's stack: no loop is needed, so the
simulator sees every step.

Where nobody wants the answer any more, `abandon` tells whoever works on it, if he asked to be told. He may stop then,
and need not settle it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from kalda.base.errors import ApiError

T = TypeVar("T")
Callback = Callable[[T | None, ApiError | None], None]


class Pending(Generic[T]):
    """One value or one `ApiError`, once."""

    __slots__ = ("_callbacks", "done", "error", "on_abandoned", "value")

    def __init__(self) -> None:
        self.done = False
        self.value: T | None = None
        self.error: ApiError | None = None
        self.on_abandoned: Callable[[], None] | None = None
        self._callbacks: list[Callback[T]] = []

    def complete(self, value: T) -> None:
        """Settle with a value. Settling twice is a broken invariant."""
        self._settle(value, None)

    def fail(self, error: ApiError) -> None:
        """Settle with an error. Settling twice is a broken invariant."""
        self._settle(None, error)

    def settle(self, value: T | None, error: ApiError | None) -> None:
        """Settle as another one did: `other.then(self.settle)`."""
        self._settle(value, error)

    def then(self, callback: Callback[T]) -> None:
        """Call `callback(value, error)` once settled; now, where it already is."""
        if self.done:
            callback(self.value, self.error)
        else:
            self._callbacks.append(callback)

    def abandon(self) -> None:
        """Nobody waits for it any more."""
        if not self.done and self.on_abandoned is not None:
            self.on_abandoned()

    def _settle(self, value: T | None, error: ApiError | None) -> None:
        assert not self.done, "a pending answer settles once"
        self.done, self.value, self.error = True, value, error
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(value, error)
