"""The encodings of properties files: Java takes any bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kalda.base.configs.admin import ADMIN
from kalda.base.texts import decode_text, read_properties_file
from kalda.broker.process.disk import RealDisk
from kalda.cli.common.failures import Failure
from kalda.cli.common.profiles import client_config
from kalda.cli.elect import read_partitions
from kalda.cli.reassignment.plans import read_topics
from kalda.client.transport.config_files import read_config
from kalda.network.config_providers import read_properties
from kalda.network.named_files import read_named_text
from kalda.storage.checkpoints import read_meta_properties

COMMENTS = {
    "Latin-1": "# Répertoire des données, Größe\n".encode("latin-1"),
    "Windows-1251": "# Конфигурация\n".encode("cp1251"),
    "GBK": "# 数据目录\n".encode("gbk"),
    "Shift JIS": "# 表示\\\n".encode("shift_jis"),
    "a lone byte": b"# \xff\n",
    "a NUL": b"# \0\n",
    "the mark of UTF-8": b"\xef\xbb\xbf",
}


def of_a_node(path: Path) -> dict[str, str]:
    return read_properties(str(path))


def of_a_client(path: Path) -> dict[str, object]:
    return dict(read_config(ADMIN, path) or {})


def of_a_command(path: Path) -> dict[str, object]:
    return client_config(None, str(path), {})


def of_a_directory(path: Path) -> dict[str, str]:
    return read_meta_properties(RealDisk(), str(path)) or {}


READERS = [of_a_node, of_a_client, of_a_command, of_a_directory]


@pytest.mark.parametrize("comment", COMMENTS.values(), ids=COMMENTS.keys())
@pytest.mark.parametrize("read", READERS)
def test_a_comment_in_any_encoding_is_one(
    tmp_path: Path, read: Callable[[Path], dict[str, str]], comment: bytes
) -> None:
    path = tmp_path / "x.properties"
    path.write_bytes(comment + b"client.id=caf\\u00e9\n" + comment.lstrip(b"\xef\xbb\xbf"))
    assert read(path) == {"client.id": "café"}


def test_a_value_in_latin_1_or_in_utf_8_is_read() -> None:
    assert decode_text("é".encode("latin-1")) == decode_text("é".encode()) == "é"


@pytest.mark.parametrize("read", READERS)
def test_an_error_names_file_and_line(tmp_path: Path, read: Callable[[Path], dict[str, str]]) -> None:
    path = tmp_path / "x.properties"
    path.write_bytes(b"# a comment\r\na=1,\\\n  2\n\nclient.id=\\u12\n")
    with pytest.raises((ValueError, Failure), match=r"x\.properties, line 5: malformed \\u escape"):
        read(path)
    with pytest.raises(ValueError, match=str(tmp_path)):
        read_properties_file(path)


def test_plans_and_named_files_may_begin_with_the_mark_of_utf_8(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_bytes(
        b'\xef\xbb\xbf{"version": 1, "topics": [{"topic": "t"}], "partitions": [{"topic": "t", "partition": 0}]}'
    )
    assert read_topics(str(plan)) == ["t"]
    assert [str(partition) for partition in read_partitions(str(plan))] == ["t-0"]
    (tmp_path / "jaas.conf").write_bytes("// Größe".encode("latin-1"))
    assert read_named_text(tmp_path / "jaas.conf") == "// Größe"
