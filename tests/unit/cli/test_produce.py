"""`kalda produce`: headers as given, and a failure has the number of records that were written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from scripted_broker import ScriptedBroker

from kalda.base.errors import ErrorCode
from kalda.cli.commands import cli
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.partitions import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from kalda.protocol.messages.transactions import InitProducerIdResponse
from kalda.records.builder import read_records


def produce(tmp_path: Path, lines: str, *options: str) -> tuple[Result, int]:
    """The command's result with a broker that accepts one batch, and the number of Produce requests it received."""
    path = tmp_path / "lines"
    path.write_text(lines)
    with ScriptedBroker() as broker:
        Log(broker, 1)
        to = ["--bootstrap-server", broker.address, "--file", str(path)]
        result = CliRunner().invoke(cli, ["produce", "logs", *to, *options], prog_name="kalda")
    return result, len(broker.requests(ApiKey.PRODUCE))


class Log:
    """Refuses all batches after the first `accepted`."""

    def __init__(self, broker: ScriptedBroker, accepted: int) -> None:
        self.left = accepted
        broker.topics["logs"] = [1]
        broker.answers[ApiKey.PRODUCE] = self.produce
        broker.answers[ApiKey.INIT_PRODUCER_ID] = lambda request, version: InitProducerIdResponse(producer_id=1)

    def produce(self, request: Any, version: int) -> ProduceResponse:
        self.left -= 1
        code = ErrorCode.NONE if self.left >= 0 else ErrorCode.MESSAGE_TOO_LARGE
        partition = PartitionProduceResponse(index=0, error_code=code, base_offset=7)
        topic_id = request.topic_data[0].topic_id
        return ProduceResponse(
            responses=[TopicProduceResponse(name="logs", topic_id=topic_id, partition_responses=[partition])]
        )


def test_the_lines_before_a_malformed_line_are_written(tmp_path: Path) -> None:
    result, sent = produce(tmp_path, "a:1\nb:2\nc\nd:4\n", "-K", ":")
    assert result.exit_code == 1
    assert result.stderr == "kalda: line 3: no key separator ':' in 'c' (2 records are written before line 3)\n"
    assert sent == 1


class Registry:
    """Stands for a schema registry, whose address is `http://r`."""

    def __init__(self, url: str) -> None:
        if url != "http://r":
            raise ValueError(f"Invalid url {url}")

    def avro(self, *_: object, **__: object) -> Registry:
        return self

    def serialize(self, topic: str, value: object) -> bytes:
        if value != {"total": 1}:
            raise ValueError("total is no int")
        return b"1"


def test_values_with_a_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be encoded is one sentence, behind the records before it; a tombstone has no schema."""
    monkeypatch.setattr("kalda.registry.Registry", Registry)
    schema = tmp_path / "schema.avsc"
    schema.write_text("{}")
    options = ("--value-schema", str(schema), "--null-marker", "NULL", "-r")
    result, sent = produce(tmp_path, '{"total": 1}\nNULL\n', *options, "http://r")
    assert (result.exit_code, sent) == (0, 1)
    for line, words in (("x", "Expecting value"), ('{"total": 2}', "total is no int")):
        result, sent = produce(tmp_path, f'{{"total": 1}}\n{line}\n', *options, "http://r")
        assert (result.exit_code, sent) == (1, 1)
        assert result.stderr.startswith(f"kalda: logs: the serializer failed: {words}")
        assert result.stderr.endswith("(1 record is written before line 2)\n")
    result, _ = produce(tmp_path, "{}\n", *options, "r")
    assert result.stderr == f"kalda: --value-schema {schema} with --registry r: Invalid url r\n"


def test_a_refused_record(tmp_path: Path) -> None:
    result, _ = produce(tmp_path, "one\ntwo\nthree\n", "--batch-size", "1")
    assert result.exit_code == 1
    assert "logs-0" in result.stderr
    assert result.stderr.endswith("[MESSAGE_TOO_LARGE] (1 record is known to be written)\n")


def test_headers_may_be_repeated_and_their_values_have_any_bytes(tmp_path: Path) -> None:
    with ScriptedBroker() as broker:
        Log(broker, 1)
        arguments: list[str | bytes] = ["produce", "logs", "--bootstrap-server", broker.address]
        arguments += ["-H", "a=b", "-H", "a=c", "-H", b"raw=\xff=\xfe"]
        subprocess.run([sys.executable, "-m", "kalda", *arguments], input=b"line\n", check=True, capture_output=True)
        (request,) = broker.requests(ApiKey.PRODUCE)
    (record,) = read_records(request.topic_data[0].partition_data[0].records)
    assert record.headers == (("a", b"b"), ("a", b"c"), ("raw", b"\xff=\xfe"))


@pytest.mark.parametrize(
    ("header", "words"), [("a", "a: NAME=VALUE is expected"), ("\udcff=1", "\\xff=1: the name is not UTF-8")]
)
def test_a_malformed_header_is_a_wrong_command_line(tmp_path: Path, header: str, words: str) -> None:
    result, _ = produce(tmp_path, "one\n", "-H", header)
    assert result.exit_code == 2
    assert words in result.stderr
