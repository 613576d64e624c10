"""A result that is set later, without asyncio.

`Pending` is what the pure floors return where Java would return a future: for a produce that waits for its replicas, a
fetch that waits for bytes, a controller write that waits for its commit. Its producer calls `complete` or `fail`
exactly once. Its consumer passes a callback to `then`, which is called at once where the result is already set.
Callbacks run in the order in which they were added, on the stack of `complete` or `fail`. No event loop is needed, and
the simulator controls every step. What follows in several waits is a chain of `and_then`.

A consumer that no longer needs the result calls `abandon`, which calls the producer's `on_abandoned`, where one is
set. The producer may then stop, and need not settle the `Pending`. `on_abandoned` refers to the producer, which may
refer to the `Pending`: it is dropped when that is settled or abandoned, since a cycle would keep the value until a full
garbage collection, which is rare.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar, cast, overload

from kalda.base.errors import ApiError, as_api_error

T = TypeVar("T")
U = TypeVar("U")
Callback = Callable[[T | None, ApiError | None], None]


class Pending(Generic[T]):
    """One value or one `ApiError`, once."""

    __slots__ = ("_callbacks", "done", "error", "on_abandoned", "value")

    def __init__(self) -> None:
        self.done = False
        self.value: T | None = None
        self.error: ApiError | None = None
        self.on_abandoned: Callable[[], None] | None = None
        """set by the producer; called by `abandon` while the result is not set, and None afterwards"""
        self._callbacks: list[Callback[T]] = []

    def complete(self, value: T) -> None:
        """Settle with a value. Settling twice is a broken invariant."""
        self._settle(value, None)

    def fail(self, error: ApiError) -> None:
        """Settle with an error. Settling twice is a broken invariant."""
        self._settle(None, error)

    def settle(self, value: T | None, error: ApiError | None) -> None:
        """Take over the result of another `Pending`: `other.then(self.settle)`. Exactly one argument is set, except
        for a value of None."""
        self._settle(value, error)

    def then(self, callback: Callback[T]) -> None:
        """Call `callback(value, error)` once this is settled; at once, where it already is."""
        if self.done:
            callback(self.value, self.error)
        else:
            self._callbacks.append(callback)

    @overload
    def and_then(self, follow: Callable[[T], Pending[U]]) -> Pending[U]: ...
    @overload
    def and_then(self, follow: Callable[[T], U | Pending[U]]) -> Pending[U]: ...
    def and_then(self, follow: Callable[[T], U | Pending[U]]) -> Pending[U]:
        """What `follow` makes of the value: a value, or what is settled later. Errors pass, also what `follow`
        raises. Who abandons the result abandons what it waits for, now or later."""
        chained: Pending[U] = Pending()
        is_abandoned = False

        def abandon() -> None:
            nonlocal is_abandoned
            is_abandoned = True
            self.abandon()

        def on_settled(value: T | None, error: ApiError | None) -> None:
            if error is not None:
                chained.fail(error)
                return
            try:
                following = follow(cast(T, value))
            except Exception as failure:  # the stack that settled this must not be harmed
                chained.fail(as_api_error(failure))
                return
            if not isinstance(following, Pending):
                chained.complete(following)
                return
            following.then(chained.settle)
            if is_abandoned:
                following.abandon()
            elif not chained.done:
                chained.on_abandoned = following.abandon

        chained.on_abandoned = abandon
        self.then(on_settled)
        return chained

    def abandon(self) -> None:
        """The consumer no longer needs the result."""
        on_abandoned, self.on_abandoned = self.on_abandoned, None
        if on_abandoned is not None:
            on_abandoned()

    def _settle(self, value: T | None, error: ApiError | None) -> None:
        assert not self.done, "a Pending is settled once"
        self.done, self.value, self.error = True, value, error
        self.on_abandoned = None
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(value, error)
