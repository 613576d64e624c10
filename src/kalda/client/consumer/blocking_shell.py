"""What the blocking shells of consumers have in common: the I/O that runs their core, waiting for it, and its end.

The core is protected by a lock, which is held for an event or a turn's computing, never while a thread waits for
sockets. Between calls, responses wait in the kernel's buffers; `_GRACE_S` behind the last one the background thread
takes over, so that heartbeats are sent, and records are fetched ahead, while the application works on what it has.

A forked child cannot use its parent's consumer. One that is dropped without `close` leaves its group when its session
ends.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from kalda.base.errors import ApiError
from kalda.client.consumer.common_calls import CommonCalls, ConsumerClosed, ConsumerDriven, Steps, Wait
from kalda.client.transport.channels import Channels
from kalda.client.transport.faces import BlockingFace
from kalda.client.transport.held_signals import HoldingLock
from kalda.client.transport.shared_io import SharedIo
from kalda.clientcore.subscribed_core import SubscribedCore

log = logging.getLogger(__name__)
_GRACE_S = 0.05
_TURN_EVERY_MS = 5
"""How long polls are served from the buffers alone, without a turn of the loop."""
_SHARED_WAIT_S = 0.005
"""How often a thread that waits for turns of another one checks whether what it waits for has happened."""


class LockedConsumer(ConsumerDriven):
    """What is run: the core, under its lock."""

    def __init__(self, core: SubscribedCore) -> None:
        super().__init__(core)
        self.lock = threading.RLock()

    def run(self, now_ms: int) -> None:
        with self.lock:
            super().run(now_ms)

    def deadline_ms(self, now_ms: int) -> int | None:
        with self.lock:
            return super().deadline_ms(now_ms)

    def on_end(self, error: ApiError | None) -> None:
        with self.lock:
            super().on_end(error)


class ConsumerIo(SharedIo):
    """The turns of one consumer."""

    def __init__(self, name: str, driven: LockedConsumer) -> None:
        super().__init__(name, driven, _GRACE_S)
        self._channels = _LockedChannels(driven, self)

    def abandon(self) -> None:
        """The consumer was dropped without `close`. The garbage collector calls this at any moment and on any thread,
        which may hold a lock of the consumer: none is taken here."""
        self._driven.is_ending = True
        self.wake()


class _LockedChannels(Channels):
    """Calls of the core, as actions are carried out and events come, are made under its lock."""

    def __init__(self, driven: LockedConsumer, watch: ConsumerIo) -> None:
        super().__init__(driven, watch)
        self._lock = driven.lock

    def carry_out(self) -> None:
        with self._lock:
            super().carry_out()

    def on_event(self, connection_id: int, readable: bool, writable: bool) -> bool:
        with self._lock:
            return super().on_event(connection_id, readable, writable)


_NOTHING = Wait(lambda: False, 0)


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
        self._io.start()

    def _end(self) -> None:
        """The last of a close: all connections are closed, and nothing can be called any more."""
        self._is_closed = True
        self._close_objects()
        self._iterator.replace_rest([])
        self._finalizer.detach()
        self._io.abandon()
        self._io.join()

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
        if self._io.was_forked:
            raise ConsumerClosed("the consumer belongs to the parent process: make one after the fork")
        if self._driven.failure is not None:
            raise self._driven.failure

    def _run_until(self, wait: Wait) -> bool:
        """Run turns, or wait for those of another thread, until it is done or the deadline. True: it is done."""
        io, driven = self._io, self._driven
        if io.run_until(wait, wait.due_ms):
            return wait.is_done
        io.wake()
        io.begin_waiting()
        try:
            while not (wait.is_done or driven.is_ending or self._now_ms() >= wait.due_ms):
                time.sleep(_SHARED_WAIT_S)
        finally:
            io.end_waiting()
        return wait.is_done

    def _turn_at_once(self) -> None:
        """One turn without waiting; where another thread runs them, it goes on now."""
        if not self._io.run_until(_NOTHING, 0):
            self._io.wake()

    def _let_run(self) -> None:
        if self._now_ms() - self._io.last_turn_ms >= _TURN_EVERY_MS:
            self._turn_at_once()

    def _drive(self, steps: Steps) -> Any:
        """Run a call that waits."""
        try:
            wait = next(steps)
            while True:
                wait = steps.send(self._run_until(wait))
        except StopIteration as end:
            return end.value
        finally:
            steps.close()
