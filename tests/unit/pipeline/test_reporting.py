"""What flows report to Prometheus, OpenTelemetry and OpenLineage."""

from __future__ import annotations

import gzip
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from kalda.network.free_ports import LOOPBACK, free_ports
from kalda.pipeline.engine.reporting import Dataset, Lineage, dataset_of, lineage_of, reporting
from kalda.pipeline.engine.runs import FlowReport, FlowState, LagClock, RunReport, TableUpkeep
from kalda.pipeline.projects.specification import Specification
from kalda.pipeline.session import PipelineError
from kalda.telemetry.otlp import decode

PROGRESS = {
    "numInputRows": 8, "processedRowsPerSecond": 4.04, "durationMs": {"addBatch": 1500, "walCommit": 20},
    "eventTime": {"watermark": "2024-01-01T00:00:00.000Z"},
    "stateOperators": [{"numRowsTotal": 3, "memoryUsedBytes": 100}, {"numRowsTotal": 4, "memoryUsedBytes": 11}],
}  # fmt: skip


def report_of(directory: Path, **configuration: str) -> RunReport:
    named = {f"kalda.{key.replace('_', '.')}": value for key, value in configuration.items()}
    report = RunReport(Specification(directory / "p.yml", "shop", directory, "default", named, ()), "follow")
    flow = FlowReport("orders", "default.orders", "StreamingTable", FlowState.RUNNING, rows=40, batches=5, lag=7)
    flow.take(PROGRESS)
    flow.failing["a total"] = 2
    report.flows["orders"] = flow
    report.upkeep["default.orders"] = TableUpkeep(merges=1, files_merged=9)
    return report


def test_the_page_has_all_values(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    report = report_of(tmp_path, metrics_listener=f"{LOOPBACK}:{port}")
    with reporting(report), urlopen(f"http://{LOOPBACK}:{port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    tags = 'project="shop",flow="orders",target="default.orders"'
    for line in (
        f"kalda_pipeline_flow_rows_total{{{tags}}} 40",
        f"kalda_pipeline_flow_lag{{{tags}}} 7",
        f"kalda_pipeline_flow_state_rows{{{tags}}} 7",
        f"kalda_pipeline_flow_state_bytes{{{tags}}} 111",
        f"kalda_pipeline_flow_watermark_seconds{{{tags}}} 1704067200",
        f'kalda_pipeline_flow_state{{{tags},state="running"}} 1',
        f'kalda_pipeline_flow_phase_seconds{{{tags},phase="addBatch"}} 1.5',
        f'kalda_pipeline_flow_failing_rows_total{{{tags},expectation="a total"}} 2',
        'kalda_pipeline_table_merged_files_total{project="shop",table="default.orders"} 9',
    ):
        assert line in lines
    with pytest.raises(URLError), urlopen(f"http://{LOOPBACK}:{port}/metrics"):
        pass


def test_a_port_that_is_taken_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server((LOOPBACK, 0)) as other:
        place = f"{LOOPBACK}:{other.getsockname()[1]}"
        with pytest.raises(PipelineError, match=f"http://{place}: .*in use"), reporting(
            report_of(tmp_path, metrics_listener=place)
        ):  # fmt: skip
            pass


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"metrics_listener": "9404"}, "HOST:PORT is expected"),
        ({"metrics_otlp_endpoint": "collector"}, "http://HOST:PORT/PATH is expected"),
        ({"metrics_otlp_endpoint": "http://a/b", "metrics_otlp_interval_ms": "1"}, "from 1000 on"),
    ],
)
def test_settings_that_cannot_be(tmp_path: Path, settings: dict[str, str], said: str) -> None:
    with pytest.raises(PipelineError, match=said), reporting(report_of(tmp_path, **settings)):
        pass


@contextmanager
def collector(status: int) -> Iterator[tuple[str, list[bytes]]]:
    """An OpenTelemetry collector that keeps the messages it is sent."""
    taken: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            taken.append(gzip.decompress(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer((LOOPBACK, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://{LOOPBACK}:{server.server_port}/v1/metrics", taken
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("status", [200, 503])
def test_the_last_values_are_posted_at_the_end(tmp_path: Path, status: int) -> None:
    with collector(status) as (url, taken), reporting(report_of(tmp_path, metrics_otlp_endpoint=url)):
        pass
    (message,) = taken
    points = {point.name: point for point in decode(message)}
    assert points["kalda_pipeline_flow_rows"].value == 40
    assert points["kalda_pipeline_flow_rows"].is_monotonic
    assert ("service.instance.id", "shop") in points["kalda_pipeline_flow_lag"].resource


def test_records_wait_since_the_report_that_had_them_first() -> None:
    clock = LagClock()
    assert clock.seconds(100.0, read=0, available=0) == 0
    assert clock.seconds(101.0, read=0, available=50) == 0
    assert clock.seconds(102.0, read=20, available=80) == 1
    assert clock.seconds(105.0, read=50, available=80) == 3
    assert clock.seconds(109.0, read=80, available=80) == 0
    assert clock.seconds(110.0, read=80, available=90) == 0
    assert clock.seconds(112.0, read=80, available=90) == 2


def test_a_status_that_cannot_be_written_ends_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As on a full disk: it is written when that has space."""
    report, disk = report_of(tmp_path), tmp_path / "kalda"
    disk.write_text("in the place of its directory")
    report.save(at_once=True)
    assert "the status is not written, 1 times now" in caplog.text
    disk.unlink()
    report.save(at_once=True)
    assert (disk / "run.json").exists()


def specification(directory: Path, **configuration: str) -> Specification:
    named = {f"kalda.openlineage.{key}": value for key, value in configuration.items()}
    return Specification(directory / "p.yml", "shop", directory, "default", named, ())


class Events:
    """The events of one flow, which the test moves."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.now_s = 0.0
        self.flow = FlowReport("orders", "default.orders", "StreamingTable")
        table = Dataset("file", "/lake/orders", (("total", "double"),))
        self.lineage = Lineage(
            "shop", "prod", self.sent.append, lambda flow: ([Dataset("kafka://a:9092", flow)], [table]),
            lambda: self.now_s,
        )  # fmt: skip

    def see(self, state: FlowState, batches: int = 0, seconds: float = 0.0) -> list[str]:
        """The kinds of events so far."""
        self.flow.state, self.flow.batches, self.now_s = state, batches, self.now_s + seconds
        self.lineage.step([self.flow])
        return [each["eventType"] for each in self.sent]


def test_a_run_has_one_start_and_one_end() -> None:
    events = Events()
    assert events.see(FlowState.WAITING) == []
    assert events.see(FlowState.RUNNING) == ["START"]
    assert events.see(FlowState.RUNNING, 3, 59.0) == ["START"]
    assert events.see(FlowState.RUNNING, 4, 2.0) == ["START", "RUNNING"]
    assert events.see(FlowState.RUNNING, 4, 70.0) == ["START", "RUNNING"], "nothing was written since"
    events.flow.rows = 9
    assert events.see(FlowState.DONE, 4) == ["START", "RUNNING", "COMPLETE"]
    assert events.see(FlowState.DONE, 4) == ["START", "RUNNING", "COMPLETE"]
    first, last = events.sent[0], events.sent[-1]
    assert len({each["run"]["runId"] for each in events.sent}) == 1
    assert (first["job"]["namespace"], first["job"]["name"]) == ("prod", "shop.orders")
    assert first["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
    assert first["inputs"] == [{"namespace": "kafka://a:9092", "name": "orders"}]
    (output,) = last["outputs"]
    assert (output["namespace"], output["name"]) == ("file", "/lake/orders")
    assert output["facets"]["schema"]["fields"] == [{"name": "total", "type": "double"}]
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 9
    assert last["eventTime"] == "1970-01-01T00:02:11.000Z"


def test_a_flow_that_starts_again_has_another_run() -> None:
    events = Events()
    events.see(FlowState.RUNNING)
    events.flow.error = "the broker is away"
    assert events.see(FlowState.RESTARTING) == ["START", "FAIL"]
    assert events.sent[-1]["run"]["facets"]["errorMessage"]["message"] == "the broker is away"
    events.see(FlowState.RUNNING)
    events.flow.restarts += 1  # again, between two looks
    assert events.see(FlowState.RUNNING) == ["START", "FAIL", "START", "FAIL", "START"]
    assert events.see(FlowState.STOPPED)[-1] == "ABORT"
    assert len({each["run"]["runId"] for each in events.sent}) == 3


def test_events_are_lines_of_a_file(tmp_path: Path) -> None:
    flow = FlowReport("orders", "default.orders", "StreamingTable", FlowState.RUNNING)
    with lineage_of(specification(tmp_path, url="events.jsonl"), lambda _: 1 / 0) as lineage:  # type: ignore[arg-type]
        assert lineage is not None
        lineage.step([flow])
    (line,) = (tmp_path / "events.jsonl").read_text().splitlines()
    event = json.loads(line)
    assert (event["eventType"], event["inputs"], event["job"]["namespace"]) == ("START", [], "kalda")
    with lineage_of(specification(tmp_path), lambda _: ([], [])) as lineage:
        assert lineage is None


def test_a_place_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="http://HOST:PORT/PATH or a file"), lineage_of(
        specification(tmp_path, url="ftp://a/b"), lambda _: ([], [])
    ):  # fmt: skip
        pass


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"kafka.bootstrap.servers": "a:1, b:2", "subscribe": "x,y"}, ["kafka://a:1 x", "kafka://a:1 y"]),
        ({"kafka.bootstrap.servers": "a:1", "subscribePattern": "shop-.*"}, ["kafka://a:1 shop-.*"]),
        ({"Kafka.Bootstrap.Servers": "a:1", "topic": "out"}, ["kafka://a:1 out"]),
        ({"path": "file:///data/in"}, ["file /data/in"]),
        ({"kafka.bootstrap.servers": "a:1"}, []),
        ({}, []),
    ],
)
def test_options_name_what_is_read(options: dict[str, str], names: list[str]) -> None:
    assert [f"{each.namespace} {each.name}" for each in dataset_of(options)] == names
