"""Futures of records, and the calls when batches are done."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kalda.base.errors import CallTimeout, WrongState
from kalda.client.transport.channels import monotonic_ms
from kalda.clientcore.producing.outbound_record import OnDelivery, Outgoing
from kalda.clientcore.producing.producer_batch import FinalState, ProducerBatch, RecordMetadata, WrittenBatch
from kalda.clientcore.producing.producer_errors import made_by_parent
from kalda.records.appending import Ticket

if TYPE_CHECKING:
    from kalda.client.transport.shared_io import SharedIo

log = logging.getLogger(__name__)
_lock = threading.Lock()
"""Held while a callback is added, or the callbacks of a batch are taken: each is called once."""


class DeliveryFuture(Ticket):
    """The `RecordMetadata` of a sent record, when it is acknowledged. It cannot be cancelled."""

    __slots__ = ()

    def done(self) -> bool:
        """Whether the record was acknowledged, or has failed."""
        return _is_done_here(self.batch.holder_of(self.index)[0])

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Where the record is. Waits; raises `CallTimeout` after `timeout` seconds, and the record's error. In a
        callback, `WrongState` where it would have to wait: the records are sent by the thread that is in it."""
        batch, index = self._wait(timeout)
        error = batch.error_of(index)
        if error is not None:
            raise error
        return batch.record_metadata(index, self)

    def exception(self, timeout: float | None = None) -> Exception | None:
        """The record's error, None where it was acknowledged. Waits as `result` does."""
        batch, index = self._wait(timeout)
        return batch.error_of(index)

    def add_done_callback(self, function: Callable[[DeliveryFuture], object]) -> None:
        """Call `function` with this future when it is done: as `on_delivery` is, or now where it is done."""
        with _lock:
            batch, index = self.batch.holder_of(self.index)
            if not batch.is_done and not batch.is_delivered:
                self.batch, self.index = batch, index
                if self.callback is None:
                    self.callback = []
                    batch.tickets = batch.tickets or []
                    batch.tickets.append(self)
                elif not isinstance(self.callback, list):
                    self.callback = [self.callback]
                self.callback.append(lambda _metadata, _error: function(self))
                return
        _call(lambda _metadata, _error: function(self), None, None)

    def _wait(self, timeout: float | None) -> tuple[ProducerBatch, int]:
        while True:
            batch, index = self.batch.holder_of(self.index)
            if not wait_until_done(batch, timeout):
                raise CallTimeout(f"the record was not acknowledged within {timeout} s")
            if batch.final_state is not FinalState.SPLIT:
                return batch, index


class TableFuture:
    """Where the rows of a table are, when all of them are acknowledged."""

    def __init__(self, batches: Sequence[ProducerBatch], io: SharedIo) -> None:
        self._batches = batches
        self._io = io

    def done(self) -> bool:
        """Whether all rows were acknowledged, or have failed."""
        return all(batch.is_done for batch in leaves(self._batches))

    def result(self, timeout: float | None = None) -> list[WrittenBatch]:
        """Where the rows are, in batches. Waits; raises `CallTimeout` after `timeout` seconds, and the first error;
        other rows may be written then. In a callback, `WrongState` where it would have to wait."""
        if self._io.is_current and not self.done():
            raise _cannot_wait()
        deadline_s = None if timeout is None else time.monotonic() + timeout
        while not self.done():
            for batch in leaves(self._batches):
                left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
                if not wait_until_done(batch, left_s):
                    raise CallTimeout(f"the rows were not acknowledged within {timeout} s")
        done = list(leaves(self._batches))
        for batch in done:
            if batch.error is not None:
                raise batch.error
        return [batch.written() for batch in done]


def leaves(batches: Sequence[ProducerBatch]) -> Iterator[ProducerBatch]:
    """The batches, with the parts of one that was split in its place."""
    for batch in batches:
        if batch.final_state is FinalState.SPLIT:
            yield from leaves([part for _, part in batch.parts])
        else:
            yield batch


class Rejected:
    """Stands for the batch of a record that never got into one."""

    is_done = is_delivered = True
    io = None
    final_state = FinalState.FAILED

    def __init__(self, error: Exception) -> None:
        self.error = error

    def error_of(self, index: int) -> Exception:
        """That of its only record."""
        return self.error

    def holder_of(self, index: int) -> tuple[Rejected, int]:
        """Itself."""
        return self, index


def rejected(error: Exception) -> DeliveryFuture:
    """The future of a record that failed before it got into a batch."""
    return DeliveryFuture(Rejected(error))


def wait_until_done(batch: ProducerBatch, timeout: float | None) -> bool:
    """Wait until the batch is done, for the calling thread. False after `timeout` seconds."""
    if batch.is_done:
        return True
    io: SharedIo | None = batch.io
    if io is None:
        return _wait_for_others(batch, timeout)
    if io.run_until(batch, None if timeout is None else monotonic_ms() + int(timeout * 1000)):
        return _is_done(batch)
    if io.was_forked:
        raise made_by_parent()
    if _is_done_here(batch):
        return True
    if io.is_current:
        raise _cannot_wait()
    io.begin_waiting()
    try:
        return _wait_for_others(batch, timeout)
    finally:
        io.end_waiting()


def _is_done_here(batch: ProducerBatch | Rejected) -> bool:
    """Whether the batch is done for the calling thread: for callbacks it is before the last of them has returned."""
    if batch.is_done or not batch.is_delivered:
        return batch.is_done
    return bool(batch.io is not None and batch.io.is_current)


def _cannot_wait() -> WrongState:
    return WrongState("a callback cannot wait for a record: the thread that is in it sends the records")


def _wait_for_others(batch: ProducerBatch, timeout: float | None) -> bool:
    waiter = threading.Lock()
    waiter.acquire()
    with _lock:
        if _is_done(batch):
            return True
        if batch.waiter is None:
            batch.waiter = []
        batch.waiter.append(waiter)
    # A lock that `deliver` releases: an `Event` costs five times as much, which shows in a round trip.
    return waiter.acquire(timeout=-1 if timeout is None else min(max(0.0, timeout), threading.TIMEOUT_MAX))


def _is_done(batch: ProducerBatch) -> bool:
    """Read anew: another thread may have set it since."""
    return batch.is_done


def deliver(batch: ProducerBatch, outgoing: Outgoing) -> None:
    """A batch has its final state: call the callbacks of its records, in their order, then let those go on that wait
    for it. What a callback raises is logged, and does not keep the next from being called."""
    with _lock:
        tickets, batch.tickets = batch.tickets, None
        batch.is_delivered = True
        if tickets and batch.final_state is FinalState.SPLIT:
            for ticket in tickets:
                if ticket.batch is batch:  # added while the batch was being split
                    ticket.batch, ticket.index = batch.holder_of(ticket.index)
                    ticket.batch.tickets = ticket.batch.tickets or []
                    ticket.batch.tickets.append(ticket)
            tickets = None
        if not tickets:
            waiters = _end(batch)
    if tickets:
        tickets.sort(key=_index)
        for ticket in tickets:
            callback, ticket.callback = ticket.callback, None
            metadata, error = batch.outcome_of(ticket)
            if outgoing.interceptors:
                outgoing.acknowledge(metadata, error)
            for each in callback if isinstance(callback, list) else (callback,):
                if each is not None and each is not _only_intercept:
                    _call(each, metadata, error)
        with _lock:
            waiters = _end(batch)
    for waiter in waiters:
        waiter.release()


def _end(batch: ProducerBatch) -> Sequence[threading.Lock]:
    """The callbacks have been called; returns what those hold that wait for the batch."""
    batch.is_done = True
    waiters: Sequence[threading.Lock] = batch.waiter or ()
    batch.waiter = None
    return waiters


def _index(ticket: Ticket) -> int:
    return ticket.index


def _only_intercept(_metadata: RecordMetadata | None, _error: Exception | None) -> None:
    """Stands for no callback, where interceptors have to be called."""


def callback_for(outgoing: Outgoing, on_delivery: OnDelivery | None) -> OnDelivery | None:
    """What a record's ticket gets."""
    return _only_intercept if on_delivery is None and outgoing.interceptors else on_delivery


def _call(function: Any, metadata: RecordMetadata | None, error: Exception | None) -> None:
    try:
        function(metadata, error)
    except Exception:
        log.exception("a delivery callback failed")


def _renew_lock() -> None:
    """In a forked child, no thread of which can release what one of the parent holds."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
