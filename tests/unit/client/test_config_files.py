"""A client.properties that several programs share."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from scripted_broker import AcknowledgingBroker

from kalda import Admin, Consumer, Producer, aio
from kalda.base.configs.definition import InvalidConfig
from kalda.cli.commands import cli
from kalda.cli.common.profiles import client_config

FOREIGN = """schema.registry.url=http://registry:8081
zookeeper.connect=localhost:2181
key.serializer=org.apache.kafka.common.serialization.StringSerializer
value.serializer=org.apache.kafka.common.serialization.LongSerializer
key.deserializer=org.apache.kafka.common.serialization.StringDeserializer
value.deserializer=org.apache.kafka.common.serialization.LongDeserializer
client.id=shared
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "client.properties"
    made.write_text(FOREIGN)
    return made


def test_clients_warn_of_the_keys_of_others(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with AcknowledgingBroker() as broker, caplog.at_level(logging.WARNING, "kalda.client"):
        with Producer(path, bootstrap_servers=f"PLAINTEXT://{broker.address}", enable_idempotence=False) as producer:
            metadata = producer.send("t", 7, key="k").result(20)
        assert (metadata.serialized_key_size, metadata.serialized_value_size) == (1, 8)
        with Consumer(str(path), bootstrap_servers=broker.address), Admin(path, bootstrap_servers=broker.address):
            pass

        async def on_a_loop() -> None:
            for kind in (aio.Producer, aio.Consumer, aio.Admin):
                async with kind(path, bootstrap_servers=broker.address):
                    pass

        asyncio.run(on_a_loop())
    warnings = [record.getMessage() for record in caplog.records if "does not use" in record.getMessage()]
    assert len(warnings) == 6
    assert all("schema.registry.url, zookeeper.connect" in warning for warning in warnings)
    assert warnings[0].startswith(str(path))


def test_keywords_and_mappings_are_strict() -> None:
    for given, keywords in (({"schema.registry.url": "x"}, {}), ({}, {"zookeeper_connect": "x"})):
        with pytest.raises(InvalidConfig, match="there is no configuration"):
            Producer(given, bootstrap_servers="localhost:1", **keywords)  # type: ignore[arg-type]


def test_a_command_warns_and_takes_the_rest(path: Path) -> None:
    assert client_config(None, str(path), {"client.id": "mine"}) == {"client.id": "mine"}
    with AcknowledgingBroker() as broker:
        done = CliRunner().invoke(
            cli, ["topics", "list", "--bootstrap-server", broker.address, "--command-config", str(path)]
        )
    assert done.exit_code == 0, done.output
    assert "no client uses schema.registry.url, zookeeper.connect" in done.stderr
    with pytest.raises(click.UsageError, match=r"no client has the configuration zookeeper\.connect"):
        client_config(None, str(path), {"zookeeper.connect": "x"})
