"""`kalda produce`: lines, JSON envelopes or files as records, over the blocking producer."""

from __future__ import annotations

import binascii
import json
import os
import sys
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from kalda.base.errors import ApiError
from kalda.base.texts import decode_text
from kalda.cli.common.completing import complete_topic
from kalda.cli.common.failures import Failure, failure_of
from kalda.cli.common.nouns import KaldaCommand
from kalda.cli.common.output import ProgressLine, is_json, print_json
from kalda.cli.common.session import json_option, unescape, with_cluster
from kalda.cli.common.times import parse_time_ms

if TYPE_CHECKING:
    from kalda.cli.common.command_admin import CommandAdmin
    from kalda.client.producer.producer import Producer
    from kalda.clientcore.producing.producer_batch import RecordMetadata
    from kalda.registry import RegistrySerializer

_BATCH_BYTES = 256 * 1024
_MAX_REQUEST_BYTES = 100_000_000
"""What is too large is refused by the broker, which has its own limit."""
_LINGER_MS = 5
_SHORTEST_WITH_LINGER_MS = 100


def _header(text: str) -> tuple[str, bytes]:
    """A value of --header. Names may be repeated, as in Kafka. A value may have any bytes; a name is UTF-8."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise click.UsageError(f"--header {_printable(text)}: NAME=VALUE is expected")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise click.UsageError(f"--header {_printable(text)}: the name is not UTF-8") from None
    return name.strip(), os.fsencode(value)


def _printable(text: str) -> str:
    """An argument of the command line, with the bytes that are not UTF-8 escaped."""
    return os.fsencode(text).decode("utf-8", "backslashreplace")


@click.command(cls=KaldaCommand)
@click.argument("topic", shell_complete=complete_topic)
@click.argument("files", metavar="[FILE]...", nargs=-1, type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--file", "more_files", type=click.Path(exists=True, dir_okay=False), multiple=True,
    help="Read this file instead of stdin. The same as FILE.",
)  # fmt: skip
@click.option(
    "-f", "--format", "layout", type=click.Choice(["text", "json", "file"]), default="text", show_default=True,
    help="text: one record a line; json: one JSON object a line, as `kalda consume --format json` and `kcat -J` print "
    "it; file: each file is one record.",
)  # fmt: skip
@click.option(
    "-D", "--delimiter", metavar="TEXT", default="\\n", show_default=True, help="The text between two records."
)
@click.option("-k", "--key", metavar="TEXT", help="The key of every record.")
@click.option(
    "-K", "--key-separator", metavar="TEXT", help="The text between key and value in a line. [default: no keys]"
)
@click.option("-H", "--header", "headers", metavar="NAME=VALUE", multiple=True, help="A header of every record.")
@click.option("--parse-headers", is_flag=True, help="Lines begin with NAME:VALUE,NAME:VALUE and a tab.")
@click.option("--null-marker", metavar="TEXT", help="Write a key or value that is this text as null (a tombstone).")
@click.option(
    "-Z", "--empty-as-null", is_flag=True, help="Write an empty key or value as null. The same as --null-marker ''."
)
@click.option("-p", "--partition", type=click.IntRange(min=0), help="Write to this partition. [default: by key]")
@click.option(
    "--timestamp",
    metavar="WHEN",
    help="Of every record: 2026-01-31T12:00:00Z (UTC without a zone), or ms since 1970. [default: now]",
)
@click.option(
    "-z", "--compression", type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]), default=None,
    help="The compression codec of batches. [default: none]",
)  # fmt: skip
@click.option("--compression-level", type=int, help="Of gzip, lz4 and zstd.")
@click.option(
    "--acks", type=click.Choice(["all", "-1", "1", "0"]), default=None,
    help="Which replicas have to write a batch before it is acknowledged: all in sync (all, -1), the leader (1), none "
    "(0). [default: all]",
)  # fmt: skip
@click.option(
    "--idempotent", is_flag=True, help="Number batches, so that a retry writes none twice. The default with --acks all."
)
@click.option(
    "--batch-size", type=click.IntRange(1, _MAX_REQUEST_BYTES), default=None,
    help=f"Bytes of a batch before compression. [default: {_BATCH_BYTES}]",
)  # fmt: skip
@click.option("-r", "--registry", "registry_url", metavar="URL", help="The schema registry of the schemas.")
@click.option(
    "--key-schema", type=click.Path(exists=True, dir_okay=False), help="Keys are JSON; encode them by this schema."
)
@click.option(
    "--value-schema", type=click.Path(exists=True, dir_okay=False),
    help="Values are JSON; encode them by this schema: Avro in a file *.avsc, else JSON Schema.",
)  # fmt: skip
@click.option("-q", "--quiet", is_flag=True, help="Do not print the number of records and the rate at the end.")
@json_option
@with_cluster
def produce(
    admin: CommandAdmin,
    topic: str,
    files: tuple[str, ...],
    more_files: tuple[str, ...],
    layout: str,
    delimiter: str,
    key: str | None,
    key_separator: str | None,
    headers: tuple[str, ...],
    parse_headers: bool,
    null_marker: str | None,
    empty_as_null: bool,
    partition: int | None,
    timestamp: str | None,
    compression: str | None,
    compression_level: int | None,
    acks: str | None,
    idempotent: bool,
    batch_size: int | None,
    registry_url: str | None,
    key_schema: str | None,
    value_schema: str | None,
    quiet: bool,
) -> None:
    """Write each line of stdin, or of FILEs, as a record to TOPIC.

    A record that is typed is sent at once; what comes faster is sent in large batches.

    \b
    Examples:
      kalda produce orders < orders.txt
      echo 'alice:42' | kalda produce orders --key-separator :
      kalda produce orders orders.txt --compression zstd
      printf 'trace:1,span:2\\talice:42\\n' | kalda produce orders --parse-headers -K :
      kalda consume orders --from beginning -e --json | kalda produce copy --format json
      kalda produce pictures --format file *.png
    """
    if idempotent and acks not in (None, "all", "-1"):
        raise click.UsageError(f"--idempotent --acks {acks}: --idempotent requires --acks all")
    paths = (*files, *more_files)
    if layout == "file" and not paths:
        raise click.UsageError("--format file: name the files, each of which is one record")
    fixed = tuple(_header(text) for text in headers)
    fixed_key = None if key is None else unescape("--key", key)
    null = b"" if empty_as_null else None if null_marker is None else unescape("--null-marker", null_marker)
    separator = unescape("--key-separator", key_separator) if key_separator else None
    lines = LineFormat(separator, parse_headers, null, fixed, fixed_key)
    timestamp_ms = None if timestamp is None else parse_time_ms("--timestamp", timestamp)
    settings = _settings(admin, compression, compression_level, acks, idempotent, batch_size)
    settings |= _serializers(registry_url, key_schema, value_schema)
    count = _partitions(admin, topic, partition)
    report = _Report(topic)
    with _producer(settings) as producer:
        run = _Run(producer, topic, count, partition, timestamp_ms, report)
        try:
            if layout == "file":
                run.write_files(paths, fixed_key, fixed)
            else:
                parse = EnvelopeFormat(fixed).parse if layout == "json" else lines.parse
                run.write_pieces(paths, unescape("--delimiter", delimiter), parse)
        except ApiError as error:
            raise failure_of(error).also(f"{report.count} known to be written") from error
        finally:
            report.progress.clear()
    if is_json():
        print_json(report.as_json())
    elif not quiet:
        click.echo(report.line(report.progress.seconds), err=True)


def _partitions(admin: CommandAdmin, topic: str, partition: int | None) -> int:
    """The number of the topic's partitions. Raises `Failure` where it does not have the one that was chosen."""
    count = len(admin.topic(topic).partitions)
    if partition is not None and partition >= count:
        raise Failure(f"topic {topic} has no partition {partition}; it has {count}, numbered from 0")
    return count


def _settings(
    admin: CommandAdmin,
    compression: str | None,
    compression_level: int | None,
    acks: str | None,
    idempotent: bool,
    batch_size: int | None,
) -> dict[str, object]:
    """The producer's configuration: the options, then the keys that were given, then defaults for large batches."""
    from kalda.base.configs.producer import PRODUCER
    from kalda.client.transport.config_files import keys_of

    linger_ms = _LINGER_MS if admin.timeout_ms >= _SHORTEST_WITH_LINGER_MS else 0
    options: dict[str, object] = {}
    if compression is not None:
        options["compression.type"] = compression
    if compression_level is not None:
        if compression not in ("gzip", "lz4", "zstd"):
            raise click.UsageError("--compression-level: choose --compression gzip, lz4 or zstd too")
        options[f"compression.{compression}.level"] = compression_level
    if acks is not None:
        options["acks"] = acks
    if idempotent:
        options["enable.idempotence"] = True
    if batch_size is not None:
        options["batch.size"] = batch_size
    return {
        "batch.size": _BATCH_BYTES,
        "linger.ms": linger_ms,
        "max.request.size": _MAX_REQUEST_BYTES,
        "buffer.memory": 2 * _MAX_REQUEST_BYTES,
        "request.timeout.ms": max(1, min(30_000, admin.timeout_ms - linger_ms)),
        "delivery.timeout.ms": admin.timeout_ms,
        "max.block.ms": admin.timeout_ms,
        **keys_of(PRODUCER, admin.config),
        **options,
    }


def _serializers(registry_url: str | None, key_schema: str | None, value_schema: str | None) -> dict[str, object]:
    """Of keys and values that have a schema. Raises `click.UsageError`, and `Failure` without the library."""
    found: dict[str, object] = {}
    for name, path in (("key", key_schema), ("value", value_schema)):
        if path is None:
            continue
        if registry_url is None:
            raise click.UsageError(f"--{name}-schema: --registry URL is needed, where the schema is registered")
        try:
            from kalda.registry import Registry

            registry, schema, is_key = Registry(registry_url), decode_text(Path(path).read_bytes()), name == "key"
            is_avro = path.endswith(".avsc")
            codec = registry.avro(schema, is_key=is_key) if is_avro else registry.json_schema(schema, is_key=is_key)
        except ImportError as error:
            raise Failure(str(error)) from error
        except Exception as error:  # of the library, for what is no schema and for a URL that is none
            raise Failure(f"--{name}-schema {path} with --registry {registry_url}: {error}") from error
        found[f"{name}.serializer"] = _FromJson(codec)
    return found


class _FromJson:
    """Encodes JSON text by a schema."""

    def __init__(self, codec: RegistrySerializer) -> None:
        self._codec = codec

    def serialize(self, topic: str, value: bytes | None) -> bytes | None:
        return None if value is None else self._codec.serialize(topic, json.loads(value))


@contextmanager
def _producer(settings: dict[str, object]) -> Iterator[Producer]:
    from kalda.base.configs.definition import InvalidConfig
    from kalda.client.producer.producer import Producer

    try:
        producer = Producer(settings)
    except InvalidConfig as error:
        raise click.UsageError(str(error)) from error
    with producer:
        yield producer


class _Run:
    """Sends the records of one command."""

    def __init__(
        self,
        producer: Producer,
        topic: str,
        partitions: int,
        partition: int | None,
        timestamp_ms: int | None,
        report: _Report,
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._partitions = partitions
        self._partition = partition
        self._timestamp_ms = timestamp_ms
        self._report = report
        self._records = 0

    def write_pieces(self, paths: tuple[str, ...], delimiter: bytes, parse: Parse) -> None:
        """A record for each piece of the files, or of stdin. Where one is malformed, those before it are written, then
        `Failure` is raised. Raises `ApiError` for a record that was not written."""
        if not delimiter:
            raise click.UsageError("--delimiter is empty; --format file writes a file as one record")
        try:
            for fd in _opened(paths):
                for pieces in read_pieces(fd, delimiter):
                    for piece in pieces:
                        self._send(parse(piece, self._records + 1))
                    self._report.progress.step()
                    self._report.raise_error()
        except Failure as failure:
            self._flush()
            raise failure.also(f"{self._report.count} written before line {self._records + 1}") from None
        self._flush()

    def write_files(self, paths: tuple[str, ...], key: bytes | None, headers: tuple[tuple[str, bytes], ...]) -> None:
        """A record for each file. Raises `ApiError`."""
        for path in paths:
            self._send(InputRecord(key, Path(path).read_bytes(), headers))
            self._report.progress.step()
            self._report.raise_error()
        self._flush()

    def _send(self, record: InputRecord) -> None:
        from kalda.clientcore.producing.producer_errors import SerializationError

        partition = record.partition if self._partition is None else self._partition
        if partition is not None and partition >= self._partitions:
            raise Failure(f"topic {self._topic} has no partition {partition}; it has {self._partitions}")
        self._report.read_bytes += len(record.key or b"") + len(record.value or b"")
        try:
            self._producer.send(
                self._topic,
                record.value,
                record.key,
                partition,
                record.timestamp_ms if self._timestamp_ms is None else self._timestamp_ms,
                record.headers,
                self._report.delivered,
            )
        except SerializationError as error:
            raise Failure(str(error)) from error
        self._records += 1

    def _flush(self) -> None:
        self._producer.flush()
        self._report.raise_error()


def _opened(paths: tuple[str, ...]) -> Iterator[int]:
    """Descriptors of the files, one after the other; without files, that of stdin."""
    if not paths:
        yield sys.stdin.fileno()
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            yield fd
        finally:
            os.close(fd)


class _Report:
    """Counts what was written. The producer's thread calls `delivered`."""

    def __init__(self, topic: str) -> None:
        self.progress = ProgressLine(self.line)
        self.read_bytes = 0
        """Bytes of the keys and values that were sent."""
        self._error: Exception | None = None
        """Why the first record that was not written was not."""
        self._records = 0
        self._topic = topic
        self._next_offsets: dict[int, int] = {}

    def delivered(self, metadata: RecordMetadata, error: Exception | None) -> None:
        """A record is acknowledged, or has failed."""
        if error is not None:
            self._error = self._error or error
            return
        self._records += 1
        if metadata.offset >= self._next_offsets.get(metadata.partition, 0):
            self._next_offsets[metadata.partition] = metadata.offset + 1

    def raise_error(self) -> None:
        """Raises the first error of a record."""
        if self._error is not None:
            raise self._error

    @property
    def count(self) -> str:
        """The number of records, with its verb."""
        return "1 record is" if self._records == 1 else f"{self._records:,} records are"

    def line(self, seconds: float) -> str:
        noun = "record" if self._records == 1 else "records"
        rate = f"{self._records / seconds:,.0f}"
        rate += " record/s" if rate == "1" else " records/s"
        return (
            f"{self._records:,} {noun} ({self.read_bytes:,} bytes of keys and values) to {self._topic} in "
            f"{seconds:.2f} s, {rate}, {self.read_bytes / seconds / 1e6:,.2f} MB/s"
        )

    def as_json(self) -> dict[str, object]:
        return {
            "topic": self._topic,
            "records": self._records,
            "bytes": self.read_bytes,
            "seconds": round(self.progress.seconds, 3),
            "next_offsets": {str(partition): offset for partition, offset in sorted(self._next_offsets.items())},
        }


Header = tuple[str, bytes | None]
_READ_BYTES = 256 * 1024
_MAX_RECORD_BYTES = 64 * 1024 * 1024
_HEADERS_END = b"\t"
_ENVELOPE = frozenset(
    ("topic", "partition", "offset", "timestamp", "ts", "tstype", "broker", "key", "value", "payload", "headers")
)
"""Names in what `kalda consume --format json` and `kcat -J` print."""


class InputRecord(NamedTuple):
    """`partition` and `timestamp_ms` are None where the input does not have them."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]
    partition: int | None = None
    timestamp_ms: int | None = None


Parse = Callable[[bytes, int], InputRecord]
"""A record of a piece of input and its number, from 1. Raises `Failure`."""


class LineFormat(NamedTuple):
    """How a line is split into key, value and headers."""

    key_separator: bytes | None
    has_headers: bool
    null_marker: bytes | None
    headers: tuple[Header, ...]
    key: bytes | None = None
    """Of every record, where lines have no key."""

    def parse(self, line: bytes, number: int) -> InputRecord:
        """Key, value and headers of a line. Raises `Failure` where a separator is missing."""
        headers = self.headers
        if self.has_headers:
            text, tab, line = line.partition(_HEADERS_END)
            if not tab:
                raise Failure(f"line {number}: no tab after the headers in {shown(text)}")
            headers = (*headers, *self._parse_headers(text, number))
        key: bytes | None = self.key
        value: bytes | None = line
        if self.key_separator is not None:
            key, separator, value = line.partition(self.key_separator)
            if not separator:
                raise Failure(f"line {number}: no key separator {shown(self.key_separator)} in {shown(line)}")
        if self.null_marker is not None:
            key = None if key == self.null_marker else key
            value = None if value == self.null_marker else value
        return InputRecord(key, value, headers)

    def _parse_headers(self, text: bytes, number: int) -> Iterator[Header]:
        for header in text.split(b",") if text else ():
            name, colon, value = header.partition(b":")
            if not colon:
                raise Failure(f"line {number}: header {shown(header)} is not NAME:VALUE")
            try:
                text_name = name.decode()
            except UnicodeDecodeError:
                raise Failure(f"line {number}: the name of header {shown(header)} is not UTF-8") from None
            yield text_name, None if value == self.null_marker else value


class EnvelopeFormat(NamedTuple):
    """One JSON object a line, as `kalda consume --format json` and `kcat -J` print it. Its topic and offset are not
    used."""

    headers: tuple[Header, ...]

    def parse(self, line: bytes, number: int) -> InputRecord:
        """The record of an object. Raises `Failure`."""
        try:
            found = json.loads(line)
        except ValueError as error:
            raise Failure(f"line {number}: no JSON: {error}") from None
        if not isinstance(found, dict):
            raise Failure(f"line {number}: an object like {{'key': 'k', 'value': 'v'}} is expected, not {shown(line)}")
        unknown = sorted(found.keys() - _ENVELOPE)
        if unknown:
            known = ", ".join(sorted(_ENVELOPE))
            raise Failure(f"line {number}: {unknown[0]!r} is not a part of a record; those are {known}")
        return InputRecord(
            _content(found.get("key"), number),
            _content(found.get("value", found.get("payload")), number),
            (*self.headers, *_headers(found.get("headers"), number)),
            _number(found.get("partition"), "partition", number),
            _number(found.get("timestamp", found.get("ts")), "timestamp", number),
        )


def _content(value: object, number: int) -> bytes | None:
    """Text as UTF-8, `{"base64": TEXT}` as its bytes, any other JSON as JSON."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, dict) and value.keys() == {"base64"}:
        try:
            return b64decode(value["base64"], validate=True)
        except (TypeError, ValueError, binascii.Error):
            raise Failure(f"line {number}: {value['base64']!r} is not base64") from None
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _headers(value: object, number: int) -> Iterator[Header]:
    """Of an object, of pairs, or of names and values in turn, as kcat prints them."""
    if value is None:
        return
    pairs: list[tuple[object, object]]
    if isinstance(value, dict):
        pairs = list(value.items())
    elif isinstance(value, list) and all(isinstance(each, list) and len(each) == 2 for each in value):
        pairs = [(name, content) for name, content in value]
    elif isinstance(value, list) and len(value) % 2 == 0:
        pairs = list(zip(value[::2], value[1::2], strict=True))
    else:
        raise Failure(f"line {number}: headers are an object, or a list of names and values")
    for name, content in pairs:
        if not isinstance(name, str):
            raise Failure(f"line {number}: the name of a header is text, not {name!r}")
        yield name, _content(content, number)


def _number(value: object, what: str, number: int) -> int | None:
    if value is None or (value == -1 and what == "timestamp"):  # a record without a timestamp
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise Failure(f"line {number}: the {what} is a number from 0 on, not {value!r}")
    return value


def read_pieces(fd: int, delimiter: bytes) -> Iterator[list[bytes]]:
    """What stands between delimiters, several pieces at a time, as soon as it has come. Where lines are read, a
    carriage return before the newline is not a part of the line. Raises `Failure`."""
    rest = b""
    while chunk := os.read(fd, _READ_BYTES):
        pieces = (rest + chunk).split(delimiter)
        rest = pieces.pop()
        if len(rest) > _MAX_RECORD_BYTES:
            raise Failure(
                f"a record is longer than {_MAX_RECORD_BYTES} bytes; check that the input has {shown(delimiter)} "
                "between its records"
            )
        if pieces:
            yield [piece.removesuffix(b"\r") for piece in pieces] if delimiter == b"\n" else pieces
    if rest:
        yield [rest]


def shown(text: bytes) -> str:
    """The beginning of a text, for messages."""
    return repr(text[:40].decode("utf-8", "replace")) + ("…" if len(text) > 40 else "")
