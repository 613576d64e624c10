"""Sensors as OpenMetrics text, for Prometheus: in pieces, since a node may have a hundred thousand."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from math import inf, isnan
from typing import Any, Final

from kalda.base.sensors import Counter, CounterSum, Measurable, SensorName, Tags

# Which sensors there are, under which of Kafka's names, and what they mean.
#
# Kafka's name of a metric is that of its MBean: domain, type, name, tags. In OpenMetrics a name is of lower case
# letters, digits and underscores, as the JMX exporter makes it with the rules of Kafka's own dashboards:
# `kafka.server:type=BrokerTopicMetrics,name=BytesInPerSec,topic=t` is `kafka_server_brokertopicmetrics_bytesin_total`
# with the label `topic`. A counter ends in `_total`, without the `PerSec` of its name: Prometheus computes rates.

_NOT_IN_JMX: Final = re.compile(r"[^a-zA-Z0-9_]")
_FORBIDDEN: Final = re.compile(r"[^a-z0-9_]+")
_PER_SECOND: Final = "PerSec"

HELP: Final = {
    "BytesInPerSec": "Bytes of batches that producers sent",
    "BytesOutPerSec": "Bytes of records sent to consumers",
    "MessagesInPerSec": "Records that producers sent",
    "byte-rate": "Bytes a second, as a quota counts them",
    "request-time": "Percent of the event loop's time, as a quota counts it",
    "throttle-time": "Mean of the pauses of throttled clients, in milliseconds",
    "tokens": "Mutations that the quota allows at once",
    "mutation-rate": "Partitions created and deleted a second",
    "exempt-request-time": "Percent of the event loop's time for requests that count for no quota",
    "connection-accept-rate": "New connections a second",
    "broker-connection-accept-rate": "New connections a second, of all listeners that are not protected",
    "ActiveControllerCount": "1 on the active controller",
    "UnderReplicatedPartitions": "Partitions led here of which a replica is not in sync",
    "UnknownDestinationQueueSize": "Transaction markers that failed, or whose partitions have no leader",
    "LogAppendRetryQueueSize": "Transactions that are complete, but could not be recorded as such yet",
    "instance-count": "Clients that push metrics, or have read what they are to push",
    "unknown-subscription-request-count": "Pushes under a subscription id that is not the client's",
    "throttle-count": "Requests of telemetry that came before the push interval had passed",
    "plugin-export-count": "Pushes whose metrics were handed to the sinks",
    "plugin-error-count": "Pushes that could not be read, or that a plugin dropped or raised for",
    "topic-record-count": "Records appended to __client_metrics by this broker",
    "topic-dropped-count": "Records for __client_metrics that this broker could not append",
    "BrokerState": "1 starting, 2 recovery, 3 running, 6 controlled shutdown, 7 shutting down",
}
"""By the name of the metric."""


def is_counter(sensor: Measurable) -> bool:
    """Whether the value never decreases."""
    return isinstance(sensor, Counter | CounterSum)


def family_of(name: SensorName, counter: bool) -> str:
    """The name of a metric in OpenMetrics, without the suffix of its samples."""
    own = name.name.removesuffix(_PER_SECOND) if counter else name.name
    return _FORBIDDEN.sub("_", f"{name.group.replace(':type=', '_')}_{own}".lower()).strip("_")


_QUANTILES: Final = {
    "0.5": "50thPercentile",
    "0.75": "75thPercentile",
    "0.95": "95thPercentile",
    "0.99": "99thPercentile",
    "0.999": "999thPercentile",
    "1.0": "Max",
}
"""The attributes of a histogram's MBean, by the tag that a quantile has here."""


def jmx_name(name: SensorName, counter: bool) -> tuple[str, Tags]:
    """Name and labels as the JMX exporter makes them without any rules: domain, type and attribute of the MBean, its
    other properties as labels. Meters and gauges have an attribute each; where Kafka's own metrics library makes the
    MBean (`raft-metrics`), each metric is an attribute."""
    domain, _, kind = name.group.partition(":type=")
    if not kind:  # of no MBean: the exporter has the names of Prometheus for its process
        return family_of(name, counter) + ("_total" if counter else ""), name.tags
    if not name.name[0].isupper():
        return _NOT_IN_JMX.sub("_", f"{domain}_{kind}_{name.name}"), name.tags
    attribute = "Count" if counter else "Value"
    tags = []
    for tag, value in name.tags:
        if tag == "quantile":
            attribute = _QUANTILES.get(value, value)
        else:
            tags.append((tag, value))
    return _NOT_IN_JMX.sub("_", f"{domain}_{kind}_{attribute}"), (("name", name.name), *tags)


def label_of(tag: str) -> str:
    """The name of a label."""
    return _FORBIDDEN.sub("_", tag.lower())


def value_of(value: str) -> str:
    """The value of a label, escaped. Clients make up some of them."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_PIECE_LINES = 500
"""Lines in a piece at most, and sensors that are listed at once."""
_PIECE_CHARACTERS = 50_000


class PagePiece:
    """Lines of a page that are sent together. Clients make up names of 32 KB."""

    __slots__ = ("_lines", "_size")

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._size = 0

    def append(self, line: str) -> None:
        self._lines.append(line)
        self._size += len(line)

    @property
    def is_long(self) -> bool:
        return self._size >= _PIECE_CHARACTERS or len(self._lines) >= _PIECE_LINES

    def take(self) -> str:
        """The lines, which are forgotten."""
        text = "\n".join(self._lines) + "\n"
        self._lines, self._size = [], 0
        return text


def openmetrics(sensors: Iterable[tuple[SensorName, Measurable]], now_ms: int) -> Iterator[str]:
    """The text, about `_PIECE_CHARACTERS` at a time. A sensor without a value, as an average of nothing, is left out.

    All samples of a family stand together, as the format demands. So the sensors are listed before the first line: the
    pieces that are made meanwhile are empty.
    """
    families: dict[str, list[tuple[SensorName, Measurable]]] = {}
    for number, (name, sensor) in enumerate(sensors, 1):
        if number % _PIECE_LINES == 0:
            yield ""
        families.setdefault(family_of(name, is_counter(sensor)), []).append((name, sensor))
    lines = PagePiece()
    for family, members in families.items():
        counter = is_counter(members[0][1])
        lines.append(f"# TYPE {family} {'counter' if counter else 'gauge'}")
        if members[0][0].name in HELP:
            lines.append(f"# HELP {family} {HELP[members[0][0].name]}")
        for name, sensor in members:
            value = sensor.measure(now_ms)
            if not isnan(value):
                lines.append(f"{family}{'_total' if counter else ''}{_labels(name.tags)} {_number(value)}")
            if lines.is_long:
                yield lines.take()
    lines.append("# EOF")
    yield lines.take()


def jmx_text(sensors: Iterable[tuple[SensorName, Measurable]], now_ms: int) -> Iterator[str]:
    """The same under the names of the JMX exporter, for dashboards that were made for Apache Kafka behind it. As from
    the exporter, no sample says whether it is a counter."""
    families: dict[str, list[tuple[Tags, Measurable]]] = {}
    for number, (name, sensor) in enumerate(sensors, 1):
        if number % _PIECE_LINES == 0:
            yield ""
        family, labels = jmx_name(name, is_counter(sensor))
        families.setdefault(family, []).append((labels, sensor))
    lines = PagePiece()
    for family, members in families.items():
        lines.append(f"# TYPE {family} unknown")
        for labels, sensor in members:
            value = sensor.measure(now_ms)
            if not isnan(value):
                lines.append(f"{family}{_labels(labels)} {_number(value)}")
            if lines.is_long:
                yield lines.take()
    lines.append("# EOF")
    yield lines.take()


def _labels(tags: Tags) -> str:
    if not tags:
        return ""
    return "{" + ",".join(f'{label_of(tag)}="{value_of(value)}"' for tag, value in tags) + "}"


def _number(value: float) -> str:
    if value in (inf, -inf):
        return "+Inf" if value > 0 else "-Inf"
    return repr(int(value)) if value == int(value) and abs(value) < 2**53 else repr(float(value))


def as_json(sensors: Iterable[tuple[SensorName, Measurable]], now_ms: int) -> Iterator[dict[str, Any]]:
    """The same as values, under Kafka's own names."""
    for name, sensor in sensors:
        value = sensor.measure(now_ms)
        if not isnan(value):
            yield {
                "group": name.group,
                "name": name.name,
                "tags": dict(name.tags),
                "value": value if abs(value) != inf else None,
                "counter": is_counter(sensor),
            }
