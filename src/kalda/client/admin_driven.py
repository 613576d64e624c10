"""What both admin clients run on their I/O: the core, and how it is made of a configuration."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from kalda import __version__
from kalda.base.configs.admin import AdminConfig
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.client.core.administration import AdminCore, Plan
from kalda.client.core.backoff import Backoff, Random
from kalda.client.core.connections import Action, ConnectionConfig, Connections
from kalda.client.core.consumer_errors import Operation
from kalda.client.core.controllers import ControllerMetadata
from kalda.client.core.metadata import ClusterMetadata
from kalda.client.core.own_metrics import OwnMetrics
from kalda.client.core.subscription import OffsetAndEpoch
from kalda.client.metadata import Address, configured_bootstrap
from kalda.protocol.apis import ApiKey

if TYPE_CHECKING:
    from kalda.client.core.pushing import Measured

_numbers = itertools.count(1)
_MAX_IN_FLIGHT = 100


class AdminDriven:
    """A core, with the operations of threads or tasks that are to be started."""

    def __init__(self, config: AdminConfig, random: Random, now_ms: int) -> None:
        self.client_id = config.client_id or f"adminclient-{next(_numbers)}"
        retry = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms, random)
        kind = ControllerMetadata if config.bootstrap_controllers else ClusterMetadata
        self.core = AdminCore(
            kind(
                _bootstrap(config),
                retry,
                max_age_ms=config.metadata_max_age_ms,
                may_rebootstrap=config.may_rebootstrap,
                rebootstrap_trigger_ms=config.rebootstrap_trigger_ms,
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
                )
            ),
            retry,
            now_ms,
        )
        self._config = config
        self._random = random
        self._own_metrics: OwnMetrics | None = None
        """None where `push_metrics` was not called, or has nothing to do."""
        self._submitted = 0
        """Operations so far."""
        self.is_ending = False
        self.failure: ApiError | None = None
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
            self._submitted += 1
            self._waiting.append((plan, operation))

    def push_metrics(self, wall_ms: Callable[[], int]) -> None:
        """Push what the cluster subscribes to (KIP-714), unless `enable.metrics.push` is false, or the client is
        connected to controllers, which receive no metrics."""
        if self._config.enable_metrics_push and not self._config.bootstrap_controllers:
            self._own_metrics = OwnMetrics(
                self.core.connections,
                self._measured,
                (),
                wall_ms=wall_ms,
                now_ms=lambda: self.core.requests.now_ms,
                random=self._random,
            )

    def _measured(self, now_ms: int) -> Iterable[Measured]:
        from kalda.client.core.pushing import Measured

        group, connections = "org.apache.kafka.admin.client", self.core.connections
        yield Measured(f"{group}.connection.creation.total", connections.made, True)
        yield Measured(f"{group}.requests.in.flight", connections.in_flight)
        yield Measured(f"{group}.operation.total", self._submitted, True)

    def at(self, now_ms: int) -> Connections:
        return self.core.at(now_ms)

    def run(self, now_ms: int) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        self._started = [operation for operation in self._started if not operation.is_done]
        self.core.at(now_ms)
        for plan, operation in waiting:
            self._started.append(operation)
            self.core.start(plan, operation)
        self.core.run(now_ms)
        if self._own_metrics is not None and now_ms >= self._own_metrics.due_ms:
            self._own_metrics.run(now_ms)

    def deadline_ms(self, now_ms: int) -> int | None:
        with self._lock:
            if self._waiting:
                return now_ms
        due_ms = self.core.deadline_ms(now_ms)
        if self._own_metrics is None:
            return due_ms
        return self._own_metrics.due_ms if due_ms is None else min(due_ms, self._own_metrics.due_ms)

    def take_actions(self) -> list[Action]:
        return self.core.take_actions()

    def finish(self) -> None:
        return None

    def is_over(self) -> bool:
        """A client that was closed sends its last metrics first."""
        if not self.is_ending:
            return False
        return self._own_metrics is None or self._own_metrics.has_ended(self.core.requests.now_ms)

    def on_end(self, error: ApiError | None) -> None:
        closed = error or ApiError(ErrorCode.NETWORK_EXCEPTION, "the admin client was closed")
        with self._lock:
            self.is_ending = True
            self.failure = error
            left = [*self._started, *(operation for _, operation in self._waiting)]
            self._waiting = []
        self.core.connections.close(self.core.requests.now_ms)
        for operation in left:
            operation.fail(closed)


def _bootstrap(config: AdminConfig) -> tuple[Address, ...]:
    if config.bootstrap_controllers:
        return configured_bootstrap(config.bootstrap_controllers, "bootstrap.controllers")
    return configured_bootstrap(config.bootstrap_servers)


def partitions_by(offsets: Mapping[Any, Any]) -> dict[TopicPartition, Any]:
    """The mapping with pairs as partitions."""
    return {TopicPartition(*partition): each for partition, each in offsets.items()}


def positions_by(offsets: Mapping[Any, OffsetAndEpoch | int]) -> dict[TopicPartition, OffsetAndEpoch]:
    """The mapping with pairs as partitions, and numbers as offsets without an epoch."""
    return {
        TopicPartition(*partition): OffsetAndEpoch(each) if isinstance(each, int) else each
        for partition, each in offsets.items()
    }
