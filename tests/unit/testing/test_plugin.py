"""The pytest plugin, in processes of its own: what it loads, captures and takes as options."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[3] / "src"
SHOW_MODULES = """
import sys
def pytest_sessionfinish():
    print("loaded:", *sorted(name for name in sys.modules if name.partition(".")[0] == "kalda"))
"""


def run(directory: Path, test: str, *, ini: str = "", conftest: str = "", plugins: tuple[str, ...] = ()) -> str:
    """The output of pytest over one file, whose tests pass."""
    (directory / "test_it.py").write_text(test)
    (directory / "conftest.py").write_text(conftest)
    (directory / "pytest.ini").write_text(f"[pytest]\n{ini}")
    named = [argument for name in ("kalda.testing.plugin", *plugins) for argument in ("-p", name)]
    command = [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", "--disable-plugin-autoload", *named]
    path = os.pathsep.join([str(SOURCES), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        command, cwd=directory, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kalda" not in done.stderr, "a warning of Kalda's own plugin"
    return done.stdout


def loaded(output: str) -> set[str]:
    [line] = [line for line in output.splitlines() if "loaded:" in line]
    return set(line.partition("loaded:")[2].split())


def test_a_run_without_the_fixtures_loads_nothing_of_kalda(tmp_path: Path) -> None:
    output = run(tmp_path, "def test_nothing(): pass\n", conftest=SHOW_MODULES)
    assert loaded(output) == {"kalda", "kalda.testing", "kalda.testing.plugin"}


def test_a_run_with_a_fixture_loads_the_node(tmp_path: Path) -> None:
    output = run(tmp_path, "def test_topic(kalda_topic): pass\n", conftest=SHOW_MODULES)
    assert {"kalda.testing.cluster", "kalda.broker.process.node"} <= loaded(output)


LOGS = """
import logging
def test_logs(kalda_cluster_factory, caplog{asks}):
    caplog.set_level(logging.INFO)
    kalda_cluster_factory().create_topic("orders")
    logging.getLogger("application").info("its own")
    logging.getLogger("kalda.client").info("a client's")
    names = {{record.name for record in caplog.records}}
    assert {{"application", "kalda.client"}} <= names
    assert ("kalda.controller.quorum_controller" in names) is {are_there}, names
    assert {are_there} or names == {{"application", "kalda.client"}}
"""


@pytest.mark.parametrize(
    ("asks", "ini"),
    [("", ""), (", kalda_node_logs", ""), ("", "kalda_node_logs = true")],
    ids=["not asked", "fixture", "option"],
)
def test_logs_of_nodes_are_captured_where_they_are_asked_for(tmp_path: Path, asks: str, ini: str) -> None:
    run(tmp_path, LOGS.format(asks=asks, are_there=bool(asks or ini)), ini=ini)


OPTIONS = """
def test_options(kalda_cluster):
    assert len(kalda_cluster.nodes) == 2
    assert all(node.config["log.segment.bytes"] == 1048576 for node in kalda_cluster.nodes.values())
"""


def test_the_shared_cluster_has_the_options_of_the_ini_file(tmp_path: Path) -> None:
    run(tmp_path, OPTIONS, ini="kalda_nodes = 2\nkalda_config =\n    log.segment.bytes = 1048576\n")


def test_the_shared_cluster_has_the_options_of_a_fixture(tmp_path: Path) -> None:
    fixture = """
import pytest
@pytest.fixture(scope="session")
def kalda_cluster_options():
    return {"nodes": 2, "config": {"log.segment.bytes": 1048576}}
"""
    run(tmp_path, OPTIONS, conftest=fixture)


@pytest.mark.parametrize(
    ("ini", "said"),
    [
        ("kalda_nodes = many", "kalda_nodes = many: a number of nodes from 1 on is expected"),
        ("kalda_config = log.segment.bytes", "kalda_config: 'log.segment.bytes': name=value is expected"),
    ],
)
def test_options_that_cannot_be_are_named(tmp_path: Path, ini: str, said: str) -> None:
    with pytest.raises(AssertionError) as failed:
        run(tmp_path, "def test_topic(kalda_topic): pass\n", ini=ini)
    assert said in str(failed.value)


AIO = """
import pytest
@pytest.mark.{marker}
async def test_clients(kalda_topic, kalda_aio_producer, kalda_aio_consumer, kalda_aio_admin):
    await (await kalda_aio_producer.send(kalda_topic, b"a"))
    records = await kalda_aio_consumer.poll(30)
    assert [record.value for record in records] == [b"a"]
    assert kalda_topic in await kalda_aio_admin.list_topics()
"""
RUNNERS = {
    "anyio": ("anyio.pytest_plugin", "import pytest\n@pytest.fixture\ndef anyio_backend(): return 'asyncio'\n"),
    "asyncio": ("pytest_asyncio.plugin", ""),
}


@pytest.mark.parametrize("marker", RUNNERS)
def test_asyncio_clients_are_fixtures(tmp_path: Path, marker: str) -> None:
    plugin, conftest = RUNNERS[marker]
    pytest.importorskip(plugin.partition(".")[0])
    run(tmp_path, AIO.format(marker=marker), conftest=conftest, plugins=(plugin,))


def test_the_example_of_the_manual_passes(tmp_path: Path) -> None:
    page = (SOURCES.parent / "docs/testing.md").read_text()
    [example] = [block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "def test_" in block]
    run(tmp_path, example)
