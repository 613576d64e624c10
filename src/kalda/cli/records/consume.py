"""`kalda consume`: print records of topics or of some partitions, alone, in a consumer group or in a share group."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from kalda.base.errors import ApiError
from kalda.base.ids import TopicPartition
from kalda.cli.common.completing import complete_group, complete_topic
from kalda.cli.common.failures import Failure, interruptible
from kalda.cli.common.nouns import KaldaCommand
from kalda.cli.common.output import is_stdout_closed
from kalda.cli.common.session import unescape, with_cluster
from kalda.cli.records.formats import DECODED_AS, Decoders, Filters, RecordLayout, RecordWriter, decoder_of, layout_of
from kalda.cli.records.places import PlaceKind, ReadPlace, offsets_of, parse_place

if TYPE_CHECKING:
    from kalda.cli.common.command_admin import CommandAdmin
    from kalda.client.consumer.consumer import Consumer
    from kalda.clientcore.connections.metadata import Topic
    from kalda.records.consuming import Record

_POLL_S = 0.2
_POLL_RECORDS = 2_000
_COMMIT_S = 5.0
_NEW_TOPICS_S = 3.0
"""How often topics are compared with regular expressions again."""
_NEW_TOPICS_TIMEOUT_MS = 2_000


@click.command(cls=KaldaCommand)
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True, shell_complete=complete_topic)
@click.option(
    "--from", "start", metavar="WHERE", default="latest", show_default=True,
    help="beginning, latest, an offset (42), records before the end (-100), a time ago (-1h, -2d12h), or a time "
    "(2026-01-31T12:00:00Z, UTC without a zone; timestamp:MS). With --group: beginning, latest or a time ago, for "
    "partitions of which the group has no offset.",
)  # fmt: skip
@click.option(
    "--until", "until", metavar="WHERE", help="Stop there, in each partition: written as --from. Not with --group."
)
@click.option(
    "--last", type=click.IntRange(min=1), metavar="N",
    help="The last N records of each partition. The same as --from -N --exit-at-end.",
)  # fmt: skip
@click.option("-p", "--partition", "partitions", type=click.IntRange(min=0), multiple=True, help="Only this partition.")
@click.option(
    "-g", "--group", "group_id", metavar="NAME", shell_complete=complete_group, help="Read as a member of this group."
)
@click.option(
    "--share", "share_group", metavar="NAME", shell_complete=complete_group,
    help="Read as a member of this share group: printed records are accepted, others released.",
)  # fmt: skip
@click.option("-n", "--max-messages", type=click.IntRange(min=1), metavar="N", help="Stop after N records.")
@click.option("--timeout-ms", type=click.IntRange(min=1), metavar="MS", help="Stop when no record came for MS.")
@click.option("-e", "--exit-at-end", is_flag=True, help="Stop at the end that the partitions have at the start.")
@click.option("--key-filter", metavar="REGEX", help="Only records with this in their key.")
@click.option("--value-filter", metavar="REGEX", help="Only records with this in their value.")
@click.option(
    "--header-filter", "header_filters", metavar="NAME[=REGEX]", multiple=True,
    help="Only records with this header, and with this in its value.",
)  # fmt: skip
@click.option(
    "-f", "--format", "layout", default=RecordLayout.TEXT.value, show_default=True, metavar="text|json|raw|FORMAT",
    help="text: one line a record; json: one object a line; raw: the values; or a format as kcat's: %s value, %k key, "
    "%h headers, %t topic, %p partition, %o offset, %T timestamp, %S and %K the lengths, %R the value's length in four "
    "bytes, \\n, \\t, \\xNN. Bytes are printed as they are; a terminal gets control characters and bytes that are not "
    "UTF-8 escaped.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option("--key-as", type=click.Choice(DECODED_AS), help="What keys are. [default: text]")
@click.option("--value-as", type=click.Choice(DECODED_AS), help="What values are. [default: text]")
@click.option("-r", "--registry", "registry_url", metavar="URL", help="The schema registry, for avro and json-schema.")
@click.option("--print-key", is_flag=True, help="Print the key before the value.")
@click.option("--print-timestamp", is_flag=True, help="Print the timestamp and its type, CreateTime or LogAppendTime.")
@click.option("--print-partition", is_flag=True, help="Print the partition.")
@click.option("--print-offset", is_flag=True, help="Print the offset.")
@click.option("--print-headers", is_flag=True, help="Print the headers, as NAME:VALUE,NAME:VALUE.")
@click.option("--separator", metavar="TEXT", default="\\t", show_default=True, help="What separates these fields.")
@click.option(
    "--isolation-level", type=click.Choice(["read_uncommitted", "read_committed"]), default=None,
    help="Whether records of open and aborted transactions are shown. [default: read_uncommitted]",
)  # fmt: skip
@with_cluster
def consume(
    admin: CommandAdmin,
    /,
    topics: tuple[str, ...],
    start: str,
    until: str | None,
    last: int | None,
    partitions: tuple[int, ...],
    group_id: str | None,
    share_group: str | None,
    max_messages: int | None,
    timeout_ms: int | None,
    exit_at_end: bool,
    key_filter: str | None,
    value_filter: str | None,
    header_filters: tuple[str, ...],
    layout: str,
    as_json: bool,
    key_as: str | None,
    value_as: str | None,
    registry_url: str | None,
    separator: str,
    isolation_level: str | None,
    **prints: bool,
) -> None:
    """Read records of topics, and print them. A TOPIC that begins with ^ is a regular expression; topics that match it
    and are created later are read too, without --group from their beginning, and not with --exit-at-end.

    Stops with Ctrl-C, or by --max-messages, --timeout-ms, --until or --exit-at-end. With --group, the offsets of
    printed records are committed. With --share, the group decides where it begins (share.auto.offset.reset).

    \b
    Examples:
      kalda consume orders --from beginning --max-messages 10 --print-key
      kalda consume orders --from -1h --until -30m --format json | jq .value
      kalda consume orders --last 5 -f '%p@%o %k %s\\n'
      kalda consume '^orders-.*' --from beginning -e --header-filter trace=^7
      kalda consume orders payments --group billing --from beginning
      kalda consume jobs --share workers
    """
    writer = RecordWriter(
        RecordLayout.JSON if as_json else layout_of(layout),
        {name.removeprefix("print_") for name, is_given in prints.items() if is_given},
        unescape("--separator", separator),
        decoders=Decoders(
            decoder_of("--key-as", key_as, registry_url), decoder_of("--value-as", value_as, registry_url)
        ),
        filters=_filters(key_filter, value_filter, header_filters),
    )
    begin, end = _range(start, until, last, exit_at_end=exit_at_end)
    if share_group is not None:
        _check_for_share_group(topics, has_other_group=group_id is not None)
    reading = _Reading(writer, max_messages, timeout_ms)
    settings: dict[str, object] = {} if isolation_level is None else {"isolation.level": isolation_level}
    with _ending_normally():
        if share_group is not None:
            _consume_in_share_group(reading, admin, topics, share_group)
        elif group_id is None:
            chosen = _partitions(admin, topics, partitions)
            later = _LaterTopics(admin, topics, partitions)
            _consume_alone(reading, admin, settings, chosen, begin, end, later)
        else:
            if partitions or end is not None:
                raise click.UsageError(
                    "--partition, --until and --exit-at-end cannot be used with --group: the group assigns partitions"
                )
            _consume_in_group(reading, admin, settings, topics, group_id, begin)
    click.echo(f"Processed a total of {writer.count} messages", err=True)


def _range(start: str, until: str | None, last: int | None, *, exit_at_end: bool) -> tuple[ReadPlace, ReadPlace | None]:
    """Where reading begins and ends; None without an end. Raises `click.UsageError`."""
    if last is not None:
        start, exit_at_end = f"-{last}", True
    if exit_at_end:
        if until is not None:
            raise click.UsageError("--until and --exit-at-end exclude each other")
        until = "latest"
    now_ms = time.time_ns() // 1_000_000
    return parse_place("--from", start, now_ms), None if until is None else parse_place("--until", until, now_ms)


def _filters(key: str | None, value: str | None, headers: tuple[str, ...]) -> Filters | None:
    """None where all records are printed. Raises `click.UsageError`."""
    if key is None and value is None and not headers:
        return None
    named = []
    for text in headers:
        name, _, pattern = text.partition("=")
        named.append((name, _pattern("--header-filter", pattern)))
    return Filters(
        None if key is None else _pattern("--key-filter", key),
        None if value is None else _pattern("--value-filter", value),
        tuple(named),
    )


def _pattern(option: str, text: str) -> re.Pattern[bytes]:
    try:
        return re.compile(os.fsencode(text))
    except re.error as error:
        raise click.UsageError(f"{option} {text}: not a regular expression: {error}") from None


@contextmanager
def _ending_normally() -> Iterator[None]:
    """Treat Ctrl-C, SIGTERM, SIGHUP and a closed stdout pipe as the normal end of a consumer."""
    with interruptible():
        try:
            yield
        except KeyboardInterrupt:
            pass
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Reading:
    """One run of the command: what was printed, and whether to stop."""

    def __init__(self, writer: RecordWriter, max_messages: int | None, timeout_ms: int | None) -> None:
        self.consumed: dict[TopicPartition, int] = {}
        """The offset after the last printed record, for partitions with printed records since the last commit."""
        self._writer = writer
        self._max_messages = max_messages
        self._timeout_s = None if timeout_ms is None else timeout_ms / 1_000
        self._idle_until_s: float | None = None
        """With `timeout_ms`, when to stop unless a record comes."""

    @property
    def is_over(self) -> bool:
        if self._max_messages is not None and self._writer.count >= self._max_messages:
            return True
        return (self._idle_until_s is not None and time.monotonic() >= self._idle_until_s) or is_stdout_closed()

    def restart_timeout(self) -> None:
        if self._timeout_s is not None:
            self._idle_until_s = time.monotonic() + self._timeout_s

    @property
    def most_records(self) -> int:
        """How many may be printed still; `_POLL_RECORDS` at most."""
        if self._max_messages is None:
            return _POLL_RECORDS
        return min(_POLL_RECORDS, self._max_messages - self._writer.count)

    def show(self, records: list[Record]) -> int:
        """Print the records, up to `max_messages` in all. How many were printed or left out by filters."""
        limit = None if self._max_messages is None else self._max_messages - self._writer.count
        done = self._writer.write(records, limit)
        for record in records[:done]:
            self.consumed[TopicPartition(record.topic, record.partition)] = record.offset + 1
        self.restart_timeout()
        return done


def _consumer(admin: CommandAdmin, settings: dict[str, object]) -> Consumer:
    """Raises `click.UsageError` for a configuration that is wrong."""
    from kalda.base.configs.consumer import CONSUMER
    from kalda.base.configs.definition import InvalidConfig
    from kalda.client.consumer.consumer import Consumer
    from kalda.client.transport.config_files import keys_of

    defaults = {"allow.auto.create.topics": False, "default.api.timeout.ms": admin.timeout_ms}
    try:
        return Consumer({**defaults, **keys_of(CONSUMER, admin.config), **settings})
    except InvalidConfig as error:
        raise click.UsageError(str(error)) from error


def _matching(admin: CommandAdmin, topics: tuple[str, ...]) -> list[str]:
    """The topics that are named, and those that match a regular expression. Raises `Failure`."""
    names: list[str] = []
    for topic in topics:
        if not topic.startswith("^"):
            names.append(topic)
            continue
        pattern = _expression(topic)
        found = [name for name in admin.list_topics(internal=True) if pattern.fullmatch(name)]
        if not found:
            raise Failure(f"no topic matches {topic}")
        names += found
    return list(dict.fromkeys(names))


def _expression(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise click.UsageError(f"{text} is not a regular expression: {error}") from None


# -- without a group


def _partitions(admin: CommandAdmin, topics: tuple[str, ...], partitions: tuple[int, ...]) -> list[TopicPartition]:
    """What is read, all with a leader. Raises `ApiError`."""
    chosen = [
        partition
        for topic in _matching(admin, topics)
        for partition in ([TopicPartition(topic, p) for p in partitions] or admin.partitions(topic))
    ]
    admin.wait_for_leaders(chosen)
    return chosen


class _LaterTopics:
    """Partitions that match the command's regular expressions, and that appear while it reads."""

    def __init__(self, admin: CommandAdmin, topics: tuple[str, ...], partitions: tuple[int, ...]) -> None:
        self._admin = admin
        self._patterns = [_expression(topic) for topic in topics if topic.startswith("^")]
        self._partitions = partitions
        self._due_s = time.monotonic() + _NEW_TOPICS_S

    def find(self, known: Collection[TopicPartition]) -> list[TopicPartition]:
        """Those that are not `known` and have a leader; none where it is not the time to look. A failure is repeated:
        reading goes on meanwhile."""
        if not self._patterns or time.monotonic() < self._due_s:
            return []
        found: list[TopicPartition] = []
        topics: list[Topic] = []
        with suppress(ApiError):
            topics += self._admin.list_topics(internal=True, timeout=_NEW_TOPICS_TIMEOUT_MS / 1000).values()
        for topic in topics:
            if any(pattern.fullmatch(topic.name) for pattern in self._patterns):
                for each in topic.partitions:
                    partition = TopicPartition(topic.name, each.partition)
                    is_chosen = not self._partitions or each.partition in self._partitions
                    if is_chosen and each.leader >= 0 and partition not in known:
                        found.append(partition)
        self._due_s = time.monotonic() + _NEW_TOPICS_S
        return found


def _consume_alone(
    reading: _Reading,
    admin: CommandAdmin,
    settings: dict[str, object],
    chosen: list[TopicPartition],
    begin: ReadPlace,
    end: ReadPlace | None,
    later: _LaterTopics,
) -> None:
    from kalda.clientcore.consuming.consumer_errors import LogTruncated, OffsetOutOfRange

    with _consumer(admin, {"auto.offset.reset": "none", **settings}) as consumer:
        isolation = {**admin.config, **settings}.get("isolation.level")
        read_committed = str(isolation).lower() == "read_committed"
        # A time may be behind the last stable offset: reading begins there when the transaction has ended.
        is_time = begin.kind is PlaceKind.TIME
        positions = offsets_of(admin, chosen, begin, read_committed=read_committed and not is_time)
        is_later = end is not None and end.kind is PlaceKind.TIME and end.number > time.time_ns() // 1_000_000
        ends = {} if end is None or is_later else offsets_of(admin, chosen, end, read_committed=read_committed)
        left = [each for each in chosen if each not in ends or positions[each] < ends[each]]
        consumer.assign(left)
        for partition in left:
            consumer.seek(partition, positions[partition])
        reading.restart_timeout()
        while left and not reading.is_over:
            try:
                records = consumer.poll(_POLL_S, _POLL_RECORDS)
            except (OffsetOutOfRange, LogTruncated) as error:
                _start_anew(consumer, list(error.positions.items()))
                continue
            if not ends and (new := later.find(left)):
                left += new
                consumer.assign(left)
                for partition in new:
                    consumer.seek(partition, 0)
            if ends:
                records = [each for each in records if each.offset < ends[TopicPartition(each.topic, each.partition)]]
            elif is_later and end is not None:
                records = [each for each in records if each.timestamp_ms < end.number]
            if records:
                reading.show(records)
            if ends:
                now_at = consumer.positions()
                done = [each for each in left if each in now_at and now_at[each].offset >= ends[each]]
                if done:
                    left = [each for each in left if each not in done]
                    consumer.pause(*done)
            elif is_later and end is not None and time.time_ns() // 1_000_000 >= end.number and not records:
                break


def _start_anew(consumer: Consumer, lost: list[tuple[TopicPartition, int]]) -> None:
    """Read partitions from their beginning, whose logs do not have the offset any more."""
    first = consumer.beginning_offsets(*(partition for partition, _ in lost))
    for partition, requested in lost:
        click.echo(
            f"kalda: {partition} does not have offset {requested}; reading continues at {first[partition]}", err=True
        )
        consumer.seek(partition, first[partition])


# -- in a group


def _consume_in_group(
    reading: _Reading,
    admin: CommandAdmin,
    settings: dict[str, object],
    topics: tuple[str, ...],
    group_id: str,
    begin: ReadPlace,
) -> None:
    if begin.kind in (PlaceKind.BEGINNING, PlaceKind.END):
        reset = "earliest" if begin.kind is PlaceKind.BEGINNING else "latest"
    elif begin.ago_ms is not None:
        reset = f"by_duration:PT{begin.ago_ms / 1000:.3f}S"
    else:
        raise click.UsageError(
            "--from: with --group, give beginning, latest or a time ago; kalda groups reset-offsets sets other offsets"
        )
    patterns = [topic for topic in topics if topic.startswith("^")]
    if patterns and len(topics) > 1:
        raise click.UsageError("with --group, give names of topics, or one regular expression")
    for topic in topics if not patterns else ():
        admin.topic(topic)
    in_group = {"group.id": group_id, "enable.auto.commit": False, "auto.offset.reset": reset}
    with _consumer(admin, {**in_group, **settings}) as consumer:
        consumer.subscribe(
            _expression(patterns[0]) if patterns else topics,
            on_assigned=lambda _: reading.restart_timeout(),
            on_revoked=lambda _: _commit(reading, consumer),
        )
        try:
            commit_at_s = time.monotonic() + _COMMIT_S
            while not reading.is_over:
                records = consumer.poll(_POLL_S, _POLL_RECORDS)
                if records:
                    reading.show(records)
                if time.monotonic() >= commit_at_s:
                    _commit(reading, consumer)
                    commit_at_s = time.monotonic() + _COMMIT_S
        finally:
            _commit(reading, consumer)


def _commit(reading: _Reading, consumer: Consumer) -> None:
    """Commit the offsets of printed records. Where the partitions were reassigned meanwhile, the commit is refused and
    another member reads the records again."""
    from kalda.client.consumer.consumer_calls import Offset, Partition
    from kalda.clientcore.consuming.consumer_errors import CommitFailed

    offsets, reading.consumed = reading.consumed, {}
    if not offsets:
        return
    try:
        consumer.commit(dict[Partition, Offset](offsets.items()))
    except CommitFailed as error:
        click.echo(
            f"kalda: offsets were not committed, as the group has rebalanced; other members will read these records "
            f"again [{error.code.name}]",
            err=True,
        )


# -- in a share group


_NOT_SHARED = {
    "start": "--from: the group decides where it begins, by its configuration share.auto.offset.reset (kalda configs)",
    "isolation_level": "--isolation-level: the group decides it, by its configuration share.isolation.level",
    "partitions": "--partition: the members of a share group read all partitions",
    "until": "--until: a share group has no end",
    "last": "--last: the group decides where it begins",
    "exit_at_end": "--exit-at-end: a share group has no end; --timeout-ms stops when no record came for a while",
}
"""Options that a share group has no use for, and why."""


def _check_for_share_group(topics: tuple[str, ...], *, has_other_group: bool) -> None:
    """Raises `click.UsageError`."""
    if has_other_group:
        raise click.UsageError("--group and --share exclude each other")
    context = click.get_current_context()
    for name, why in _NOT_SHARED.items():
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{why}; not with --share")
    for topic in topics:
        if topic.startswith("^"):
            raise click.UsageError(f"{topic}: with --share, give names of topics")


def _consume_in_share_group(reading: _Reading, admin: CommandAdmin, topics: tuple[str, ...], group_id: str) -> None:
    """Records are acknowledged when they were printed; those of a poll that were not are released."""
    from kalda.base.configs.definition import InvalidConfig
    from kalda.base.configs.share_consumer import SHARE_CONSUMER
    from kalda.base.share_states import AcknowledgeType
    from kalda.client.consumer.share_consumer import ShareConsumer
    from kalda.client.transport.config_files import keys_of

    for topic in topics:
        admin.topic(topic)
    settings: dict[str, object] = {"default.api.timeout.ms": admin.timeout_ms}
    settings |= keys_of(SHARE_CONSUMER, admin.config)
    settings |= {"group.id": group_id, "share.acknowledgement.mode": "explicit"}
    try:
        consumer = ShareConsumer({"allow.auto.create.topics": False, **settings})
    except InvalidConfig as invalid:
        raise click.UsageError(str(invalid)) from invalid
    with consumer:
        consumer.subscribe(topics)
        reading.restart_timeout()
        try:
            while not reading.is_over:
                records = consumer.poll(_POLL_S, reading.most_records)
                if records:
                    done = reading.show(records)
                    for number, record in enumerate(records):
                        kind = AcknowledgeType.ACCEPT if number < done else AcknowledgeType.RELEASE
                        consumer.acknowledge(record, kind)
        finally:
            for partition, error in consumer.commit_sync().items():
                if error is not None:
                    click.echo(
                        f"kalda: {partition}: records were not acknowledged, and will be delivered again: {error}",
                        err=True,
                    )
