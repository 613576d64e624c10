"""`kalda verify`: verdicts and exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hand_made import ABORTED, COMMITTED, A, log, transaction

from kalda.base.errors import ApiError, ErrorCode
from kalda.cli.commands import cli
from kalda.cli.verification import run as runs
from kalda.cli.verification.run import VerificationPlan
from kalda.verify.history import FIRST_LINE, Operation, write_operation

SOUND: list[Operation] = [transaction("p", COMMITTED, (A, "x", 0)), log(A, "x")]
LOST: list[Operation] = [transaction("p", COMMITTED, *[(A, f"x{n}", n) for n in range(7)]), log(A)]


def lines_of(operations: list[Operation]) -> list[str]:
    return [FIRST_LINE, *map(write_operation, operations)]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["verify", *map(str, arguments)], prog_name="kalda")


@pytest.fixture
def kept(tmp_path: Path) -> Callable[[list[Operation]], Path]:
    def write(operations: list[Operation]) -> Path:
        path = tmp_path / "history.jsonl"
        path.write_text("\n".join(lines_of(operations)) + "\n")
        return path

    return write


def test_a_sound_history(kept: Callable[[list[Operation]], Path]) -> None:
    result = run("--judge", kept(SOUND))
    assert result.exit_code == 0, result.output
    assert "Sound: no rule was violated." in result.output


def test_nothing_committed_proves_nothing(kept: Callable[[list[Operation]], Path]) -> None:
    """A cluster that refuses every transaction violates no rule."""
    result = run("--judge", kept([transaction("p", ABORTED), log(A)]))
    assert result.exit_code == 2
    assert "no transaction was committed" in result.stderr
    assert "Sound" not in result.output


def test_an_anomaly(kept: Callable[[list[Operation]], Path]) -> None:
    result = run("--judge", kept(LOST))
    assert result.exit_code == 1
    assert "lost-record: record 'x0' of transaction p/0/0 (committed), acknowledged at t-0@0" in result.output
    assert "every record of a committed transaction is visible" in result.output
    assert "… and 2 more of lost-record" in result.output


def test_an_anomaly_as_json(kept: Callable[[list[Operation]], Path]) -> None:
    result = run("--judge", kept(LOST), "--format", "json")
    assert result.exit_code == 1
    document = json.loads(result.output)
    assert (document["sound"], document["violations"], document["committed"]) == (False, {"lost-record": 7}, 1)
    first = document["findings"][0]
    assert (first["rule"], first["transaction"], first["record"], first["place"]) == (
        "lost-record", "p/0/0", "x0", "t-0@0"
    )  # fmt: skip


def test_what_cannot_be_judged(tmp_path: Path, closed_port: int) -> None:
    assert run("--judge", tmp_path / "missing").exit_code == 2
    (tmp_path / "other").write_text("hello\n")
    result = run("--judge", tmp_path / "other")
    assert (result.exit_code, "line 1" in result.stderr) == (2, True)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    assert run("--judge", tmp_path / "bytes").exit_code == 2
    (tmp_path / "empty").touch()
    assert run("--judge", tmp_path / "empty").exit_code == 2
    result = run("--replication-factor", 1, "--history", tmp_path / "missing" / "history.jsonl")
    assert (result.exit_code, "cannot be written" in result.stderr) == (2, True), "before the run"
    result = run("--bootstrap-server", f"127.0.0.1:{closed_port}")
    assert (result.exit_code, f"127.0.0.1:{closed_port}" in result.stderr) == (2, True)
    assert run("--bootstrap-server", "a:b:c").exit_code == 2


@pytest.fixture
def closed_port() -> int:
    return 1


class Run:
    """What `kalda verify` runs, without a cluster."""

    def __init__(self, operations: list[Operation], error: ApiError | None = None) -> None:
        self.operations = operations
        self.error = error
        self.plans: list[VerificationPlan] = []
        self.removed: list[VerificationPlan] = []

    def run(self, plan: VerificationPlan, directory: Path, report: Callable[[str], None]) -> list[str]:
        self.plans.append(plan)
        report("running")
        if self.error is not None:
            raise self.error
        return lines_of(self.operations)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> Run:
        monkeypatch.setattr(runs, "run", self.run)
        monkeypatch.setattr(runs, "remove_topics", self.removed.append)
        return self


def test_a_run_that_is_sound_removes_its_topics(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake, path = Run(SOUND).install(monkeypatch), tmp_path / "kept.jsonl"
    options = ("--replication-factor", 2, "--seed", 5, "--producers", 6, "--topics", 2, "--partitions", 2)
    result = run(*options, "--history", path)
    assert result.exit_code == 0, result.output
    [plan] = fake.plans
    assert fake.removed == [plan]
    assert (plan.seed, plan.replication_factor, plan.loops, len(plan.inputs)) == (5, 2, 3, 4)
    assert len(set(plan.outputs.values())) == 4
    assert path.read_text().splitlines() == lines_of(SOUND)


def test_a_run_with_an_anomaly_keeps_its_topics_and_names_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Run(LOST).install(monkeypatch)
    result = run("--replication-factor", 1, "--seed", 77)
    assert result.exit_code == 1
    assert "The seed was 77." in result.output
    assert not fake.removed


def test_a_run_without_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    Run(SOUND, ApiError(ErrorCode.LEADER_NOT_AVAILABLE, "no leader")).install(monkeypatch)
    result = run("--replication-factor", 1)
    assert (result.exit_code, "no verdict: no leader" in result.stderr) == (2, True)
