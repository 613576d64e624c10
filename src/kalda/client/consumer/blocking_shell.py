"""What the blocking shells of consumers have in common: the I/O that runs their core, waiting for it, and its end.

A forked child cannot use its parent's consumer. One that is dropped without `close` leaves its group when its session
ends.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

from kalda.base.ids import Uuid
from kalda.client.consumer.common_calls import CommonCalls, ConsumerClosed, Steps
from kalda.client.consumer.consumer_io import ConsumerIo, LockedConsumer
from kalda.client.transport.channels import monotonic_ms, security_of
from kalda.client.transport.held_signals import HoldingLock
from kalda.clientcore.subscribed_core import SubscribedCore

if TYPE_CHECKING:
    from kalda.base.configs.consumer import ConsumerConfig
    from kalda.base.configs.share_consumer import ShareConsumerConfig
    from kalda.network.client.security import ClientSecurity

_open: weakref.WeakSet[LockedConsumer] = weakref.WeakSet()


class BlockingShell(CommonCalls):
    """Runs a core: in the caller's thread while a call waits, otherwise in a thread in the background."""

    _driven: LockedConsumer

    def _start(self, core: SubscribedCore, settings: ConsumerConfig | ShareConsumerConfig, client_id: str) -> None:
        """Begin to run `core`."""
        self._driven = LockedConsumer(core)
        security: ClientSecurity | None = security_of(settings.values)
        self._io = ConsumerIo(
            f"kafka-consumer-network-thread | {client_id}",
            self._driven,
            security,
            settings.send_buffer_bytes,
            settings.receive_buffer_bytes,
        )
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

    def client_instance_id(self, timeout: float | None = None) -> Uuid | None:
        """The id that the cluster has given to this client for its telemetry (KIP-714). Waits for it, and returns None
        where it is not known after `timeout` seconds (default: `default.api.timeout.ms`). Raises `WrongState` where
        `enable.metrics.push` is false."""
        from kalda.client.transport.instance_ids import wait_for_id

        self._check_open()
        limit_s = self._core.config.default_api_timeout_ms / 1000 if timeout is None else timeout
        return wait_for_id(self._core.own_metrics, self._io.wake, limit_s)

    # -- inside

    def _now_ms(self) -> int:
        return monotonic_ms()

    def _current(self) -> object:
        return threading.get_ident()

    def _changed(self) -> None:
        self._io.wake()

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
