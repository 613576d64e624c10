"""What both admin clients run on their I/O: the core, and how it is made of a configuration."""

from __future__ import annotations

import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from kalda import __version__
from kalda.base.configs.admin import AdminConfig
from kalda.base.errors import ApiError, ErrorCode
from kalda.client.transport.driven import Driven, OfOneProcess
from kalda.clientcore.administration import AdminCore, Plan
from kalda.clientcore.connections.backoff import Backoff, Random
from kalda.clientcore.connections.client_metrics import ClientMetrics, metric_config
from kalda.clientcore.connections.cluster_values import Address, configured_bootstrap
from kalda.clientcore.connections.connections import ConnectionConfig, Connections
from kalda.clientcore.connections.controllers import ControllerMetadata
from kalda.clientcore.connections.metadata import ClusterMetadata
from kalda.clientcore.connections.own_metrics import OwnMetrics, measured_by
from kalda.clientcore.consuming.consumer_errors import Operation
from kalda.protocol.apis import ApiKey

_numbers = itertools.count(1)
_MAX_IN_FLIGHT = 100


class AdminDriven(Driven):
    """The core of an admin client, with the operations of threads or tasks that are to be started."""

    core: AdminCore

    def __init__(self, config: AdminConfig, random: Random, now_ms: int, first_contact_ms: int | None = None) -> None:
        self.client_id = config.client_id or f"adminclient-{next(_numbers)}"
        metrics = ClientMetrics(
            "admin-client", self.client_id, metric_config(config.values), version=__version__, lock=threading.Lock()
        )
        retry = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms, random)
        kind = ControllerMetadata if config.bootstrap_controllers else ClusterMetadata
        core = AdminCore(
            kind(
                _bootstrap(config),
                retry,
                max_age_ms=config.metadata_max_age_ms,
                may_rebootstrap=config.may_rebootstrap,
                rebootstrap_trigger_ms=config.rebootstrap_trigger_ms,
                checks_cluster=config.checks_cluster,
                allow_auto_topic_creation=False,
            ),
            Connections(
                ConnectionConfig.of(
                    config,
                    self.client_id,
                    __version__,
                    random,
                    _MAX_IN_FLIGHT,
                    ApiKey.DESCRIBE_CLUSTER if config.bootstrap_controllers else ApiKey.METADATA,
                ),
                metrics,
            ),
            retry,
            now_ms,
            first_contact_ms,
        )
        super().__init__(core)
        self._config = config
        self._random = random
        self.own_metrics: OwnMetrics | None = None
        """None where `push_metrics` was not called, or has nothing to do."""
        self._lock: AbstractContextManager[Any] = threading.Lock()
        self._waiting: list[tuple[Plan[Any], Operation]] = []
        self._started: list[Operation] = []
        """Operations that are not done."""

    def submit(self, plan: Plan[Any], operation: Operation) -> None:
        """Run the plan, from the next turn on. From any thread."""
        with self._lock:
            if self.is_ending:
                operation.fail(self.failure or ApiError(ErrorCode.NETWORK_EXCEPTION, "the admin client is closed"))
                return
            self._waiting.append((plan, operation))

    def push_metrics(self, wall_ms: Callable[[], int]) -> None:
        """Push what the cluster subscribes to (KIP-714), unless `enable.metrics.push` is false, or the client is
        connected to controllers, which receive no metrics."""
        self.metrics.started_at_ms = wall_ms()
        if self._config.enable_metrics_push and not self._config.bootstrap_controllers:
            self.own_metrics = OwnMetrics(
                self.core.connections,
                measured_by(self.metrics),
                (),
                wall_ms=wall_ms,
                now_ms=lambda: self.core.requests.now_ms,
                random=self._random,
            )

    def run(self, now_ms: int) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        self._started = [operation for operation in self._started if not operation.is_done]
        self.core.at(now_ms)
        for plan, operation in waiting:
            self._started.append(operation)
            self.core.start(plan, operation)
        self.core.run(now_ms)
        if self.own_metrics is not None and now_ms >= self.own_metrics.due_ms:
            self.own_metrics.run(now_ms)

    def deadline_ms(self, now_ms: int) -> int | None:
        with self._lock:
            if self._waiting:
                return now_ms
        due_ms = self.core.deadline_ms(now_ms)
        if self.own_metrics is None:
            return due_ms
        return self.own_metrics.due_ms if due_ms is None else min(due_ms, self.own_metrics.due_ms)

    def is_over(self) -> bool:
        """A client that was closed sends its last metrics first."""
        if not self.is_ending:
            return False
        return self.own_metrics is None or self.own_metrics.has_ended(self.core.requests.now_ms)

    def on_end(self, error: ApiError | None) -> None:
        closed = error or ApiError(ErrorCode.NETWORK_EXCEPTION, "the admin client was closed")
        with self._lock:
            self.is_ending = self.is_ended = True
            self.failure = error
            left = [*self._started, *(operation for _, operation in self._waiting)]
            self._waiting = []
        self.core.connections.close(self.core.requests.now_ms)
        for operation in left:
            operation.fail(closed)


class AdminCalls(OfOneProcess, ABC):
    """What both admin clients can do without waiting."""

    _driven: AdminDriven

    def metrics(self) -> dict[str, Any]:
        """The client's metrics by Kafka's names; those of a node behind its name and a dot."""
        return self._driven.metrics.snapshot(self._now_ms())

    def register_metric(self, name: str, read: Callable[[], float], *, is_total: bool = False) -> None:
        """Push what `read()` returns with the client's own metrics, where the cluster subscribes to this name
        (KIP-1076). No effect where `enable.metrics.push` is false."""
        if self._driven.own_metrics is not None:
            self._driven.own_metrics.register(name, read, is_total=is_total)

    def unregister_metric(self, name: str) -> None:
        """Push it no longer."""
        if self._driven.own_metrics is not None:
            self._driven.own_metrics.unregister(name)

    @abstractmethod
    def _now_ms(self) -> int:
        """Monotonic time."""


def _bootstrap(config: AdminConfig) -> tuple[Address, ...]:
    if config.bootstrap_controllers:
        return configured_bootstrap(config.bootstrap_controllers, "bootstrap.controllers")
    return configured_bootstrap(config.bootstrap_servers)
