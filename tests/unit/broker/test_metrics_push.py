"""A node posts its metrics to a collector, by hand-made time and threads."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any, cast

import pytest
from by_hand import HandJobs, HandTime

from kalda.base.scheduling import Clock
from kalda.base.sensors import Sensors
from kalda.broker.metrics.metrics_export import MetricsPush
from kalda.telemetry.otlp import DataPoint, decode


class Collector(BaseHTTPRequestHandler):
    """Takes what is posted."""

    got: list[list[DataPoint]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.got.append(decode(gzip.decompress(body)))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        return None


def test_metrics_are_posted_and_a_collector_that_is_down_costs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    server = HTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    timers, jobs, sensors = HandTime(), HandJobs(hold_jobs=True), Sensors()
    for number in range(1_200):
        sensors.counter("g:type=t", "n", (("at", str(number)),)).value = number
    clock = cast(Clock, SimpleNamespace(wall_ms=lambda: 5_000, mono_ms=lambda: 1_000))
    url = f"http://127.0.0.1:{server.server_port}/v1/metrics"
    push = MetricsPush(3, "cluster", url, 1_000, sensors, clock, timers, jobs, timers.background())
    push.start()
    timers.advance(1_000)
    jobs.let_jobs_run()
    assert push.posted == 1
    (points,) = Collector.got
    assert [point.value for point in points] == list(range(1_200))
    assert ("service.instance.id", "3") in points[0].resource
    server.shutdown()
    server.server_close()
    timers.advance(1_000)
    jobs.let_jobs_run()
    assert (push.posted, push.failed) == (1, 1)
    assert "has not taken metrics, 1 times now" in caplog.text
    push.close()
    timers.advance(10_000)
    jobs.let_jobs_run()
    assert push.failed == 1


@pytest.mark.parametrize("url", ["collector:4317", "ftp://collector/", "http://"])
def test_another_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"kalda\.metrics\.otlp\.endpoint="):
        MetricsPush(
            1,
            "c",
            url,
            1_000,
            Sensors(),
            cast(Clock, SimpleNamespace(wall_ms=lambda: 0)),
            cast(Any, None),
            cast(Any, None),
            cast(Any, None),
        )
