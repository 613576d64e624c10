"""The base of what users hold of a client, blocking or asyncio: its machine, its metrics, its one process."""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from kalda.base.errors import WrongState
from kalda.base.ids import Uuid
from kalda.client.transport.channels import monotonic_ms

if TYPE_CHECKING:
    from kalda.client.transport.driven import Driven
    from kalda.clientcore.connections.telemetry_push import OwnMetrics


class ClientHost:
    """What a client gets from the machine that it runs on: clocks and random numbers. The simulator has another one, in
    virtual time."""

    monotonic_ms: Callable[[], int] = staticmethod(monotonic_ms)
    wall_s: Callable[[], float] = staticmethod(time.time)
    random: Callable[[], float] = staticmethod(random.random)

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return int(self.wall_s() * 1000)

    def new_member_id(self) -> str:
        """A fresh UUID, for a member of a group with `group.protocol=consumer`."""
        import uuid  # a producer needs none, and would wait for it

        return str(uuid.uuid4())


class ClientFace(ABC):
    """What a client of any kind can do. It has connections and threads, and so cannot pass to another process."""

    _driven: Driven
    _host: ClientHost = ClientHost()

    @property
    @abstractmethod
    def _default_timeout_ms(self) -> int:
        """How long a call waits that names no timeout."""

    def _now_ms(self) -> int:
        """Monotonic time."""
        return self._host.monotonic_ms()

    def metrics(self) -> dict[str, Any]:
        """The client's metrics by Kafka's names; those of a topic, a partition or a node behind its name and a dot."""
        return self._driven.metrics.snapshot(self._now_ms())

    def register_metric(self, name: str, read: Callable[[], float], *, is_total: bool = False) -> None:
        """Push what `read()` returns with the client's own metrics, where the cluster subscribes to this name
        (KIP-1076). `read` is called by the I/O thread, or on the loop, and must return at once. No effect where
        `enable.metrics.push` is false."""
        own = self._driven.core.own_metrics
        if own is not None:
            own.register(name, read, is_total=is_total)

    def unregister_metric(self, name: str) -> None:
        """Push it no longer."""
        own = self._driven.core.own_metrics
        if own is not None:
            own.unregister(name)

    def _awaited_metrics(self, timeout: float | None) -> tuple[OwnMetrics, float]:
        """Whose id is awaited, and for how many seconds. Raises `WrongState`, `ValueError`."""
        own = self._driven.core.own_metrics
        if own is None:
            raise WrongState("Telemetry is not enabled. Set config `enable.metrics.push` to `true`.")
        if timeout is not None and timeout < 0:
            raise ValueError(f"The timeout cannot be negative: it is {timeout}")
        return own, self._default_timeout_ms / 1000 if timeout is None else timeout

    def __reduce__(self) -> NoReturn:
        name = type(self).__name__
        raise TypeError(f"{name} cannot be pickled: make it in the process that uses it, from the same configuration")

    if not TYPE_CHECKING:  # else it would have every attribute

        def __getattr__(self, name: str) -> NoReturn:
            """Is called for a name that is not there: one of another client's is answered with Kalda's."""
            from kalda.client.other_clients import METHODS

            kind = next((each.__name__ for each in type(self).__mro__ if each.__name__ in METHODS), "")
            here = METHODS.get(kind, {}).get(name)
            more = f"; here it is {here}" if here else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{more}", name=name, obj=self)


class BlockingFace(ClientFace):
    """A client whose I/O a thread runs."""

    @abstractmethod
    def _changed(self) -> None:
        """The I/O has something to do. Raises where the client is closed."""

    def client_instance_id(self, timeout: float | None = None) -> Uuid | None:
        """The id that the cluster has given to this client for its telemetry (KIP-714). Waits for it, and returns None
        where it is not known after `timeout` seconds (default: `default.api.timeout.ms`, of a producer `max.block.ms`).
        Raises `WrongState` where `enable.metrics.push` is false."""
        own, limit_s = self._awaited_metrics(timeout)
        known = threading.Event()
        own.call_with_id(known.set)
        self._changed()
        known.wait(limit_s)
        return own.instance_id
