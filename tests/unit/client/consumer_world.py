"""Consumers' cores beside brokers that are a model, in virtual time. Groups are Kalda's own coordinator.

`Cluster` has topics as lists of batches, leaders with epochs, and `groups_world.World` for group APIs. Each `Member` is
a `ConsumerCore` with what its shell would do: carry out actions, call the listener, poll. A member is killed by
dropping it. Frames are encoded and decoded as on a wire.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable
from operator import attrgetter
from random import Random
from typing import Any

from groups_world import Context, World

from kalda.base.configs.consumer import consumer_config
from kalda.base.errors import ErrorCode
from kalda.base.ids import TopicPartition
from kalda.base.scheduling import Pending
from kalda.clientcore.connections.connections import Close, Connect, Write
from kalda.clientcore.consumer import ConsumerCore
from kalda.clientcore.consuming.consumer_errors import Operation
from kalda.clientcore.consuming.subscription import OffsetAndEpoch
from kalda.clientcore.groups.membership import Call
from kalda.protocol.apis import API, ApiKey, request_class
from kalda.protocol.codec import decode
from kalda.protocol.framing import decode_request_header, encode_response
from kalda.protocol.messages.groups import (
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatResponseAssignment,
    ConsumerGroupHeartbeatResponseTopicPartitions,
    FindCoordinatorResponse,
)
from kalda.protocol.messages.metadata import (
    ApiVersion,
    ApiVersionsResponse,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kalda.protocol.messages.partitions import (
    FetchableTopicResponse,
    FetchResponse,
    FetchResponsePartitionData,
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderEpochResponseEpochEndOffset,
    OffsetForLeaderTopicResult,
    OffsetSpec,
)
from kalda.records.batch import read_header
from kalda.records.builder import build_batch
from kalda.records.consuming import Record

GROUP_APIS = {
    ApiKey.JOIN_GROUP: "join_group",
    ApiKey.SYNC_GROUP: "sync_group",
    ApiKey.HEARTBEAT: "heartbeat",
    ApiKey.LEAVE_GROUP: "leave_group",
    ApiKey.OFFSET_COMMIT: "offsets.commit",
    ApiKey.OFFSET_FETCH: "offsets.fetch",
}
SERVED = (
    ApiKey.API_VERSIONS, ApiKey.METADATA, ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH,
    ApiKey.FIND_COORDINATOR, ApiKey.CONSUMER_GROUP_HEARTBEAT, *GROUP_APIS,
)  # fmt: skip


class Log:
    """One partition."""

    def __init__(self, leader: int) -> None:
        self.leader = leader
        self.epoch = 0
        self.batches: list[bytes] = []
        self.start = 0
        self.end = 0
        self.error: ErrorCode | None = None
        """What Fetch is answered with."""
        self.stable: int | None = None
        self.preferred = -1

    def append(self, *values: bytes, **options: Any) -> None:
        batch = build_batch(
            [(1_000 + self.end, None, value, ()) for value in values],
            base_offset=self.end, leader_epoch=self.epoch, **options,
        )  # fmt: skip
        self.batches.append(bytes(batch))
        self.end += len(values)

    def truncate(self, end: int) -> None:
        """Batches that reach beyond `end` are lost in an election."""
        self.batches = [batch for batch in self.batches if read_header(batch).next_offset <= end]
        self.end = end
        self.epoch += 1

    def read(self, offset: int, size: int) -> bytes:
        """A piece of the log, from the batch that holds `offset` on: what follows is not looked at."""
        out = b""
        for batch in self.batches:
            if (out or read_header(batch).last_offset >= offset) and (not out or len(out) + len(batch) <= size):
                out += batch
        return out

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch up to `epoch`, and the offset at which it ends; -1 for one that this log does not know."""
        if epoch > self.epoch:
            return -1, -1
        found, end = -1, self.start
        for header in map(read_header, self.batches):
            if header.partition_leader_epoch <= epoch:
                found, end = header.partition_leader_epoch, header.next_offset
        if epoch == self.epoch:
            return epoch, self.end
        return found, end


class Cluster:
    """Brokers, and the time."""

    def __init__(self, seed: int = 0, *, brokers: int = 2, **group: int) -> None:
        self.random = Random(seed)
        self.world = World(**group)
        self.brokers = list(range(brokers))
        self.logs: dict[TopicPartition, Log] = {}
        self.ids = self.world.topics
        self.ids.remove("orders")
        self.ids.remove("payments")
        self.down: set[int] = set()
        self.members: list[Member] = []
        self.requests: list[tuple[int, ApiKey, Any]] = []
        self.lose_next: dict[ApiKey, int] = {}
        """How many responses of an API are lost, with their connection."""
        self.events: list[tuple[int, int, Callable[[], None]]] = []
        self.modern = ModernGroup(self)
        self.wall_ms = 2_000
        self.lists_dead = False
        """Metadata still has the brokers that are down."""
        self._numbers = 0

    @property
    def now_ms(self) -> int:
        return self.world.now

    def add_topic(self, name: str, partitions: int, generation: int = 1) -> None:
        self.ids.add(name, partitions, generation)
        for index in range(partitions):
            self.logs[TopicPartition(name, index)] = Log(self.brokers[index % len(self.brokers)])

    def remove_topic(self, name: str) -> None:
        self.ids.remove(name)
        self.logs = {partition: log for partition, log in self.logs.items() if partition.topic != name}

    def append(self, topic: str, partition: int, *values: bytes, **options: Any) -> None:
        self.logs[TopicPartition(topic, partition)].append(*values, **options)

    def at(self, delay_ms: int, event: Callable[[], None]) -> None:
        self._numbers += 1
        heapq.heappush(self.events, (self.now_ms + delay_ms, self._numbers, event))

    def run(self, duration_ms: int) -> None:
        """Let time pass; members that are polling go on."""
        end_ms = self.now_ms + duration_ms
        turns = 0
        while True:
            for member in list(self.members):
                member.turn()
            dues = [member.core.deadline_ms(self.now_ms, member.is_polling) for member in self.members]
            times = [end_ms, *(due for due in dues if due is not None), *(event[0] for event in self.events[:1])]
            deadline = self.world.runtime.next_deadline_ms()
            if deadline is not None:
                times.append(deadline)
            next_ms = max(self.now_ms, min(times))
            turns = turns + 1 if next_ms == self.now_ms else 0
            assert turns < 2_000, "the cores do not let time pass"
            self.world.pass_time(next_ms - self.now_ms)
            if self.now_ms >= end_ms and not (self.events and self.events[0][0] <= end_ms):
                for member in list(self.members):
                    member.turn()
                return
            while self.events and self.events[0][0] <= self.now_ms:
                heapq.heappop(self.events)[2]()

    def run_until(self, condition: Callable[[], bool], limit_ms: int = 120_000) -> None:
        end_ms = self.now_ms + limit_ms
        while not condition():
            assert self.now_ms < end_ms, "it did not happen in time"
            self.run(10)

    # -- requests

    def answer(self, node: int, version: int, key: ApiKey, request: Any) -> Any:
        """A response, or a `Pending` one."""
        self.requests.append((node, key, request))
        if key in GROUP_APIS:
            handle = attrgetter(GROUP_APIS[key])(self.world.coordinator)
            return handle(Context(version), request, self.now_ms)
        match key:
            case ApiKey.API_VERSIONS:
                return ApiVersionsResponse(
                    api_keys=[
                        ApiVersion(api_key=k, min_version=API[k].lowest, max_version=API[k].highest_served(False))
                        for k in SERVED
                    ]
                )
            case ApiKey.METADATA:
                return self._metadata(request)
            case ApiKey.FIND_COORDINATOR:
                node = min(each for each in self.brokers if each not in self.down)
                return FindCoordinatorResponse(node_id=node, host=f"n{node}", port=1)
            case ApiKey.LIST_OFFSETS:
                return self._list_offsets(request)
            case ApiKey.OFFSET_FOR_LEADER_EPOCH:
                return self._end_offsets(request)
            case ApiKey.CONSUMER_GROUP_HEARTBEAT:
                return self.modern.heartbeat(request)
        raise AssertionError(key)

    def _metadata(self, request: Any) -> MetadataResponse:
        names = sorted(self.ids.ids)
        if request.topics is not None:
            names = [topic.name or self.ids.name_of(topic.topic_id) for topic in request.topics]
        alive = [node for node in self.brokers if self.lists_dead or node not in self.down]
        topics = []
        for name in names:
            topic_id = self.ids.id_of(name)
            if topic_id is None:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                topics.append(MetadataResponseTopic(name=name, error_code=code))
                continue
            partitions = [
                MetadataResponsePartition(
                    partition_index=index, leader_id=log.leader, leader_epoch=log.epoch, replica_nodes=self.brokers
                )
                for (topic, index), log in self.logs.items()
                if topic == name
            ]
            topics.append(MetadataResponseTopic(name=name, topic_id=topic_id, partitions=partitions))
        brokers = [MetadataResponseBroker(node_id=n, host=f"n{n}", port=1, rack=f"r{n}") for n in alive]
        return MetadataResponse(cluster_id="model", brokers=brokers, topics=topics)

    def _list_offsets(self, request: Any) -> ListOffsetsResponse:
        topics = []
        for topic in request.topics:
            found = []
            for each in topic.partitions:
                log = self.logs[TopicPartition(topic.name, each.partition_index)]
                offset = {OffsetSpec.EARLIEST: log.start, OffsetSpec.LATEST: log.end}.get(each.timestamp)
                if offset is None:
                    later = [o for o in range(log.start, log.end) if 1_000 + o >= each.timestamp]
                    offset = later[0] if later else -1
                found.append(
                    ListOffsetsPartitionResponse(
                        partition_index=each.partition_index, offset=offset, timestamp=-1, leader_epoch=log.epoch
                    )
                )
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=found))
        return ListOffsetsResponse(topics=topics)

    def _end_offsets(self, request: Any) -> OffsetForLeaderEpochResponse:
        topics = []
        for topic in request.topics:
            found = []
            for each in topic.partitions:
                epoch, end = self.logs[TopicPartition(topic.topic, each.partition)].end_of_epoch(each.leader_epoch)
                found.append(
                    OffsetForLeaderEpochResponseEpochEndOffset(
                        partition=each.partition, leader_epoch=epoch, end_offset=end
                    )
                )
            topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=found))
        return OffsetForLeaderEpochResponse(topics=topics)


class ModernGroup:
    """The coordinator of a KIP-848 group whose target assignments the test sets. As Kafka's, it gives a partition to a
    member only when no other one owns it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.targets: dict[str, set[TopicPartition]] = {}
        """By member id."""
        self.owned: dict[str, set[TopicPartition]] = {}
        self.given: dict[str, set[TopicPartition] | None] = {}
        """What each member was given last."""
        self.epochs: dict[str, int] = {}
        self.fenced: set[str] = set()
        self.subscribed: dict[str, tuple[Any, Any]] = {}
        self.left: list[tuple[str, int]] = []

    def heartbeat(self, request: Any) -> ConsumerGroupHeartbeatResponse:
        member = request.member_id
        if request.member_epoch < 0:
            self.left.append((member, request.member_epoch))
            for held in (self.owned, self.given, self.epochs):
                held.pop(member, None)
            return ConsumerGroupHeartbeatResponse(member_id=member, member_epoch=request.member_epoch)
        if member in self.fenced or (request.member_epoch > 0 and request.member_epoch != self.epochs.get(member)):
            self.fenced.discard(member)
            for held in (self.owned, self.given, self.epochs):
                held.pop(member, None)
            return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.FENCED_MEMBER_EPOCH)
        if request.member_epoch == 0:
            self.given[member], self.owned[member] = None, set()
        if request.subscribed_topic_names is not None:
            self.subscribed[member] = request.subscribed_topic_names, request.subscribed_topic_regex
        if request.topic_partitions is not None:
            self.owned[member] = {
                TopicPartition(self.cluster.ids.name_of(each.topic_id) or "", index)
                for each in request.topic_partitions
                for index in each.partitions
            }
        self.epochs[member] = max(1, self.epochs.get(member, 0))
        taken = {p for other, owned in self.owned.items() if other != member for p in owned}
        taken |= {p for other, given in self.given.items() if other != member for p in given or ()}
        now = self.targets.get(member, set()) - taken
        assignment = None
        if now != self.given[member]:
            self.given[member] = now
            self.epochs[member] += 1
            by_topic: dict[str, list[int]] = {}
            for name, index in sorted(now):
                by_topic.setdefault(name, []).append(index)
            assignment = ConsumerGroupHeartbeatResponseAssignment(
                topic_partitions=[
                    ConsumerGroupHeartbeatResponseTopicPartitions(
                        topic_id=self.cluster.ids.ids[name], partitions=indexes
                    )
                    for name, indexes in by_topic.items()
                ]
            )
        return ConsumerGroupHeartbeatResponse(
            member_id=member, member_epoch=self.epochs[member], heartbeat_interval_ms=1_000, assignment=assignment
        )


class Member:
    """One consumer."""

    def __init__(self, cluster: Cluster, name: str = "m", **keys: Any) -> None:
        self.cluster = cluster
        self.name = name
        settings = {"bootstrap.servers": "n0:1,n1:1", "auto.offset.reset": "earliest", **keys}
        self.core = ConsumerCore(
            consumer_config(settings, {}), client_id=name, software_version="1", random=cluster.random.random,
            member_id=f"id-{name}", now_ms=cluster.now_ms, wall_ms=lambda: cluster.wall_ms,
        )  # fmt: skip
        self.is_polling = False
        self.calls: list[tuple[str, list[TopicPartition]]] = []
        self.got: list[Record] = []
        self.on_call: Callable[[str, list[TopicPartition]], None] = lambda _call, _partitions: None
        self._connected: dict[int, int] = {}
        self._sessions: dict[int, tuple[int, dict[tuple[Any, int], Any]]] = {}
        """Fetch sessions by node: epoch, and the partitions."""
        cluster.members.append(self)

    def kill(self) -> None:
        """It is gone without a word."""
        self._connected.clear()
        self.cluster.members.remove(self)

    @property
    def owned(self) -> set[TopicPartition]:
        return set(self.core.subscription.partitions)

    def poll(self, duration_ms: int = 100, limit: int = 500) -> list[Record]:
        """One poll that lasts until records have come, or so long."""
        self.core.at(self.cluster.now_ms)
        self.core.begin_poll()
        self.is_polling = True
        try:
            end_ms = self.cluster.now_ms + duration_ms
            while True:
                self.turn()
                self.core.raise_error()
                records = self.core.take_records(limit)
                if records or self.cluster.now_ms >= end_ms:
                    self.got += records
                    return records
                self.cluster.run(min(10, end_ms - self.cluster.now_ms))
        finally:
            self.is_polling = False

    def poll_buffers(self, limit: int) -> list[Record]:
        """One poll that ends with records that are buffered, before a turn."""
        self.core.at(self.cluster.now_ms)
        self.core.begin_poll()
        self._call_listener()
        return self.core.take_records(limit)

    def commit(self, offsets: dict[TopicPartition, int] | None = None) -> None:
        self.core.at(self.cluster.now_ms)
        operation = Operation("commit", self.cluster.now_ms + 10_000)
        chosen = None if offsets is None else {p: OffsetAndEpoch(at) for p, at in offsets.items()}
        self.core.commit(chosen, operation, repeats=True)
        self.wait(operation)

    def wait(self, operation: Operation) -> Any:
        self.cluster.run_until(lambda: operation.is_done)
        if operation.error is not None:
            raise operation.error
        return operation.result

    def close(self) -> None:
        self.core.at(self.cluster.now_ms)
        operation = self.core.begin_close(self.core.subscription.positions())
        if operation is not None:
            self.cluster.run_until(lambda: operation.is_done)
        operation = self.core.begin_leave(None)
        if operation is not None:
            self.cluster.run_until(lambda: operation.is_done)
        self.turn()
        self.kill()

    def subscribe(self, *topics: str) -> Member:
        self.core.subscribe(topics)
        return self

    def subscribe_pattern(self, pattern: str) -> Member:
        self.core.subscribe_pattern(re.compile(pattern))
        return self

    def assign(self, *pairs: tuple[str, int]) -> Member:
        self.core.assign([TopicPartition(*pair) for pair in pairs])
        return self

    # -- the shell

    def _call_listener(self) -> bool:
        """Whether a call was due."""
        was_due = False
        while (callback := self.core.callback) is not None:
            was_due = True
            partitions = list(callback.partitions)
            self.calls.append((callback.call.value, partitions))
            self.on_call(callback.call.value, partitions)
            self.core.on_callback_done()
        return was_due

    def turn(self) -> None:
        now_ms = self.cluster.now_ms
        self.core.run(now_ms, self.is_polling)
        if self.is_polling and self._call_listener():
            self.core.run(now_ms, True)
        while actions := self.core.connections.take_actions():
            for action in actions:
                match action:
                    case Connect(connection_id, address):
                        self._connect(connection_id, int(address.host[1:]))
                    case Write(connection_id, buffers):
                        self._write(connection_id, b"".join(buffers))
                    case Close(connection_id):
                        self._connected.pop(connection_id, None)

    def _connect(self, connection_id: int, node: int) -> None:
        self._connected[connection_id] = node

        def connected() -> None:
            if connection_id not in self._connected:
                return
            if node in self.cluster.down:
                del self._connected[connection_id]
                self.core.at(self.cluster.now_ms).on_connect_failed(connection_id, "refused", self.cluster.now_ms)
            else:
                self.core.at(self.cluster.now_ms).on_connected(connection_id, self.cluster.now_ms)

        self.cluster.at(1, connected)

    def cut(self, node: int | None = None) -> None:
        """Connections break: all of them, or those to a node."""
        for connection_id in [each for each, peer in self._connected.items() if node in (None, peer)]:
            self._lose(connection_id)

    def _lose(self, connection_id: int) -> None:
        if self._connected.pop(connection_id, None) is not None:
            self.core.at(self.cluster.now_ms).on_lost(connection_id, "cut", self.cluster.now_ms)

    def _write(self, connection_id: int, data: bytes) -> None:
        assert len(data) == 4 + int.from_bytes(data[:4], "big")
        self.cluster.at(1, lambda: self._process(connection_id, data[4:]))

    def _process(self, connection_id: int, frame: bytes) -> None:
        node = self._connected.get(connection_id)
        if node is None:
            return
        if node in self.cluster.down:
            self._lose(connection_id)
            return
        header = decode_request_header(frame)
        key = ApiKey(header.api_key)
        request = decode(request_class(key), frame, header.api_version, header.body_at)

        def send(response: Any) -> None:
            if self.cluster.lose_next.get(key, 0) > 0:
                self.cluster.lose_next[key] -= 1
                self._lose(connection_id)
                return
            answer = b"".join(encode_response(header.correlation_id, response, header.api_version))
            self.cluster.at(1, lambda: self._arrive(connection_id, answer))

        if key is ApiKey.FETCH:
            self.cluster.requests.append((node, key, request))
            self._fetch(connection_id, node, request, send, self.cluster.now_ms + request.max_wait_ms)
            return
        outcome = self.cluster.answer(node, header.api_version, key, request)
        if isinstance(outcome, Pending):
            outcome.then(lambda value, error: send(value) if error is None else self._lose(connection_id))
        else:
            send(outcome)

    def _arrive(self, connection_id: int, answer: bytes) -> None:
        if connection_id in self._connected:
            self.core.at(self.cluster.now_ms).on_frame(connection_id, memoryview(answer), self.cluster.now_ms)

    # -- fetches, with sessions

    def _fetch(self, connection_id: int, node: int, request: Any, send: Callable[[Any], None], end_ms: int) -> None:
        if request.session_epoch == -1:
            self._sessions.pop(node, None)
            return
        epoch, wanted = self._sessions.get(node, (0, {}))
        if request.session_epoch == 0:
            epoch, wanted = 0, {}
        elif request.session_epoch != epoch:
            send(FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH))
            return
        for topic in request.forgotten_topics_data:
            for index in topic.partitions:
                wanted.pop((topic.topic_id, index), None)
        for topic in request.topics:
            for each in topic.partitions:
                wanted[topic.topic_id, each.partition] = each
        self._sessions[node] = (epoch + 1, wanted)
        self._try_fetch(connection_id, node, request, wanted, send, end_ms)

    def _try_fetch(
        self, connection_id: int, node: int, request: Any, wanted: Any, send: Callable[[Any], None], end_ms: int
    ) -> None:
        if connection_id not in self._connected:
            return
        found: dict[Any, list[FetchResponsePartitionData]] = {}
        for (topic_id, index), each in wanted.items():
            data = self._read(node, topic_id, index, each, request.isolation_level)
            if data is not None:
                found.setdefault(topic_id, []).append(data)
        if not found and self.cluster.now_ms < end_ms:
            again = lambda: self._try_fetch(connection_id, node, request, wanted, send, end_ms)  # noqa: E731
            self.cluster.at(5, again)
            return
        send(
            FetchResponse(
                session_id=1 + node,
                responses=[FetchableTopicResponse(topic_id=t, partitions=each) for t, each in found.items()],
            )
        )

    def _read(self, node: int, topic_id: Any, index: int, each: Any, isolation: int) -> Any:
        name = self.cluster.ids.name_of(topic_id)
        if name is None:
            return FetchResponsePartitionData(partition_index=index, error_code=ErrorCode.UNKNOWN_TOPIC_ID)
        log = self.cluster.logs[TopicPartition(name, index)]
        code = log.error
        if code is None and node != log.leader and log.preferred != node:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif code is None and each.current_leader_epoch not in (-1, log.epoch):
            is_old = each.current_leader_epoch < log.epoch
            code = ErrorCode.FENCED_LEADER_EPOCH if is_old else ErrorCode.UNKNOWN_LEADER_EPOCH
        elif code is None and not log.start <= each.fetch_offset <= log.end:
            code = ErrorCode.OFFSET_OUT_OF_RANGE
        if code is not None:
            return FetchResponsePartitionData(partition_index=index, error_code=code)
        if log.preferred >= 0 and node == log.leader:
            return FetchResponsePartitionData(
                partition_index=index, high_watermark=log.end, preferred_read_replica=log.preferred
            )
        records = log.read(each.fetch_offset, each.partition_max_bytes)
        if not records:
            return None
        return FetchResponsePartitionData(
            partition_index=index, high_watermark=log.end, last_stable_offset=log.end, log_start_offset=log.start,
            records=records,
        )  # fmt: skip


REVOKED, ASSIGNED, LOST = Call.REVOKED.value, Call.ASSIGNED.value, Call.LOST.value


def values(records: list[Record]) -> list[bytes]:
    return [record.value for record in records]
