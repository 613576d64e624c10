"""The frame handler of a listener whose own handler does not exist yet.

A listener accepts connections before the node can answer requests. These wait here, and are answered in order when the
gate opens. Their number is bounded by the network, which limits connections and the unanswered requests of each.
Afterwards only the requests of connections that were made before it opened pass it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from kalda.base.errors import as_api_error
from kalda.base.pending import Pending
from kalda.network.server.connection import Answer, Connection

log = logging.getLogger("kalda.node")

FrameHandler = Callable[[Connection, memoryview], Answer]


class Gate:
    """Closed at first; `open` opens it for good."""

    def __init__(self) -> None:
        self._handler: FrameHandler | None = None
        """None until the gate opens."""
        self._waiting: dict[Pending[Any], tuple[Connection, memoryview]] = {}
        """Requests that came before that, in order of arrival. One whose connection ends is removed."""

    def __call__(self, connection: Connection, frame: memoryview) -> Answer:
        if self._handler is not None:
            return self._handler(connection, frame)
        pending: Pending[Any] = Pending()
        self._waiting[pending] = (connection, frame)
        pending.on_abandoned = lambda: self._waiting.pop(pending, None) and None
        return pending

    def open(self, handler: FrameHandler) -> None:
        """Answer the requests that wait; from now on `handler` is called with each request at once."""
        self._handler = handler
        while self._waiting:
            pending = next(iter(self._waiting))
            connection, frame = self._waiting.pop(pending)
            try:
                answer = handler(connection, frame)
            except Exception as error:  # of one request: the start of the node must not fail
                failure = as_api_error(error)
                if failure is not error:
                    log.exception("a request of %s failed", connection)
                pending.fail(failure)
                continue
            if isinstance(answer, Pending):
                pending.on_abandoned = answer.abandon
                answer.then(pending.settle)
            else:
                pending.complete(answer)
