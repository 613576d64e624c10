"""The documentation: its examples run, its links lead somewhere, and it names no command or key that does not exist."""

from __future__ import annotations

import contextlib
import html
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from kalda import Producer
from kalda.base.configs.admin import ADMIN
from kalda.base.configs.broker import BROKER
from kalda.base.configs.consumer import CONSUMER
from kalda.base.configs.group import GROUP
from kalda.base.configs.producer import PRODUCER
from kalda.base.configs.topic import TOPIC
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


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the built site. mkdocs is strict: a link to a page, an anchor or an example that does not exist
    is an error."""
    config = pytest.importorskip("mkdocs.config", reason="needs kalda[docs]")
    build = pytest.importorskip("mkdocs.commands.build")
    directory = tmp_path_factory.mktemp("site")
    with contextlib.chdir(DOCS.parent):
        build.build(config.load_config("mkdocs.yml", site_dir=str(directory), strict=True))
    return directory


def shown(page: Path) -> str:
    """What a browser shows of a page."""
    return html.unescape(re.sub(r"<(script|style).*?</\1>|<[^>]+>", "", page.read_text(), flags=re.DOTALL))


def test_the_site_has_no_dead_link(site: Path) -> None:
    for page in site.rglob("*.html"):
        for target in re.findall(r'(?:href|src)="([^"#?:]+)["#?]', page.read_text()):
            if page.name != "404.html":  # which a server sends for any path, so its links are from the root
                assert (page.parent / target).is_file(), f"{page.name} links to {target}, which a disk does not have"


def test_the_site_shows_no_object_of_python(site: Path) -> None:
    """What a template shows where it was given a value that has no text."""
    odd = re.compile(r".{0,60}(?:Sentinel|<[\w. ]+ object at 0x|<class '|Traceback|\[default: None).{0,40}")
    for page in site.rglob("*.html"):
        assert not odd.findall(shown(page)), page.name


def test_all_methods_and_commands_are_on_the_site(site: Path) -> None:
    for name in ("admin", "asyncio"):  # the methods of the admin clients are made at run time
        text = shown(site / "api" / f"{name}.html")
        assert re.search(r"create_topics\s*\(", text), name
        assert "Create topics, or only check" in text, name
    commands = site / "commands.html"
    assert [noun for noun in NOUNS if f"kalda {noun}" not in shown(commands)] == []
    blocks = [re.sub("<[^>]*>", "", block) for block in re.findall(r"<pre.*?</pre>", commands.read_text(), re.DOTALL)]
    assert any(len(re.findall("^kalda topics create", block, re.MULTILINE)) > 1 for block in blocks), "a line each"


def test_commands_in_the_documentation_exist() -> None:
    text = "\n".join(page.read_text() for page in DOCS.glob("*.md"))
    for line in re.findall(r"kalda ((?:[a-z][a-z0-9-]* ?)+)", text):
        first, *rest = line.split()
        if first not in NOUNS:
            continue
        command = cli.get_command(click.Context(cli, **cli.context_settings), first)
        if isinstance(command, click.Group) and rest:
            assert rest[0] in command.commands, f"kalda {line}"


def test_keys_in_the_documentation_exist() -> None:
    keys = {*ADMIN.names(), *CONSUMER.names(), *PRODUCER.names()}
    all_keys = keys | {*BROKER.names(), *GROUP.names(), *TOPIC.names()}
    of_brokers_too = {"consumer", "settings"}
    for page in ("producer", "consumer", "admin", "settings"):
        known = all_keys if page in of_brokers_too else keys
        for key in re.findall(r"`([a-z]+(?:\.[a-z]+)+)(?:=\w+)?`", (DOCS / f"{page}.md").read_text()):
            assert key in known, f"{page}: {key}"
