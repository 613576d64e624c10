"""SIGKILL of a job's driver, Java, Python workers and nodes at random moments; the job is started again, and each row
is there once, for readers that are not Spark.

`KALDA_SPARK_ROUNDS` is the number of kills of each kind of job. Without it the tests are left out: a round takes half a
minute. `KALDA_SPARK_SEED` chooses other moments; no round begins after `KALDA_SPARK_SECONDS`.

At each moment a table has what the changes before its commit's offsets give, no more and no less. A topic has no record
twice, and none that the source has not; at the end it has all.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import psutil
import pytest
from changes_project import (
    FLOWS,
    LIGHT,
    NAMES,
    ROWS_A_BATCH,
    Logged,
    Project,
    changes,
    ends_of,
    fill,
    light_settings,
    logged,
    snapshot,
)
from deltalake import DeltaTable
from jars import delta_jars
from kills import Job, Nodes

from kalda import Admin, OffsetAndEpoch, TopicPartition
from kalda.client.admin.topics import NewTopic
from kalda.network.free_ports import free_ports
from waiting import wait_until

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(
        "KALDA_SPARK_ROUNDS" not in os.environ, reason="takes minutes: set KALDA_SPARK_ROUNDS to the number of kills"
    ),
]
JOB = Path(__file__).with_name("crashing_job.py")
ROUNDS = int(os.environ.get("KALDA_SPARK_ROUNDS", "0"))
SEED = int(os.environ.get("KALDA_SPARK_SEED", "7"))
SECONDS = float(os.environ.get("KALDA_SPARK_SECONDS", "inf"))
ROWS_A_ROUND = 450
ANSWERS_S = 10.0
TARGETS = ["driver", "java", "machine", "worker", "worker", "node", "node"]


class Service:
    """What `kalda pipeline serve` answers."""

    def __init__(self, directory: Path) -> None:
        (self._port,) = free_ports(1)
        (directory / "token").write_text("of the test")
        self.command = ["serve", "--listen", f"127.0.0.1:{self._port}", "--token-file", str(directory / "token")]

    def _ask(self, path: str, method: str = "GET") -> Any:
        """None where nothing listens, or the service ends before it has answered."""
        address = f"http://127.0.0.1:{self._port}{path}"
        request = Request(address, method=method, headers={"Authorization": "Bearer of the test"})
        try:
            with urlopen(request, timeout=ANSWERS_S) as answer:
                return json.load(answer)
        except HTTPError as error:
            raise AssertionError(f"{path}: {error.status} {error.read().decode()}") from None
        except TimeoutError:
            raise
        except (OSError, HTTPException):
            return None

    def refresh(self, projects: list[Project], randomly: random.Random) -> str:
        """Ask for a refresh of one project, of four times once, of a table anew, and wait until it may have begun.
        Returns what was asked for."""
        project = randomly.choice(projects)
        full = randomly.choice(["", "", *(NAMES[kind] for kind in project.kinds if kind != "sink")])
        query = f"?full={full}" if full else ""
        if randomly.randrange(2) or self._ask(f"/projects/{project.directory.name}/refresh{query}", "POST") is None:
            return ""
        time.sleep(randomly.uniform(0, 6))
        return f" during a refresh {full}"

    def accept(self, project: Project, table: str) -> None:
        """Returns when the service has accepted a refresh of a table from its beginning."""
        path = f"/projects/{project.directory.name}/refresh?full={table}"
        wait_until(lambda: self._ask(path, "POST") is not None, "a refresh is accepted", 200)

    def states(self) -> dict[str, str]:
        return {each["name"]: each["state"] for each in self._ask("/projects") or ()}

    def watch(self, projects: list[Project]) -> None:
        """For some seconds each answer names all projects, and none has failed."""
        until_s = time.monotonic() + ANSWERS_S / 2
        while time.monotonic() < until_s:
            if states := self.states():
                assert states.keys() == {each.directory.name for each in projects}
            time.sleep(0.2)


class World:
    """A cluster with the topic `in`, the job that reads it, and a second cluster for a mirror."""

    def __init__(self, directory: Path, kinds: list[str], *, is_served: bool = False) -> None:
        self.directory, self.kinds, self.is_served = directory, kinds, is_served
        self.randomly = random.Random(SEED)
        of_connector = kinds[0] in ("once", "plain", "foreach")
        self.clusters = [Nodes(directory / "nodes", 3 if of_connector else 1)]
        if "mirror" in kinds:
            self.clusters.append(Nodes(directory / "others", 1))
        self.servers = self.clusters[0].servers
        self.filled = 0
        self.jobs: list[Job] = []
        self.projects: list[Project] = []
        self.service = Service(directory)

    def start(self) -> None:
        for nodes in self.clusters:
            nodes.start()
        with Admin({"bootstrap.servers": self.servers}) as admin:
            admin.create_topics([NewTopic("in", 3), NewTopic("out", 3)]).check()
        if of_projects := [kind for kind in self.kinds if kind in FLOWS]:
            self.jobs.append(self._of_projects(of_projects))
        if "mirror" in self.kinds:
            self.jobs.append(self._mirror())
        if not self.jobs:
            checkpoint = self.directory / "job"
            command = [str(JOB), self.servers, str(checkpoint), self.kinds[0]]
            self.jobs.append(Job(command, self.directory / "job.log", [checkpoint], {}))

    def _of_projects(self, kinds: list[str]) -> Job:
        half = len(kinds) // 2 if self.is_served else 0
        parts = [part for part in (kinds[:half], kinds[half:]) if part]
        self.projects = [
            Project(self.directory / f"project{number}", self.servers, part) for number, part in enumerate(parts)
        ]
        command = self.service.command if self.is_served else ["run", "--follow"]
        command = [*command, *(str(each.directory) for each in self.projects)]
        return self._job(command, [one for each in self.projects for one in each.checkpoints], {})

    def _job(self, command: list[str], checkpoints: list[Path], environment: dict[str, str]) -> Job:
        command = ["-m", "kalda.cli.main", "pipeline", *command, *light_settings()]
        return Job(command, self.directory / f"job{len(self.jobs)}.log", checkpoints, {**LIGHT, **environment})

    def _mirror(self) -> Job:
        profiles, state = self.directory / "profiles.toml", self.directory / "mirror"
        names = zip(("here", "there"), self.clusters, strict=True)
        profiles.write_text("".join(f"[{name}]\nbootstrap.servers = {one.servers!r}\n" for name, one in names))
        command = ["mirror", "in", "--follow", "--from", "here", "--to", "there", "--state"]
        command += [str(state), "--rows-a-batch", str(ROWS_A_BATCH)]
        return self._job(command, [state / "checkpoint"], {"KALDA_PROFILES": str(profiles)})

    def project(self, kind: str) -> Project:
        return next(each for each in self.projects if kind in each.kinds)

    def fill(self) -> None:
        fill(self.servers, self.randomly, self.filled, ROWS_A_ROUND)
        self.filled += ROWS_A_ROUND

    def kill(self, what: str) -> None:
        randomly = self.randomly
        if what == "node":
            nodes = randomly.choice(self.clusters)
            nodes.kill(randomly.choice(nodes.ids))
            time.sleep(randomly.uniform(0, 3))
            nodes.start()
        for job in self.jobs:
            if what == "worker":
                job.kill_worker(randomly)
            elif what != "node" and job.is_running:
                {"driver": job.kill_driver, "java": job.kill_java, "machine": job.kill}[what]()
            if not job.is_running:
                job.start()

    def wait_for_batches(self, count: int) -> None:
        for job in self.jobs:
            job.wait_for_batches(count, ends_of(self.servers, "in"))

    def judge(self, *, is_end: bool) -> None:
        """What the outputs have now, or at the end."""
        log = logged(self.servers, "in")
        assert [each.at for each in changes(log)] == list(range(self.filled)), "the broker has lost or doubled records"
        for kind in self.kinds:
            {"mirror": self._judge_mirror, "foreach": self._judge_rows}.get(
                kind, self._judge_table if kind in NAMES and kind != "sink" else self._judge_topic
            )(log, kind, is_end)

    def _judge_table(self, log: Logged, kind: str, is_end: bool) -> None:
        self.project(kind).judge(log, kind, is_end=is_end)

    def _judge_topic(self, log: Logged, kind: str, is_end: bool) -> None:
        found = Counter(each.value for records in logged(self.servers, "out").values() for each in records)
        self._judge_values(log, found, kind, is_end)

    def _judge_rows(self, log: Logged, kind: str, is_end: bool) -> None:
        with sqlite3.connect(self.directory / "job.db") as database:
            there = database.execute("select name from sqlite_master where name = 'rows'").fetchall()
            rows = database.execute("select value from rows").fetchall() if there else []
        self._judge_values(log, Counter(bytes(value) for (value,) in rows), kind, is_end)

    def _judge_values(self, log: Logged, found: Counter[bytes | None], kind: str, is_end: bool) -> None:
        expected = Counter(each.value for records in log.values() for each in records)
        assert found.keys() <= expected.keys()
        assert kind == "plain" or found <= expected, [value for value, count in found.items() if count > 1][:5]
        assert not is_end or found.keys() == expected.keys()

    def _judge_mirror(self, log: Logged, kind: str, is_end: bool) -> None:
        copies = logged(self.clusters[1].servers, "in") if self._is_mirrored() else {}
        for partition, copied in copies.items():
            known = [[(each.key, each.value, each.timestamp_ms, each.headers) for each in records]
                     for records in (log[partition], copied)]  # fmt: skip
            assert known[1] == (known[0] if is_end else known[0][: len(copied)]), partition
        assert copies or not is_end

    def _is_mirrored(self) -> bool:
        with Admin({"bootstrap.servers": self.clusters[1].servers}) as admin:
            return "in" in admin.list_topics()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Callable[..., World]]:
    if not delta_jars():
        pytest.skip("needs the jars of Delta, see KALDA_DELTA_JARS")
    made: list[World] = []

    def make(*kinds: str, is_served: bool = False) -> World:
        made.append(World(tmp_path, list(kinds), is_served=is_served))
        return made[-1]

    yield make
    for each in made:
        for job in each.jobs:
            job.kill()
        for nodes in each.clusters:
            nodes.kill(*nodes.ids)


ALL = "append+scd1+scd2+sink"
KINDS = ["append", "scd1", "scd2", "sink", "mirror", ALL, f"{ALL}+mirror", f"serve {ALL}", "once", "plain", "foreach"]


@pytest.mark.parametrize("kinds", KINDS)
def test_every_row_whatever_is_killed(world: Callable[..., World], kinds: str) -> None:
    """What is killed comes in a random order: workers and nodes twice as often, since no session starts after these.
    Every fourth kill comes while the job starts, or soon after the last one.

    `append+scd1+scd2+sink` is one project with four flows, so that each kill is one of each; `+mirror` has a mirror
    beside it, which is killed at the same moments. `serve` has the flows in two projects of the service, which often
    refreshes one of them when it is killed, and whose answers are read meanwhile."""
    here = world(*kinds.removeprefix("serve ").split("+"), is_served=kinds.startswith("serve "))
    here.start()
    randomly, began_s = here.randomly, time.monotonic()
    targets: list[str] = []
    for number in range(ROUNDS):
        if time.monotonic() - began_s > SECONDS:
            break
        targets = targets or randomly.sample(TARGETS, len(TARGETS))
        here.fill()
        if number % 4 != 3:
            here.wait_for_batches(1)
        time.sleep(randomly.uniform(0, 4))
        what = targets.pop()
        if here.is_served and here.jobs[0].is_running:
            what += here.service.refresh(here.projects, randomly)
        here.kill(what.split()[0])
        if here.is_served:
            here.service.watch(here.projects)
        here.judge(is_end=False)
        print(f"{time.monotonic() - began_s:4.0f} s  round {number + 1}: {what} killed, {here.filled} rows", flush=True)
    here.wait_for_batches(1_000_000)
    here.judge(is_end=True)
    if here.is_served:
        states = here.service.states()
        assert set(states.values()) <= {"following", "refreshing"}, states
        assert here.jobs[0].end() == 0, here.jobs[0].last_lines()
    if "mirror" in kinds:
        judge_offsets(here)


def test_an_accepted_refresh_whatever_is_killed(world: Callable[..., World]) -> None:
    """The service that starts next carries it out, though this one was killed with its answer or soon after it."""
    here = world("append", is_served=True)
    here.start()
    here.fill()
    here.jobs[0].start()
    here.wait_for_batches(1_000_000)
    (project,) = here.projects
    table, began_s = project.table(NAMES["append"]), time.monotonic()
    for number in range(ROUNDS):
        if time.monotonic() - began_s > SECONDS:
            break
        before = overwrites(table)
        here.service.accept(project, NAMES["append"])
        time.sleep(here.randomly.choice((0, 0, here.randomly.uniform(0, 3))))
        here.jobs[0].kill()
        here.judge(is_end=False)
        here.jobs[0].start()
        wait_until(lambda: overwrites(table) > before, "the refresh empties the table", 200)  # noqa: B023
        wait_until(lambda: here.service.states() == {project.directory.name: "following"}, "the refresh ends", 200)
        here.wait_for_batches(1_000_000)
        here.judge(is_end=True)
        print(f"{time.monotonic() - began_s:4.0f} s  round {number + 1}: killed behind an accepted refresh", flush=True)


def overwrites(table: Path) -> int:
    """How often the table was emptied."""
    return sum(each.get("operationParameters", {}).get("mode") == "Overwrite" for each in DeltaTable(table).history())


def test_a_redrive_whatever_is_killed(world: Callable[..., World]) -> None:
    """Each row of the quarantine gets another value once, however often the command is killed while it gives rows
    again."""
    here = world("ruled")
    here.start()
    began_s = time.monotonic()
    here.fill()
    here.wait_for_batches(1_000_000)
    here.jobs[0].kill()
    assert rows_of(here, "ruled__quarantine")
    command = [sys.executable, "-m", "kalda.cli.main", "pipeline", "redrive", "ruled", "--set", "v=v+1"]
    command += ["--project", str(here.project("ruled").directory), *light_settings()]
    log = here.directory / "redrive.log"
    for number in range(ROUNDS + 1):
        is_last = number == ROUNDS or time.monotonic() - began_s > SECONDS
        where = "true" if is_last else f"value.k % {max(2, ROUNDS)} = {number}"
        with log.open("ab") as file:
            process = subprocess.Popen([*command, "--where", where], stdout=file, stderr=file, env=LIGHT | os.environ)
        if is_last:
            assert process.wait(300) == 0, log.read_text()[-3_000:]
            break
        kill_at_work(process, here.project("ruled").state / "redrive", here.randomly)
        stays = len(rows_of(here, "ruled__quarantine"))
        print(f"{time.monotonic() - began_s:4.0f} s  round {number + 1}: killed, {stays} rows stay", flush=True)
    assert rows_of(here, "ruled__quarantine") == []
    expected = [
        each if each.v % 2 == 0 else each._replace(v=each.v + 1) for each in changes(logged(here.servers, "in"))
    ]
    assert rows_of(here, "ruled", "partition", "offset", "k", "v", "at", "gone") == sorted(map(tuple, expected))


def kill_at_work(process: subprocess.Popen[bytes], work: Path, randomly: random.Random) -> None:
    """The driver, or it and its Java, at a random moment after rows are decided on; of four times once at any moment,
    at which it may still do what the last one has decided."""
    known = set(work.glob("*"))
    if randomly.randrange(4):
        wait_until(lambda: process.poll() is not None or set(work.glob("*")) - known, "rows are decided on", 200)
        time.sleep(randomly.uniform(0, 5))
    else:
        time.sleep(randomly.uniform(5, 40))
    family = [psutil.Process(process.pid)]
    with suppress(psutil.NoSuchProcess):
        family += family[0].children(recursive=True)
    for each in family[: randomly.choice([1, len(family)])]:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    process.wait()


def rows_of(world: World, table: str, *columns: str) -> list[tuple[Any, ...]]:
    found = snapshot(world.project("ruled").table(table))
    assert found is not None
    return found.rows(*columns or ("flow", "batch", "row"))


def judge_offsets(world: World) -> None:
    """Offsets of a group, after all kills, are those of the same record of the copy."""
    partition, log = TopicPartition("in", 0), logged(world.servers, "in")
    middle = len(log[partition]) // 2
    with Admin({"bootstrap.servers": world.servers}) as admin:
        offset = log[partition][middle].offset
        admin.alter_group_offsets("readers", {partition: OffsetAndEpoch(offset, -1, "")}).check()
    job = world.jobs[-1]
    assert job.end() in (0, 128 + signal.SIGTERM), job.last_lines()
    with Admin({"bootstrap.servers": world.clusters[1].servers}) as admin:
        there = admin.list_group_offsets("readers").value(partition).offset
    copies = [each for each in logged(world.clusters[1].servers, "in")[partition] if each.offset >= there]
    assert copies[0].value == log[partition][middle].value
