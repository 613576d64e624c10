"""What consumers and share consumers have in common, blocking ones and those of asyncio: calls that do not wait, and
what the I/O of all of them runs."""

from __future__ import annotations

import typing
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from kalda.base.errors import ApiError, KafkaError
from kalda.client.transport.driven import Driven, OfOneProcess
from kalda.clientcore.consuming.consumer_errors import Wakeup
from kalda.clientcore.subscribed_core import SubscribedCore

if TYPE_CHECKING:
    from typing import TypeAlias

    from typing_extensions import TypeVar

    from kalda.records.consuming import Headers

    Made = TypeVar("Made", covariant=True)

    class Deserializes(Protocol[Made]):
        """An object that makes keys or values of one type."""

        def deserialize(self, topic: str, headers: Headers, data: bytes, /) -> Made: ...

    Deserialize: TypeAlias = Callable[[bytes], Made] | Deserializes[Made]
else:

    def TypeVar(name: str, default: object) -> object:  # noqa: N802 - as in Python 3.13
        """Without the default, which is for type checkers."""
        return typing.TypeVar(name)


K = TypeVar("K", default=Any)
"""The keys that `key.deserializer` makes."""
V = TypeVar("V", default=Any)
"""The values that `value.deserializer` makes."""


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


class CommonCalls(OfOneProcess):
    """What a consumer of any kind can do without waiting."""

    _core: SubscribedCore
    _driven: ConsumerDriven
    _is_woken: bool
    """`wakeup` was called, and no call has ended with `Wakeup` since."""
    _lock: AbstractContextManager[Any]

    def _current(self) -> object:
        """The thread or task that calls."""
        raise NotImplementedError

    def _check_open(self) -> None:
        raise NotImplementedError

    def _now_ms(self) -> int:
        raise NotImplementedError

    def _changed(self) -> None:
        """The loop has something to do."""
        raise NotImplementedError

    def metrics(self) -> dict[str, Any]:
        """The consumer's metrics by Kafka's names; those of a topic, a partition or a node behind its name and a
        dot."""
        with self._lock:
            return self._core.metrics.snapshot(self._now_ms())

    def register_metric(self, name: str, read: Callable[[], float], *, is_total: bool = False) -> None:
        """Push what `read()` returns with the client's own metrics, where the cluster subscribes to this name
        (KIP-1076). `read` is called on the I/O thread, and must return at once. No effect where
        `enable.metrics.push` is false."""
        if self._core.own_metrics is not None:
            self._core.own_metrics.register(name, read, is_total=is_total)

    def unregister_metric(self, name: str) -> None:
        """Push it no longer."""
        if self._core.own_metrics is not None:
            self._core.own_metrics.unregister(name)

    def _raise_if_woken(self) -> None:
        if self._is_woken:
            self._is_woken = False
            raise Wakeup("wakeup was called")

    def _take_codecs(self) -> list[object]:
        """The deserializers, of a consumer that has ended: they are closed once."""
        codecs, self._core.codecs = self._core.codecs, {}
        return list(codecs.values())
