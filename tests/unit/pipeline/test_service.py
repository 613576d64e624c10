"""Several projects in one session: what each does by which request, and that a failure of one ends no other."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import ENOSPC
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from click.testing import CliRunner

from kalda.cli.commands import cli
from kalda.network.free_ports import LOOPBACK
from kalda.pipeline.engine import service
from kalda.pipeline.engine.engine import RunOptions, RunResult
from kalda.pipeline.engine.query import StopEvent
from kalda.pipeline.engine.runs import FlowReport, FlowState, RunReport
from kalda.pipeline.engine.service import Service, check_projects, shared_settings
from kalda.pipeline.files import locked
from kalda.pipeline.projects.specification import Specification
from kalda.pipeline.session import PipelineError, Unavailable
from waiting import wait_until

TOKEN = "of the test"


def specification(directory: Path, name: str, **settings: str) -> Specification:
    named = {key.replace("__", "."): value for key, value in settings.items()}
    place = directory / name
    return Specification(place / "spark-pipeline.yml", name, place, "default", named, ())


class PaperSession:
    """In the place of Spark."""

    def __getattr__(self, name: str) -> Any:
        return PaperSession()

    def __call__(self, *_: Any) -> Any:
        return self

    def __bool__(self) -> bool:
        return False


class Began(NamedTuple):
    """A run that the service has begun, and that the test ends."""

    project: str
    options: RunOptions
    stopped: StopEvent
    results: Queue[RunResult | Exception]


class World:
    """A service whose runs the test ends."""

    def __init__(self, port: int, runs: Queue[Began]) -> None:
        self.port = port
        self.runs = runs

    def begun(self) -> Began:
        return self.runs.get(timeout=30)

    def ask(self, path: str, method: str = "GET", token: str = TOKEN) -> Any:
        request = Request(f"http://{LOOPBACK}:{self.port}{path}", headers={"Authorization": f"Bearer {token}"})
        request.method = method
        with urlopen(request, timeout=30) as answer:
            text = answer.read().decode()
        return json.loads(text) if answer.headers["Content-Type"].startswith("application/json") else text

    def state(self, project: str) -> tuple[str, str | None]:
        found = self.ask(f"/projects/{project}")
        return found["state"], found["error"]


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    runs: Queue[Began] = Queue()

    def run_project(
        spark: Any,
        specification: Specification,
        options: RunOptions,
        show: Callable[[RunReport], None],
        given: StopEvent,
    ) -> RunResult:
        report = RunReport(specification, "follow")
        report.flows["orders"] = FlowReport("orders", "default.orders", "StreamingTable", FlowState.RUNNING, rows=3)
        show(report)
        began = Began(specification.name, options, given, Queue())
        runs.put(began)
        while not given.is_set() and began.results.empty():
            given.wait(0.01)
        found = RunResult(True, None) if began.results.empty() else began.results.get()
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(service, "run_project", run_project)
    monkeypatch.setattr(service, "prepare", lambda session: None)

    @contextmanager
    def served(*names: str, are_paused: bool = False) -> Iterator[World]:
        specifications = [specification(tmp_path, name) for name in names]
        ports: Queue[int] = Queue()
        stopped = StopEvent()
        one = Service(PaperSession(), specifications, are_paused=are_paused)  # type: ignore[arg-type]
        thread = Thread(target=one.run, args=(f"{LOOPBACK}:0", TOKEN, stopped, ports.put))
        thread.start()
        try:
            yield World(ports.get(timeout=30), runs)
        finally:
            stopped.set()
            thread.join()

    return served


def test_a_project_follows_pauses_refreshes_and_follows_again(serve: Callable[..., Any]) -> None:
    with serve("shop") as world:
        first = world.begun()
        assert (first.project, first.options) == ("shop", RunOptions(follow=True))
        assert world.state("shop") == ("following", None)
        world.ask("/projects/shop/refresh?names=orders&full=totals,top", "POST")
        refresh = world.begun()
        assert first.stopped.is_set()
        assert refresh.options == RunOptions(refresh=("orders",), full_refresh=("totals", "top"))
        assert world.state("shop") == ("refreshing", None)
        refresh.results.put(RunResult(True, None))
        assert world.begun().options.follow
        world.ask("/projects/shop/pause", "POST")
        wait_until(lambda: world.state("shop") == ("paused", None))
        world.ask("/projects/shop/refresh", "POST")
        world.begun().results.put(RunResult(True, None))
        wait_until(lambda: world.state("shop") == ("paused", None))
        world.ask("/projects/shop/resume", "POST")
        assert world.begun().options.follow
        (flow,) = world.ask("/projects")[0]["flows"]
        assert (flow["flow"], flow["rows"], len(flow["points"])) == ("orders", 3, 1)
        assert 'kalda_pipeline_flow_rows_total{project="shop",flow="orders"' in world.ask("/metrics")


def test_refreshes_that_wait_are_bounded(serve: Callable[..., Any]) -> None:
    """One that is asked for again waits once."""
    with serve("shop", are_paused=True) as world:
        world.ask("/projects/shop/refresh?names=first", "POST")
        first = world.begun()
        for number in [*range(100), 5]:
            world.ask(f"/projects/shop/refresh?names={number}", "POST")
        with pytest.raises(HTTPError) as refused:
            world.ask("/projects/shop/refresh?names=100", "POST")
        assert (refused.value.code, b"has 100 refreshes that wait" in refused.value.read()) == (409, True)
        world.ask("/projects/shop/pause", "POST")
        first.results.put(RunResult(True, None))
        wait_until(lambda: world.state("shop") == ("paused", None))
        assert world.runs.empty()


def test_refreshes_that_have_not_ended_are_carried_out_by_the_next_service(serve: Callable[..., Any]) -> None:
    """In their order, before anything else; the one that had begun begins again."""
    with serve("shop") as world:
        world.begun()
        world.ask("/projects/shop/refresh?names=done", "POST")
        world.begun().results.put(RunResult(True, None))
        assert world.begun().options.follow
        world.ask("/projects/shop/refresh?names=runs", "POST")
        assert world.begun().options.refresh == ("runs",)
        world.ask("/projects/shop/refresh?full=waits", "POST")
    with serve("shop") as world:
        for options in (RunOptions(refresh=("runs",)), RunOptions(full_refresh=("waits",))):
            began = world.begun()
            assert began.options == options
            began.results.put(RunResult(True, None))
        assert world.begun().options.follow
    with serve("shop") as world:
        assert world.begun().options.follow


def test_a_pause_gives_up_refreshes_for_the_next_service_too(serve: Callable[..., Any]) -> None:
    with serve("shop", are_paused=True) as world:
        world.ask("/projects/shop/refresh?names=runs", "POST")
        world.begun()
        world.ask("/projects/shop/refresh?names=waits", "POST")
        world.ask("/projects/shop/pause", "POST")
        wait_until(lambda: world.state("shop") == ("paused", None))
    with serve("shop") as world:
        assert world.begun().options.follow


def test_a_refresh_that_cannot_be_kept_is_not_accepted(
    serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve("shop", are_paused=True) as world:

        def refuse(*_: object) -> None:
            raise OSError(ENOSPC, "No space left on device")

        monkeypatch.setattr(service, "replace_text", refuse)
        with pytest.raises(HTTPError) as refused:
            world.ask("/projects/shop/refresh?names=lost", "POST")
        assert (refused.value.code, b"cannot be kept" in refused.value.read()) == (503, True)
        assert world.state("shop") == ("paused", None)


def test_a_damaged_file_of_refreshes_is_named(serve: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "shop" / "kalda").mkdir(parents=True)
    (tmp_path / "shop" / "kalda" / "refreshes.json").write_text('{"refreshes": [{"refresh": "orders"}]}')
    with serve("shop") as world:
        wait_until(lambda: world.state("shop")[0] == "failed")
        assert "refreshes.json is damaged" in world.state("shop")[1]


def test_a_failure_ends_no_other_project(serve: Callable[..., Any]) -> None:
    with serve("bad", "good") as world:
        begun = {each.project: each for each in (world.begun(), world.begun())}
        begun["bad"].results.put(PipelineError("a type is another one"))
        wait_until(lambda: world.state("bad") == ("failed", "a type is another one"))
        assert world.state("good") == ("following", None)
        world.ask("/projects/bad/resume", "POST")
        again = world.begun()
        assert world.state("bad") == ("following", None)
        world.ask("/projects/bad/refresh", "POST")
        refresh = world.begun()
        assert again.stopped.is_set()
        refresh.results.put(PipelineError("a column is missing"))
        assert world.begun().options.follow
        assert world.state("bad") == ("following", "a column is missing"), "what followed before follows again"


def test_a_project_that_something_did_not_answer_runs_again(serve: Callable[..., Any]) -> None:
    """By itself, after a pause; a refresh that has failed is not run again."""
    with serve("shop") as world:
        world.begun().results.put(Unavailable("the registry does not answer"))
        wait_until(lambda: world.state("shop") == ("restarting", "the registry does not answer"))
        again = world.begun()
        assert again.options.follow
        assert world.state("shop") == ("following", None)
        again.results.put(Unavailable("the bucket does not answer"))
        wait_until(lambda: world.state("shop") == ("restarting", "the bucket does not answer"))
        world.ask("/projects/shop/refresh", "POST")
        refresh = world.begun()
        assert not refresh.options.follow
        refresh.results.put(Unavailable("the bucket does not answer yet"))
        assert world.begun().options.follow
        world.ask("/projects/shop/pause", "POST")
        wait_until(lambda: world.state("shop")[0] in ("paused", "failed"))


def test_a_project_that_runs_elsewhere_is_refused_by_name(serve: Callable[..., Any], tmp_path: Path) -> None:
    with locked(tmp_path / "shop" / "kalda" / "run.lock", "taken"), serve("shop", are_paused=True) as world:
        assert world.state("shop") == ("paused", None)
        world.ask("/projects/shop/resume", "POST")
        wait_until(lambda: world.state("shop")[0] == "failed")
        assert "project shop" in str(world.state("shop")[1])
        assert "another run is writing its tables" in str(world.state("shop")[1])


def test_requests_that_are_refused(serve: Callable[..., Any]) -> None:
    with serve("shop", are_paused=True) as world:
        assert "<title>Pipelines</title>" in world.ask("/", token="none")
        for path, method, token, status in (
            ("/projects", "GET", "another", 401),
            ("/projects/shop/pause", "POST", "another", 401),
            ("/projects/shop/stop", "POST", TOKEN, 404),
            ("/projects/other/pause", "POST", TOKEN, 404),
            ("/projects/other", "GET", TOKEN, 404),
            ("/projects/shop/refresh?table=a", "POST", TOKEN, 400),
        ):
            with pytest.raises(HTTPError) as refused:
                world.ask(path, method, token)
            assert refused.value.code == status


def test_projects_that_cannot_be_served_together(tmp_path: Path) -> None:
    one = specification(tmp_path, "a", spark__executor__memory="1g", spark__sql__ansi__enabled="true")
    two = specification(tmp_path, "b", spark__executor__memory="2g", spark__sql__ansi__enabled="false")
    assert shared_settings([one]) == {"spark.executor.memory": "1g"}
    with pytest.raises(PipelineError, match=r"spark\.executor\.memory is 2g in project b, and 1g in a"):
        shared_settings([one, two])
    with pytest.raises(PipelineError, match=r"project a is in .* names must differ"):
        check_projects([one, specification(tmp_path / "other", "a")])
    (tmp_path / "token").write_text("\n")
    for name in ("a", "other/a"):
        place = tmp_path / name
        place.mkdir(parents=True)
        (place / "spark-pipeline.yml").write_text("name: a\nstorage: s\nlibraries: [{glob: {include: a.py}}]\n")
        (place / "a.py").write_text("")
    places = [str(tmp_path / "a"), str(tmp_path / "other" / "a")]
    result = CliRunner().invoke(cli, ["pipeline", "serve", *places])
    assert result.exit_code == 1
    assert "names must differ" in result.output
