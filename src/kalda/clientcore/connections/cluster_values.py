"""The content of a Metadata response as values, and bootstrap addresses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kalda.base.configs.definition import InvalidConfig
from kalda.base.errors import ErrorCode
from kalda.base.ids import ZERO_UUID, Uuid
from kalda.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic

DEFAULT_PORT = 9092
_PROTOCOL = re.compile(r"[0-9a-zA-Z%._-]*://")


class Address(NamedTuple):
    """Host and port of a broker."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Broker(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None

    @property
    def address(self) -> Address:
        return Address(self.host, self.port)


class Partition(NamedTuple):
    """`leader` is -1 where there is none; `error_code` is the reason."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...]
    error_code: int


class Topic(NamedTuple):
    """`partitions` is empty where `error_code` is not 0."""

    name: str
    topic_id: Uuid
    is_internal: bool
    partitions: tuple[Partition, ...]
    error_code: int


class FoundOffset(NamedTuple):
    """`offset` is -1 where every record is older than the requested timestamp. `timestamp_ms` is -1 where no record was
    read, as for an end of the log."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


class Leader(NamedTuple):
    """The leader of a partition; `topic_id` is zero where the broker's Metadata version has no topic ids."""

    node_id: int
    epoch: int
    topic_id: Uuid


class Metadata(NamedTuple):
    cluster_id: str | None
    controller_id: int
    brokers: Mapping[int, Broker]
    topics: Mapping[str, Topic]


def read_metadata(response: MetadataResponse) -> Metadata:
    """The response as values: topics by name, partitions sorted by number."""
    brokers = {b.node_id: Broker(b.node_id, b.host, b.port, b.rack) for b in response.brokers}
    topics = {topic.name: _read_topic(topic) for topic in response.topics if topic.name is not None}
    return Metadata(response.cluster_id, response.controller_id, brokers, topics)


def newest(received: Topic, cached: Topic | None) -> Topic:
    """The topic as received, but with the cached partitions that have a later leader epoch (KIP-320).

    A broker that is cut off from the controllers keeps answering with former leaders, which may include itself.
    """
    if cached is None or cached.topic_id != received.topic_id or received.topic_id == ZERO_UUID:
        return received  # epochs of different topics, or of topics without an id, cannot be compared
    by_index = {partition.partition: partition for partition in cached.partitions}
    partitions = (
        max(partition, by_index.get(partition.partition, partition), key=lambda each: each.leader_epoch)
        if partition.leader_epoch >= 0
        else partition
        for partition in received.partitions
    )
    return received._replace(partitions=tuple(partitions))


def _read_topic(topic: MetadataResponseTopic) -> Topic:
    partitions = (
        Partition(
            p.partition_index,
            p.leader_id,
            p.leader_epoch,
            tuple(p.replica_nodes),
            tuple(p.isr_nodes),
            tuple(p.offline_replicas),
            p.error_code,
        )
        for p in sorted(topic.partitions, key=lambda partition: partition.partition_index)
    )
    return Topic(topic.name or "", topic.topic_id, topic.is_internal, tuple(partitions), topic.error_code)


UNKNOWN_TOPIC = Topic("", ZERO_UUID, False, (), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def parse_bootstrap(servers: str | Iterable[str]) -> tuple[Address, ...]:
    """Addresses from `host:port,host:port`; `[::1]:9092` for IPv6; no port means 9092. A protocol in front, as in
    `PLAINTEXT://host:port`, is dropped, as Kafka's clients do. Raises `ValueError`."""
    texts = servers.split(",") if isinstance(servers, str) else servers
    addresses = tuple(_parse_address(text.strip()) for text in texts if text.strip())
    if not addresses:
        raise ValueError("no bootstrap server is given: HOST:PORT is expected, or several with commas between")
    return addresses


def configured_bootstrap(servers: Iterable[str], key: str = "bootstrap.servers") -> tuple[Address, ...]:
    """The addresses of a configuration. Raises `InvalidConfig`, which names the key."""
    try:
        return parse_bootstrap(servers)
    except ValueError as error:
        raise InvalidConfig(f"Invalid value {','.join(servers)} for configuration {key}: {error}") from None


def _parse_address(text: str) -> Address:
    address = text[found.end() :] if (found := _PROTOCOL.match(text)) else text
    host, port_text = address, str(DEFAULT_PORT)
    if address.startswith("["):
        host, closing, rest = address[1:].partition("]")
        if not closing or rest[:1] not in ("", ":"):
            raise ValueError(f"bootstrap server {text!r}: [ADDRESS]:PORT is expected")
        port_text = rest[1:] or port_text
    elif address.count(":") == 1:
        host, _, port_text = address.partition(":")
    elif ":" in address:
        raise ValueError(f"bootstrap server {text!r}: an IPv6 address is written [ADDRESS]:PORT")
    if not host or host.isdecimal() or not port_text.isdecimal() or not 0 < int(port_text) < 65536:
        raise ValueError(f"bootstrap server {text!r}: HOST:PORT is expected, the port from 1 to 65535")
    return Address(host, int(port_text))
