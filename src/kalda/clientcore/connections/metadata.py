"""What a client has learnt of its cluster: brokers, topics, leaders; and when it has to be learnt anew.

    want(topic, now)              a topic that the client uses: it is in the requests from now on
    request_update()              what is cached has proved wrong
    request_leader(topic)         a partition of the topic has no known leader
    next_request_at_ms(now)       when a Metadata request is due, None while one is in flight
    next_request(now)             that request
    on_response(response, now)    its response
    on_failure(now)               there is none

A request is due at once for a topic that has never been asked for, after a backoff where an update was requested or the
last request failed, and otherwise when the last response is `max_age_ms` old. Topics that have not been used for
`max_idle_ms` are dropped. Where nothing else is due, a request is about the new topics alone (KIP-526). Of very
many topics a request names some, and the next one, which is due at once, others: a round of requests names all. A
partition's leader is only replaced by one of a later or the same epoch (KIP-320).

Bootstrap servers are brokers with negative ids until the first response. `rebootstrap` returns to them (KIP-899,
KIP-1102): where no known broker can be reached, or a broker demands it, and the strategy allows it.

Not obvious:

- Whatever changes `brokers` or `topics` of the metadata clears `_leaders`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kalda.base.configs.definition import InvalidConfig
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import ZERO_UUID, Uuid
from kalda.clientcore.connections.errors import Backoff, refused
from kalda.protocol.messages.metadata import (
    DescribeClusterRequest,
    EndpointType,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from kalda.protocol.naming import MAX_ELEMENTS_SENT
from kalda.protocol.notation import Request

# The content of a Metadata response as values, and bootstrap addresses.

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


log = logging.getLogger(__name__)
_NEW_TOPIC_FAILED = (ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.TOPIC_AUTHORIZATION_FAILED)


class ClusterMetadata:
    """The cached metadata. Invariant: `topics` has wanted topics only."""

    is_of_controllers = False
    """Whether the nodes are controllers, and requests go to the active one (`ControllerMetadata`)."""
    refusal: ApiError | None = None
    """Why nodes that should be controllers answer no requests of those."""

    def __init__(
        self,
        bootstrap: Sequence[Address],
        backoff: Backoff,
        *,
        max_age_ms: int = 300_000,
        max_idle_ms: int | None = 300_000,
        may_rebootstrap: bool = True,
        rebootstrap_trigger_ms: int = 300_000,
        allow_auto_topic_creation: bool = True,
        checks_cluster: bool = False,
    ) -> None:
        """`checks_cluster`: connections name the cluster and the node that they are for."""
        self.brokers: Mapping[int, Broker] = {}
        self.topics: dict[str, Topic] = {}
        """The last answer for each topic, errors included."""
        self.topic_names: dict[Uuid, str] = {}
        """By topic id."""
        self._answered: set[str] = set()
        """Topics that responses were about since `take_answered`. A walk of all topics with each response would make
        the first records for many new topics take the square of their number."""
        self.cluster_id: str | None = None
        self.checks_cluster = checks_cluster and may_rebootstrap
        self.controller_id = -1
        """The active controller, where `is_of_controllers`; -1 while unknown."""
        self.version = 0
        """Increases with every change of what is cached."""
        self.fatal_error: ErrorCode | None = None
        """Why the cluster refuses Metadata to this client altogether, by its last response."""
        self.bootstrap = tuple(bootstrap)
        self._backoff = backoff
        self._max_age_ms = max_age_ms
        self._max_idle_ms = max_idle_ms
        self._may_rebootstrap = may_rebootstrap
        self._rebootstrap_trigger_ms = rebootstrap_trigger_ms
        self._allow_auto_topic_creation = allow_auto_topic_creation
        self._wanted: dict[str, int] = {}
        """Wanted topics, with the time of their last use."""
        self._unknown: set[str] = set()
        """Wanted topics that no request was sent for yet: a request is due at once."""
        self._update_requested = False
        self._updated_at_ms: int | None = None
        self._left: list[str] = []
        """Topics that the further requests of this round name."""
        self._is_complete = True
        """Whether all responses of this round were useful."""
        self._is_partial = False
        """Whether this round is about new topics alone."""
        self._attempts = 0
        """Rounds since the last useful one."""
        self._not_before_ms = 0
        """When the next request is allowed, unless it is about a new topic. After a useful response too: what that says
        may prove wrong at once, as where it lists a dead broker."""
        self._trying_since_ms: int | None = None
        """The first request since the last response."""
        self._rebootstraps = 0
        """Returns to the bootstrap servers since another broker has answered."""
        self._rebootstrap_at_ms = 0
        """When the next of them is allowed."""
        self._in_flight = False
        self._leaders: dict[tuple[str, int], Leader] = {}
        """The leaders that were found since the last change of `brokers` or `topics`."""
        self._use_bootstrap()

    def _use_bootstrap(self) -> None:
        self.brokers = {
            -1 - index: Broker(-1 - index, address.host, address.port, None)
            for index, address in enumerate(self.bootstrap)
        }

    @property
    def updated_at_ms(self) -> int:
        """When the last metadata came; 0 where none has."""
        return self._updated_at_ms or 0

    # -- topics

    def want(self, topic: str, now_ms: int) -> None:
        """The topic is used now."""
        if topic not in self._wanted:
            self._unknown.add(topic)
        self._wanted[topic] = now_ms

    def forget(self, topic: str) -> None:
        """The topic is used no longer."""
        self._wanted.pop(topic, None)
        self._unknown.discard(topic)
        self._leaders.clear()
        known = self.topics.pop(topic, None)
        if known is not None:
            self.topic_names.pop(known.topic_id, None)

    def partitions_of(self, topic: str) -> tuple[Partition, ...]:
        """The topic's partitions; empty where they are unknown."""
        known = self.topics.get(topic)
        return () if known is None else known.partitions

    def take_answered(self) -> set[str]:
        """The topics that responses were about since the last call."""
        taken, self._answered = self._answered, set()
        return taken

    def refusal_of(self, topic: str) -> ApiError | None:
        """Why the topic will not come, however long one waits; None: it may."""
        if self.fatal_error is not None:
            return refused(self.fatal_error, "the cluster's metadata")
        known = self.topics.get(topic)
        if known is None or known.error_code not in _NEW_TOPIC_FAILED:
            return None
        return refused(known.error_code, f"topic {topic}")

    def leader_of(self, topic: str, partition: int) -> Leader | None:
        """The partition's leader, where it has one that is a known broker."""
        return self._leaders.get((topic, partition)) or self._find_leader(topic, partition)

    def _find_leader(self, topic: str, partition: int) -> Leader | None:
        known = self.topics.get(topic)
        if known is None or not 0 <= partition < len(known.partitions):
            return None
        found = known.partitions[partition]
        if found.partition != partition or found.leader < 0 or found.leader not in self.brokers:
            return None
        leader = self._leaders[topic, partition] = Leader(found.leader, found.leader_epoch, known.topic_id)
        return leader

    def update_leader(self, topic: str, partition: int, leader: int, epoch: int, brokers: Sequence[Broker]) -> bool:
        """A broker has named a partition's new leader in an error (KIP-951). True where it is later than the cached."""
        known = self.topics.get(topic)
        if known is None or not 0 <= partition < len(known.partitions) or leader < 0:
            return False
        cached = known.partitions[partition]
        if epoch <= cached.leader_epoch:
            return False
        self._leaders.clear()
        if brokers:
            self.brokers = {**self.brokers, **{broker.node_id: broker for broker in brokers}}
        if leader not in self.brokers:
            return False
        partitions = list(known.partitions)
        partitions[partition] = cached._replace(leader=leader, leader_epoch=epoch, error_code=0)
        self.topics[topic] = known._replace(partitions=tuple(partitions))
        self.version += 1
        return True

    # -- requests

    def request_update(self) -> None:
        """Ask again, after the backoff: what is cached has proved wrong."""
        self._update_requested = True

    def request_leader(self, topic: str) -> None:
        """A partition of the wanted topic has no known leader: ask again, unless the response that is due first is the
        first one about the topic. Such a response has all of the topic's partitions, and is not asked for twice."""
        if topic in self.topics or not self._in_flight:
            self._update_requested = True

    def next_request_at_ms(self, now_ms: int) -> int | None:
        """When a request is due; None while one is in flight, and where no topic is wanted."""
        if self._in_flight:
            return None
        if self._left or (self._unknown and self._attempts == 0):
            return now_ms
        if self._update_requested or self._updated_at_ms is None or self._unknown:
            return max(now_ms, self._not_before_ms)
        return max(now_ms, self._not_before_ms, self._updated_at_ms + self._max_age_ms)

    def next_request(self, now_ms: int) -> Request:
        """The request that is due."""
        if self._max_idle_ms is not None:
            for topic in [topic for topic, used in self._wanted.items() if now_ms - used >= self._max_idle_ms]:
                self.forget(topic)
        self._in_flight = True
        if not self._left:
            is_due = self._update_requested or self._updated_at_ms is None
            is_due = is_due or now_ms >= self.updated_at_ms + self._max_age_ms
            self._is_partial = bool(self._unknown) and not is_due
            self._left = sorted(self._unknown if self._is_partial else self._wanted)
            self._is_complete = True
            self._update_requested = False
            self._attempts += 1
            self._not_before_ms = now_ms + self._backoff.pause_ms(self._attempts)
        if self._trying_since_ms is None:
            self._trying_since_ms = now_ms
        named, self._left = self._left[:MAX_ELEMENTS_SENT], self._left[MAX_ELEMENTS_SENT:]
        self._unknown.difference_update(named)
        return self.cluster_request([topic for topic in named if topic in self._wanted])

    def cluster_request(self, topics: Sequence[str]) -> Request:
        """The request for the brokers and these topics."""
        return MetadataRequest(
            topics=[MetadataRequestTopic(name=topic) for topic in topics],
            allow_auto_topic_creation=self._allow_auto_topic_creation,
        )

    def on_failure(self, now_ms: int) -> None:
        """The request has no response."""
        self._begin_anew()

    def _begin_anew(self) -> None:
        """The next request names all topics again, after the backoff."""
        self._in_flight = False
        self._left = []
        self._update_requested = True

    def on_response(self, response: MetadataResponse, now_ms: int) -> None:
        """Take over what the response says."""
        self._in_flight = False
        if response.error_code == ErrorCode.REBOOTSTRAP_REQUIRED:
            self.rebootstrap(now_ms)
            return
        if response.error_code or not response.brokers:
            self._begin_anew()  # a broker without an image yet answers without brokers
            code = ErrorCode(response.error_code)
            if code is not ErrorCode.NONE and not code.retriable:
                self.fatal_error = code
                self.version += 1
            return
        self.fatal_error = None
        self._leaders.clear()
        read = read_metadata(response)
        self._take_over(read, now_ms)
        for name, topic in read.topics.items():
            if name not in self._wanted:
                continue
            cached = self.topics.get(name)
            if topic.error_code and topic.error_code not in _NEW_TOPIC_FAILED:
                self._is_complete = False
                if cached is not None and not cached.error_code and ErrorCode(topic.error_code).retriable:
                    self.topics[name] = topic
                    continue
            self._is_complete &= all(not partition.error_code for partition in topic.partitions)
            if cached is not None and cached.topic_id != topic.topic_id:
                self.topic_names.pop(cached.topic_id, None)
            self.topics[name] = newest(topic, cached) if cached is not None and not cached.error_code else topic
            if topic.topic_id != ZERO_UUID:
                self.topic_names[topic.topic_id] = name
            self._answered.add(name)
        if not self._is_complete:
            self._update_requested = True
        elif not self._left:
            self._attempts = 0
        self.version += 1

    def _take_over(self, read: Metadata, now_ms: int) -> None:
        """The nodes of a response, which has come from one of those known until now."""
        if not self._is_bootstrapping:
            self._rebootstraps = 0
        self.brokers = read.brokers
        self.cluster_id = read.cluster_id
        if not self._is_partial:
            self._updated_at_ms = now_ms
        self._trying_since_ms = None

    # -- without a reachable broker

    def has_to_rebootstrap(self, now_ms: int, any_node_usable: bool) -> bool:
        """Whether to return to the bootstrap servers: no broker can be tried now, or none has answered for long. Where
        they have named only brokers that did not answer, the next return waits longer each time."""
        if not self._may_rebootstrap or self._is_bootstrapping or now_ms < self._rebootstrap_at_ms:
            return False
        since_ms = self._trying_since_ms
        return not any_node_usable or (since_ms is not None and now_ms - since_ms >= self._rebootstrap_trigger_ms)

    def rebootstrap(self, now_ms: int) -> None:
        """Forget the brokers, and begin again with the bootstrap servers. Topics stay, until the next response, and so
        does the backoff of requests: the bootstrap servers may answer the same."""
        self._begin_anew()
        if not self._may_rebootstrap:
            return
        log.info("no known broker is usable: metadata is fetched from the bootstrap servers again")
        self._leaders.clear()
        self._use_bootstrap()
        self._rebootstraps += 1
        self._rebootstrap_at_ms = now_ms + self._backoff.pause_ms(self._rebootstraps)
        self._trying_since_ms = now_ms
        self.version += 1

    @property
    def _is_bootstrapping(self) -> bool:
        return all(node_id < 0 for node_id in self.brokers)


class ControllerMetadata(ClusterMetadata):
    """The metadata of a client of controllers (KIP-919): which there are, and which one is active. `brokers` has them.

    The bootstrap addresses are those of controllers, which answer no Metadata request. DescribeCluster takes its place.
    There are no topics, and requests that any broker would answer are sent to the active controller."""

    is_of_controllers = True

    def cluster_request(self, topics: Sequence[str]) -> Request:
        del topics
        return DescribeClusterRequest(endpoint_type=EndpointType.CONTROLLERS)

    def on_response(self, response: Any, now_ms: int) -> None:
        """Take over the controllers that the response names."""
        self._in_flight = False
        code = ErrorCode(response.error_code)
        if code is not ErrorCode.NONE or not response.brokers or response.controller_id < 0:
            self._update_requested = True
            if code is not ErrorCode.NONE and not code.retriable:
                self.refusal = refused(code, "the controllers", response.error_message)
            return
        self.refusal = None
        nodes = {each.broker_id: Broker(each.broker_id, each.host, each.port, None) for each in response.brokers}
        self._take_over(Metadata(response.cluster_id, response.controller_id, nodes, {}), now_ms)
        self.controller_id = response.controller_id
        self._attempts = 0
        self.version += 1
