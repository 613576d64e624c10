"""References in a node's properties to files, directories and the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from kalda.base.configs.definition import InvalidConfig
from kalda.base.configs.server import ServerConfig
from kalda.network.config_providers import read_properties, resolve

KAFKA = "org.apache.kafka.common.config.provider."
PROVIDERS = {
    "config.providers": "file,env,dir",
    "config.providers.file.class": f"{KAFKA}FileConfigProvider",
    "config.providers.env.class": f"{KAFKA}EnvVarConfigProvider",
    "config.providers.dir.class": f"{KAFKA}DirectoryConfigProvider",
}


def resolved(value: str, environment: dict[str, str] | None = None, **parameters: str) -> str:
    given = {
        f"config.providers.{name.replace('__', '.param.').replace('_', '.')}": parameters[name] for name in parameters
    }
    return resolve({**PROVIDERS, **given, "a": value}, environment or {})["a"]


def test_references_are_resolved_from_files_directories_and_the_environment(tmp_path: Path) -> None:
    (tmp_path / "secret.properties").write_text("retention = 77\npw=s3 cr3t\n")
    (tmp_path / "threads").write_text("3\n")
    assert resolved(f"${{file:{tmp_path}/secret.properties:retention}}") == "77"
    assert resolved(f"<${{file:{tmp_path}/secret.properties:pw}}|${{env:X}}>", {"X": "y"}) == "<s3 cr3t|y>"
    assert resolved(f"${{dir:{tmp_path}:threads}}") == "3\n"


def test_a_reference_that_cannot_be_resolved_stays_as_it_is_written(tmp_path: Path) -> None:
    text = f"${{nope:a:b}}-${{env:F}}-${{env:MISSING}}-${{dir:/nowhere:x}}-${{dir:{tmp_path}:../x}}-${{file::k}}"
    assert resolved(text, {"F": "85"}) == text.replace("${env:F}", "85")


def test_nothing_is_replaced_without_providers() -> None:
    assert resolve({"a": "${env:HOME}"}, {"HOME": "/"}) == {"a": "${env:HOME}"}
    without_class = {"config.providers": "env", "a": "${env:HOME}"}
    assert resolve(without_class, {"HOME": "/"}) == without_class


def test_only_allowed_paths_are_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("in", "inner"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "p").write_text("k=v")
    allowed = str(tmp_path / "in")
    assert resolved(f"${{file:{tmp_path}/in/p:k}}", file__allowed_paths=allowed) == "v"
    for path in (f"{tmp_path}/inner/p", f"{tmp_path}/in/../inner/p", "/etc/hostname"):
        assert resolved(f"${{file:{path}:k}}", file__allowed_paths=allowed) == f"${{file:{path}:k}}"
    assert "not allowed" in caplog.text
    assert resolved(f"${{dir:{tmp_path}/inner:p}}", dir__allowed_paths=allowed).startswith("${dir")


def test_only_allowed_variables_are_read() -> None:
    environment = {"KAFKA_A": "1", "HOME": "2"}
    assert resolved("${env:KAFKA_A}${env:HOME}", environment, env__allowlist_pattern="KAFKA_.*") == "1${env:HOME}"


@pytest.mark.parametrize(
    ("value", "more", "message"),
    [
        ("${file:/nowhere/p:k}", {}, "Could not read properties from file /nowhere/p"),
        ("${env:path:K}", {}, "Path is not supported for EnvVarConfigProvider"),
        ("x", {"config.providers.file.param.allowed.paths": "relative"}, "not absolute"),
        ("x", {"config.providers.dir.param.allowed.paths": "/nowhere/at/all"}, "does not exist"),
        ("x", {"config.providers.env.param.allowlist.pattern": "("}, "allowlist.pattern"),
        ("x", {"config.providers.env.class": "org.example.Vault"}, "config.providers.env.class"),
    ],
)
def test_a_provider_that_cannot_work_is_refused(value: str, more: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        resolve({**PROVIDERS, **more, "a": value}, {})


def test_a_file_of_properties(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KALDA_TEST_HOURS", "7")
    lines = {
        **PROVIDERS,
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": "1@localhost:9093",
        "listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
        "controller.listener.names": "CONTROLLER",
        "log.retention.hours": "${env:KALDA_TEST_HOURS}",
    }
    file = tmp_path / "server.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    config = ServerConfig(read_properties(str(file), {"log.roll.hours": "1${env:KALDA_TEST_HOURS}"}))
    assert config["log.retention.hours"] == 7
    assert config["log.roll.hours"] == 17
    assert config.unknown == []
