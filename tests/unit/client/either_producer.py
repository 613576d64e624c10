"""The blocking producer and asyncio's, under the same calls."""

from __future__ import annotations

import asyncio
from typing import Any

from scripted_broker import ScriptedBroker

from kalda import Producer, aio

TIMEOUT_S = 20


class Blocking:
    """Calls of the blocking producer."""

    def __init__(self, broker: ScriptedBroker, **keys: object) -> None:
        settings: dict[str, object] = {"bootstrap.servers": broker.address, "transactional.id": "x"}
        self.producer: Any = Producer(settings, **keys)

    def call(self, name: str, *arguments: Any, **keywords: Any) -> Any:
        return getattr(self.producer, name)(*arguments, **keywords)

    def fails(self, *arguments: Any, **keywords: Any) -> BaseException | None:
        """The error of a record, raised by `send` or that of its future; None: it is written."""
        try:
            return self.call("send", *arguments, **keywords).exception(TIMEOUT_S)  # type: ignore[no-any-return]
        except Exception as error:
            return error

    def close(self, timeout: float | None = TIMEOUT_S) -> None:
        self.producer.close(timeout)


class Asyncio:
    """The same of asyncio's."""

    def __init__(self, broker: ScriptedBroker, **keys: object) -> None:
        self._runner = asyncio.Runner()
        settings: dict[str, object] = {"bootstrap.servers": broker.address, "transactional.id": "x"}
        self.producer: Any = aio.Producer(settings, **keys)

    def call(self, name: str, *arguments: Any, **keywords: Any) -> Any:
        return self._runner.run(getattr(self.producer, name)(*arguments, **keywords))

    def fails(self, *arguments: Any, **keywords: Any) -> BaseException | None:
        async def send() -> None:
            await (await self.producer.send(*arguments, **keywords))

        try:
            self._runner.run(send())
        except Exception as error:
            return error
        return None

    def close(self, timeout: float | None = TIMEOUT_S) -> None:
        self.call("close", timeout)


Used = Blocking | Asyncio
KINDS: list[type[Used]] = [Blocking, Asyncio]


def begun(used: Used) -> Used:
    """It has begun a transaction, and has sent a record in it."""
    used.call("init_transactions", TIMEOUT_S)
    used.call("begin_transaction")
    assert used.fails("t", b"first") is None
    return used
