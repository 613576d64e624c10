"""`kalda consume`: print records of topics or of some partitions, with or without a consumer group."""

from __future__ import annotations

import os
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
from kalda.cli.output import is_stdout_closed
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
    help="beginning, latest, an offset (42), or a time (2026-01-31T12:00:00Z, timestamp:MS). With --group: beginning "
    "or latest, for partitions of which the group has no offset.",
)  # fmt: skip
@click.option("-p", "--partition", "partitions", type=click.IntRange(min=0), multiple=True, help="Only this partition.")
@click.option(
    "-g", "--group", "group_id", metavar="NAME", shell_complete=complete_group, help="Read as a member of this group."
)
@click.option("-n", "--max-messages", type=click.IntRange(min=1), metavar="N", help="Stop after N records.")
@click.option("--timeout-ms", type=click.IntRange(min=1), metavar="MS", help="Stop when no record came for MS.")
@click.option("-e", "--exit-at-end", is_flag=True, help="Stop at the end that the partitions have at the start.")
@click.option(
    "-f", "--format", "layout", type=click.Choice([layout.value for layout in Layout]), default="text",
    show_default=True, help="text: one line a record, on a terminal without control characters; json: one object a "
    "line; raw: the values' bytes.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option("--print-key", is_flag=True, help="Print the key before the value.")
@click.option("--print-timestamp", is_flag=True, help="Print the timestamp and its type, CreateTime or LogAppendTime.")
@click.option("--print-partition", is_flag=True, help="Print the partition.")
@click.option("--print-offset", is_flag=True, help="Print the offset.")
@click.option("--print-headers", is_flag=True, help="Print the headers, as NAME:VALUE,NAME:VALUE.")
@click.option("--separator", metavar="TEXT", default="\\t", show_default=True, help="What separates these fields.")
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

    Stops with Ctrl-C, or by --max-messages, --timeout-ms or --exit-at-end. With --group, the offsets of printed records
    are committed.

    \b
    Examples:
      kalda consume orders --from beginning --max-messages 10 --print-key
      kalda consume orders --from 2026-01-31T12:00:00Z --format json | jq .value
      kalda consume orders payments --group billing --from beginning
    """
    writer = RecordWriter(
        Layout.JSON if as_json else Layout(layout),
        {name.removeprefix("print_") for name, is_given in prints.items() if is_given},
        unescape("--separator", separator),
    )
    reading = _Reading(cluster, writer, max_messages, timeout_ms, isolation_level == "read_committed")
    with _ending_normally():
        if group_id is None:
            _consume_alone(reading, topics, partitions, start, exit_at_end)
        else:
            if partitions or exit_at_end:
                raise click.UsageError(
                    "--partition and --exit-at-end cannot be used with --group: the group assigns partitions"
                )
            _consume_in_group(reading, topics, group_id, start)
    click.echo(f"Processed a total of {writer.count} messages", err=True)


@contextmanager
def _ending_normally() -> Iterator[None]:
    """Treat Ctrl-C, SIGTERM, SIGHUP and a closed stdout pipe as the normal end of a consumer."""

    def stop(number: int, _: object) -> None:
        if number == signal.SIGHUP:
            # When a terminal is closed, several SIGHUPs come. The next must not interrupt leaving the group.
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


class _Reading:
    """One run of the command: what was printed, and whether to stop."""

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
        """The offset after the last printed record, for partitions with printed records since the last commit."""
        self._writer = writer
        self._max_messages = max_messages
        self._timeout_ms = timeout_ms
        self._idle_until = Deadline(timeout_ms or 0)
        """With `timeout_ms`, when to stop unless a record comes."""

    @property
    def is_over(self) -> bool:
        if self._max_messages is not None and self._writer.count >= self._max_messages:
            return True
        return (self._timeout_ms is not None and self._idle_until.is_past) or is_stdout_closed()

    def restart_timeout(self) -> None:
        from kalda.client.retry import Deadline

        self._idle_until = Deadline(self._timeout_ms or 0)

    def show(self, fetched: Fetched) -> None:
        """Print the records, up to `max_messages` in all."""
        limit = None if self._max_messages is None else self._max_messages - self._writer.count
        partition = TopicPartition(fetched.topic, fetched.partition)
        next_offset = self._writer.write(fetched, limit)
        self.consumed[partition] = fetched.next_offset if next_offset is None else next_offset
        self.restart_timeout()

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


def _warn_of_reset(partition: TopicPartition, requested: int, offset: int) -> None:
    click.echo(f"kalda: {partition} does not have offset {requested}; reading continues at {offset}", err=True)


def _consume_alone(
    reading: _Reading, topics: tuple[str, ...], partitions: tuple[int, ...], start: str, exit_at_end: bool
) -> None:
    from kalda.client.admin.offsets import list_offsets
    from kalda.protocol.messages.fetch import OffsetSpec

    cluster = reading.cluster
    chosen = [
        partition
        for topic in dict.fromkeys(topics)
        for partition in ([TopicPartition(topic, p) for p in partitions] or cluster.partitions(topic))
    ]
    cluster.leaders(chosen)
    starts = _starts(cluster, chosen, start)
    ends = None
    if exit_at_end:
        found = list_offsets(cluster, dict.fromkeys(chosen, OffsetSpec.LATEST), read_committed=reading.read_committed)
        ends = {partition: at.offset for partition, at in found.items()}
    with reading.fetcher(starts, ends) as fetcher:
        reading.restart_timeout()
        while not (reading.is_over or fetcher.is_done):
            fetched = fetcher.poll(_POLL_MS)
            if fetched is not None:
                reading.show(fetched)


def _starts(cluster: ClusterClient, partitions: list[TopicPartition], start: str) -> dict[TopicPartition, int]:
    """The first offset to read of each partition, by the value of --from."""
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
            raise click.UsageError(f"--from {start}: an offset is at most {MAX_INT64}")
        return dict.fromkeys(partitions, int(offset))
    moment = rest if colon and kind == "timestamp" else start
    return offsets_at(cluster, partitions, parse_time_ms("--from", moment))


def _consume_in_group(reading: _Reading, topics: tuple[str, ...], group_id: str, start: str) -> None:
    from kalda.client.group import GroupMember

    if start not in ("beginning", "earliest", "latest", "end"):
        raise click.UsageError(
            f"--from {start}: with --group, give beginning or latest; kalda groups reset-offsets sets other offsets"
        )
    for topic in topics:
        reading.cluster.topic(topic)
    with GroupMember(reading.cluster, group_id, topics) as member:
        try:
            while not reading.is_over:
                assigned = member.join()
                reading.restart_timeout()
                committed = member.committed()
                starts = {partition: at.offset for partition, at in committed.items()}
                without_offset = [partition for partition in assigned if partition not in starts]
                if without_offset:
                    starts |= _starts(reading.cluster, without_offset, start)
                _read_assigned(reading, member, starts)
                _commit(reading, member)
        finally:
            _commit(reading, member)


def _read_assigned(reading: _Reading, member: GroupMember, starts: dict[TopicPartition, int]) -> None:
    """Read until the group rebalances, or the run is over."""
    from kalda.client.retry import Deadline

    next_commit = Deadline(_COMMIT_MS)
    with reading.fetcher(starts) as fetcher:
        while not reading.is_over and member.poll():
            fetched = fetcher.poll(_POLL_MS)
            if fetched is not None:
                reading.show(fetched)
            if next_commit.is_past:
                _commit(reading, member)
                next_commit = Deadline(_COMMIT_MS)


def _commit(reading: _Reading, member: GroupMember) -> None:
    """Commit the offsets of printed records. Where the partitions were reassigned meanwhile, the commit is refused and
    another member reads the records again."""
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
        click.echo(
            f"kalda: offsets were not committed, as the group has rebalanced; other members will read these records "
            f"again [{error.code.name}]",
            err=True,
        )
