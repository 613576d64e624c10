"""The entry of the container image: which properties variables make, as the apache/kafka image makes them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from kalda.base.configs.server import ServerConfig
from kalda.base.texts import parse_properties
from kalda.cli.server import ServerOptions

ENTRY = Path(__file__).parents[3] / "packaging" / "image_entry.py"


@pytest.fixture(scope="module")
def entry() -> Any:
    spec = importlib.util.spec_from_file_location("image_entry", ENTRY)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_names_of_variables(entry: Any) -> None:
    """Those of Apache Kafka's own test of its image, and Kalda's."""
    variables = {
        "KAFKA_TOOLS_LOG4J_LOGLEVEL": "TRACE",
        "KAFKA_VALID_PROPERTY": "Value",
        "SOME_VARIABLE": "Some Value",
        "KAFKA_VALID___PROPERTY__ALL_CASES": "All Cases Value",
        "KAFKA_KAFKA_VALID_PROPERTY": "Value",
        "KALDA_METRICS_LISTENER": "0.0.0.0:9404",
        "KALDA_BOOTSTRAP_SERVER": "localhost:9092",
    }
    assert entry.from_variables(variables) == {
        "valid.property": "Value",
        "valid-property_all.cases": "All Cases Value",
        "kafka.valid.property": "Value",
        "kalda.metrics.listener": "0.0.0.0:9404",
    }


def test_without_variables_it_is_one_node_for_clients_of_this_host(entry: Any) -> None:
    for variables in ({}, {"KALDA_METRICS_LISTENER": "0.0.0.0:9404"}, {"KAFKA_HEAP_OPTS": "-Xmx1g", "PATH": "/bin"}):
        properties = entry.properties_of(variables)
        config = ServerConfig(properties)
        assert config.node_id == 1
        assert properties["advertised.listeners"] == "PLAINTEXT://localhost:9092"
        assert properties.get("kalda.metrics.listener", "") == variables.get("KALDA_METRICS_LISTENER", "")


def test_variables_replace_the_defaults_and_override_a_mounted_file(entry: Any) -> None:
    mounted = "# a comment\nnode.id=7\nlog.retention.hours = 1\nlisteners=A://:1,\\\n  B://:2\n"
    properties = entry.properties_of({"KAFKA_LOG_RETENTION_HOURS": "24"}, mounted)
    assert properties["node.id"] == "7"
    assert properties["log.retention.hours"] == "24"
    assert properties["listeners"] == parse_properties(mounted)["listeners"]
    assert "process.roles" not in entry.properties_of({"KAFKA_NODE_ID": "3"}), "no default beside a given property"
    assert entry.properties_of({}, "  \n")["process.roles"] == "broker,controller", "an empty file is none"


def test_listeners_follow_from_the_advertised_ones(entry: Any) -> None:
    properties = entry.properties_of({"KAFKA_ADVERTISED_LISTENERS": "SSL://a.example:9092,HOST://[::1]:29092"})
    assert properties["listeners"] == "SSL://0.0.0.0:9092,HOST://0.0.0.0:29092"
    controller = {"KAFKA_PROCESS_ROLES": "controller", "KAFKA_ADVERTISED_LISTENERS": ""}
    assert "advertised.listeners" not in entry.properties_of(controller)


def test_stores_and_their_passwords_are_files_of_the_secrets(entry: Any, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret\n")
    variables = {
        "KAFKA_SSL_KEYSTORE_FILENAME": "node.p12",
        "KAFKA_SSL_KEYSTORE_CREDENTIALS": "password",
        "KAFKA_SSL_KEY_CREDENTIALS": "password",
    }
    properties = entry.properties_of(variables, secrets=tmp_path)
    assert properties["ssl.keystore.location"] == str(tmp_path / "node.p12")
    assert properties["ssl.keystore.password"] == properties["ssl.key.password"] == "secret"
    assert not [key for key in properties if "credentials" in key or "filename" in key]
    with pytest.raises(entry.BadEnvironment, match=r"KAFKA_SSL_TRUSTSTORE_CREDENTIALS=none: .*none: No such file"):
        entry.properties_of({"KAFKA_SSL_TRUSTSTORE_CREDENTIALS": "none"}, secrets=tmp_path)


def test_a_controller_without_static_voters_is_the_first_of_its_quorum(entry: Any, tmp_path: Path) -> None:
    def arguments(**properties: str) -> list[str]:
        given = {name.replace("_", "."): value for name, value in properties.items()}
        formatting: list[str] = entry.format_arguments(given, "an-id", tmp_path / "file")
        return formatting

    assert arguments(process_roles="broker,controller")[-1] == "--standalone"
    assert "--standalone" not in arguments(process_roles="controller", controller_quorum_voters="1@a:9093")
    assert "--standalone" not in arguments(process_roles="broker")


def test_logs(entry: Any, tmp_path: Path) -> None:
    variables = {"KAFKA_LOG4J_ROOT_LOGLEVEL": "WARN, stdout", "KALDA_LOG_FORMAT": "json"}
    options = ServerOptions(entry.server_arguments(variables, tmp_path / "server.properties")[1:])
    assert (options.log_level, options.log_format) == ("WARNING", "json")
    assert entry.server_arguments({}, tmp_path) == ["server", str(tmp_path)]
