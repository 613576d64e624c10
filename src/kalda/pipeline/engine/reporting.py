"""What the flows of a project report to others while it runs.

- A page for Prometheus, and posts to OpenTelemetry. The keys are those of a node, in the project's `configuration`:
  `kalda.metrics.listener=HOST:PORT` serves `/metrics`, `kalda.metrics.otlp.endpoint=URL` receives the same values each
  `kalda.metrics.otlp.interval.ms`. The values are read from the reports of the flows at that moment, so that a run
  without them costs nothing.
- Events of OpenLineage (specification 2-0-2), for catalogs of data: which flow of a run has read and written what.
  `kalda.openlineage.url` is a URL of HTTP, to which each event is posted, or a file, to which it is appended as a line.
  `kalda.openlineage.namespace` is the namespace of the jobs (`kalda`), the variable `OPENLINEAGE_API_KEY` of the
  environment is a token. A run of a flow has START, RUNNING at most once a minute while it writes, and one of COMPLETE,
  FAIL, ABORT; a flow that starts again has another run. Events are sent in order on a thread of their own. One that is
  not taken is dropped, and delays no flow.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen
from uuid import uuid4

from kalda import __version__
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
from kalda.pipeline.engine.runs import FlowReport, FlowState
from kalda.pipeline.files import Place, place_of
from kalda.pipeline.projects.specification import Specification
from kalda.pipeline.session import PipelineError
from kalda.pipeline.stores import StorePath
from kalda.spark.options import OptionError, connected, read_options
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


# -- lineage

_URL: Final = "kalda.openlineage.url"
_NAMESPACE: Final = "kalda.openlineage.namespace"
_KEY: Final = "OPENLINEAGE_API_KEY"
_PRODUCER: Final = f"https://pypi.org/project/kalda/{__version__}"
_SPECIFICATION: Final = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
_EVERY_S: Final = 60.0
_TIMEOUT_S: Final = 10.0
_WAITING: Final = 1_000
"""Events that may wait to be sent."""
_ENDS: Final = {FlowState.DONE: "COMPLETE", FlowState.FAILED: "FAIL", FlowState.RESTARTING: "FAIL"}
"""The event of a state; of others that are final: ABORT."""


class Dataset(NamedTuple):
    """As OpenLineage names them: `kafka://HOST:PORT` and a topic, `file` and a path."""

    namespace: str
    name: str
    columns: tuple[tuple[str, str], ...] = ()
    """Names and types; none where they are not known."""

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"namespace": self.namespace, "name": self.name}
        if self.columns:
            fields = [{"name": name, "type": kind} for name, kind in self.columns]
            found["facets"] = {"schema": _facet("1-0-0/SchemaDatasetFacet", fields=fields)}
        return found


def _facet(schema: str, **values: Any) -> dict[str, Any]:
    name = schema.rpartition("/")[2]
    url = f"https://openlineage.io/spec/facets/{schema}.json#/$defs/{name}"
    return {"_producer": _PRODUCER, "_schemaURL": url, **values}


def table_of(path: Place, columns: Iterable[tuple[str, str]] = ()) -> Dataset:
    if isinstance(path, StorePath):  # OpenLineage has one name for what Hadoop calls s3a
        return Dataset(f"{path.scheme.replace('s3a', 's3')}://{path.bucket}", path.key or "/", tuple(columns))
    return Dataset("file", str(path.absolute()), tuple(columns))


def dataset_of(options: Mapping[str, str]) -> list[Dataset]:
    """What a source or a sink with these options is; nothing where they do not name it."""
    try:
        given = {key.lower(): str(value) for key, value in connected(options, ("bootstrap.servers",)).items()}
    except OptionError:
        return []
    servers = given.get("kafka.bootstrap.servers", "").split(",")[0].strip()
    if not servers:
        place = place_of(given.get("path", ""))
        return [table_of(place)] if given.get("path") and place is not None else []
    if topic := given.get("topic"):
        return [Dataset(f"kafka://{servers}", topic)]
    try:
        wanted = read_options(given, is_streaming=True).subscription
    except OptionError:
        return []
    topics = [*wanted.topics, *(each.topic for each in wanted.assigned), *filter(None, [wanted.pattern])]
    return [Dataset(f"kafka://{servers}", topic) for topic in dict.fromkeys(topics)]


class Lineage:
    """Makes events of the reports of flows, each of which `step` gets again and again."""

    def __init__(
        self,
        project: str,
        namespace: str,
        send: Callable[[dict[str, Any]], None],
        datasets: Callable[[str], tuple[list[Dataset], list[Dataset]]],
        now: Callable[[], float] = time.time,
    ) -> None:
        """`datasets(flow)`: what the flow reads, and what it writes."""
        self._project = project
        self._namespace = namespace
        self._send = send
        self._datasets = datasets
        self._now = now
        self._runs: dict[str, tuple[str, int, float, int]] = {}
        """Of flows that run: the run's id, the flow's restarts then, when and with how many batches it was reported."""

    def step(self, flows: Iterable[FlowReport]) -> None:
        for flow in flows:
            known = self._runs.get(flow.flow)
            is_running = flow.state is FlowState.RUNNING
            if known is not None and (not is_running or known[1] != flow.restarts):
                kind = _ENDS.get(flow.state, "ABORT") if not is_running else "FAIL"
                self._emit(kind, flow, known[0])
                known = None
                del self._runs[flow.flow]
            if is_running and known is None:
                known = str(uuid4()), flow.restarts, self._now(), flow.batches
                self._runs[flow.flow] = known
                self._emit("START", flow, known[0])
            elif known is not None and flow.batches > known[3] and self._now() - known[2] >= _EVERY_S:
                self._runs[flow.flow] = known[0], flow.restarts, self._now(), flow.batches
                self._emit("RUNNING", flow, known[0])

    def _emit(self, kind: str, flow: FlowReport, run: str) -> None:
        reads: list[Dataset] = []
        writes: list[Dataset] = []
        try:
            reads, writes = self._datasets(flow.flow)
        except Exception as error:  # of Spark, whose plans may be of other kinds: no flow fails for that
            log.warning("what %s reads is not known: %s", flow.flow, error)
        is_view = flow.kind == "MaterializedView"
        facets = {}
        if kind == "FAIL" and flow.error is not None:
            facets["errorMessage"] = _facet(
                "1-0-0/ErrorMessageRunFacet", message=flow.error, programmingLanguage="PYTHON"
            )
        job = _facet(
            "2-0-3/JobTypeJobFacet", processingType="BATCH" if is_view else "STREAMING", integration="KALDA",
            jobType="FLOW",
        )  # fmt: skip
        written = _facet("1-0-2/OutputStatisticsOutputDatasetFacet", rowCount=flow.rows)
        outputs = [each.as_json() for each in writes]
        if kind != "START":
            outputs = [{**each, "outputFacets": {"outputStatistics": written}} for each in outputs]
        moment = datetime.fromtimestamp(self._now(), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self._send(
            {
                "eventType": kind,
                "eventTime": moment,
                "producer": _PRODUCER,
                "schemaURL": _SPECIFICATION,
                "run": {"runId": run, "facets": facets},
                "job": {
                    "namespace": self._namespace,
                    "name": f"{self._project}.{flow.flow}",
                    "facets": {"jobType": job},
                },
                "inputs": [each.as_json() for each in reads],
                "outputs": outputs,
            }
        )


@contextmanager
def lineage_of(
    specification: Specification, datasets: Callable[[str], tuple[list[Dataset], list[Dataset]]]
) -> Iterator[Lineage | None]:
    """For a block; None where the project does not want it. What was not sent at the end is sent for some seconds.
    Raises `PipelineError` for a place that cannot be."""
    configuration = specification.configuration
    place = configuration.get(_URL)
    if not place:
        yield None
        return
    write = _writer(place, specification.directory)
    waiting: queue.Queue[dict[str, Any] | None] = queue.Queue(_WAITING)
    failures = 0

    def failed(reason: object) -> None:
        nonlocal failures
        failures += 1
        if failures & (failures - 1) == 0:
            log.warning("%s=%s has not taken an event, %d times now: %s", _URL, place, failures, reason)

    def send(event: dict[str, Any]) -> None:
        try:
            waiting.put_nowait(event)
        except queue.Full:
            failed(f"{_WAITING} others wait")

    def run() -> None:
        while (event := waiting.get()) is not None:
            try:
                write(json.dumps(event).encode())
            except OSError as error:
                failed(error)

    thread = threading.Thread(target=run, name="lineage", daemon=True)
    thread.start()
    try:
        yield Lineage(specification.name, configuration.get(_NAMESPACE, "kalda"), send, datasets)
    finally:
        with suppress(queue.Full):
            waiting.put(None, timeout=_TIMEOUT_S)
        thread.join(_TIMEOUT_S)


def _writer(place: str, directory: Path) -> Callable[[bytes], None]:
    parts = urlsplit(place)
    if parts.scheme in ("http", "https") and parts.hostname:

        def post(event: bytes) -> None:
            headers = {"Content-Type": "application/json"}
            if key := os.environ.get(_KEY):
                headers["Authorization"] = f"Bearer {key}"
            with urlopen(Request(place, event, headers, method="POST"), timeout=_TIMEOUT_S) as answer:
                answer.read(64 * 1024)

        return post
    if parts.scheme not in ("", "file"):
        raise PipelineError(f"{_URL} is {place!r}; http://HOST:PORT/PATH or a file is expected")
    file = directory / unquote(parts.path)

    def append(event: bytes) -> None:
        with open(file, "ab") as opened:
            opened.write(event + b"\n")

    return append
