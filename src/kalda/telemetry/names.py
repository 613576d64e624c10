"""Which sensors there are, under which of Kafka's names, and what they mean.

Kafka's name of a metric is that of its MBean: domain, type, name, tags. In OpenMetrics a name is of lower case letters,
digits and underscores, as the JMX exporter makes it with the rules of Kafka's own dashboards:
`kafka.server:type=BrokerTopicMetrics,name=BytesInPerSec,topic=t` is `kafka_server_brokertopicmetrics_bytesin_total`
with the label `topic`. A counter ends in `_total`, without the `PerSec` of its name: Prometheus computes rates.
"""

from __future__ import annotations

import re
from typing import Final

from kalda.base.sensors import Counter, CounterSum, Measurable, SensorName, Tags

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
