"""References in clients' configurations to files, directories and the environment (KIP-297)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kalda.base.configs.definition import InvalidConfig
from kalda.base.configs.producer import PRODUCER
from kalda.client.admin.admin_client import Admin
from kalda.client.admin.aio_admin import Admin as AioAdmin
from kalda.client.consumer.aio_consumer import Consumer as AioConsumer
from kalda.client.consumer.consumer import Consumer
from kalda.client.producer.aio_producer import Producer as AioProducer
from kalda.client.producer.producer import Producer
from kalda.client.transport.config_files import read_config

KAFKA = "org.apache.kafka.common.config.provider."


@pytest.fixture
def given(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "secret.properties").write_text("name=from-a-file\nservers=127.0.0.1:1\n")
    return {
        "config.providers": "file,env",
        "config.providers.file.class": KAFKA + "FileConfigProvider",
        "config.providers.file.param.allowed.paths": str(tmp_path),
        "config.providers.env.class": KAFKA + "EnvVarConfigProvider",
        "bootstrap.servers": f"${{file:{tmp_path}/secret.properties:servers}}",
        "client.id": f"${{file:{tmp_path}/secret.properties:name}}-${{env:KALDA_TEST_SUFFIX}}",
    }


def test_references_of_a_mapping_and_of_a_file(
    given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KALDA_TEST_SUFFIX", "x")
    expected = {"bootstrap.servers": "127.0.0.1:1", "client.id": "from-a-file-x"}
    assert read_config(PRODUCER, given) == expected
    path = tmp_path / "client.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
    assert read_config(PRODUCER, path) == expected
    serializer = object()
    listed = {**given, "config.providers": ["file", "env"], "key.serializer": serializer}
    assert read_config(PRODUCER, listed) == {**expected, "key.serializer": serializer}


@pytest.mark.parametrize("client", [Producer, Consumer, Admin, AioProducer, AioConsumer, AioAdmin])
def test_every_client_resolves_them(given: dict[str, Any], client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KALDA_TEST_SUFFIX", "x")
    made = client(given)
    assert made._config.client_id == "from-a-file-x"
    assert made._config.bootstrap_servers == ("127.0.0.1:1",)
    if client in (Producer, Consumer, Admin):
        made.close()


def test_what_cannot_be_resolved_stays_and_a_provider_that_does_not_work_is_an_error(given: dict[str, Any]) -> None:
    assert read_config(PRODUCER, {**given, "client.id": "${env:KALDA_TEST_NONE}"}) == {
        "bootstrap.servers": "127.0.0.1:1",
        "client.id": "${env:KALDA_TEST_NONE}",
    }
    with pytest.raises(InvalidConfig, match=r"config\.providers\.env\.class"):
        read_config(PRODUCER, {**given, "config.providers.env.class": "org.acme.Vault"})
    assert read_config(PRODUCER, {"client.id": "${env:HOME}"}) == {"client.id": "${env:HOME}"}, (
        "nothing declares a provider"
    )
