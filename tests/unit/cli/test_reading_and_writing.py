"""Lines to records, records to lines, times."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime

import click
import pytest

from kalda.cli.failures import Failure
from kalda.cli.formats import Layout, RecordWriter
from kalda.cli.produce import LineFormat
from kalda.cli.session import unescape
from kalda.cli.times import moment_ago_ms, parse_time_ms, show_time
from kalda.client.consumer_fetcher import Fetched
from kalda.records.batch import TimestampType
from kalda.records.builder import build_batch


def test_a_line_without_layout_is_the_value() -> None:
    assert LineFormat(None, False, None, ()).parse(b"a:b\tc", 1) == (None, b"a:b\tc", ())


def test_a_line_with_all_parts() -> None:
    layout = LineFormat(b"=", True, b"NULL", (("fixed", b"1"),))
    key, value, headers = layout.parse(b"a:x,b:NULL\tkey=va=lue", 1)
    assert (key, value) == (b"key", b"va=lue")
    assert headers == (("fixed", b"1"), ("a", b"x"), ("b", None))
    assert layout.parse(b"\tkey=NULL", 1) == (b"key", None, (("fixed", b"1"),))


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


def fetched(**changes: object) -> Fetched:
    rows = [
        (1_000, b"k", b"value", (("h", b"1"), ("g", None))),
        (2_000, None, None, ()),
        (-1, b"\xff", b"\xfe\n", ()),
    ]
    batch = build_batch(rows, base_offset=10, **changes)  # type: ignore[arg-type]
    return Fetched("logs", 3, memoryview(batch), 10, None, 13, 13)


def test_text_with_everything(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    writer = RecordWriter(Layout.TEXT, {"timestamp", "partition", "offset", "headers", "key"}, b"|")
    assert writer.write(fetched(), None) is None
    assert capfdbinary.readouterr().out.split(b"\n") == [
        b"CreateTime:1000|Partition:3|Offset:10|h:1,g:null|k|value",
        b"CreateTime:2000|Partition:3|Offset:11|NO_HEADERS|null|null",
        b"NO_TIMESTAMP|Partition:3|Offset:12|NO_HEADERS|\\xff|\\xfe",
        b"",
        b"",
    ]
    writer.write(fetched(timestamp_type=TimestampType.LOG_APPEND, append_time_ms=5), 1)
    assert capfdbinary.readouterr().out.startswith(b"LogAppendTime:5|")


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_no_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record may hold sequences by which a terminal clears its screen, or worse."""
    rows = [(1, b"k\x1b[2J", "Grüße\n\x9b".encode(), (("h\x07", b"\x00"),)), (1, None, b"\xff\x1b", ())]
    batch = Fetched("logs", 3, memoryview(build_batch(rows)), 0, None, 2, 2)
    shown = {}
    for is_terminal in (True, False):
        stdout = (Terminal if is_terminal else io.TextIOWrapper)(io.BytesIO(), encoding="utf-8")
        monkeypatch.setattr("sys.stdout", stdout)
        RecordWriter(Layout.TEXT, {"headers", "key"}, b"|").write(batch, None)
        RecordWriter(Layout.RAW, set(), b"").write(batch, 1)
        shown[is_terminal] = stdout.buffer.getvalue()  # type: ignore[attr-defined]
    raw = "Grüße\n\x9b\n".encode()
    assert shown[True] == "h\\x07:\\x00|k\\x1b[2J|Grüße\\n\\x9b\nNO_HEADERS|null|\\xff\\x1b\n".encode() + raw
    assert shown[False] == b"h\x07:\x00|k\x1b[2J|" + raw + b"NO_HEADERS|null|\\xff\x1b\n" + raw


def test_a_limit_returns_the_next_offset(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    writer = RecordWriter(Layout.RAW, set(), b"")
    assert writer.write(fetched(), 2) == 12
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
    monkeypatch.setattr("kalda.cli.formats._LINES_A_WRITE", 2)
    writer = RecordWriter(Layout.RAW, set(), b"")
    with pytest.raises(BrokenPipeError):
        writer.write(fetched(), None)
    assert (writer.count, taken) == (2, [b"value\n\n"])


def test_json_holds_any_bytes(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    RecordWriter(Layout.JSON, set(), b"").write(fetched(), None)
    first, _, last = map(json.loads, capfdbinary.readouterr().out.splitlines())
    assert first["headers"] == [["h", "1"], ["g", None]]
    assert (first["topic"], first["partition"], first["offset"], first["key"]) == ("logs", 3, 10, "k")
    assert last["key"] == {"base64": "/w=="}


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
