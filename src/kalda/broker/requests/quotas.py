"""The client quotas of a node: one for both of its roles, fed by the metadata, charged by its pipelines.

`NodeQuotas` is a publisher: a changed quota takes effect with the next request, also on connections that are open. The
first quota of a kind adds the charge stage to the routes of all pipelines, and the removal of the last one removes it.

`client.quota.callback.class` names a Python class in place of the eight levels of entities, as `package.module.Class`
or `package.module:Class`. Its file is checked every few seconds: when it has changed, the class is loaded anew. Where
that fails, the former one stays, and the reason is logged.

Not obvious:

- A route has its charge stage only while a quota that is in use counts it: whatever changes that calls
  `renew_routes`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from kalda.base.background import Background, Priority
from kalda.base.configs.server import ServerConfig
from kalda.base.errors import ApiError
from kalda.base.scheduling import Jobs, Timer, Timers
from kalda.base.sensors import Sensors
from kalda.broker.process.shell import Host
from kalda.broker.requests.pipeline import RequestPipeline
from kalda.broker.requests.throttling import ClientThrottle
from kalda.metadata.image import MetadataDelta, MetadataImage
from kalda.metadata.publisher import Manifest
from kalda.network.python_classes import WatchedClass
from kalda.quota.entities import ClientQuotaCallback, Entity
from kalda.quota.managers import QuotaManagers, Windows

log = logging.getLogger("kalda.quotas")

CALLBACK_CLASS = "client.quota.callback.class"
_EXPIRY_INTERVAL_MS = 30_000
_METHODS = ("quota_metric_tags", "quota_limit", "update_quota", "remove_quota", "quota_reset_required")


class NodeQuotas:
    """What the node's pipelines charge their clients to."""

    name = "ClientQuotas"

    def __init__(
        self,
        config: ServerConfig,
        host: Host,
        sensors: Sensors,
        timers: Timers,
        jobs: Jobs,
        background: Background,
    ) -> None:
        """Raises `ValueError` where the operator's class cannot be loaded."""
        self._timers = timers
        self._jobs = jobs
        self._background = background
        self._host = host
        self._callback = _callback_of(config)
        self.managers = QuotaManagers(
            Windows(lambda key: int(config[key])), None if self._callback is None else self._callback.made
        )
        self.throttle = ClientThrottle(self.managers, host.clock.mono_ms, host.busy_ns)
        self._pipelines: list[RequestPipeline] = []
        self._pending: list[Timer] = []
        sensors.add_source(self.throttle.measured)

    def add_pipeline(self, pipeline: RequestPipeline) -> None:
        """Renew the routes of this pipeline whenever other quotas are in use."""
        self._pipelines.append(pipeline)

    def start(self) -> None:
        """Remove sensors that are not used any more, and watch the file of the operator's class, from now on."""
        self._repeat(_EXPIRY_INTERVAL_MS, self._expire)
        if self._callback is not None:
            self._callback.start(self._timers, self._jobs, self.managers.set_callback)

    def close(self) -> None:
        """Stop the timers."""
        if self._callback is not None:
            self._callback.close()
        for timer in self._pending:
            timer.cancel()
        self._pending.clear()

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage, manifest: Manifest) -> None:
        """Apply the quotas that have changed."""
        if delta.client_quotas is not None and self.managers.update(delta.client_quotas.changes):
            for pipeline in self._pipelines:
                pipeline.renew_routes()

    def on_controller_change(self, leader_id: int | None, epoch: int) -> None:
        """Quotas do not depend on the controller."""

    def _repeat(self, interval_ms: int, action: Callable[[], None]) -> None:
        def again() -> None:
            self._pending.remove(timer)
            self._repeat(interval_ms, action)
            action()

        timer = self._timers.call_later_ms(interval_ms, again)
        self._pending.append(timer)

    def _expire(self) -> None:
        expired = self._background.run(self.managers.expire(self._host.clock.mono_ms()), Priority.MAINTENANCE)
        expired.then(_log_failure)


def _log_failure(_: None, error: ApiError | None) -> None:
    if error is not None:
        log.error("clients' quotas are not released", exc_info=error.__cause__ or error)


def _callback_of(config: ServerConfig) -> WatchedClass[ClientQuotaCallback] | None:
    """The operator's class; None where the properties name none. Raises `ValueError`."""
    path = (config[CALLBACK_CLASS] or "").strip()

    def make(found: Any) -> ClientQuotaCallback:
        missing = [name for name in _METHODS if not callable(getattr(found, name, None))]
        if missing:
            raise ValueError(f"{CALLBACK_CLASS}={path}: no class with {', '.join(missing)}")
        callback: ClientQuotaCallback = found()
        configure = getattr(callback, "configure", None)
        if configure is not None:
            configure(dict(config.properties))
        return _Contained(callback)

    return WatchedClass(CALLBACK_CLASS, path, make) if path else None


class _Contained:
    """The operator's class. Where it fails, the failure is logged, and its clients have no limit meanwhile: neither
    their requests nor the metadata may fail by it."""

    def __init__(self, callback: ClientQuotaCallback) -> None:
        self._callback = callback
        self._failures = 0
        """So far; each that is a power of two is logged."""

    def quota_metric_tags(self, quota_type: str, user: str, client_id: str) -> Mapping[str, str]:
        try:
            tags = self._callback.quota_metric_tags(quota_type, user, client_id)
            return {str(name): str(value) for name, value in tags.items()}
        except Exception as error:
            self._note(error)
            return {}

    def quota_limit(self, quota_type: str, metric_tags: Mapping[str, str]) -> float | None:
        try:
            limit = self._callback.quota_limit(quota_type, metric_tags)
            return float(limit) if limit is not None and limit > 0 else None
        except Exception as error:
            self._note(error)
            return None

    def update_quota(self, quota_type: str, entity: Entity, value: float) -> None:
        try:
            self._callback.update_quota(quota_type, entity, value)
        except Exception as error:
            self._note(error)

    def remove_quota(self, quota_type: str, entity: Entity) -> None:
        try:
            self._callback.remove_quota(quota_type, entity)
        except Exception as error:
            self._note(error)

    def quota_reset_required(self, quota_type: str) -> bool:
        try:
            return bool(self._callback.quota_reset_required(quota_type))
        except Exception as error:
            self._note(error)
            return False

    def _note(self, error: Exception) -> None:
        self._failures += 1
        if self._failures & (self._failures - 1) == 0:
            log.error("%s has failed %d times, now by %r", CALLBACK_CLASS, self._failures, error)
