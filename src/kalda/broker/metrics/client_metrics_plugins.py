"""The operator's own classes that receive the metrics of clients: `kalda.client.metrics.plugins`.

A class is named as `package.module:Class`, and made without arguments. Each has a thread of its own with a bounded
queue, so that one that is slow, that hangs or that raises harms neither requests nor the others.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final, NamedTuple, Protocol

from kalda.telemetry.client_records import PointSource
from kalda.telemetry.otlp import DataPoint

log = logging.getLogger("kalda.client_metrics")

KEY: Final = "kalda.client.metrics.plugins"
MAX_QUEUED: Final = 100
"""Pushes that wait for one plugin; further ones are dropped, and counted."""


class Push(NamedTuple):
    """One accepted push."""

    source: PointSource
    is_terminating: bool
    """Whether it is the client's last."""
    points: Sequence[DataPoint]
    payload: bytes
    """What the points were decoded from: an OTLP `MetricsData`, uncompressed."""


class ClientMetricsPlugin(Protocol):
    """What a class of `kalda.client.metrics.plugins` has."""

    def export(self, push: Push) -> None:
        """Take the metrics of one push. Called on a thread that only this plugin has. May raise."""
        ...


class PluginRunner:
    """One plugin and its thread, which starts with the first push."""

    def __init__(self, path: str) -> None:
        """Raises `ValueError` where there is no such class."""
        self.path = path
        self._plugin = _load(path)
        self._queue: queue.Queue[Push | None] = queue.Queue(MAX_QUEUED)
        self._thread: threading.Thread | None = None
        self.dropped = 0
        """Pushes so far for which the queue had no room."""
        self.failures = 0
        """Pushes so far that the plugin raised for."""

    def put(self, push: Push) -> None:
        """Hand over one push."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"client-metrics-{self.path}", daemon=True)
            self._thread.start()
        try:
            self._queue.put_nowait(push)
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """End the thread after the push that it works on. It is not waited for: a plugin may hang."""
        try:
            while True:
                self._queue.get_nowait()
        except queue.Empty:
            self._queue.put_nowait(None)

    def _run(self) -> None:
        while (push := self._queue.get()) is not None:
            try:
                self._plugin.export(push)
            except Exception as error:
                self.failures += 1
                if self.failures & (self.failures - 1) == 0:
                    log.error("%s=%s has failed %d times, now by %r", KEY, self.path, self.failures, error)


def _load(path: str) -> ClientMetricsPlugin:
    module_name, _, class_name = path.rpartition(":")
    if not module_name or not class_name:
        raise ValueError(f"{KEY}={path}: package.module:Class is expected")
    try:
        found: Any = getattr(import_module(module_name), class_name, None)
    except Exception as error:
        raise ValueError(
            f"{KEY}={path} cannot be imported: {error}. A Python class is expected, installed or on PYTHONPATH"
        ) from error
    if not callable(getattr(found, "export", None)):
        raise ValueError(f"{KEY}={path}: no class with the method export")
    plugin: ClientMetricsPlugin = found()
    return plugin
