"""The options of `spark.read` and `spark.readStream` with format "kalda", parsed and checked; their names, defaults and
refusals are those of Spark's Kafka source.

`option("kalda.connection", "production")` stands for the keys of that profile (`client/transport/config_files.py`),
which Spark's driver reads: a definition, a plan and Spark's event log have its name alone. An option that is given
beside it wins; keys that the client does not have belong to other programs, and are left out.

An unknown option is refused, since a misspelt one would silently read something else. Options with the prefix `kafka.`
are the configuration of the consumers, by Kafka's keys. Options that configure the caches of Spark's source, and have
no counterpart here, are accepted without effect.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum
from typing import Any, Final, NoReturn

from kalda.base.configs.consumer import CONSUMER, consumer_config
from kalda.base.configs.definition import InvalidConfig
from kalda.base.errors import KafkaError
from kalda.base.ids import TopicPartition
from kalda.client.transport.config_files import read_profile
from kalda.clientcore.connections.metadata import parse_bootstrap

EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1


class OptionError(KafkaError, ValueError):
    """An option is wrong; the message has its name, its value unless that may be a secret, and the remedy."""

    def __init__(self, name: str, value: object, advice: str) -> None:
        shown = "(hidden)" if _may_be_secret(name) else repr(value)
        super().__init__(f"option {name} = {shown}: {advice}")


def _may_be_secret(name: str) -> bool:
    """Whether an option has a password or a key; of a misspelt one, whether it may have."""
    key = name.lower().removeprefix(_PREFIX)
    return CONSUMER[key].sensitive if key in CONSUMER else key.startswith(("sasl.", "ssl."))


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
class TopicSubscription:
    """The partitions to read; exactly one of the three fields is set."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[TopicPartition, ...] = ()

    def __str__(self) -> str:
        """The option by which it was given."""
        return f"option {'assign' if self.assigned else 'subscribe' if self.topics else 'subscribePattern'}"

    def includes(self, partition: TopicPartition) -> bool:
        """Whether this partition is read where it exists."""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, partition.topic) is not None
        return partition.topic in self.topics or partition in self.assigned


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What to read, and how. Times in milliseconds."""

    kafka: Mapping[str, str]
    """The consumers' configuration, by Kafka's keys; `bootstrap.servers` is among them."""
    subscription: TopicSubscription
    read_committed: bool = False
    start: Bound = Edge.EARLIEST
    end: Bound = Edge.LATEST
    stops: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Where a stream ends in its partitions: the offsets behind the last records that it reads."""
    start_latest_where_none: bool = False
    """Where all records are older than the starting time, begin at the end of the log; else fail."""
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    task_offsets: int = 10_000
    """Ranges of fewer offsets share a task, up to so many."""
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 900_000
    """A batch with fewer offsets than `min_offsets_per_trigger` is not delayed for longer."""
    fail_on_data_loss: bool = True
    include_headers: bool = False
    overflowing_times_are_null: bool = False
    """A timestamp that Spark's microseconds do not hold is null; else it fails the query."""
    poll_timeout_ms: int = 120_000
    """How long a task waits for records of its range."""
    checks_topics: bool = False
    """Whether a topic that does not exist is refused when the frame is made; else when a query is planned."""
    offset_attempts: int = 4
    """How often ends of logs are requested while they are below offsets that were read before."""
    offset_retry_ms: int = 10
    commit_group: str | None = None
    """The group that gets the end of each ended batch of a stream as committed offsets; None: none."""


_SUBSCRIPTIONS: Final = ("assign", "subscribe", "subscribePattern")
_STRATEGY: Final = "startingOffsetsByTimestampStrategy"
_ENDINGS: Final = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")
TASK_OFFSETS: Final = "kalda.task.offsets"
CHECK_TOPICS: Final = "kalda.check.topics"
COMMIT_GROUP: Final = "kalda.commit.group"
CONNECTION: Final = "kalda.connection"
STOP: Final = "kalda.stop.offsets"
TIMESTAMP_OVERFLOW: Final = "kalda.timestamp.overflow"
NAMES: Final = (
    *_SUBSCRIPTIONS,
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    _STRATEGY,
    *_ENDINGS,
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "failOnDataLoss",
    "includeHeaders",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    CHECK_TOPICS,
    COMMIT_GROUP,
    CONNECTION,
    STOP,
    TASK_OFFSETS,
    TIMESTAMP_OVERFLOW,
)
WITHOUT_EFFECT: Final = ("groupIdPrefix",)
_PREFIX: Final = "kafka."
_CONSUMER_DEFAULTS: Final = {
    "enable.auto.commit": "false",
    "auto.offset.reset": "none",
    "max.partition.fetch.bytes": str(4 * 1024 * 1024),
    "fetch.max.bytes": str(16 * 1024 * 1024),
    "client.id": "kalda-spark",
}
_WITHOUT_EFFECT_ON_CONSUMERS: Final = ("group.id", "max.poll.records", "max.poll.interval.ms")
"""Keys that Spark's source passes on; a task assigns its partition itself, and takes whole batches."""
_REFUSED_KEYS: Final = {
    "auto.offset.reset": "it is not supported: set startingOffsets to earliest or latest to choose where a new query "
    "starts; a query that is resumed continues where it ended",
    "key.deserializer": "it is not supported: keys are columns of bytes; decode them in the query",
    "value.deserializer": "it is not supported: values are columns of bytes; decode them in the query",
    "enable.auto.commit": "it is not supported: a query's position is in its checkpoint",
    "interceptor.classes": "it is not supported: the source reads keys and values as bytes",
}
_DELAY: Final = re.compile(r"\s*(\d+)\s*(ms|s|m|min|h|d)?\s*", re.IGNORECASE)
_DELAY_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def read_options(given: Mapping[str, str], *, is_streaming: bool = False) -> ReadOptions:
    """Parse the options; upper and lower case of names are equal, as in Spark. Raises `OptionError`."""
    options = OptionTable.of(connected(given, {*CONSUMER.names()} - _REFUSED_KEYS.keys()), (*NAMES, *WITHOUT_EFFECT))
    if is_streaming:
        for name in _ENDINGS:
            if (text := options.text(name)) is not None:
                raise OptionError(name, text, "an end is not valid in a streaming query; take it out")
    kafka = {**_CONSUMER_DEFAULTS, **consumer_keys(options)}
    isolation = {"read_uncommitted": False, "read_committed": True}
    low = options.number("minOffsetsPerTrigger", None, 1)
    high = options.number("maxOffsetsPerTrigger", None, 1)
    if low is not None and high is not None and low > high:
        raise OptionError("minOffsetsPerTrigger", low, f"it is higher than maxOffsetsPerTrigger ({high})")
    return ReadOptions(
        kafka=kafka,
        subscription=_subscription(options),
        read_committed=options.choice("kafka.isolation.level", isolation, "read_uncommitted"),
        start=_start(options, is_streaming),
        end=Edge.LATEST if is_streaming else _bound(options, "ending", Edge.LATEST, Edge.EARLIEST),
        stops=_stops(options, is_streaming),
        start_latest_where_none=options.choice(_STRATEGY, {"error": False, "latest": True}, "error"),
        min_partitions=options.number("minPartitions", None, 1),
        max_records_per_partition=options.number("maxRecordsPerPartition", None, 1),
        task_offsets=options.number(TASK_OFFSETS, 10_000, 0),
        max_offsets_per_trigger=high,
        min_offsets_per_trigger=low,
        max_trigger_delay_ms=options.delay_ms("maxTriggerDelay", 900_000),
        fail_on_data_loss=options.flag("failOnDataLoss", True),
        include_headers=options.flag("includeHeaders", False),
        overflowing_times_are_null=options.choice(TIMESTAMP_OVERFLOW, {"fail": False, "null": True}, "fail"),
        checks_topics=options.flag(CHECK_TOPICS, False),
        poll_timeout_ms=options.number("kafkaConsumer.pollTimeoutMs", 120_000, 1),
        offset_attempts=1 + options.number("fetchOffset.numRetries", 3, 0),
        offset_retry_ms=options.number("fetchOffset.retryIntervalMs", 10, 0),
        commit_group=options.text(COMMIT_GROUP) or None,
    )


def connection_of(options: Mapping[str, str]) -> dict[str, str]:
    """The keys of the profile that the options name; none where they name none. Raises `OptionError`."""
    name = next((value for key, value in options.items() if key.lower() == CONNECTION), None)
    if name is None:
        return {}
    try:
        return read_profile(name)
    except InvalidConfig as error:
        raise OptionError(CONNECTION, name, error.message) from None


def connected(options: Mapping[str, str], keys: Container[str]) -> dict[str, str]:
    """The options with those of the connection that they name. `keys`: those of the client. Raises `OptionError`."""
    given = {key: value for key, value in options.items() if key.lower() != CONNECTION}
    names = {key.lower() for key in given}
    found = {_PREFIX + key: value for key, value in connection_of(options).items() if key in keys}
    return {**{key: value for key, value in found.items() if key not in names}, **given}


def consumer_keys(options: OptionTable) -> dict[str, str]:
    """The options with the prefix `kafka.`, checked as a consumer's configuration."""
    bootstrap_servers(options)
    found = options.kafka(_REFUSED_KEYS)
    for key in _WITHOUT_EFFECT_ON_CONSUMERS:
        found.pop(key, None)
    try:
        consumer_config(found, {"enable_auto_commit": False})
    except InvalidConfig as error:
        raise kafka_error(found, error) from None
    return found


def bootstrap_servers(options: OptionTable) -> None:
    """Raises `OptionError` where the brokers' addresses are missing or malformed."""
    name = "kafka.bootstrap.servers"
    bootstrap = options.text(name)
    if not bootstrap:
        raise OptionError(name, bootstrap, "HOST:PORT of a broker is expected, or several with commas between")
    try:
        parse_bootstrap(bootstrap)
    except ValueError as error:
        raise OptionError(name, bootstrap, str(error)) from None


def kafka_error(keys: Mapping[str, str], error: InvalidConfig) -> OptionError:
    """The error of a client's configuration, with the option's name."""
    key = max((key for key in keys if key in error.message), key=len, default=None)
    if key is None:
        return OptionError(_PREFIX + "*", "(several)", error.message)
    return OptionError(_PREFIX + key, keys[key], error.message)


def _start(options: OptionTable, is_streaming: bool) -> Bound:
    if is_streaming:
        return _bound(options, "starting", Edge.LATEST, None)
    return _bound(options, "starting", Edge.EARLIEST, Edge.LATEST)


def _stops(options: OptionTable, is_streaming: bool) -> dict[TopicPartition, int]:
    if (text := options.text(STOP)) is None:
        return {}
    if not is_streaming:
        raise OptionError(STOP, text, "it is the end of a stream; a batch ends at endingOffsets")
    return by_partition(STOP, text, lambda offset: offset >= 0, "offsets from 0")


class OptionTable:
    """Options by name in lower case."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    @classmethod
    def of(cls, given: Mapping[str, str], known: Sequence[str]) -> OptionTable:
        """Raises `OptionError` for a name that is neither known nor one of a client's configuration."""
        values = {name.lower(): value for name, value in given.items()}
        names = {name.lower() for name in known}
        for name, value in values.items():
            if name not in names and not name.startswith(_PREFIX):
                near = get_close_matches(name, sorted(names), 1, 0.0)[0]
                named = next(one for one in known if one.lower() == near)
                raise OptionError(
                    name, value, f"there is no such option; the nearest is {named}. There are {', '.join(known)}"
                )
        return cls(values)

    def kafka(self, refused: Mapping[str, str]) -> dict[str, str]:
        """A client's configuration, by Kafka's keys. Raises `OptionError` for one of the `refused`, with the reason."""
        found = {name[len(_PREFIX) :]: text for name, text in self._values.items() if name.startswith(_PREFIX)}
        for key, reason in refused.items():
            if key in found:
                raise OptionError(_PREFIX + key, found[key], reason)
        return found

    def delay_ms(self, name: str, default: int) -> int:
        """A duration as Spark writes it: 90s, 15m, 2h; a number alone is in milliseconds."""
        text = self.text(name)
        if text is None:
            return default
        match = _DELAY.fullmatch(text)
        if match is None:
            raise OptionError(name, text, "a duration such as 500ms, 90s, 15m or 2h is expected")
        return int(match[1]) * _DELAY_MS[(match[2] or "ms").lower()]

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


def _subscription(options: OptionTable) -> TopicSubscription:
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
        return TopicSubscription(topics=topics)
    if name == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise OptionError(name, text, f"a regular expression is expected: {error}") from None
        if not text.strip():
            raise OptionError(name, text, "a regular expression is expected, such as logs-.*")
        return TopicSubscription(pattern=text)
    return TopicSubscription(assigned=_assigned(name, text))


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


def _bound(options: OptionTable, prefix: str, default: Edge, refused: Edge | None) -> Bound:
    """One time for all partitions overrides times by partition, and these override offsets, as in Spark's source. A
    batch refuses one of the edges."""
    name = f"{prefix}Timestamp"
    if options.text(name) is not None:
        return AtTimestamp(options.number(name, None, 0))
    name = f"{prefix}OffsetsByTimestamp"
    if (text := options.text(name)) is not None:
        return AtTimestamps(by_partition(name, text, lambda timestamp: timestamp >= 0, "milliseconds since 1970"))
    name = f"{prefix}Offsets"
    text = options.text(name)
    if text is None:
        return default
    word = text.strip().lower()
    for edge in Edge:
        if word == edge.value and edge is not refused:
            return edge
        if word == edge.value:
            place = "start" if prefix == "starting" else "end"
            raise OptionError(
                name, text, f"a batch cannot {place} there: {prefix} offset can't be {word} for batch queries"
            )
    edges = {EARLIEST_OFFSET: Edge.EARLIEST, LATEST_OFFSET: Edge.LATEST}
    allowed = [offset for offset, edge in edges.items() if edge is not refused]
    expected = f"offsets from 0, or {' or '.join(f'{offset} for {edges[offset].value}' for offset in allowed)},"
    return AtOffsets(by_partition(name, text, lambda offset: offset >= 0 or offset in allowed, expected))


def by_partition(name: str, text: str, allowed: Callable[[int], bool], expected: str) -> dict[TopicPartition, int]:
    """Numbers as `{"logs": {"0": 23}}`, at least one. Raises `OptionError` where not all are `allowed`; `expected` says
    which ones are."""
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
