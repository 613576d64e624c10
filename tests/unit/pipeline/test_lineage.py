"""The events of OpenLineage that the flows of a run make."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kalda.pipeline.engine.lineage import Dataset, Lineage, dataset_of, lineage_of
from kalda.pipeline.engine.runs import FlowReport, FlowState
from kalda.pipeline.projects.specification import Specification
from kalda.pipeline.session import PipelineError


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
