"""Lines to records, records to lines, times."""

from __future__ import annotations

import io
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest
from scripted_broker import ScriptedBroker

from kalda.base.ids import TopicPartition
from kalda.cli.common.command_admin import CommandAdmin
from kalda.cli.common.failures import Failure
from kalda.cli.common.session import unescape
from kalda.cli.common.times import moment_ago_ms, parse_time_ms, show_time
from kalda.cli.records.formats import Decoders, Filters, RecordLayout, RecordWriter, decoder_of, layout_of
from kalda.cli.records.places import PlaceKind, ReadPlace, offsets_of, parse_place
from kalda.cli.records.produce import EnvelopeFormat, LineFormat, read_pieces
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.partitions import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetSpec,
)
from kalda.records.batch import TimestampType
from kalda.records.consuming import Record


def test_a_line_without_layout_is_the_value() -> None:
    assert LineFormat(None, False, None, ()).parse(b"a:b\tc", 1) == (None, b"a:b\tc", (), None, None)


def test_a_line_with_all_parts() -> None:
    layout = LineFormat(b"=", True, b"NULL", (("fixed", b"1"),))
    key, value, headers, *_ = layout.parse(b"a:x,b:NULL\tkey=va=lue", 1)
    assert (key, value) == (b"key", b"va=lue")
    assert headers == (("fixed", b"1"), ("a", b"x"), ("b", None))
    assert layout.parse(b"\tkey=NULL", 1)[:3] == (b"key", None, (("fixed", b"1"),))


@pytest.mark.parametrize(
    ("line", "words"),
    [(b"no tab", "line 7: no tab"), (b"a:1\tno key", "line 7: no key separator"), (b"a\tk=v", "'a' is not NAME:VALUE")],
)
def test_the_failure_for_a_malformed_line_has_its_number(line: bytes, words: str) -> None:
    with pytest.raises(Failure, match=words):
        LineFormat(b"=", True, None, ()).parse(line, 7)


def test_a_header_name_that_is_not_utf8_is_refused_and_a_value_may_be_anything() -> None:
    layout = LineFormat(None, True, None, ())
    assert layout.parse(b"a:\xff\tv", 7)[2] == (("a", b"\xff"),)
    with pytest.raises(Failure, match=r"line 7: the name of header .* is not UTF-8"):
        layout.parse(b"\xff:1\tv", 7)


def fetched(kind: TimestampType = TimestampType.CREATE) -> list[Record]:
    return [
        Record("logs", 3, 10, 1_000, kind, b"k", b"value", (("h", b"1"), ("g", None))),
        Record("logs", 3, 11, 2_000, kind, None, None),
        Record("logs", 3, 12, -1, kind, b"\xff", b"\xfe\n"),
    ]


def test_text_with_everything(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    writer = RecordWriter(RecordLayout.TEXT, {"timestamp", "partition", "offset", "headers", "key"}, b"|")
    assert writer.write(fetched(), None) == 3
    assert capfdbinary.readouterr().out.split(b"\n") == [
        b"CreateTime:1000|Partition:3|Offset:10|h:1,g:null|k|value",
        b"CreateTime:2000|Partition:3|Offset:11|NO_HEADERS|null|null",
        b"NO_TIMESTAMP|Partition:3|Offset:12|NO_HEADERS|\xff|\xfe",
        b"",
        b"",
    ]
    writer.write(fetched(TimestampType.LOG_APPEND), 1)
    assert capfdbinary.readouterr().out.startswith(b"LogAppendTime:1000|")


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_no_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record may hold sequences by which a terminal clears its screen, or worse."""
    batch = [
        Record("logs", 3, 0, 1, TimestampType.CREATE, b"k\x1b[2J", "Grüße\n\x9b".encode(), (("h\x07", b"\x00"),)),
        Record("logs", 3, 1, 1, TimestampType.CREATE, None, b"\xff\x1b"),
    ]
    shown = {}
    for is_terminal in (True, False):
        stdout = (Terminal if is_terminal else io.TextIOWrapper)(io.BytesIO(), encoding="utf-8")
        monkeypatch.setattr("sys.stdout", stdout)
        RecordWriter(RecordLayout.TEXT, {"headers", "key"}, b"|").write(batch, None)
        RecordWriter(RecordLayout.RAW, set(), b"").write(batch, 1)
        shown[is_terminal] = stdout.buffer.getvalue()  # type: ignore[attr-defined]
    raw, escaped = "Grüße\n\x9b\n".encode(), "Grüße\\n\\x9b\n".encode()
    assert shown[True] == b"h\\x07:\\x00|k\\x1b[2J|" + escaped + b"NO_HEADERS|null|\\xff\\x1b\n" + escaped
    assert shown[False] == b"h\x07:\x00|k\x1b[2J|" + raw + b"NO_HEADERS|null|\xff\x1b\n" + raw


def test_a_limit_ends_behind_the_last_printed_record(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    writer = RecordWriter(RecordLayout.RAW, set(), b"")
    assert writer.write(fetched(), 2) == 2
    assert writer.count == 2
    assert capfdbinary.readouterr().out == b"value\n\n"


def test_records_that_a_closed_pipe_did_not_take_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[bytes] = []

    class Pipe:
        buffer: Pipe

        def write(self, data: bytes) -> None:
            if taken:
                raise BrokenPipeError
            taken.append(data)

        def flush(self) -> None:
            pass

        def isatty(self) -> bool:
            return False

    pipe = Pipe()
    pipe.buffer = pipe
    monkeypatch.setattr("sys.stdout", pipe)
    monkeypatch.setattr("kalda.cli.records.formats._LINES_A_WRITE", 2)
    writer = RecordWriter(RecordLayout.RAW, set(), b"")
    with pytest.raises(BrokenPipeError):
        writer.write(fetched(), None)
    assert (writer.count, taken) == (2, [b"value\n\n"])


def test_json_holds_any_bytes(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    RecordWriter(RecordLayout.JSON, set(), b"").write(fetched(), None)
    first, _, last = map(json.loads, capfdbinary.readouterr().out.splitlines())
    assert first["headers"] == [["h", "1"], ["g", None]]
    assert (first["topic"], first["partition"], first["offset"], first["key"]) == ("logs", 3, 10, "k")
    assert last["key"] == {"base64": "/w=="}


def printed(capfdbinary: pytest.CaptureFixture[bytes], layout: str, **options: object) -> bytes:
    RecordWriter(layout_of(layout), set(), b"", **options).write(fetched(), None)  # type: ignore[arg-type]
    return bytes(capfdbinary.readouterr().out)


def test_a_pipe_gets_the_bytes_of_each_record(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    every = bytes(range(256))
    record = Record("logs", 3, 0, 1, TimestampType.CREATE, every, every)
    for layout, expected in (
        ("%R%s", bytes([0, 0, 1, 0]) + every),
        ("%k|%s", every + b"|" + every),
        ("raw", every + b"\n"),
        ("text", every + b"\n"),
    ):
        RecordWriter(layout_of(layout), set(), b"").write([record], None)
        assert capfdbinary.readouterr().out == expected


def test_formats_of_kcat(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert printed(capfdbinary, "%t/%p@%o %T %K:%k %S:%s [%h]%%\\x21\\n") == (
        b"logs/3@10 1000 1:k 5:value [h=1,g=null]%!\nlogs/3@11 2000 -1: -1: []%!\nlogs/3@12 -1 1:\xff 2:\xfe\n []%!\n"
    )
    assert printed(capfdbinary, "%R")[:8] == bytes([0, 0, 0, 5, 255, 255, 255, 255])
    for wrong in ("lines", "%z"):
        with pytest.raises(click.UsageError, match=f"--format {wrong}"):
            printed(capfdbinary, wrong)


def test_filters(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    def offsets(**patterns: object) -> bytes:
        return printed(capfdbinary, "%o ", filters=Filters(**patterns))  # type: ignore[arg-type]

    assert offsets(value=re.compile(b"^val")) == b"10 "
    assert offsets(key=re.compile(b"\xff")) == b"12 "
    assert offsets(headers=(("g", re.compile(b"")),)) == b"10 "
    assert offsets(headers=(("h", re.compile(b"2")),)) == b""
    writer = RecordWriter(RecordLayout.RAW, set(), b"", filters=Filters(value=re.compile(b"\xfe")))
    assert (writer.write(fetched(), 1), writer.count) == (3, 1), "what is filtered out is behind the reader too"


def test_decoded_keys_and_values(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    record = Record("logs", 0, 7, 1, TimestampType.CREATE, (5).to_bytes(8, "big"), b'{"a": [1]}')
    decoders = Decoders(decoder_of("--key-as", "int"), decoder_of("--value-as", "json"))
    RecordWriter(RecordLayout.JSON, set(), b"", decoders=decoders).write([record], None)
    found = json.loads(capfdbinary.readouterr().out)
    assert (found["key"], found["value"]) == (5, {"a": [1]})
    RecordWriter("%k %s", set(), b"", decoders=decoders).write([record], None)
    assert capfdbinary.readouterr().out == b'5 {"a": [1]}'
    with pytest.raises(Failure, match="logs-3 at offset 12 cannot be decoded"):
        RecordWriter(RecordLayout.TEXT, set(), b"", decoders=Decoders(value=decoder_of("--value-as", "json"))).write(
            fetched()[2:], None
        )


def test_what_consume_prints_as_json_is_read_again(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    lines = printed(capfdbinary, "json").splitlines()
    found = [EnvelopeFormat((("added", b"1"),)).parse(line, 1) for line in lines]
    assert found[0] == (b"k", b"value", (("added", b"1"), ("h", b"1"), ("g", None)), 3, 1_000)
    assert found[1][:2] == (None, None)
    kcat = b'{"topic":"t","ts":5,"headers":["a","1"],"key":null,"payload":"v"}'
    assert EnvelopeFormat(()).parse(kcat, 1) == (None, b"v", (("a", b"1"),), None, 5)
    assert EnvelopeFormat(()).parse(b'{"value": {"n": 1}}', 1).value == b'{"n":1}'


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{", "line 4: no JSON"),
        (b"[]", "line 4: an object"),
        (b'{"vlaue": 1}', "'vlaue' is not a part of a record"),
        (b'{"key": {"base64": "?"}}', "'[?]' is not base64"),
        (b'{"headers": ["a"]}', "headers are an object"),
        (b'{"headers": [[1, "a"]]}', "the name of a header is text, not 1"),
        (b'{"partition": -1}', "the partition is a number from 0 on, not -1"),
        (b'{"timestamp": true}', "the timestamp is a number"),
    ],
)
def test_malformed_envelopes(line: bytes, words: str) -> None:
    with pytest.raises(Failure, match=words):
        EnvelopeFormat(()).parse(line, 4)


def test_pieces_between_any_delimiter(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"a\r\nb::c\n::d")
    with path.open("rb") as file:
        assert [piece for pieces in read_pieces(file.fileno(), b"::") for piece in pieces] == [b"a\r\nb", b"c\n", b"d"]
    with path.open("rb") as file:
        assert [piece for pieces in read_pieces(file.fileno(), b"\n") for piece in pieces] == [b"a", b"b::c", b"::d"]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("earliest", ReadPlace(PlaceKind.BEGINNING)),
        ("end", ReadPlace(PlaceKind.END)),
        ("42", ReadPlace(PlaceKind.OFFSET, 42)),
        ("offset:7", ReadPlace(PlaceKind.OFFSET, 7)),
        ("-100", ReadPlace(PlaceKind.LAST, 100)),
        ("-1h", ReadPlace(PlaceKind.TIME, 10**12 - 3_600_000, 3_600_000)),
        ("-1d12h500ms", ReadPlace(PlaceKind.TIME, 10**12 - 129_600_500, 129_600_500)),
        ("-PT1H", ReadPlace(PlaceKind.TIME, 10**12 - 3_600_000, 3_600_000)),
        ("timestamp:1500", ReadPlace(PlaceKind.TIME, 1_500)),
        ("s@1500", ReadPlace(PlaceKind.TIME, 1_500)),
        ("2001-09-09T01:46:40Z", ReadPlace(PlaceKind.TIME, 10**12)),
    ],
)
def test_places(text: str, place: ReadPlace) -> None:
    assert parse_place("--from", text, 10**12) == place


@pytest.mark.parametrize(
    "text", ["", "-", "-1x", "-h", "soon", str(2**63), "offset:x", "9" * 5000, "-" + "9" * 5000 + "h"]
)
def test_malformed_places(text: str) -> None:
    with pytest.raises(click.UsageError, match="--from"):
        parse_place("--from", text, 10**12)


def test_times() -> None:
    assert parse_time_ms("--from", "1500") == 1500
    assert (
        parse_time_ms("--from", "2026-01-31T12:00:00Z") == int(datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp()) * 1000
    )
    assert show_time(1_500) == "1970-01-01T00:00:01.500Z"
    assert show_time(-1) is None
    assert show_time(2**62) is None


@pytest.mark.parametrize("text", ["", "P", "PT", "1H", "PT1", "tomorrow"])
def test_malformed_durations(text: str) -> None:
    with pytest.raises(click.UsageError, match="--by-duration"):
        moment_ago_ms("--by-duration", text, 0)


def test_durations() -> None:
    now_ms = 1_000 * 86_400_000
    assert moment_ago_ms("--by-duration", "P1DT1H30M", now_ms) == now_ms - 91_800_000
    assert moment_ago_ms("--by-duration", "pt0.5s", now_ms) == now_ms - 500
    assert moment_ago_ms("--by-duration", "P1001D", now_ms) == 0, "negative timestamps have other meanings"


@pytest.mark.parametrize("text", ["soon", "", "1969-12-31", "0001-01-01", "9" * 25])
def test_malformed_times_and_times_beyond_the_requests_field(text: str) -> None:
    with pytest.raises(click.UsageError, match=f"--from {text}"):
        parse_time_ms("--from", text)


@pytest.mark.parametrize(("text", "meant"), [("\\t", b"\t"), ("ü|", "ü|".encode()), ("ü\\u2192", "ü→".encode())])
def test_escapes(text: str, meant: bytes) -> None:
    assert unescape("--separator", text) == meant


@pytest.mark.parametrize("text", ["\\x", "\\", "\\ud800", "\udcff"])
def test_malformed_escapes(text: str) -> None:
    with pytest.raises(click.UsageError, match="--separator"):
        unescape("--separator", text)


def test_an_end_by_time_is_not_behind_the_last_stable_offset() -> None:
    """With read_committed, nothing behind an open transaction is read: a command would wait for its end."""

    def answer(request: Any, _version: int) -> ListOffsetsResponse:
        (topic,) = request.topics
        is_latest = topic.partitions[0].timestamp == OffsetSpec.LATEST
        end = 1 if request.isolation_level else 5
        offset = end if is_latest else -1  # every record is older
        found = ListOffsetsPartitionResponse(partition_index=0, offset=offset)
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name=topic.name, partitions=[found])])

    with ScriptedBroker() as broker, CommandAdmin(broker.address) as admin:
        broker.topics["t"] = [1]
        broker.answers[ApiKey.LIST_OFFSETS] = answer
        place, partition = ReadPlace(PlaceKind.TIME, 1_000), TopicPartition("t", 0)
        assert offsets_of(admin, [partition], place, read_committed=True) == {partition: 1}
        assert offsets_of(admin, [partition], place) == {partition: 5}
