"""What the flows of a project report to others while it runs: a page for Prometheus, and posts to OpenTelemetry.

The keys are those of a node, in the project's `configuration`: `kalda.metrics.listener=HOST:PORT` serves `/metrics`,
`kalda.metrics.otlp.endpoint=URL` receives the same values each `kalda.metrics.otlp.interval.ms`. The values are read
from the reports of the flows at that moment, so that a run without them costs nothing.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from kalda.base.sensors import Measurable, SensorName, Tags, counted, gauged
from kalda.broker.metrics.metrics_export import (
    ENDPOINT,
    LISTENER,
    check_endpoint,
    node_points,
    parse_listener,
    post_metrics,
)
from kalda.network.server.http import Handle, HttpServer, Page
from kalda.pipeline.session import PipelineError
from kalda.telemetry.exposition import CONTENT_TYPE, openmetrics
from kalda.telemetry.otlp import encode

if TYPE_CHECKING:
    from kalda.pipeline.engine.runs import FlowReport, RunReport

log = logging.getLogger(__name__)
_INTERVAL: Final = "kalda.metrics.otlp.interval.ms"
_FLOW: Final = "kalda.pipeline:type=Flow"
_TABLE: Final = "kalda.pipeline:type=Table"
_STARTS_S: Final = 10.0
Values = Iterable[tuple[SensorName, Measurable]]


def values_of(report: RunReport) -> Iterator[tuple[SensorName, Measurable]]:
    """All values of a run at this moment."""
    for flow in list(report.flows.values()):
        yield from _of_flow(flow, (("project", report.project), ("flow", flow.flow), ("target", flow.target)))
    for table, record in sorted(report.upkeep.items()):
        tags = (("project", report.project), ("table", table))
        yield SensorName(_TABLE, "merges", tags), counted(record.merges)
        yield SensorName(_TABLE, "merged-files", tags), counted(record.files_merged)
        yield SensorName(_TABLE, "deleted-rows", tags), counted(record.rows_deleted)
        yield SensorName(_TABLE, "upkeep-failing", tags), gauged(record.error is not None)


def _of_flow(flow: FlowReport, tags: Tags) -> Iterator[tuple[SensorName, Measurable]]:
    for name, total in (("rows", flow.rows), ("batches", flow.batches), ("restarts", flow.restarts)):
        yield SensorName(_FLOW, name, tags), counted(total)
    for name, value in (
        ("lag", flow.lag),
        ("lag-seconds", flow.lag_seconds),
        ("batch-seconds", flow.seconds),
        ("rows-per-second", flow.rows_per_second),
        ("state-rows", flow.state_rows),
        ("state-bytes", flow.state_bytes),
    ):
        if value is not None:
            yield SensorName(_FLOW, name, tags), gauged(value)
    for name, moment_ms in (("last-batch-time-seconds", flow.last_batch_ms), ("watermark-seconds", flow.watermark_ms)):
        if moment_ms:
            yield SensorName(_FLOW, name, tags), gauged(moment_ms / 1000)
    yield SensorName(_FLOW, "state", (*tags, ("state", str(flow.state)))), gauged(1)
    for phase, ms in dict(flow.durations_ms).items():
        yield SensorName(_FLOW, "phase-seconds", (*tags, ("phase", phase))), gauged(ms / 1000)
    for name, failing in dict(flow.failing).items():
        yield SensorName(_FLOW, "failing-rows", (*tags, ("expectation", name))), counted(failing)


class HttpThread:
    """An HTTP server on a thread of its own, for a block."""

    def __init__(self, place: str, handle: Handle, act: Handle | None = None, token: str | None = None) -> None:
        """`place`: HOST:PORT. Raises `ValueError` for another text."""
        self._place = place
        self._address = parse_listener(place)
        self._server = HttpServer(handle, act, token)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ends: asyncio.Event | None = None
        self._is_open = threading.Event()
        self._error: OSError | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="http", daemon=True)

    @property
    def port(self) -> int:
        return self._server.port

    def __enter__(self) -> HttpThread:
        """Raises `PipelineError` where the port cannot be bound."""
        self._thread.start()
        self._is_open.wait(_STARTS_S)
        if self._error is not None:
            raise PipelineError(f"http://{self._place}: {self._error.strerror or self._error}")
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None and self._ends is not None:
            self._loop.call_soon_threadsafe(self._ends.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._ends = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        try:
            await self._server.open(*self._address)
        except OSError as error:
            self._error, self._loop = error, None
            return
        finally:
            self._is_open.set()
        await self._ends.wait()
        await self._server.close()


def metrics_page(values: Values) -> Page:
    return Page(CONTENT_TYPE, openmetrics(values, int(time.monotonic() * 1000)))


@contextmanager
def reporting(report: RunReport) -> Iterator[None]:
    """Serve and post the values of a run while the block runs, as the project says. Raises `PipelineError`."""
    configuration = report.configuration
    with ExitStack() as stack:
        try:
            if place := configuration.get(LISTENER):
                page = metrics_page
                stack.enter_context(
                    HttpThread(place, lambda path, query: page(values_of(report)) if path == "/metrics" else None)
                )
            if endpoint := configuration.get(ENDPOINT):
                check_endpoint(endpoint)
                text = configuration.get(_INTERVAL, "60000")
                if not text.isdecimal() or int(text) < 1000:
                    raise ValueError(f"{_INTERVAL}={text}: milliseconds from 1000 on are expected")
                resource = (("service.name", "kalda-pipeline"), ("service.instance.id", report.project))
                stack.enter_context(_posting(endpoint, int(text) / 1000, lambda: values_of(report), resource))
        except ValueError as error:
            raise PipelineError(f"project {report.project}: {error}") from None
        yield


@contextmanager
def _posting(endpoint: str, interval_s: float, values: Callable[[], Values], resource: Tags) -> Iterator[None]:
    """Post each interval, and once at the end. A post that fails is dropped: the next one has newer totals."""
    start_ms = int(time.time() * 1000)
    ends, failures = threading.Event(), 0

    def post() -> None:
        nonlocal failures
        points = node_points(values(), int(time.monotonic() * 1000), int(time.time() * 1000), start_ms)
        try:
            post_metrics(endpoint, encode(points, resource))
        except OSError as error:
            failures += 1
            if failures & (failures - 1) == 0:
                log.warning("%s=%s has not taken metrics, %d times now: %s", ENDPOINT, endpoint, failures, error)

    def run() -> None:
        while not ends.wait(interval_s):
            post()
        post()

    thread = threading.Thread(target=run, name="otlp", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()
