"""Files that values name: nothing but a regular file of bounded size is opened."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kalda.base.configs.definition import InvalidConfig
from kalda.base.configs.resources import ConfigResourceType
from kalda.base.errors import ApiError, ErrorCode
from kalda.controller.config_schema import NodeConfigSchema
from kalda.metadata.configs import ConfigResource
from kalda.network.config_providers import resolve
from kalda.network.login.token_endpoint import _from_file, _key, _template
from kalda.network.login.token_validation import read_url
from kalda.network.named_files import MAX_BYTES, find_entry, read_named_file, refusal
from kalda.network.tls.contexts import TlsFailed, read_stores
from kalda.security.jaas import BadJaas
from kalda.security.tls_settings import TlsSettings


@pytest.fixture(params=["device", "link", "fifo", "directory", "large", "socket"])
def bad(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    path = tmp_path / "file"
    match request.param:
        case "device":
            return "/dev/zero"
        case "link":
            path.symlink_to("/dev/zero")
        case "fifo":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case "socket":
            os.mknod(path, 0o140600)
        case _:
            path.write_bytes(b"x" * (MAX_BYTES + 1))
    return str(path)


def test_only_regular_files_of_bounded_size_are_read(bad: str) -> None:
    with pytest.raises(OSError, match=r"it is not a regular file|it has more than 1048576 bytes"):
        read_named_file(bad)
    assert refusal(bad) in ("it is not a regular file", "it has more than 1048576 bytes")


def test_a_regular_file_is_read_whole_also_behind_a_link_or_with_a_size_of_0(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * MAX_BYTES)
    (tmp_path / "link").symlink_to("file")
    assert read_named_file(tmp_path / "link") == b"x" * MAX_BYTES
    assert refusal(str(tmp_path / "link")) is None
    assert read_named_file("/proc/self/status").startswith(b"Name:")


def test_a_file_that_grows_without_end_is_read_up_to_the_bound(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    zero = os.open("/dev/zero", os.O_RDONLY)
    monkeypatch.setattr(os, "open", lambda *_: zero)
    found = os.stat(tmp_path / "file")
    monkeypatch.setattr(os, "fstat", lambda _: found)
    with pytest.raises(OSError, match="it has more than 1048576 bytes"):
        read_named_file(tmp_path / "file")


def test_a_path_that_is_not_here_is_nothing_to_refuse(tmp_path: Path) -> None:
    assert refusal(str(tmp_path / "other" / "file")) is None
    assert refusal("a\0b") is not None
    with pytest.raises(FileNotFoundError):
        read_named_file(tmp_path / "file")


def _provided(path: str) -> object:
    providers = {
        "config.providers": "file",
        "config.providers.file.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
    }
    return resolve({**providers, "a": f"${{file:{path}:key}}"}, {})


@pytest.mark.parametrize(
    "read",
    [
        lambda path: read_stores(TlsSettings.of({"ssl.keystore.location": path}.get, "none")),
        lambda path: read_stores(TlsSettings.of({"ssl.truststore.location": path}.get, "none")),
        lambda path: read_url(f"file://{path}"),
        _from_file,
        lambda path: _key(path, ""),
        _template,
        _provided,
    ],
)
def test_every_reader_refuses_them(read: Callable[[str], object], bad: str) -> None:
    with pytest.raises((OSError, ValueError, TlsFailed, InvalidConfig)) as failure:
        read(bad)
    assert "regular file" in str(failure.value) or "more than 1048576 bytes" in str(failure.value)


def test_a_jaas_file_too(bad: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_OPTS", f"-Djava.security.auth.login.config={bad}")
    with pytest.raises(BadJaas, match="cannot be read"):
        find_entry(("KafkaServer",), "PLAIN")


@pytest.mark.parametrize("name", ["ssl.keystore.location", "listener.name.external.ssl.truststore.location"])
def test_the_controller_refuses_to_set_a_store_that_nobody_may_read(name: str, bad: str, tmp_path: Path) -> None:
    schema = NodeConfigSchema({}, refusal)
    broker = ConfigResource(ConfigResourceType.BROKER, "1")
    with pytest.raises(ApiError, match=r"regular file|more than") as failure:
        schema.validate(broker, {name: bad}, {})
    assert failure.value.code is ErrorCode.INVALID_CONFIG
    assert failure.value.message.startswith(f"Invalid value {bad} for configuration {name}: ")
    schema.validate(broker, {name: bad, "log.retention.ms": "1"}, {name: bad})
    schema.validate(broker, {name: str(tmp_path / "of another machine")}, {})
