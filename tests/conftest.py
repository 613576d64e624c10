"""For all tests: the Hypothesis profiles, the skips of tests whose requirements are missing, the import paths.

Test modules are imported by path (`importlib` mode), so that two directories may have a `test_log.py` each. A module
beside them that is not a test is imported by its name, which must be unique in the whole tree.
"""

from __future__ import annotations

import gc
import importlib.util
import logging
import os
import shutil
import signal
import sys
from collections.abc import Generator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parent
SOURCES = TESTS.parent / "src"
PEER = os.environ.get("KALDA_PEER_KAFKA", "")
"""A command that runs Apache Kafka's tools and servers, for the tests that put Kalda beside it."""

for _directory in sorted({path.parent for path in TESTS.rglob("*.py") if not path.name.startswith("test_")}):
    if str(_directory) not in sys.path:
        sys.path.append(str(_directory))
sys.path.append(str(TESTS.parent / "bench"))  # its harness is the tests' too

# No deadline, since times on a shared machine have no meaning; in CI every run is the same.
settings.register_profile("ci", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("dev", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_configure(config: pytest.Config) -> None:
    # A shell has its background jobs ignore SIGINT, and so do all that they start: what is interrupted would never end.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _check_compiled_modules()
    _begin_with_a_share(config)


def _check_compiled_modules() -> None:
    """Refuse to run where a compiled module is older than its source, since the old module would be tested, and where
    some modules are compiled and others are not: they call each other's compiled functions."""
    compiled = {module.with_name(module.name.partition(".")[0]): module for module in SOURCES.rglob("*.so")}
    stale = {
        source
        for path, module in compiled.items()
        for source in (path.with_suffix(suffix) for suffix in (".py", ".pxd"))
        if source.exists() and source.stat().st_mtime > module.stat().st_mtime
    }
    if compiled:
        declared = {source.with_suffix("") for suffix in ("pxd", "pyi") for source in SOURCES.rglob(f"*.{suffix}")}
        stale |= {path.with_suffix(".py") for path in declared - compiled.keys() if path.with_suffix(".py").exists()}
    if stale:
        names = ", ".join(sorted(str(source.relative_to(TESTS.parent)) for source in stale))
        raise pytest.UsageError(
            f"newer than the compiled module, or not compiled: {names}. Run: python setup.py build_ext --inplace"
        )


def _begin_with_a_share(config: pytest.Config) -> None:
    """To rewrite the assertions of all tests takes most of a collection's time. Of several processes that collect them,
    each begins with other files: when it comes to the rest, others have written their bytecode."""
    worker = getattr(config, "workerinput", None)
    if worker is None or [Path(config.invocation_params.dir, each) for each in config.args] != [TESTS]:
        return
    files = sorted(map(str, TESTS.rglob("test_*.py")))
    first = int(worker["workerid"].removeprefix("gw")) * len(files) // int(worker["workercount"])
    config.args = [*files[first:], *files[:first]]


def _missing(*modules: str) -> list[str]:
    return [name for name in modules if importlib.util.find_spec(name) is None]


def _lacks(marker: str) -> str | None:
    """Why a test with this mark cannot run here; None where it can."""
    if marker == "compat":
        missing = _missing("confluent_kafka", "aiokafka", "kafka")
        return f"needs {', '.join(missing)}: pip install 'kalda[dev]'" if missing else None
    if marker == "spark":
        missing = _missing("pyspark", "pyarrow", "pandas")
        if missing:
            return f"needs {', '.join(missing)}: pip install 'kalda[spark]'"
        return None if shutil.which("java") else "needs Java 17: apt-get install openjdk-17-jre-headless"
    if marker == "peer":
        return None if PEER else "needs Apache Kafka: set KALDA_PEER_KAFKA to a command that runs it"
    return None


ORDER = ("spark", "compat", "sim", ".", "property", "scenario", "unit")
"""Directories, and a dot for the files beside them. Long files come first, so that no process ends long after the
others."""
TOGETHER = ("tests/spark/test_projects", "tests/spark/", "tests/compat/test_same_")
"""Files that share a fixture of the session, which takes longer to make than most of their tests: one process runs
them all."""


@cache
def _turn(path: Path) -> tuple[int, str]:
    """The place of a file's tests, wherever the collection began."""
    place = path.relative_to(TESTS)
    return ORDER.index(place.parent.as_posix().split("/")[0]), place.as_posix()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _turn(item.path))
    reasons = {marker: _lacks(marker) for marker in ("compat", "spark", "peer")}
    for item in items:
        for marker, reason in reasons.items():
            if reason is not None and item.get_closest_marker(marker) is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def _log_handlers_are_given_back() -> Generator[None, None, None]:
    """A command that runs in the tests' process sends log lines to its standard output, which is closed after it."""
    loggers = [logging.getLogger(name) for name in ("kalda", "kafka.authorizer.logger")]
    former = [(each, each.handlers[:], each.level, each.propagate) for each in loggers]
    yield
    for logger, handlers, level, propagate in former:
        logger.handlers[:] = handlers
        logger.setLevel(level)
        logger.propagate = propagate


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """The syntax trees of the tests are millions of objects without a cycle: the garbage collector would walk
    through them again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Thousands of collected tests live until the end: the garbage collector need not walk through them each time. And
    it walks more rarely through what a test makes, most of which is garbage without a cycle."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadfile`, a process gets whole files, and those of `TOGETHER` as if they were one."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            shared = next((start for start in TOGETHER if nodeid.startswith(start)), None)
            return shared or str(super()._split_scope(nodeid))

    return Scheduling(config, log)
