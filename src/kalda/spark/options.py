"""The options of `spark.read.format("kalda")`, parsed and checked; their names are those of Spark's Kafka source.

An unknown option is refused, since a misspelt one would silently read something else. Options that configure the
consumers of Spark's source, and have no counterpart here, are accepted without effect.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NoReturn

from kalda.base.ids import TopicPartition
from kalda.client.metadata import parse_bootstrap

EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1


class OptionError(ValueError):
    """An option is wrong; the message has its name, its value and the remedy."""

    def __init__(self, name: str, value: object, advice: str) -> None:
        super().__init__(f"option {name} = {value!r}: {advice}")


class Edge(Enum):
    """One end of each partition's log."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """An offset for each partition; -2 means the earliest, -1 the latest."""

    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """In each partition, the first record that is not older than one time."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class AtTimestamps:
    """In each partition, the first record that is not older than the partition's time."""

    timestamps_ms: Mapping[TopicPartition, int]


Bound = Edge | AtOffsets | AtTimestamp | AtTimestamps


@dataclass(frozen=True, slots=True)
class Subscription:
    """The partitions to read; exactly one of the three fields is set."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """How to connect to the cluster, and how a task fetches."""

    bootstrap: str
    client_id: str = "kalda-spark"
    rack: str = ""
    read_committed: bool = False
    check_crcs: bool = True
    timeout_ms: int = 60_000
    """How long a request is retried, also where no broker can be reached."""
    max_wait_ms: int = 500
    max_bytes: int = 16 * 1024 * 1024
    partition_max_bytes: int = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ReadOptions:
    fetch: FetchSettings
    subscription: Subscription
    start: Bound = Edge.EARLIEST
    end: Bound = Edge.LATEST
    start_latest_where_none: bool = False
    """Where all records are older than the starting time, begin at the end of the log; else fail."""
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    fail_on_data_loss: bool = True
    include_headers: bool = False


_SUBSCRIPTIONS: Final = ("assign", "subscribe", "subscribePattern")
_STRATEGY: Final = "startingOffsetsByTimestampStrategy"
_KNOWN: Final = (
    *_SUBSCRIPTIONS,
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    _STRATEGY,
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "kafka.bootstrap.servers",
    "kafka.client.id",
    "kafka.client.rack",
    "kafka.isolation.level",
    "kafka.check.crcs",
    "kafka.default.api.timeout.ms",
    "kafka.request.timeout.ms",
    "kafka.fetch.max.wait.ms",
    "kafka.fetch.max.bytes",
    "kafka.max.partition.fetch.bytes",
    "kafka.security.protocol",
)
_WITHOUT_EFFECT: Final = (
    "groupIdPrefix",
    "kafka.group.id",
    "kafka.fetch.min.bytes",
    "kafka.max.poll.records",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Parse the options; upper and lower case of names are equal, as in Spark. Raises `OptionError`."""
    values = {name.lower(): value for name, value in given.items()}
    known = {name.lower(): name for name in (*_KNOWN, *_WITHOUT_EFFECT)}
    for name, value in values.items():
        if name not in known:
            raise OptionError(name, value, f"there is no such option; there are {', '.join(_KNOWN)}")
    options = _Options(values)
    return ReadOptions(
        fetch=_fetch_settings(options),
        subscription=_subscription(options),
        start=_bound(options, "starting", Edge.EARLIEST),
        end=_bound(options, "ending", Edge.LATEST),
        start_latest_where_none=options.choice(_STRATEGY, {"error": False, "latest": True}, "error"),
        min_partitions=options.number("minPartitions", None, 1),
        max_records_per_partition=options.number("maxRecordsPerPartition", None, 1),
        fail_on_data_loss=options.flag("failOnDataLoss", True),
        include_headers=options.flag("includeHeaders", False),
    )


class _Options:
    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def text(self, name: str) -> str | None:
        return self._values.get(name.lower())

    def number(self, name: str, default: Any, lowest: int) -> Any:
        text = self.text(name)
        if text is None:
            return default
        try:
            number = int(text)
        except ValueError:
            number = lowest - 1
        if not lowest <= number < 2**63:
            raise OptionError(name, text, f"a whole number from {lowest} is expected")
        return number

    def choice(self, name: str, choices: Mapping[str, bool], default: str) -> bool:
        text = self.text(name)
        found = choices.get((text if text is not None else default).strip().lower())
        if found is None:
            raise OptionError(name, text, f"{' or '.join(choices)} is expected")
        return found

    def flag(self, name: str, default: bool) -> bool:
        return self.choice(name, {"true": True, "false": False}, str(default))


def _fetch_settings(options: _Options) -> FetchSettings:
    name = "kafka.bootstrap.servers"
    bootstrap = options.text(name)
    if not bootstrap:
        raise OptionError(name, bootstrap, "HOST:PORT of a broker is expected, or several with commas between")
    try:
        parse_bootstrap(bootstrap)
    except ValueError as error:
        raise OptionError(name, bootstrap, str(error)) from None
    protocol = options.text("kafka.security.protocol")
    if protocol is not None and protocol.upper() != "PLAINTEXT":
        raise OptionError(
            "kafka.security.protocol", protocol, "only PLAINTEXT is supported; give the address of a PLAINTEXT listener"
        )
    isolation = {"read_uncommitted": False, "read_committed": True}
    defaults = FetchSettings(bootstrap)
    return FetchSettings(
        bootstrap=bootstrap,
        client_id=options.text("kafka.client.id") or defaults.client_id,
        rack=options.text("kafka.client.rack") or "",
        read_committed=options.choice("kafka.isolation.level", isolation, "read_uncommitted"),
        check_crcs=options.flag("kafka.check.crcs", True),
        timeout_ms=options.number(
            "kafka.default.api.timeout.ms", options.number("kafka.request.timeout.ms", defaults.timeout_ms, 1), 1
        ),
        max_wait_ms=options.number("kafka.fetch.max.wait.ms", defaults.max_wait_ms, 0),
        max_bytes=options.number("kafka.fetch.max.bytes", defaults.max_bytes, 1),
        partition_max_bytes=options.number("kafka.max.partition.fetch.bytes", defaults.partition_max_bytes, 1),
    )


def _subscription(options: _Options) -> Subscription:
    given = [(name, text) for name in _SUBSCRIPTIONS if (text := options.text(name)) is not None]
    if len(given) != 1:
        found = " and ".join(name for name, _ in given) or "none"
        raise OptionError(
            "subscribe", options.text("subscribe"), f"give one of {', '.join(_SUBSCRIPTIONS)}, not {found}"
        )
    name, text = given[0]
    if name == "subscribe":
        topics = tuple(dict.fromkeys(topic.strip() for topic in text.split(",") if topic.strip()))
        if not topics:
            raise OptionError(name, text, "name a topic, or several with commas between")
        return Subscription(topics=topics)
    if name == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise OptionError(name, text, f"a regular expression is expected: {error}") from None
        if not text.strip():
            raise OptionError(name, text, "a regular expression is expected, such as logs-.*")
        return Subscription(pattern=text)
    return Subscription(assigned=_assigned(name, text))


def _assigned(name: str, text: str) -> tuple[TopicPartition, ...]:
    advice = 'JSON such as {"logs": [0, 1]} is expected'
    found: list[TopicPartition] = []
    for topic, partitions in _json_object(name, text, advice).items():
        if not isinstance(partitions, list) or not all(type(p) is int and p >= 0 for p in partitions):
            raise OptionError(name, text, advice)
        found += [TopicPartition(topic, partition) for partition in partitions]
    if not found:
        raise OptionError(name, text, advice)
    return tuple(dict.fromkeys(found))


def _bound(options: _Options, prefix: str, default: Edge) -> Bound:
    """One time for all partitions overrides times by partition, and these override offsets, as in Spark's source."""
    name = f"{prefix}Timestamp"
    if options.text(name) is not None:
        return AtTimestamp(options.number(name, None, 0))
    name = f"{prefix}OffsetsByTimestamp"
    if (text := options.text(name)) is not None:
        return AtTimestamps(_by_partition(name, text, lambda timestamp: timestamp >= 0, "milliseconds since 1970"))
    name = f"{prefix}Offsets"
    text = options.text(name)
    if text is None:
        return default
    refused = Edge.LATEST if default is Edge.EARLIEST else Edge.EARLIEST
    word = text.strip().lower()
    if word == default.value:
        return default
    if word == refused.value:
        raise OptionError(name, text, f"a batch cannot {'start' if prefix == 'starting' else 'end'} there")
    refused_offset = LATEST_OFFSET if refused is Edge.LATEST else EARLIEST_OFFSET
    expected = f"offsets from 0, or {EARLIEST_OFFSET + LATEST_OFFSET - refused_offset} for {default.value},"
    return AtOffsets(
        _by_partition(name, text, lambda offset: offset >= EARLIEST_OFFSET and offset != refused_offset, expected)
    )


def _by_partition(name: str, text: str, allowed: Callable[[int], bool], expected: str) -> dict[TopicPartition, int]:
    advice = f'JSON such as {{"logs": {{"0": 23, "1": 42}}}} with {expected} is expected'
    found: dict[TopicPartition, int] = {}
    for topic, numbers in _json_object(name, text, advice).items():
        if not isinstance(numbers, dict):
            raise OptionError(name, text, advice)
        for partition, number in numbers.items():
            if not partition.isdecimal() or type(number) is not int or not allowed(number) or number >= 2**63:
                raise OptionError(name, text, f"{topic}, {partition}: {number!r}. {advice}")
            found[TopicPartition(topic, int(partition))] = number
    if not found:
        raise OptionError(name, text, advice)
    return found


def _json_object(name: str, text: str, advice: str) -> dict[str, Any]:
    def refuse(_: object) -> NoReturn:
        raise OptionError(name, text, advice)

    try:
        value = json.loads(text, parse_constant=refuse)
    except (json.JSONDecodeError, RecursionError):
        refuse(None)
    if not isinstance(value, dict):
        refuse(None)
    return value
