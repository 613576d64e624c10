"""Signal handlers wait while the main thread runs turns of a client, or changes the state of a consumer.

A handler that raises (Ctrl-C, a SIGTERM that ends the program) may interrupt the main thread between any two steps of
Python, and so leave a client's machines half-way: such a client could send nothing more, nor close orderly. A producer
to which the thread appends needs none of this: the order of an append allows for it (see `accumulator`). While the
thread holds the signals, the first one is noted; its handler runs when the change is complete, and raises there. A
second one is not held back: its handler runs at once, as does every one that comes while the thread waits for sockets.

Held are the signals that programs commonly end or interrupt themselves by, where their handler is a Python function.
Only the main thread runs handlers; other threads hold nothing. A forked child does not hold back what its parent did:
nothing would release it where another thread has forked.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` converts numbers to enumerations: ten times the time
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], object]
_NUMBERS = tuple(int(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM))
_main_thread = threading.main_thread().ident


class HeldSignals:
    """The signals that one client holds back."""

    def __init__(self, may_raise: Callable[[], bool], on_held: Callable[[], None]) -> None:
        """`may_raise()`: whether a handler may interrupt the thread now, as nothing is being changed. `on_held()` is
        called when a signal is held back: what the thread does should end soon."""
        self.is_any = False
        """A signal waits for its handler."""
        self._may_raise = may_raise
        self._on_held = on_held
        self._held: tuple[int, FrameType | None] | None = None
        self._is_holding = False
        self._seen: list[Handler | int | None] = []
        """What the handlers of `_NUMBERS` were at the last `hold`."""
        self._replaced: dict[int, Handler] = {}
        """The program's handlers that are functions of Python, as they were then."""
        self._handler: Handler = self._on_signal
        self._process_id = os.getpid()

    def hold(self) -> bool:
        """Hold signals back from now on. False where nothing has to be released: in other threads, and where they are
        held already."""
        if self._is_holding or threading.get_ident() != _main_thread:
            return False
        seen = list(map(_signal.getsignal, _NUMBERS))
        if seen != self._seen:
            self._seen = seen
            self._replaced = {number: each for number, each in zip(_NUMBERS, seen, strict=True) if callable(each)}
        try:
            self._is_holding = True
            for number in self._replaced:
                _signal.signal(number, self._handler)
        except BaseException:  # of a handler that was not replaced yet
            self._restore()
            raise
        return True

    def release(self) -> None:
        """Put the handlers back, and call the one of the signal that was held. Raises what that raises."""
        self._restore()
        if self._held is not None:
            (number, frame), self._held, self.is_any = self._held, None, False
            handler = _signal.getsignal(number)
            if callable(handler):
                handler(number, frame)

    def _restore(self) -> None:
        try:
            for number, handler in self._replaced.items():
                if _signal.getsignal(number) is self._handler:  # else a callback of the program has set another one
                    _signal.signal(number, handler)
            self._is_holding = False
        except BaseException:  # of a handler that is back already
            self._restore()
            raise

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._held is None and self._process_id == os.getpid() and not self._may_raise():
            self._held, self.is_any = (number, frame), True
            self._on_held()
        else:
            self._replaced[number](number, frame)


@contextmanager
def held_signals() -> Iterator[None]:
    """Hold signals back for a block that forks: what a handler raises in functions that Python calls at a fork
    (`os.register_at_fork`) is printed and dropped, and a Ctrl-C would be lost."""
    signals = HeldSignals(lambda: False, lambda: None)
    is_holding = signals.hold()
    try:
        yield
    finally:
        if is_holding:
            signals.release()


class HoldingLock:
    """A lock whose holder holds signals back as well: what is done under it is not interrupted half-way."""

    def __init__(self, lock: threading.RLock, signals: HeldSignals) -> None:
        """`lock` is reentrant."""
        self._lock = lock
        self._signals = signals
        self._is_holding: list[bool] = []
        """Of each entry of the thread that has the lock: whether its exit releases the signals."""

    def __enter__(self) -> None:
        is_holding = self._signals.hold()
        self._lock.acquire()
        self._is_holding.append(is_holding)

    def __exit__(self, *_: object) -> None:
        is_holding = self._is_holding.pop()
        self._lock.release()
        if is_holding:
            self._signals.release()


def _after_fork() -> None:
    """In the child, where the thread that has forked is the main one."""
    global _main_thread
    _main_thread = threading.get_ident()


os.register_at_fork(after_in_child=_after_fork)
