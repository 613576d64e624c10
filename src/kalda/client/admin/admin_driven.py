"""What both admin clients run on their I/O: the core, and how it is made of a configuration."""

from __future__ import annotations

import itertools
import threading
from contextlib import AbstractContextManager
from typing import Any

from kalda import __version__
from kalda.base.configs.admin import AdminConfig
from kalda.base.errors import ApiError, ErrorCode
from kalda.client.transport.driven import Driven
from kalda.clientcore.administration import AdminCore, Plan
from kalda.clientcore.connections.errors import Random
from kalda.clientcore.consuming.consumer_errors import Operation

_numbers = itertools.count(1)


class AdminDriven(Driven):
    """The core of an admin client, with the operations of threads or tasks that are to be started."""

    core: AdminCore

    def __init__(self, config: AdminConfig, random: Random, now_ms: int, first_contact_ms: int | None = None) -> None:
        self.client_id = config.client_id or f"adminclient-{next(_numbers)}"
        core = AdminCore(
            config,
            client_id=self.client_id,
            software_version=__version__,
            random=random,
            lock=threading.Lock(),
            now_ms=now_ms,
            first_contact_ms=first_contact_ms,
        )
        super().__init__(core)
        self._lock: AbstractContextManager[Any] = threading.Lock()
        self._waiting: list[tuple[Plan[Any], Operation]] = []

    def submit(self, plan: Plan[Any], operation: Operation) -> None:
        """Run the plan, from the next turn on. From any thread."""
        with self._lock:
            if self.is_ending:
                operation.fail(self.failure or ApiError(ErrorCode.NETWORK_EXCEPTION, "the admin client is closed"))
                return
            self._waiting.append((plan, operation))

    def run(self, now_ms: int) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        self.core.at(now_ms)
        for plan, operation in waiting:
            self.core.start(plan, operation)
        self.core.run(now_ms)

    def deadline_ms(self, now_ms: int) -> int | None:
        with self._lock:
            if self._waiting:
                return now_ms
        return self.core.deadline_ms(now_ms)

    def is_over(self) -> bool:
        """A client that was closed sends its last metrics first."""
        return self.is_ending and self.core.metrics_have_ended(self.core.requests.now_ms)

    def on_end(self, error: ApiError | None) -> None:
        closed = error or ApiError(ErrorCode.NETWORK_EXCEPTION, "the admin client was closed")
        with self._lock:
            self.is_ending = self.is_ended = True
            self.failure = error
            waiting, self._waiting = self._waiting, []
        self.core.end(closed)
        for _, operation in waiting:
            operation.fail(closed)
