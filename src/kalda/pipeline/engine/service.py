"""Several projects in one resident session of Spark: `kalda pipeline serve`.

Each project has a thread, a session of its own (settings, views, queries) on the same Java, and this life:

    starting -> following <-> refreshing          a refresh is a run up to the sources' ends, between two others
                    |  ^
        pause, fail v  | resume, or by itself
       paused, failed, restarting

A project whose flows have all failed waits for `resume` or `refresh`; the others go on. One that could not run, since a
cluster, a registry or a store did not answer, runs again after a pause. While its flows run, a project is locked, so
that no other run writes its tables. A refresh is in a file before it is accepted, until it has ended: one that a kill
interrupts, or that waits, is carried out by the next service.

Over HTTP: `GET /` is a page with charts, `GET /projects` the state of all, `GET /metrics` all values for Prometheus,
`POST /projects/NAME/pause`, `/resume` and `/refresh?names=a,b&full=c`. All but the page need the token.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from importlib.resources import files
from itertools import chain
from random import random
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from kalda.clientcore.connections.errors import Backoff
from kalda.network.server.http import Page
from kalda.pipeline.engine.engine import RunOptions, run_project, running_alone
from kalda.pipeline.engine.query import StopEvent
from kalda.pipeline.engine.reporting import HttpThread, metrics_page, values_of
from kalda.pipeline.engine.runs import Restarts
from kalda.pipeline.files import Place, read_state, replace_text
from kalda.pipeline.session import PipelineError, Unavailable, first_line, prepare, refuse_ended

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kalda.pipeline.engine.runs import RunReport
    from kalda.pipeline.projects.specification import Specification

_POINTS: Final = 300
_EVERY_S: Final = 2.0
"""Between two points of the charts."""
_POLL_S: Final = 1.0
_PAUSE_MS: Final = 1_000
_LONGEST_PAUSE_MS: Final = 60_000
_MOST_REFRESHES: Final = 100
_REFRESHES: Final = "refreshes.json"
"""The file of the refreshes that are accepted and have not ended, oldest first."""
_OF_JAVA: Final = ("spark.sql.warehouse.dir", "spark.jars.packages")
"""The engine has its own warehouse, and the session has more packages."""
_OF_SESSION: Final = "spark.sql."
_SHARED: Final = ("spark.sql.extensions", "spark.sql.catalog")
"""Settings of `spark.sql.` that all sessions share."""
_JSON: Final = "application/json; charset=utf-8"


def shared_settings(specifications: Iterable[Specification]) -> dict[str, str]:
    """What the projects set for Java as a whole. Raises `PipelineError` where two of them differ."""
    found: dict[str, str] = {}
    owners: dict[str, str] = {}
    for each in specifications:
        for name, value in each.session_settings.items():
            if name.startswith(_OF_SESSION) and not name.startswith(_SHARED):
                continue
            if found.setdefault(name, value) != value:
                said = ("another", "one") if name.startswith("spark.hadoop.") else (value, found[name])  # or a secret
                raise PipelineError(
                    f"{name} is {said[0]} in project {each.name}, and {said[1]} in {owners[name]}: projects that are "
                    f"served together share it"
                )
            owners.setdefault(name, each.name)
    return found


class Served:
    """One project, on a thread of its own."""

    def __init__(self, spark: SparkSession, specification: Specification, *, is_paused: bool = False) -> None:
        self.specification = specification
        self.name = specification.name
        self.state = "paused" if is_paused else "starting"
        self.error: str | None = None
        self.report: RunReport | None = None
        """Of the last run, or the one that goes on."""
        self._spark = spark
        self._session: SparkSession | None = None
        self._follows = not is_paused
        self._refreshes: deque[RunOptions] = deque()
        """Those that wait."""
        self._refreshing: RunOptions | None = None
        self._kept = specification.state / _REFRESHES
        self._has_kept = False
        """Whether `_refreshes` has what an earlier service has accepted."""
        self._ends = False
        self._changed = threading.Condition()
        self._stopped = StopEvent()
        """Ends the run that goes on."""
        self._restarts = Restarts(Backoff(_PAUSE_MS, _LONGEST_PAUSE_MS, random))
        self._batches = 0
        """Of all runs."""
        self._follows_s = 0.0
        """Not before this moment."""
        self._points: dict[str, deque[tuple[int, int, int | None, float]]] = {}
        self._point_s = 0.0
        self._thread = threading.Thread(target=self._live, name=f"project {self.name}")

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        with self._changed:
            self._ends = True
            self._stopped.set()
            self._changed.notify()

    def join(self) -> None:
        self._thread.join()

    def pause(self) -> None:
        """Stop the flows between two batches. Refreshes that wait, and the one that runs, are given up."""
        with self._changed:
            self._follows, self._has_kept, self._refreshing = False, True, None
            self._refreshes.clear()
            self._stopped.set()
            self._changed.notify()
            with suppress(OSError, Unavailable):
                self._keep()

    def resume(self) -> None:
        with self._changed:
            self._follows, self._follows_s, self.error = True, 0.0, None
            self._changed.notify()

    def refresh(self, options: RunOptions) -> None:
        """Run once, up to the sources' present ends; what followed before follows again then. A refresh that waits
        already does that, too. Raises `PipelineError` where very many wait; `OSError`, `Unavailable` where it cannot be
        kept."""
        with self._changed:
            self._take_up()
            if options not in self._refreshes:
                if len(self._refreshes) >= _MOST_REFRESHES:
                    raise PipelineError(f"{self.name} has {_MOST_REFRESHES} refreshes that wait: ask again later")
                self._keep(options)
                self._refreshes.append(options)
            self.error = None
            if self.state == "following":
                self._stopped.set()
            self._changed.notify()

    def _take_up(self) -> bool:
        """Once: take up what an earlier service has accepted. Whether there was any."""
        with self._changed:
            found = [] if self._has_kept else _accepted(self._kept)
            self._has_kept = True
            self._refreshes.extend(found)
            return bool(found)

    def _keep(self, *more: RunOptions) -> None:
        """Write those that run or wait, and `more`."""
        now = () if self._refreshing is None else (self._refreshing,)
        refreshes = [
            {"refresh": each.refresh, "full_refresh": each.full_refresh} for each in (*now, *self._refreshes, *more)
        ]
        replace_text(self._kept, json.dumps({"refreshes": refreshes}))

    def _end_refresh(self) -> None:
        """The refresh has succeeded or failed. One that the end of the service interrupts is carried out by the next
        service."""
        with self._changed:
            if self._refreshing is None or self._ends:
                return
            self._refreshing = None
            # What is still in the file is carried out once more: that is what a refresh may be at any time.
            with suppress(OSError, Unavailable):
                self._keep()

    def _next(self) -> RunOptions | None:
        """What to run; None: nothing more."""
        with self._changed:
            while not (self._ends or self._refreshes):
                pause_s = self._follows_s - time.monotonic()
                if self._follows and pause_s <= 0:
                    break
                self.state = "restarting" if self._follows else "paused" if self.error is None else "failed"
                self._changed.wait(pause_s if self._follows else None)
            if self._ends:
                self.state = "stopped"
                return None
            self._stopped = StopEvent()
            if self._follows_s and not self._refreshes:
                self._follows_s, self.error = 0.0, None
            self.state = "refreshing" if self._refreshes else "following"
            self._refreshing = self._refreshes.popleft() if self._refreshes else None
            return self._refreshing or RunOptions(follow=True)

    def _live(self) -> None:
        while (options := self._next()) is not None:
            try:
                with running_alone(self.specification):
                    if self._take_up():
                        continue
                    is_good = self._run(options)
                if self._stopped.is_set() or (is_good and not options.follow):
                    continue
                reason, pause_s = "all flows have ended" if is_good else self._failures(), None
            except Exception as error:
                reason, pause_s = first_line(error), self._pause_s(error)
            finally:
                self._end_refresh()
            with self._changed:
                self.error = reason
                if pause_s is None:
                    self._follows = self._follows and not options.follow
                elif options.follow:
                    self._follows_s = time.monotonic() + pause_s

    def _pause_s(self, error: BaseException) -> float | None:
        self._batches += 0 if self.report is None else sum(each.batches for each in list(self.report.flows.values()))
        return self._restarts.pause_s(error, self._batches)

    def _run(self, options: RunOptions) -> bool:
        session = self._of_own()
        return run_project(session, self.specification, options, self._see, self._stopped).is_good

    def _of_own(self) -> SparkSession:
        """A session that is the active one of this thread, with the project's settings. Raises `PipelineError`."""
        if self._session is not None:
            return self._session
        session = self._spark.newSession()
        prepare(session)
        for name, value in self.specification.session_settings.items():
            if name in _OF_JAVA or session.conf.get(name, None) == value:
                continue
            if not session.conf.isModifiable(name):
                raise PipelineError(f"{name} cannot be set for one project: give it to the service by --spark")
            session.conf.set(name, value)
        kind = session._get_j_spark_session_class(session._jvm)
        kind.setActiveSession(session._jsparkSession)
        self._session = session
        return session

    def _failures(self) -> str:
        flows = () if self.report is None else self.report.flows.values()
        return "; ".join(f"{each.flow}: {each.error}" for each in flows if each.state in ("failed", "skipped"))

    def _see(self, report: RunReport) -> None:
        self.report = report
        if time.monotonic() < self._point_s:
            return
        self._point_s = time.monotonic() + _EVERY_S
        for flow in report.flows.values():
            point = (int(time.time() * 1000), flow.rows, flow.lag, flow.seconds)
            self._points.setdefault(flow.flow, deque(maxlen=_POINTS)).append(point)

    def as_json(self) -> dict[str, Any]:
        report = self.report
        flows = [] if report is None else [asdict(each) for each in list(report.flows.values())]
        for flow in flows:
            flow["points"] = list(self._points.get(flow["flow"], ()))
        return {
            "name": self.name,
            "file": str(self.specification.file),
            "state": self.state,
            "error": self.error,
            "flows": flows,
            "changes": [] if report is None else report.changes,
            "upkeep": {} if report is None else {name: asdict(each) for name, each in sorted(report.upkeep.items())},
        }


class Service:
    """The projects of one session, and what is answered about them."""

    def __init__(self, spark: SparkSession, specifications: Sequence[Specification], *, are_paused: bool = False):
        """`specifications` have passed `check_projects`."""
        self._spark = spark
        self.projects = {each.name: Served(spark, each, is_paused=are_paused) for each in specifications}

    def run(self, place: str, token: str, stopped: StopEvent, show: Callable[[int], None] = lambda port: None) -> None:
        """Serve until `stopped`. `place`: HOST:PORT. `show` gets the port. Raises `PipelineError` where the port cannot
        be bound, and where Java has ended."""
        try:
            http = HttpThread(place, self.page, self.act, token)
        except ValueError as error:
            raise PipelineError(str(error)) from None
        with ExitStack() as stack, http:
            for each in self.projects.values():
                stack.callback(each.join)
                each.start()
            stack.callback(self._end)
            show(http.port)
            while not stopped.wait(_POLL_S):
                refuse_ended(self._spark)

    def _end(self) -> None:
        for each in self.projects.values():
            each.end()

    def page(self, path: str, query: dict[str, str]) -> Page | None:
        if path == "/":
            text = files("kalda.pipeline.engine").joinpath("service.html").read_text(encoding="utf-8")
            return Page("text/html; charset=utf-8", [text])
        if path == "/metrics":
            reports = [each.report for each in self.projects.values() if each.report is not None]
            return metrics_page(chain.from_iterable(map(values_of, reports)))
        if path == "/projects":
            return _json([each.as_json() for each in self.projects.values()])
        name = unquote(path.removeprefix("/projects/"))
        return _json(self.projects[name].as_json()) if name in self.projects else None

    def act(self, path: str, query: dict[str, str]) -> Page | None:
        name, _, action = path.removeprefix("/projects/").rpartition("/")
        project = self.projects.get(unquote(name))
        if project is None or action not in ("pause", "resume", "refresh"):
            return None
        if action == "refresh":
            unknown = query.keys() - {"names", "full"}
            if unknown:
                return _json({"error": f"{', '.join(sorted(unknown))}: there are names and full"}, 400)
            try:
                project.refresh(RunOptions(refresh=_names(query.get("names")), full_refresh=_names(query.get("full"))))
            except PipelineError as error:
                return _json({"error": str(error)}, 409)
            except (OSError, Unavailable) as error:
                return _json({"error": f"the refresh cannot be kept: {first_line(error)}"}, 503)
        elif action == "pause":
            project.pause()
        else:
            project.resume()
        return _json({"name": project.name, "action": action}, 202)


def _accepted(place: Place) -> list[RunOptions]:
    """The refreshes in the file. Raises `PipelineError` where it is damaged; `OSError`, `Unavailable`."""
    found = read_state(place, {"refreshes": list})
    try:
        return [
            RunOptions(refresh=_texts(each["refresh"]), full_refresh=_texts(each["full_refresh"]))
            for each in (found or {"refreshes": []})["refreshes"]
        ]
    except (TypeError, KeyError):
        raise PipelineError(f"{place} is damaged: each refresh has two lists of names; remove the file") from None


def _texts(found: object) -> tuple[str, ...]:
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise TypeError
    return tuple(found)


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def _json(value: Any, status: int = 200) -> Page:
    return Page(_JSON, [json.dumps(value)], status)


def check_projects(specifications: Sequence[Specification]) -> None:
    """Raises `PipelineError` where projects cannot be served together."""
    known: dict[str, Specification] = {}
    for each in specifications:
        other = known.setdefault(each.name, each)
        if other is not each:
            raise PipelineError(f"project {each.name} is in {other.file} and in {each.file}: names must differ")
