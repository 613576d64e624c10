"""What is public is named once: errors have one base, `kalda` lists its names, and the manual imports nothing else."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kinds_of_errors import raised_by_kalda

import kalda
import kalda.aio

ROOT = Path(__file__).parents[3]
PUBLIC_MODULES = {"kalda", "kalda.aio", "kalda.pipeline", "kalda.registry", "kalda.spark", "kalda.testing"}
MANUAL = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("docs/examples/*.py")])
IMPORT = re.compile(r"(?:^|[\s\"'`;])(?:from\s+(kalda[\w.]*)\s+import\s+\(?([\w, ]*)|import\s+(kalda[\w.]*))")
REFERENCE = re.compile(r"^::: (kalda[\w.]*)\.(\w+)$", re.M)

CAUGHT_WITHIN = {
    "HandshakeFailed": "a connection's failure, which clients raise as an ApiError of SASL or of the network",
    "LoginFailed": "likewise",
    "NodeHasTls": "likewise",
}
"""Exceptions of the clients' modules that no user meets, and why."""


def test_all_errors_of_the_clients_have_one_base() -> None:
    floors = ("kalda.client", "kalda.clientcore", "kalda.testing", "kalda.spark")
    kinds = [kind for kind in raised_by_kalda() if kind.__module__.startswith(floors)]
    assert {kalda.Wakeup, kalda.ProducerClosed, kalda.SerializationError, kalda.ConsumerClosed} < set(kinds)
    others = {kind.__name__ for kind in kinds if not issubclass(kind, kalda.KafkaError)}
    assert {name for name in others if not name.startswith("_")} == set(CAUGHT_WITHIN)
    assert issubclass(kalda.InvalidConfig, kalda.KafkaError)


def test_errors_say_whether_a_retry_may_help() -> None:
    assert kalda.ApiError(kalda.ErrorCode.NOT_LEADER_OR_FOLLOWER).retriable
    assert not kalda.ApiError(kalda.ErrorCode.INVALID_CONFIG).retriable
    assert kalda.CallTimeout("late").retriable
    assert not kalda.ProducerClosed("closed").retriable


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [(kalda.CallTimeout, TimeoutError), (kalda.WrongState, RuntimeError), (kalda.SerializationError, ValueError)],
)
def test_errors_that_python_has_too_are_caught_as_such(kind: type[kalda.KafkaError], builtin: type[Exception]) -> None:
    error = kind("why")
    assert isinstance(error, builtin)
    assert str(error) == "why"


@pytest.mark.parametrize("module", [kalda, kalda.aio], ids=lambda module: module.__name__)
def test_the_lists_of_public_names_agree(module: object) -> None:
    path = Path(str(module.__file__))  # type: ignore[attr-defined]
    tree = ast.parse(path.read_text())
    typed = {
        (alias.name, node.module)
        for block in tree.body
        if isinstance(block, ast.If)
        for node in ast.walk(block)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert typed == set(module._PUBLIC.items())  # type: ignore[attr-defined]
    assert list(module.__all__) == sorted(module._PUBLIC)  # type: ignore[attr-defined]
    assert set(module.__all__) <= set(dir(module))  # type: ignore[attr-defined]


def test_errors_and_values_are_public() -> None:
    expected = {"KafkaError", "NewTopic", "TopicPartition", "ConfigResource", "Record", "RecordMetadata", "ErrorCode"}
    assert expected <= set(kalda.__all__)
    public = {getattr(kalda, name) for name in kalda.__all__ if isinstance(getattr(kalda, name), type)}
    raised = {
        kind
        for kind in raised_by_kalda()
        if issubclass(kind, kalda.KafkaError) and kind.__module__.startswith("kalda.client")
    }
    assert raised <= public


def test_importing_kalda_imports_nothing() -> None:
    program = "import sys; before = set(sys.modules); import kalda; print(*sorted(set(sys.modules) - before))"
    run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert run.stdout.split() == ["kalda"]


def imported(text: str) -> set[tuple[str, str]]:
    """Modules and names that a page, or a file, takes from Kalda."""
    found = set()
    for module, names, plain in IMPORT.findall(text):
        found |= {(module or plain, name.strip()) for name in (names or "").split(",")}
    return found | set(REFERENCE.findall(text))


@pytest.mark.parametrize("path", MANUAL, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_manual_imports_what_is_public(path: Path) -> None:
    uses = imported(path.read_text())
    assert {module for module, _ in uses} <= PUBLIC_MODULES
    for module, name in uses:
        if module == "kalda" and name:
            assert name in {*kalda.__all__, "aio", "registry", "spark", "testing"}


def test_the_manual_is_searched() -> None:
    assert imported("x\n    from kalda.client.admin.topics import NewTopic, Y\n") == {
        ("kalda.client.admin.topics", "NewTopic"),
        ("kalda.client.admin.topics", "Y"),
    }
    assert imported('python -c "import kalda.records"') == {("kalda.records", "")}
    assert len(set().union(*(imported(path.read_text()) for path in MANUAL))) > 20


def test_a_tool_that_imports_all_modules_runs_no_command() -> None:
    program = "import sys; sys.argv = ['tool', 'build']; import kalda.__main__"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (run.returncode, run.stdout + run.stderr) == (0, "")
