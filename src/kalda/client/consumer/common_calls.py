"""What consumers and share consumers have in common, blocking ones and those of asyncio: calls, and what the I/O of all
of them runs.

A call that waits is a generator. It yields what it waits for, and until when; the shell that drives it, by the thread's
I/O or on the loop, sends back whether that has come. What it returns is the call's result.
"""

from __future__ import annotations

import logging
import typing
from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kalda.base.errors import ApiError, KafkaError
from kalda.client.transport.driven import Driven
from kalda.client.transport.faces import ClientFace
from kalda.clientcore.consuming.consumer_errors import Operation, Wakeup
from kalda.clientcore.subscribed_core import SubscribedCore
from kalda.records.consuming import RecordIterator

if TYPE_CHECKING:
    from typing import TypeAlias

    from typing_extensions import TypeVar

    from kalda.records.consuming import Headers, Record

    Made = TypeVar("Made", covariant=True)

    class Deserializes(Protocol[Made]):
        """An object that makes keys or values of one type."""

        def deserialize(self, topic: str, headers: Headers, data: bytes, /) -> Made: ...

    Deserialize: TypeAlias = Callable[[bytes], Made] | Deserializes[Made]
else:

    def TypeVar(name: str, default: object) -> object:  # noqa: N802 - as in Python 3.13
        """Without the default, which is for type checkers."""
        return typing.TypeVar(name)


log = logging.getLogger(__name__)
K = TypeVar("K", default=Any)
"""The keys that `key.deserializer` makes."""
V = TypeVar("V", default=Any)
"""The values that `value.deserializer` makes."""


def with_deserializers(keywords: Mapping[str, object], key: object, value: object) -> dict[str, object]:
    """The keywords of a consumer, with those that are typed by what they make."""
    given = {"key_deserializer": key, "value_deserializer": value}
    return {**keywords, **{name: each for name, each in given.items() if each is not None}}


class ConsumerClosed(KafkaError, RuntimeError):
    """The consumer is closed, or belongs to the parent process."""

    def __init__(self, why: str = "the consumer is closed") -> None:
        super().__init__(why)


class ConsumerDriven(Driven):
    """What a consumer of any kind runs."""

    core: SubscribedCore

    def __init__(self, core: SubscribedCore) -> None:
        super().__init__(core)
        self.polling = 0
        """Calls of `poll` that are running."""

    def run(self, now_ms: int) -> None:
        self.core.run(now_ms, self.polling > 0)

    def deadline_ms(self, now_ms: int) -> int | None:
        return self.core.deadline_ms(now_ms, self.polling > 0)

    def on_end(self, error: ApiError | None) -> None:
        self.failure = error
        self.is_ending = self.is_ended = True
        self.core.connections.close(self.core.requests.now_ms)


class Wait(NamedTuple):
    """What a call waits for."""

    has_come: Callable[[], bool]
    due_ms: int

    @property
    def is_done(self) -> bool:
        """Whether it has come."""
        return self.has_come()


Steps: typing.TypeAlias = Generator[Wait, bool, Any]


class CommonCalls(ClientFace):
    """What a consumer of any kind can do."""

    _core: SubscribedCore
    _driven: ConsumerDriven
    _is_woken: bool
    """`wakeup` was called, and no call has ended with `Wakeup` since."""
    _is_closed: bool
    _iterator: RecordIterator
    """The records of `for` that were taken from the buffers and not returned yet are in it."""
    _lock: AbstractContextManager[Any]

    @abstractmethod
    def _current(self) -> object:
        """The thread or task that calls."""

    @abstractmethod
    def _check_open(self) -> None:
        """Raises `ConsumerClosed`, and what has ended the I/O."""

    @property
    def _default_timeout_ms(self) -> int:
        return self._core.config.default_api_timeout_ms

    @abstractmethod
    def _start(self) -> None:
        """The core is made: it may run."""

    @abstractmethod
    def _next_records(self) -> list[Record[Any, Any]] | None:
        """What a `for` loop goes on with; None at its end, and where the loop itself awaits them."""

    @abstractmethod
    def _take(self, take: Callable[[], list[Any]]) -> list[Any]:
        """What `take` returns of the buffers. Where a signal handler raises, it was not returned, and is given back."""

    @abstractmethod
    def _close_objects(self) -> None:
        """The consumer has ended: what it holds and has a `close` is closed, once."""

    @abstractmethod
    def _changed(self) -> None:
        """The I/O has something to do."""

    @abstractmethod
    def _let_run(self) -> None:
        """Polls that find records do not wait: heartbeats and acknowledgements are sent all the same."""

    def metrics(self) -> dict[str, Any]:
        with self._lock:
            return super().metrics()

    def _raise_if_woken(self) -> None:
        if self._is_woken:
            self._is_woken = False
            raise Wakeup("wakeup was called")

    def _take_codecs(self) -> list[object]:
        """The deserializers, of a consumer that has ended: they are closed once."""
        codecs, self._core.codecs = self._core.codecs, {}
        return list(codecs.values())

    def _due_ms(self, timeout: float | None) -> int:
        return self._now_ms() + (self._default_timeout_ms if timeout is None else int(timeout * 1000))

    def _wait(self, what: str, timeout: float | None, begin: Callable[[Operation], None]) -> Steps:
        """The result of an operation that `begin` starts."""
        self._check_open()
        operation = Operation(what, self._due_ms(timeout))
        with self._lock:
            self._core.requests.now_ms = self._now_ms()
            begin(operation)
        return (yield from self._finish(operation))

    def _finish(self, operation: Operation) -> Steps:
        """The result of an operation that has begun."""
        core, driven = self._core, self._driven
        done = lambda: operation.is_done or self._is_woken or driven.is_ending or core.refused is not None  # noqa: E731
        yield Wait(done, operation.deadline_ms)
        if not operation.is_done:
            self._raise_if_woken()
            self._check_open()
            if core.refused is not None:
                raise core.refused
        if operation.is_late or not operation.is_done:
            raise operation.late(core.connections.last_failure)
        if operation.error is not None:
            raise operation.error
        return operation.result

    def _finish_quietly(self, operation: Operation | None, due_ms: int) -> Steps:
        """As `_finish`, when the consumer is closed: a failure is logged."""
        if operation is None:
            return
        self._driven.polling += 1
        try:
            done = yield Wait(lambda: operation.is_done, min(due_ms, operation.deadline_ms))
        finally:
            self._driven.polling -= 1
        if not done or operation.error is not None:
            log.warning("%s has failed while the consumer was closed: %s", operation.what, operation.error or "timeout")

    def _push_last_metrics(self, due_ms: int) -> Steps:
        with self._lock:
            have_ended = self._core.metrics_have_ended(self._now_ms())
        if not have_ended:
            yield Wait(lambda: self._core.metrics_have_ended(self._now_ms()), due_ms)
