"""What the blocking shells of consumers have in common: the I/O that runs their core, waiting for it, and its end.

A forked child cannot use its parent's consumer. One that is dropped without `close` leaves its group when its session
ends.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kalda.base.errors import ApiError
from kalda.client.consumer.common_calls import CommonCalls, ConsumerClosed, ConsumerDriven, Steps
from kalda.client.transport.channels import Channels, Watch, monotonic_ms
from kalda.client.transport.faces import BlockingFace
from kalda.client.transport.held_signals import HoldingLock
from kalda.client.transport.io_thread import Awaited, IoThread
from kalda.clientcore.subscribed_core import SubscribedCore

if TYPE_CHECKING:
    pass


log = logging.getLogger(__name__)
_GRACE_S = 0.05
_SHARED_WAIT_S = 0.005
"""How often a thread that waits for a turn of another one checks whether what it waits for has happened."""


class LockedConsumer(ConsumerDriven):
    """What is run: the core, under its lock."""

    def __init__(self, core: SubscribedCore) -> None:
        super().__init__(core)
        self.lock = threading.RLock()
        self.was_forked = False
        self.due_ms: int | None = None
        """When the call that runs the turns ends."""
        self.is_done: Callable[[], bool] = _never
        """Whether the call that runs the turns has what it waits for."""

    def run(self, now_ms: int) -> None:
        with self.lock:
            super().run(now_ms)

    def deadline_ms(self, now_ms: int) -> int | None:
        with self.lock:
            if self.is_done():
                return now_ms
            due_ms = super().deadline_ms(now_ms)
        if self.due_ms is not None:
            due_ms = self.due_ms if due_ms is None else min(due_ms, self.due_ms)
        return due_ms

    def on_end(self, error: ApiError | None) -> None:
        with self.lock:
            super().on_end(error)


class ConsumerIo(IoThread):
    """The turns of one consumer's loop: in the application's thread during its calls, else in a background thread.

    While the application is in a call that waits (`poll`, `commit`), its own thread runs the turns. A thread in the
    background would have to take turns with it for the interpreter's lock, several times for each response, and would
    get it only every 5 ms while the application computes. Between calls, responses wait in the kernel's buffers; after
    `_GRACE_S` without a call the background thread takes over, so that heartbeats are sent, and records are fetched
    ahead, while the application works on what it has.

    `baton` is held by the thread that runs turns. `lock` protects the core; it is held for an event or a turn's
    computing, never while a thread waits for sockets. Signal handlers (Ctrl-C) run, and may raise, while a thread of
    the application waits for sockets, and else behind its turn (`held_signals`)."""

    def __init__(self, name: str, driven: LockedConsumer) -> None:
        super().__init__(name, driven)
        self._channels = _LockedChannels(driven, self)
        self._consumer = driven
        self._baton = threading.Lock()
        self._callers = 0
        """Threads of the application that run turns, or wait to."""
        self._last_call_s = 0.0
        self._resume = threading.Event()
        self.last_turn_ms = 0

    def _work(self) -> None:
        driven = self._consumer
        while not driven.is_ending:
            idle_s = time.monotonic() - self._last_call_s
            if self._callers or idle_s < _GRACE_S:
                self._resume.wait(_GRACE_S)
                continue
            with self._baton:
                if not self._callers and not driven.is_ending:
                    self._turn()

    def _end(self, failure: ApiError | None) -> None:
        with self._baton:
            self._consumer.is_ending = True
            super()._end(failure)

    def stop(self) -> None:
        """End the thread, and close all connections."""
        self._consumer.is_ending = True
        self._resume.set()
        self.wake()

    def abandon(self) -> None:
        """As `stop`, for a consumer that was dropped without `close`. The garbage collector calls this at any moment
        and on any thread, which may hold a lock of the consumer: none is taken here."""
        self._consumer.is_ending = True
        self.wake()

    def run_until(self, is_done: Callable[[], bool], due_ms: int | None) -> bool:
        """Run turns in the caller's thread until `is_done` or the deadline. True: it is done."""
        while True:
            is_holding = self.signals.hold()
            try:
                done = self._run_until_signal(is_done, due_ms)
                was_interrupted = self.signals.is_any
            finally:
                if is_holding:
                    self.signals.release()
            if done or not was_interrupted or (due_ms is not None and monotonic_ms() >= due_ms):
                return done

    def _run_until_signal(self, is_done: Callable[[], bool], due_ms: int | None) -> bool:
        """As `run_until`, but a signal that is held back ends it too."""
        self._callers += 1
        try:
            if not self._baton.acquire(blocking=False):
                self.wake()  # the background thread may be waiting for sockets
                while not self._baton.acquire(timeout=_SHARED_WAIT_S):
                    if is_done():
                        return True
                    if self.signals.is_any or (due_ms is not None and monotonic_ms() >= due_ms):
                        return False
            try:
                return self._run_turns(is_done, due_ms)
            finally:
                self._baton.release()
        finally:
            self._callers -= 1
            self._last_call_s = time.monotonic()

    def _run_turns(self, is_done: Callable[[], bool], due_ms: int | None) -> bool:
        driven = self._consumer
        driven.is_done, driven.due_ms = is_done, due_ms
        self._driver = threading.get_ident()
        try:
            while True:
                if driven.is_ending:
                    return is_done()
                self._turn()
                if is_done():
                    return True
                if self.signals.is_any or (due_ms is not None and monotonic_ms() >= due_ms):
                    return False
        finally:
            self._driver = 0
            self._is_selecting = False  # a handler has raised while the thread waited
            driven.is_done, driven.due_ms = _never, None

    def turn_at_once(self) -> None:
        """One turn without waiting, where no other thread runs one."""
        is_holding = self.signals.hold()
        try:
            if self._baton.acquire(blocking=False):
                driven = self._consumer
                driven.is_done = _always
                try:
                    if not driven.is_ending:
                        self._turn()
                finally:
                    driven.is_done = _never
                    self._baton.release()
            self._last_call_s = time.monotonic()
        finally:
            if is_holding:
                self.signals.release()

    def _turn(
        self, awaited: Awaited | None = None, limit_ms: int | None = None, longest_wait_ms: int | None = None
    ) -> None:
        self.last_turn_ms = monotonic_ms()
        super()._turn(awaited, limit_ms, longest_wait_ms)


class _LockedChannels(Channels):
    """Calls of the core, as actions are carried out and events come, are made under its lock."""

    def __init__(self, driven: LockedConsumer, watch: Watch) -> None:
        super().__init__(driven, watch)
        self._lock = driven.lock

    def carry_out(self) -> None:
        with self._lock:
            super().carry_out()

    def on_event(self, connection_id: int, readable: bool, writable: bool) -> bool:
        with self._lock:
            return super().on_event(connection_id, readable, writable)


def _never() -> bool:
    return False


def _always() -> bool:
    return True


_open: weakref.WeakSet[LockedConsumer] = weakref.WeakSet()


class BlockingShell(CommonCalls, BlockingFace):
    """Runs a core: in the caller's thread while a call waits, otherwise in a thread in the background."""

    _driven: LockedConsumer

    def _start(self) -> None:
        self._driven = LockedConsumer(self._core)
        self._io = ConsumerIo(f"kafka-consumer-network-thread | {self._core.client_id}", self._driven)
        self._lock = HoldingLock(self._driven.lock, self._io.signals)
        self._is_closed = False
        self._is_woken = False
        self._finalizer = weakref.finalize(self, ConsumerIo.abandon, self._io)
        self._finalizer.atexit = True
        _open.add(self._driven)
        self._io.start()

    def _stop(self) -> None:
        """End the I/O, and close all connections."""
        self._finalizer.detach()
        self._io.stop()
        self._io.join()
        _open.discard(self._driven)

    def wakeup(self) -> None:
        """Make a call that waits, in another thread, or else the next one, end with `Wakeup`."""
        self._is_woken = True
        self._io.wake()

    # -- inside

    def _current(self) -> object:
        return threading.get_ident()

    def _changed(self) -> None:
        self._io.wake()

    def _take(self, take: Callable[[], list[Any]]) -> list[Any]:
        signals, taken = self._io.signals, list[Any]()
        try:
            is_holding = signals.hold()
            try:
                with self._lock:
                    self._core.raise_error()
                    taken = take()
                if taken:
                    self._on_taken()
            finally:
                if is_holding:
                    signals.release()
        except BaseException:
            if taken:
                with self._lock:
                    self._give_back(taken)
            raise
        return taken

    def _on_taken(self) -> None:  # a consumer that fetches nothing ahead has nothing to do
        """Something was taken of the buffers."""

    @abstractmethod
    def _give_back(self, taken: list[Any]) -> None:
        """What was taken is not returned."""

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConsumerClosed
        if self._driven.was_forked:
            raise ConsumerClosed("the consumer belongs to the parent process: make one after the fork")
        if self._driven.failure is not None:
            raise self._driven.failure

    def _drive(self, steps: Steps) -> Any:
        """Run a call that waits."""
        try:
            wait = next(steps)
            while True:
                wait = steps.send(self._io.run_until(wait.is_done, wait.due_ms) or wait.is_done())
        except StopIteration as end:
            return end.value
        finally:
            steps.close()


def _after_fork() -> None:
    """In the child: the parent's consumers have no thread here, and their sockets are the parent's."""
    for driven in list(_open):
        driven.was_forked = True
        driven.is_ending = True
    _open.clear()


os.register_at_fork(after_in_child=_after_fork)
