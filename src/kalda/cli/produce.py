"""`kalda produce`: write lines as records.

A batch is sent when it is full, or when no line came for `_LINGER_MS`. So a file is written in large batches, and a
line that is typed is written at once.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kalda.base.errors import ApiError
from kalda.cli.completion import complete_topic
from kalda.cli.failures import Failure, failure_of
from kalda.cli.output import Progress, print_json
from kalda.cli.session import json_option, unescape, with_cluster

if TYPE_CHECKING:
    from kalda.client.cluster_client import ClusterClient
    from kalda.client.sender import Delivery, Sender
    from kalda.records.builder import NewRecord

_READ_BYTES = 256 * 1024
_MAX_LINE_BYTES = 64 * 1024 * 1024
_LINGER_MS = 5
_RECORD_OVERHEAD = 16
_HEADERS_END = b"\t"


class LineFormat(NamedTuple):
    """How a line is split into key, value and headers."""

    key_separator: bytes | None
    has_headers: bool
    null_marker: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    def parse(
        self, line: bytes, number: int
    ) -> tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]:
        """Key, value and headers of a line. Raises `Failure` where a separator is missing."""
        headers = self.headers
        if self.has_headers:
            text, tab, line = line.partition(_HEADERS_END)
            if not tab:
                raise Failure(f"line {number}: no tab after the headers in {_shown(text)}")
            headers = (*headers, *self._parse_headers(text, number))
        key: bytes | None = None
        value: bytes | None = line
        if self.key_separator is not None:
            key, separator, value = line.partition(self.key_separator)
            if not separator:
                raise Failure(f"line {number}: no key separator {_shown(self.key_separator)} in {_shown(line)}")
        if self.null_marker is not None:
            key = None if key == self.null_marker else key
            value = None if value == self.null_marker else value
        return key, value, headers

    def _parse_headers(self, text: bytes, number: int) -> Iterator[tuple[str, bytes | None]]:
        for header in text.split(b",") if text else ():
            name, colon, value = header.partition(b":")
            if not colon:
                raise Failure(f"line {number}: header {_shown(header)} is not NAME:VALUE")
            try:
                text_name = name.decode()
            except UnicodeDecodeError:
                raise Failure(f"line {number}: the name of header {_shown(header)} is not UTF-8") from None
            yield text_name, None if value == self.null_marker else value


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


def _shown(text: bytes) -> str:
    return repr(text[:40].decode("utf-8", "replace")) + ("…" if len(text) > 40 else "")


class _Batches:
    """Collects records into a batch for each partition.

    Records without a key go to one partition until its batch is full, so that batches are large (KIP-480).
    """

    def __init__(self, sender: Sender, topic: str, partitions: int, fixed: int | None, size: int, codec: Any) -> None:
        self.records = 0
        self._sender = sender
        self._topic = topic
        self._partitions = partitions
        self._fixed = fixed
        self._max_bytes = size
        self._codec = codec
        self._sticky = int.from_bytes(os.urandom(4), "big") % partitions
        """The partition that gets records without a key."""
        self._rows: dict[int, list[NewRecord]] = {}
        self._sizes: dict[int, int] = {}

    def add(self, row: NewRecord) -> None:
        _, key, value, headers = row
        partition = self._fixed
        if partition is None:
            partition = self._sticky if key is None else self._partition_of(key)
        size = len(key or b"") + len(value or b"") + _RECORD_OVERHEAD
        size += sum(len(name) + len(content or b"") for name, content in headers)
        if self._sizes.get(partition, 0) + size > self._max_bytes:
            self._send(partition)
        self._rows.setdefault(partition, []).append(row)
        self._sizes[partition] = self._sizes.get(partition, 0) + size
        self.records += 1

    def flush(self) -> None:
        """Send all batches, full or not."""
        for partition in list(self._rows):
            self._send(partition)

    def _partition_of(self, key: Any) -> int:
        from kalda.client.core.partitioner import partition_of

        return partition_of(key, self._partitions)

    def _send(self, partition: int) -> None:
        from kalda.records.builder import build_batch

        rows = self._rows.pop(partition, None)
        if rows:
            self._sizes[partition] = 0
            if partition == self._sticky:
                self._sticky = (self._sticky + 1) % self._partitions
            self._sender.send(self._topic, partition, build_batch(rows, compression=self._codec))


def _read_lines(fd: int) -> Iterator[list[bytes]]:
    """The lines of a descriptor, several at a time; an empty list when none came for `_LINGER_MS`."""
    rest = b""
    while True:
        if not select.select([fd], (), (), _LINGER_MS / 1000)[0]:
            yield []
            select.select([fd], (), ())
        chunk = os.read(fd, _READ_BYTES)
        if not chunk:
            break
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        if len(rest) > _MAX_LINE_BYTES:
            raise Failure(f"a line is longer than {_MAX_LINE_BYTES} bytes; check that the input has newlines")
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [rest]


@click.command()
@click.argument("topic", shell_complete=complete_topic)
@click.option(
    "--file", "path", type=click.Path(exists=True, dir_okay=False), help="Read lines from this file instead of stdin."
)
@click.option(
    "-K", "--key-separator", metavar="TEXT", help="The text between key and value in a line. [default: no keys]"
)
@click.option("-H", "--header", "headers", metavar="NAME=VALUE", multiple=True, help="A header of every record.")
@click.option("--parse-headers", is_flag=True, help="Lines begin with NAME:VALUE,NAME:VALUE and a tab.")
@click.option("--null-marker", metavar="TEXT", help="Write a key or value that is this text as null (a tombstone).")
@click.option("-p", "--partition", type=click.IntRange(min=0), help="Write to this partition. [default: by key]")
@click.option(
    "-z", "--compression", type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]), default="none",
    show_default=True, help="The compression codec of batches.",
)  # fmt: skip
@click.option(
    "--acks", type=click.Choice(["all", "-1", "1", "0"]), default="all", show_default=True,
    help="Which replicas have to write a batch before it is acknowledged: all in sync (all, -1), the leader (1), none "
    "(0).",
)  # fmt: skip
@click.option("--idempotent", is_flag=True, help="Number batches, so that a retry writes none twice.")
@click.option(
    "--batch-size", type=click.IntRange(1, 100_000_000), default=256 * 1024, show_default=True,
    help="Bytes of a batch before compression.",
)  # fmt: skip
@click.option("-q", "--quiet", is_flag=True, help="Do not print the number of records and the rate at the end.")
@json_option
@with_cluster
def produce(
    cluster: ClusterClient,
    topic: str,
    path: str | None,
    key_separator: str | None,
    headers: tuple[str, ...],
    parse_headers: bool,
    null_marker: str | None,
    partition: int | None,
    compression: str,
    acks: str,
    idempotent: bool,
    batch_size: int,
    quiet: bool,
    as_json: bool,
) -> None:
    """Write each line as a record to TOPIC.

    \b
    Examples:
      kalda produce orders < orders.txt
      echo 'alice:42' | kalda produce orders --key-separator :
      kalda produce orders --file orders.txt --compression zstd --idempotent
      printf 'trace:1,span:2\\talice:42\\n' | kalda produce orders --parse-headers -K :
    """
    from kalda.client.sender import Sender
    from kalda.records.compression import Compression

    if idempotent and acks not in ("all", "-1"):
        raise click.UsageError(f"--idempotent --acks {acks}: --idempotent requires --acks all")
    fixed = tuple(_header(text) for text in headers)
    layout = LineFormat(
        unescape("--key-separator", key_separator) if key_separator else None,
        parse_headers,
        None if null_marker is None else unescape("--null-marker", null_marker),
        fixed,
    )
    count = len(cluster.topic(topic).partitions)
    if partition is not None and partition >= count:
        raise Failure(f"topic {topic} has no partition {partition}; it has {count}, numbered from 0")
    report = _Report(topic)
    fd = os.open(path, os.O_RDONLY) if path is not None else sys.stdin.fileno()
    with Sender(
        cluster, acks=-1 if acks == "all" else int(acks), idempotent=idempotent, on_delivery=report.delivered
    ) as sender:
        batches = _Batches(sender, topic, count, partition, batch_size, Compression[compression.upper()])
        try:
            _produce(fd, layout, batches, sender, report)
        except ApiError as error:
            raise failure_of(error).also(f"{report.count} known to be written") from error
        finally:
            report.progress.clear()
    if as_json:
        print_json(report.as_json())
    elif not quiet:
        click.echo(report.line(report.progress.seconds), err=True)


def _produce(fd: int, layout: LineFormat, batches: _Batches, sender: Sender, report: _Report) -> None:
    """Write the lines. Where a line is malformed, the lines before it are written, then `Failure` is raised."""

    def flush() -> None:
        batches.flush()
        sender.flush()

    try:
        for lines in _read_lines(fd):
            if not lines:
                flush()
            now_ms = time.time_ns() // 1_000_000
            for line in lines:
                key, value, headers = layout.parse(line, batches.records + 1)
                batches.add((now_ms, key, value, headers))
            report.progress.step()
    except Failure as failure:
        flush()
        raise failure.also(f"{report.count} written before line {batches.records + 1}") from None
    flush()


class _Report:
    """Counts what was written."""

    def __init__(self, topic: str) -> None:
        self.progress = Progress(self.line)
        self._records = 0
        self._topic = topic
        self._bytes = 0
        self._next_offsets: dict[int, int] = {}

    def delivered(self, delivery: Delivery) -> None:
        self._records += delivery.records_count
        self._bytes += delivery.size_bytes
        if delivery.base_offset >= 0:
            self._next_offsets[delivery.partition] = delivery.base_offset + delivery.records_count

    @property
    def count(self) -> str:
        """The number of records, with its verb."""
        return "1 record is" if self._records == 1 else f"{self._records:,} records are"

    def line(self, seconds: float) -> str:
        return (
            f"{self._records:,} records ({self._bytes:,} bytes of batches) to {self._topic} in {seconds:.2f} s, "
            f"{self._records / seconds:,.0f} records/s, {self._bytes / seconds / 1e6:,.2f} MB/s"
        )

    def as_json(self) -> dict[str, object]:
        return {
            "topic": self._topic,
            "records": self._records,
            "batch_bytes": self._bytes,
            "seconds": round(self.progress.seconds, 3),
            "next_offsets": {str(partition): offset for partition, offset in sorted(self._next_offsets.items())},
        }
