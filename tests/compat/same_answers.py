"""Sends the same requests to Apache Kafka and to Kalda, and compares all meaningful fields of the answers.

Values that always differ (ids, ports, times, texts of messages) are replaced by their kind before the answers are
compared. Lists whose order has no meaning are sorted.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from harness.blocking import BlockingConnection

from kalda.base.errors import ApiError
from kalda.base.ids import Uuid
from kalda.protocol.apis import API
from kalda.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from kalda.protocol.messages.partitions import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    PartitionProduceResponse,
)
from kalda.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kalda.protocol.notation import Request, Struct

_IDS = frozenset(("topic_id", "replica_directory_id", "voter_directory_id"))
_NUMBERS = frozenset(
    ("port", "session_id", "producer_id", "total_bytes", "usable_bytes", "log_append_time_ms", "last_timestamp")
)
_NUMBERS_OF_A_RUN = frozenset(("finalized_features_epoch", "last_fetch_timestamp", "last_caught_up_timestamp"))
_WORDS = frozenset(("error_message", "batch_index_error_message", "topic_config_error_message"))
_KEYS = (
    "name", "topic", "topic_name", "topic_id", "index", "partition_index", "partition", "partition_id", "group_id",
    "key", "resource_type", "resource_name", "node_id", "feature", "user", "group_instance_id", "entity_type", "entity",
    "producer_epoch", "last_sequence", "host",
)  # fmt: skip
_READY_S = 10
_NEWER = {
    "errors.deadletterqueue.auto.create.topics.enable",
    "errors.deadletterqueue.copy.record.enable",
    "errors.deadletterqueue.group.enable",
    "errors.deadletterqueue.topic.name",
    "errors.deadletterqueue.topic.name.prefix",
    "max.decompressed.message.bytes",
    "remote.copy.lag.bytes",
    "remote.copy.lag.ms",
    "streams.assignor.name",
    "streams.rack.aware.assignment.tags",
}
"""Configs of 4.4, which an Apache Kafka of 4.3 does not have."""


class Seen(NamedTuple):
    """One request's name, and its outcome."""

    label: str
    answer: Any
    request: str


class Asker:
    """Sends a scenario's requests to one node and records the answers."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.seen: list[Seen] = []
        self._connection: BlockingConnection | None = None

    def __enter__(self) -> Asker:
        return self

    def __exit__(self, *_: object) -> None:
        self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def quiet(self, request: Request, version: int | None = None) -> Any:
        """Send a request whose answer is not compared. Raises `ApiError` where the connection is closed instead."""
        if self._connection is None:
            self._connection = BlockingConnection("127.0.0.1", self.port, timeout_ms=15_000, negotiate=False)
        try:
            return self._connection.request(request, API[request.API_KEY].highest if version is None else version)
        except ApiError:
            self._drop()
            raise

    def ask(self, request: Request, version: int | None = None, label: object = "") -> Any:
        """Send a request, and record the answer, or that the connection was closed."""
        api = API[request.API_KEY]
        version = api.highest if version is None else version
        answer = None
        try:
            answer = self.quiet(request, version)
            shown = plain(answer)
        except ApiError as error:
            shown = f"closed: {error.code.name}"
        self.seen.append(Seen(f"{api.name} v{version} {label}", shown, repr(request)[:500]))
        return answer

    def note(self, label: str, value: object) -> None:
        """Record another value that must be the same."""
        self.seen.append(Seen(label, value, ""))

    def raw(self, frame: bytes, label: str) -> None:
        """Send raw bytes, and record the whole answer, or that the connection was closed."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=_READY_S) as peer:
            peer.sendall(frame)
            head = peer.recv(4, socket.MSG_WAITALL)
            answer = peer.recv(struct.unpack(">i", head)[0], socket.MSG_WAITALL).hex() if head else "closed"
        self.note(label, answer)

    # -- topics

    def make(self, name: str, partitions: int = 1, **config: str) -> Uuid:
        """Create a topic, and wait until it can be used."""
        configs = {key.replace("_", "."): value for key, value in config.items()}
        self.quiet(CreateTopicsRequest(topics=[topic(name, partitions, 1, configs)]))
        until = time.monotonic() + _READY_S
        while time.monotonic() < until:
            asked = [MetadataRequestTopic(name=name)]
            found = self.quiet(MetadataRequest(topics=asked, allow_auto_topic_creation=False)).topics[0]
            if len(found.partitions) == partitions and all(each.leader_id >= 0 for each in found.partitions):
                self._wait_for_leader(name, partitions, until)
                return Uuid(found.topic_id)
        raise AssertionError(f"{name} is not there after {_READY_S} s")

    def _wait_for_leader(self, name: str, partitions: int, until: float) -> None:
        """Wait for the partitions: Apache Kafka's metadata has a topic before its brokers have the partitions."""
        asked = [ListOffsetsPartition(partition_index=index, timestamp=-1) for index in range(partitions)]
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=name, partitions=asked)])
        while time.monotonic() < until:
            if not any(each.error_code for each in self.quiet(request).topics[0].partitions):
                return
        raise AssertionError(f"{name} has no leaders after {_READY_S} s")


def topic(
    name: str,
    partitions: int = 1,
    replicas: int = 1,
    configs: dict[str, str | None] | None = None,
    assigned: tuple[tuple[int, list[int]], ...] = (),
) -> CreatableTopic:
    """A topic of a CreateTopics request."""
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()],
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=brokers) for index, brokers in assigned
        ],
    )


def plain(value: Any, name: str = "") -> Any:
    """A message as comparable data."""
    if isinstance(value, Struct):
        shown = {key: plain(getattr(value, key), key) for key in type(value).declared}
        if isinstance(value, PartitionProduceResponse) and value.error_code:
            del shown["log_start_offset"]  # whether a refusal has this depends on the layer that refused
        return shown
    if name == "records":
        return None if value is None else whole_batches(value).hex()
    if isinstance(value, list):
        all_shown = [plain(each, name) for each in value]
        all_shown = [each for each in all_shown if not (isinstance(each, dict) and each.get("name") in _NEWER)]
        return sorted(all_shown, key=_order) if all_shown and isinstance(all_shown[0], dict) else all_shown
    if isinstance(value, bytes | bytearray | memoryview):
        return ("an id" if any(value) else "no id") if name in _IDS else bytes(value).hex()
    if name in _NUMBERS and isinstance(value, int):
        return value if value <= 0 else "a number"
    if name in _NUMBERS_OF_A_RUN:
        return "a number"
    if name in ("member_id", "leader") and value:
        return "a member"
    if name in _WORDS and value:
        return "words"
    return value


def _order(each: dict[str, Any]) -> str:
    return json.dumps([each.get(key) for key in _KEYS], default=str)


def whole_batches(records: Any) -> bytes:
    """Apache Kafka cuts a fetch at its limit, Kalda at the last batch that fits: only whole batches are compared."""
    data = b"".join(map(bytes, records)) if isinstance(records, list) else bytes(records)
    end = 0
    while end + 12 <= len(data) and end + 12 + int.from_bytes(data[end + 8 : end + 12], "big") <= len(data):
        end += 12 + int.from_bytes(data[end + 8 : end + 12], "big")
    return data[:end]


def differences(kafka: Any, kalda: Any, path: str = "") -> Iterator[str]:
    """The differences between two answers."""
    if isinstance(kafka, dict) and isinstance(kalda, dict):
        for key in kafka:
            yield from differences(kafka[key], kalda[key], f"{path}.{key}")
    elif isinstance(kafka, list) and isinstance(kalda, list) and len(kafka) == len(kalda):
        for index, (one, other) in enumerate(zip(kafka, kalda, strict=True)):
            yield from differences(one, other, f"{path}[{index}]")
    elif kafka != kalda and not (path.endswith("error_message") and kafka is None):
        # Kafka gives a producer a message for some refusals only, Kalda for all.
        yield f"{path}: Apache Kafka {kafka!r:.300}, Kalda {kalda!r:.300}"


def compare(scenario: Callable[[Asker], None], kafka_port: int, kalda_port: int) -> None:
    """Run a scenario on both, and fail with every difference."""
    with Asker(kafka_port) as kafka, Asker(kalda_port) as kalda:
        scenario(kafka)
        scenario(kalda)
    found = []
    for one, other in zip(kafka.seen, kalda.seen, strict=True):
        assert one.label == other.label
        found += [f"{one.label}{each}\n    {one.request}" for each in differences(one.answer, other.answer)]
    assert not found, f"{len(found)} differences\n" + "\n".join(found[:40])
