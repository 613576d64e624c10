"""`kalda consume`: records to lines, of whole topics or of some partitions, alone or as a member of a group."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.cli.completion import complete_group, complete_topic
from kalda.cli.formats import Layout, RecordWriter
from kalda.cli.session import MAX_INT64, unescape, with_cluster
from kalda.cli.times import parse_time_ms

if TYPE_CHECKING:
    from kalda.client.cluster_client import ClusterClient
    from kalda.client.consumer_fetcher import ConsumerFetcher, Fetched
    from kalda.client.group import GroupMember

_POLL_MS = 200
_COMMIT_MS = 5_000


@click.command()
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True, shell_complete=complete_topic)
@click.option(
    "--from", "start", metavar="WHERE", default="latest", show_default=True,
    help="beginning, latest, an offset (42), or a time (2026-01-31T12:00:00Z, timestamp:MS). With --group: where to "
    "begin what the group has no offset of; beginning or latest.",
)  # fmt: skip
@click.option("-p", "--partition", "partitions", type=click.IntRange(min=0), multiple=True, help="Only this partition.")
@click.option(
    "-g", "--group", "group_id", metavar="NAME", shell_complete=complete_group, help="As a member of a group."
)
@click.option("-n", "--max-messages", type=click.IntRange(min=1), metavar="N", help="Stop after so many.")
@click.option("--timeout-ms", type=click.IntRange(min=1), metavar="MS", help="Stop when none came for so long.")
@click.option("-e", "--exit-at-end", is_flag=True, help="Stop at what was the end when this began.")
@click.option(
    "-f", "--format", "layout", type=click.Choice([layout.value for layout in Layout]), default="text",
    show_default=True, help="text: a line each; json: an object a line; raw: values as they are.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option("--print-key", is_flag=True, help="Print the key before the value.")
@click.option("--print-timestamp", is_flag=True, help="Print who set the timestamp, and when it is.")
@click.option("--print-partition", is_flag=True, help="Print the partition.")
@click.option("--print-offset", is_flag=True, help="Print the offset.")
@click.option("--print-headers", is_flag=True, help="Print the headers, as NAME:VALUE,NAME:VALUE.")
@click.option("--separator", metavar="TEXT", default="\\t", show_default=True, help="What stands between them.")
@click.option(
    "--isolation-level", type=click.Choice(["read_uncommitted", "read_committed"]), default="read_uncommitted",
    show_default=True, help="Whether records of open and aborted transactions are shown.",
)  # fmt: skip
@with_cluster
def consume(
    cluster: ClusterClient,
    /,
    topics: tuple[str, ...],
    start: str,
    partitions: tuple[int, ...],
    group_id: str | None,
    max_messages: int | None,
    timeout_ms: int | None,
    exit_at_end: bool,
    layout: str,
    as_json: bool,
    separator: str,
    isolation_level: str,
    **prints: bool,
) -> None:
    """Read records of topics, and print them.

    Stops with Ctrl-C, or when --max-messages, --timeout-ms or --exit-at-end say so, and with a group commits what was
    printed.

    \b
    Examples:
      kalda consume orders --from beginning --max-messages 10 --print-key
      kalda consume orders --from 2026-01-31T12:00:00Z --format json | jq .value
      kalda consume orders payments --group billing --from beginning
    """
    writer = RecordWriter(
        Layout.JSON if as_json else Layout(layout),
        {name.removeprefix("print_") for name, wanted in prints.items() if wanted},
        unescape("--separator", separator),
    )
    reading = _Reading(cluster, writer, max_messages, timeout_ms, isolation_level == "read_committed")
    with _stop_politely():
        if group_id is None:
            _consume_alone(reading, topics, partitions, start, exit_at_end)
        else:
            if partitions or exit_at_end:
                raise click.UsageError(
                    "--partition and --exit-at-end are not for --group: the group gives partitions out"
                )
            _consume_in_group(reading, topics, group_id, start)
    click.echo(f"Processed a total of {writer.count} messages", err=True)


@contextmanager
def _stop_politely() -> Iterator[None]:
    """Ctrl-C, SIGTERM, SIGHUP, and a reader that has seen enough are how a consumer normally ends."""

    def stop(number: int, _: object) -> None:
        if number == signal.SIGHUP:
            # A terminal that is closed sends several. The next one must not end the leaving of the group.
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    if before[signal.SIGHUP] is signal.SIG_IGN:  # nohup
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _nobody_reads() -> bool:
    """The other end of the pipe is closed. Without asking, a consumer of a quiet topic would not notice for long."""
    watch = select.poll()
    watch.register(sys.stdout.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in watch.poll(0))


class _Reading:
    """One run: how much was printed, and when it is enough."""

    def __init__(
        self,
        cluster: ClusterClient,
        writer: RecordWriter,
        max_messages: int | None,
        timeout_ms: int | None,
        read_committed: bool,
    ) -> None:
        from kalda.client.retry import Deadline

        self.cluster = cluster
        self.read_committed = read_committed
        self.consumed: dict[TopicPartition, int] = {}
        """Where reading goes on after what was printed, since the last commit."""
        self._writer = writer
        self._max_messages = max_messages
        self._timeout_ms = timeout_ms
        self._patience = Deadline(timeout_ms or 0)

    @property
    def is_over(self) -> bool:
        if self._max_messages is not None and self._writer.count >= self._max_messages:
            return True
        return (self._timeout_ms is not None and self._patience.is_past) or _nobody_reads()

    def restart_patience(self) -> None:
        from kalda.client.retry import Deadline

        self._patience = Deadline(self._timeout_ms or 0)

    def take(self, fetched: Fetched) -> None:
        """Print the records, as many as are still wanted."""
        limit = None if self._max_messages is None else self._max_messages - self._writer.count
        partition = TopicPartition(fetched.topic, fetched.partition)
        next_offset = self._writer.write(fetched, limit)
        self.consumed[partition] = fetched.next_offset if next_offset is None else next_offset
        self.restart_patience()

    def fetcher(
        self, starts: dict[TopicPartition, int], ends: dict[TopicPartition, int] | None = None
    ) -> ConsumerFetcher:
        from kalda.client.consumer_fetcher import ConsumerFetcher, OutOfRange, Slice

        return ConsumerFetcher(
            self.cluster,
            [Slice(*partition, offset, ends[partition] if ends else None) for partition, offset in starts.items()],
            read_committed=self.read_committed,
            on_out_of_range=OutOfRange.EARLIEST,
            on_reset=_warn_of_reset,
            check_crcs=True,
        )


def _warn_of_reset(partition: TopicPartition, wanted: int, offset: int) -> None:
    click.echo(f"kalda: {partition} does not have offset {wanted}; reading goes on at {offset}", err=True)


def _consume_alone(
    reading: _Reading, topics: tuple[str, ...], partitions: tuple[int, ...], start: str, exit_at_end: bool
) -> None:
    from kalda.client.admin.offsets import list_offsets
    from kalda.protocol.messages.fetch import OffsetSpec

    cluster = reading.cluster
    wanted = [
        partition
        for topic in dict.fromkeys(topics)
        for partition in ([TopicPartition(topic, p) for p in partitions] or cluster.partitions(topic))
    ]
    cluster.leaders(wanted)
    starts = _starts(cluster, wanted, start)
    ends = None
    if exit_at_end:
        found = list_offsets(cluster, dict.fromkeys(wanted, OffsetSpec.LATEST), read_committed=reading.read_committed)
        ends = {partition: at.offset for partition, at in found.items()}
    with reading.fetcher(starts, ends) as fetcher:
        reading.restart_patience()
        while not (reading.is_over or fetcher.is_done):
            fetched = fetcher.poll(_POLL_MS)
            if fetched is not None:
                reading.take(fetched)


def _starts(cluster: ClusterClient, partitions: list[TopicPartition], start: str) -> dict[TopicPartition, int]:
    """Where to begin in each partition."""
    from kalda.client.admin.offsets import offsets_at
    from kalda.protocol.messages.fetch import OffsetSpec

    kind, colon, rest = start.partition(":")
    if start in ("beginning", "earliest"):
        return offsets_at(cluster, partitions, OffsetSpec.EARLIEST)
    if start in ("latest", "end"):
        return offsets_at(cluster, partitions, OffsetSpec.LATEST)
    offset = rest if colon and kind == "offset" else start
    if offset.isdecimal():
        if int(offset) > MAX_INT64:
            raise click.UsageError(f"--from {start}: no offset is larger than {MAX_INT64}")
        return dict.fromkeys(partitions, int(offset))
    moment = rest if colon and kind == "timestamp" else start
    return offsets_at(cluster, partitions, parse_time_ms("--from", moment))


def _consume_in_group(reading: _Reading, topics: tuple[str, ...], group_id: str, start: str) -> None:
    from kalda.client.group import GroupMember

    if start not in ("beginning", "earliest", "latest", "end"):
        raise click.UsageError(
            f"--from {start}: with --group it is beginning or latest; see kalda groups reset-offsets"
        )
    for topic in topics:
        reading.cluster.topic(topic)
    with GroupMember(reading.cluster, group_id, topics) as member:
        try:
            while not reading.is_over:
                assigned = member.join()
                reading.restart_patience()
                committed = member.committed()
                starts = {partition: at.offset for partition, at in committed.items()}
                fresh = [partition for partition in assigned if partition not in starts]
                if fresh:
                    starts |= _starts(reading.cluster, fresh, start)
                _read_assigned(reading, member, starts)
                _commit(reading, member)
        finally:
            _commit(reading, member)


def _read_assigned(reading: _Reading, member: GroupMember, starts: dict[TopicPartition, int]) -> None:
    """Until the group rebalances, or it is enough."""
    from kalda.client.retry import Deadline

    next_commit = Deadline(_COMMIT_MS)
    with reading.fetcher(starts) as fetcher:
        while not reading.is_over and member.poll():
            fetched = fetcher.poll(_POLL_MS)
            if fetched is not None:
                reading.take(fetched)
            if next_commit.is_past:
                _commit(reading, member)
                next_commit = Deadline(_COMMIT_MS)


def _commit(reading: _Reading, member: GroupMember) -> None:
    """Commit what was printed. In a rebalance it may be too late: then the next reader sees it once more."""
    offsets, reading.consumed = reading.consumed, {}
    try:
        member.commit(offsets)
    except ApiError as error:
        if error.code not in (
            ErrorCode.REBALANCE_IN_PROGRESS,
            ErrorCode.ILLEGAL_GENERATION,
            ErrorCode.UNKNOWN_MEMBER_ID,
        ):
            raise
        click.echo(f"kalda: offsets were not committed, as the group has moved on [{error.code.name}]", err=True)
