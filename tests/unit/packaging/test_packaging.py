"""What is in `packaging`: its environments start nodes, its metrics exist, its unit leaves a node little."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kalda import Consumer, Producer
from kalda.base.configs.server import ServerConfig
from kalda.network.free_ports import free_ports
from kalda.testing import Cluster

yaml = pytest.importorskip("yaml", reason="needs PyYAML: pip install 'kalda[docs]'")
PACKAGING = Path(__file__).parents[3] / "packaging"
DOCS = PACKAGING.parent / "docs"
ALERTS = PACKAGING / "prometheus" / "kalda-alerts.yml"


def properties_of(environment: dict[str, str]) -> dict[str, str]:
    spec = importlib.util.spec_from_file_location("image_entry", PACKAGING / "image_entry.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[str, str] = module.properties_of(environment)
    return found


def environments() -> Iterator[tuple[str, dict[str, str]]]:
    """Of each node of the compose files and of the StatefulSet, with what Kubernetes fills in for pod 2."""
    for file in sorted((PACKAGING / "compose").glob("*.yml")):
        for name, service in yaml.safe_load(file.read_text())["services"].items():
            yield f"{file.name} {name}", {key: str(value) for key, value in service["environment"].items()}
    for document in yaml.safe_load_all((PACKAGING / "kubernetes" / "kalda.yaml").read_text()):
        if document["kind"] == "StatefulSet":
            (container,) = document["spec"]["template"]["spec"]["containers"]
            given = {each["name"]: each.get("value", "2") for each in container["env"]}
            yield "kalda.yaml", {key: value.replace("$(POD_NAME)", "kalda-2") for key, value in given.items()}


@pytest.mark.parametrize(("name", "environment"), list(environments()))
def test_the_environment_of_a_container_makes_a_node(name: str, environment: dict[str, str]) -> None:
    properties = properties_of(environment)
    config = ServerConfig(properties)
    voters = properties.get("controller.quorum.voters", "1@localhost:9093")
    assert re.search(rf"\b{config.node_id}@", voters), f"{name} is no voter of {voters}"
    assert properties["kalda.metrics.listener"] == "0.0.0.0:9404"
    assert "localhost:9093" not in voters or "one-node" in name


@pytest.fixture(scope="module")
def served() -> Iterator[set[str]]:
    """The names of the metrics of a node that has records written and read."""
    (port,) = free_ports(1)
    with Cluster(config={"kalda.metrics.listener": f"127.0.0.1:{port}"}) as cluster:
        cluster.create_topic("orders")
        with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            producer.send("orders", b"42").result(timeout=30)
        with Consumer(
            bootstrap_servers=cluster.bootstrap_servers, group_id="g", auto_offset_reset="earliest"
        ) as consumer:
            consumer.assign([("orders", 0)])
            assert consumer.poll(timeout=30)
            consumer.commit()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            yield set(re.findall(r"^((?:k|process_)\w+)[ {]", answer.read().decode(), flags=re.MULTILINE))


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def named(text: str) -> set[str]:
    return set(re.findall(r"\b(?:kafka|kalda|process)_[a-z0-9_]+", text))


def test_alerts_and_dashboard_name_metrics_that_a_node_serves(served: set[str]) -> None:
    alerts = named(" ".join(rule["expr"] for rule in rules()))
    dashboard = json.loads((PACKAGING / "grafana" / "kalda.json").read_text())
    panels = named(" ".join(target["expr"] for panel in dashboard["panels"] for target in panel["targets"]))
    variables = named(" ".join(each["query"] for each in dashboard["templating"]["list"]))
    assert len(alerts) > 10
    assert len(panels) > 10
    assert alerts | panels | variables <= served


def test_each_alert_is_explained() -> None:
    page = (DOCS / "alerts.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)`, (\w+) \| `[^`]+`(?: for \w+)? \| .{20,} \|$", page, flags=re.MULTILINE))
    assert rows == {rule["alert"]: rule["labels"]["severity"] for rule in rules()}
    for rule in rules():
        assert rule["expr"] in page
        assert rule["annotations"]["summary"]


def test_promtool_takes_the_alerts_and_they_fire() -> None:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("needs promtool: apt-get install prometheus")
    for arguments in (["check", "rules", str(ALERTS)], ["test", "rules", str(Path(__file__).with_name("alerts.yml"))]):
        done = subprocess.run([tool, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_setup_names_no_package_that_is_there_already() -> None:
    found = re.search(
        r"^pip_of_news='(.*?)'$", (PACKAGING.parent / ".ci" / "setup").read_text(), flags=re.MULTILINE | re.DOTALL
    )
    assert found is not None
    install = ["--disable-pip-version-check", "install", "--no-index", "--no-deps", "click"]
    plain, news = (
        subprocess.run([sys.executable, *pip, *install], capture_output=True, text=True, check=True).stdout
        for pip in (["-m", "pip"], ["-c", found[1]])
    )
    assert "Requirement already satisfied: click" in plain
    assert "Requirement already satisfied" not in news


def test_the_unit_exposes_little() -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("needs systemd-analyze: apt-get install systemd")
    command = [tool, "security", "--offline=true", str(PACKAGING / "kalda.service")]
    rated = subprocess.run(command, capture_output=True, text=True, check=False)
    level = re.search(r"Overall exposure level for kalda.service: ([\d.]+)", rated.stdout)
    assert level, rated.stdout + rated.stderr
    assert float(level[1]) <= 3
