"""The documentation: its examples run, its links lead somewhere, and it names no command or key that does not exist."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from kalda import Producer
from kalda.base.configs.admin import ADMIN
from kalda.base.configs.consumer import CONSUMER
from kalda.base.configs.producer import PRODUCER
from kalda.cli.commands import NOUNS, cli
from kalda.testing import Cluster

pytestmark = pytest.mark.compat
DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = sorted(path.stem for path in (DOCS / "examples").glob("*.py"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        for topic in ("orders", "payments", "avro-orders"):
            running.create_topic(topic)
        with Producer(bootstrap_servers=running.bootstrap_servers) as producer:
            for number in range(10):
                producer.send("orders", b"%d" % number)
        yield running


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(
    name: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "registry_avro":
        pytest.importorskip("confluent_kafka.schema_registry.avro", reason="needs kalda[registry]")
    if name == "dataframes":
        pytest.importorskip("polars", reason="needs Polars")
        pytest.importorskip("duckdb", reason="needs DuckDB")
    monkeypatch.setenv("KALDA_BOOTSTRAP_SERVER", cluster.bootstrap_servers)
    monkeypatch.setenv("REGISTRY_URL", "mock://docs")
    runpy.run_path(str(DOCS / "examples" / f"{name}.py"))
    assert capsys.readouterr().out


def test_every_example_is_on_a_page() -> None:
    shown = {name for page in DOCS.glob("*.md") for name in re.findall(r'--8<-- "(\w+)\.py"', page.read_text())}
    assert shown == set(EXAMPLES)


def test_the_site_has_no_dead_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """mkdocs is strict: a link to a page, an anchor or an example that does not exist is an error."""
    config = pytest.importorskip("mkdocs.config", reason="needs kalda[docs]")
    build = pytest.importorskip("mkdocs.commands.build")
    monkeypatch.chdir(DOCS.parent)
    loaded = config.load_config("mkdocs.yml", site_dir=str(tmp_path / "site"), strict=True)
    build.build(loaded)
    for page in (tmp_path / "site").rglob("*.html"):
        for target in re.findall(r'(?:href|src)="([^"#?:]+)["#?]', page.read_text()):
            assert (page.parent / target).exists() or target.startswith("/"), f"{page.name} links to {target}"
    for page in ("admin", "asyncio"):  # the methods of the admin clients are made at run time
        shown = re.sub("<[^>]*>", "", (tmp_path / "site" / "api" / f"{page}.html").read_text())
        assert re.search(r"create_topics\s*\(", shown), page
        assert "Create topics, or only check" in shown, page


def test_commands_in_the_documentation_exist() -> None:
    text = "\n".join(page.read_text() for page in DOCS.glob("*.md"))
    for line in re.findall(r"kalda ((?:[a-z][a-z0-9-]* ?)+)", text):
        first, *rest = line.split()
        if first not in NOUNS:
            continue
        command = cli.get_command(click.Context(cli), first)
        if isinstance(command, click.Group) and rest:
            assert rest[0] in command.commands, f"kalda {line}"


def test_keys_in_the_documentation_exist() -> None:
    keys = {*ADMIN.names(), *CONSUMER.names(), *PRODUCER.names()}
    text = "\n".join((DOCS / f"{page}.md").read_text() for page in ("producer", "consumer", "admin"))
    for key in re.findall(r"`([a-z]+(?:\.[a-z]+)+)(?:=\w+)?`", text):
        assert key in keys, key
