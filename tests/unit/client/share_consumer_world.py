"""Share consumers' cores beside brokers that are a model, in virtual time: `consumer_world` with share groups.

A broker's model hands out offsets of the partitions that it leads, to one member at a time, until they are acknowledged
or the member's session ends. Locks have no time here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from consumer_world import SERVED, Cluster, Log, Member

from kalda.base.configs.share_consumer import share_consumer_config
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.base.scheduling import Pending
from kalda.base.share_states import AcknowledgeType
from kalda.clientcore.consuming.consumer_errors import Operation
from kalda.clientcore.share_consumer import ShareConsumerCore
from kalda.protocol.apis import API, ApiKey
from kalda.protocol.messages.metadata import ApiVersion, ApiVersionsResponse
from kalda.protocol.messages.share import (
    AcquiredRecords,
    ShareAcknowledgeResponse,
    ShareAcknowledgeResponsePartitionData,
    ShareAcknowledgeTopicResponse,
    ShareFetchableTopicResponse,
    ShareFetchResponse,
    ShareFetchResponsePartitionData,
    ShareGroupHeartbeatResponse,
    ShareGroupHeartbeatResponseAssignment,
    ShareGroupHeartbeatResponseTopicPartitions,
)
from kalda.records.consuming import Record

SHARE_APIS = (ApiKey.SHARE_GROUP_HEARTBEAT, ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE)
_RENEWED = AcknowledgeType.RENEW


class ShareState:
    """What became of one partition's offsets."""

    def __init__(self) -> None:
        self.owner: dict[int, str] = {}
        self.done: dict[int, AcknowledgeType] = {}
        self.count: Counter[int] = Counter()


class ShareCluster(Cluster):
    """Brokers with share groups, whose members all have all partitions of their topics."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.shares: dict[TopicPartition, ShareState] = {}
        self.sessions: dict[tuple[int, str], tuple[int, set[TopicPartition]]] = {}
        """By broker and member: the next epoch, and the partitions."""
        self.epochs: dict[str, int] = {}
        self.left: list[str] = []
        self.acknowledge_errors: list[ErrorCode] = []
        """What the next acknowledgements of a partition are refused with."""
        self.said: list[tuple[TopicPartition, int, int, tuple[int, ...]]] = []
        """Batches of acknowledgements, as they came."""
        self.is_assigning = True

    def share(self, partition: TopicPartition) -> ShareState:
        return self.shares.setdefault(partition, ShareState())

    def answer(self, node: int, version: int, key: ApiKey, request: Any) -> Any:
        if key is ApiKey.API_VERSIONS:
            self.requests.append((node, key, request))
            return ApiVersionsResponse(
                api_keys=[
                    ApiVersion(api_key=k, min_version=API[k].lowest, max_version=API[k].highest_served(False))
                    for k in (*SERVED, *SHARE_APIS)
                ]
            )
        if key not in SHARE_APIS:
            return super().answer(node, version, key, request)
        self.requests.append((node, key, request))
        if key is ApiKey.SHARE_GROUP_HEARTBEAT:
            return self._heartbeat(request)
        if key is ApiKey.SHARE_ACKNOWLEDGE:
            return self._acknowledge(node, request)
        return self._share_fetch(node, request)

    def sent(self, key: ApiKey) -> list[tuple[int, Any]]:
        """Brokers and requests of an API, in order."""
        return [(node, request) for node, each, request in self.requests if each is key]

    def fence(self, member: str) -> None:
        self.epochs.pop(member, None)

    def end_sessions(self, node: int) -> None:
        """The broker has restarted, or the connections broke: locks are gone."""
        for where, member in [each for each in self.sessions if each[0] == node]:
            self._end(where, member)

    def _end(self, node: int, member: str) -> None:
        self.sessions.pop((node, member), None)
        for partition, share in self.shares.items():
            if self.logs[partition].leader == node:
                share.owner = {offset: each for offset, each in share.owner.items() if each != member}

    def move(self, topic: str, index: int, leader: int) -> None:
        """Another broker leads the partition: locks are gone."""
        log = self.logs[TopicPartition(topic, index)]
        log.leader, log.epoch = leader, log.epoch + 1
        self.share(TopicPartition(topic, index)).owner.clear()

    def _heartbeat(self, request: Any) -> ShareGroupHeartbeatResponse:
        member = request.member_id
        if request.member_epoch == -1:
            self.left.append(member)
            self.epochs.pop(member, None)
            return ShareGroupHeartbeatResponse(member_id=member, member_epoch=-1)
        if request.member_epoch > 0 and self.epochs.get(member) != request.member_epoch:
            return ShareGroupHeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
        assignment = None
        if request.subscribed_topic_names is not None:
            self.epochs[member] = self.epochs.get(member, 0) + 1
            assignment = ShareGroupHeartbeatResponseAssignment(
                topic_partitions=[
                    ShareGroupHeartbeatResponseTopicPartitions(
                        topic_id=self.ids.ids[name],
                        partitions=[index for topic, index in self.logs if topic == name],
                    )
                    for name in request.subscribed_topic_names
                    if self.is_assigning
                ]
            )
        return ShareGroupHeartbeatResponse(
            member_id=member, member_epoch=self.epochs[member], heartbeat_interval_ms=1_000, assignment=assignment
        )

    # -- the leaders of partitions

    def _session(self, node: int, request: Any) -> ErrorCode | None:
        where = node, request.member_id
        if request.share_session_epoch == 0:
            self._end(*where)
            self.sessions[where] = 1, set()
            return None
        if where not in self.sessions:
            return ErrorCode.SHARE_SESSION_NOT_FOUND
        epoch, partitions = self.sessions[where]
        if request.share_session_epoch == -1:
            return None
        if request.share_session_epoch != epoch:
            return ErrorCode.INVALID_SHARE_SESSION_EPOCH
        self.sessions[where] = epoch + 1, partitions
        return None

    def _apply(self, node: int, request: Any) -> dict[tuple[Any, int], ErrorCode]:
        """Acknowledge; the outcome of each partition that is named with acknowledgements."""
        outcomes: dict[tuple[Any, int], ErrorCode] = {}
        for topic in request.topics:
            for each in topic.partitions:
                partition = TopicPartition(self.ids.name_of(topic.topic_id) or "", each.partition_index)
                for batch in each.acknowledgement_batches:
                    self.said.append((partition, batch.first_offset, batch.last_offset, tuple(batch.acknowledge_types)))
                if not each.acknowledgement_batches:
                    continue
                code = self._say(node, partition, request.member_id, each.acknowledgement_batches)
                outcomes[topic.topic_id, each.partition_index] = code
        return outcomes

    def _say(self, node: int, partition: TopicPartition, member: str, batches: Any) -> ErrorCode:
        if self.acknowledge_errors:
            return self.acknowledge_errors.pop(0)
        if self.logs[partition].leader != node:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        share = self.share(partition)
        for batch in batches:
            offsets = range(batch.first_offset, batch.last_offset + 1)
            types = batch.acknowledge_types * (len(offsets) if len(batch.acknowledge_types) == 1 else 1)
            assert len(types) == len(offsets)
            for offset, kind in zip(offsets, types, strict=True):
                if share.owner.get(offset) != member:
                    return ErrorCode.INVALID_RECORD_STATE
                if kind == _RENEWED:
                    continue
                del share.owner[offset]
                if kind != AcknowledgeType.RELEASE:
                    share.done[offset] = AcknowledgeType(kind)
        return ErrorCode.NONE

    def _acknowledge(self, node: int, request: Any) -> ShareAcknowledgeResponse:
        assert request.share_session_epoch != 0
        code = self._session(node, request)
        if code is not None:
            return ShareAcknowledgeResponse(error_code=code)
        responses = [
            ShareAcknowledgeTopicResponse(
                topic_id=topic_id,
                partitions=[ShareAcknowledgeResponsePartitionData(partition_index=index, error_code=outcome)],
            )
            for (topic_id, index), outcome in self._apply(node, request).items()
        ]
        if request.share_session_epoch == -1:
            self._end(node, request.member_id)
        return ShareAcknowledgeResponse(responses=responses, acquisition_lock_timeout_ms=30_000)

    def _share_fetch(self, node: int, request: Any) -> ShareFetchResponse | Pending[ShareFetchResponse]:
        code = self._session(node, request)
        if code is not None:
            return ShareFetchResponse(error_code=code)
        wanted = self.sessions[node, request.member_id][1]
        for topic in request.forgotten_topics_data:
            wanted -= {TopicPartition(self.ids.name_of(topic.topic_id) or "", index) for index in topic.partitions}
        for topic in request.topics:
            name = self.ids.name_of(topic.topic_id) or ""
            wanted |= {TopicPartition(name, each.partition_index) for each in topic.partitions}
        outcomes = self._apply(node, request)
        answer: Pending[ShareFetchResponse] = Pending()
        self._try_share(node, request, outcomes, answer, self.now_ms + request.max_wait_ms)
        return answer

    def _try_share(self, node: int, request: Any, outcomes: Any, answer: Any, end_ms: int) -> None:
        found = {}
        left = request.max_records
        for partition in sorted(self.sessions.get((node, request.member_id), (0, set()))[1]):
            topic_id = self.ids.ids[partition.topic]
            data = self._read_share(node, partition, request.member_id, left)
            code = outcomes.get((topic_id, partition.partition))
            if data is None and code is None:
                continue
            data = data or ShareFetchResponsePartitionData(partition_index=partition.partition)
            data.acknowledge_error_code = code or 0
            left -= sum(each.last_offset - each.first_offset + 1 for each in data.acquired_records)
            found.setdefault(topic_id, []).append(data)
        got = any(each.acquired_records or each.error_code for of_topic in found.values() for each in of_topic)
        if not got and self.now_ms < end_ms:
            self.at(5, lambda: self._try_share(node, request, outcomes, answer, end_ms))
            return
        answer.complete(
            ShareFetchResponse(
                acquisition_lock_timeout_ms=30_000,
                responses=[ShareFetchableTopicResponse(topic_id=t, partitions=each) for t, each in found.items()],
            )
        )

    def _read_share(self, node: int, partition: TopicPartition, member: str, limit: int) -> Any:
        log: Log = self.logs[partition]
        if log.leader != node:
            return ShareFetchResponsePartitionData(
                partition_index=partition.partition, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER
            )
        share = self.share(partition)
        free = [o for o in range(log.start, log.end) if o not in share.owner and o not in share.done][: max(0, limit)]
        if not free:
            return None
        acquired: list[AcquiredRecords] = []
        for offset in free:
            share.owner[offset] = member
            share.count[offset] += 1
            last = acquired[-1] if acquired else None
            if last is not None and last.last_offset == offset - 1 and last.delivery_count == share.count[offset]:
                last.last_offset = offset
            else:
                acquired.append(
                    AcquiredRecords(first_offset=offset, last_offset=offset, delivery_count=share.count[offset])
                )
        return ShareFetchResponsePartitionData(
            partition_index=partition.partition, records=log.read(free[0], 1 << 20), acquired_records=acquired
        )


class ShareMember(Member):
    """One share consumer."""

    core: ShareConsumerCore  # type: ignore[assignment]

    def __init__(self, cluster: ShareCluster, name: str = "m", **keys: Any) -> None:
        self.cluster = cluster
        self.name = name
        settings = {"bootstrap.servers": "n0:1,n1:1", "group.id": "g", **keys}
        self.core = ShareConsumerCore(
            share_consumer_config(settings, {}), client_id=name, software_version="1", random=cluster.random.random,
            member_id=f"id-{name}", now_ms=cluster.now_ms,
        )  # fmt: skip
        self.is_polling = False
        self.got: list[Record] = []
        self._connected: dict[int, int] = {}
        cluster.members.append(self)

    def poll(self, duration_ms: int = 100, limit: int = 500) -> list[Record]:
        """One poll that lasts until records have come, or so long."""
        self.core.at(self.cluster.now_ms)
        self.core.begin_poll()
        self.is_polling = True
        try:
            end_ms = self.cluster.now_ms + duration_ms
            while True:
                self.core.raise_error()
                records = self.core.take_records(limit)
                if records or self.cluster.now_ms >= end_ms:
                    self.got += records
                    return records
                self.turn()
                self.cluster.run(min(10, end_ms - self.cluster.now_ms))
        finally:
            self.is_polling = False

    def until_records(self, **options: Any) -> list[Record]:
        """Polls until there are records."""
        for _ in range(50):
            if records := self.poll(1_000, **options):
                return records
        raise AssertionError("no records have come")

    def sync(self) -> dict[TopicPartition, ApiError | None]:
        """Commit, and wait for the outcome."""
        self.core.at(self.cluster.now_ms)
        operation = Operation("commit", self.cluster.now_ms + 10_000)
        self.core.commit(operation)
        found: dict[TopicPartition, ApiError | None] = self.wait(operation)
        return found

    def say(self, kind: AcknowledgeType, *records: Record) -> None:
        for record in records:
            self.core.acknowledge(TopicPartition(record.topic, record.partition), record.offset, kind)

    def completed(self) -> list[tuple[dict[TopicPartition, frozenset[int]], ErrorCode | None]]:
        """What the callback would be called with."""
        return [(offsets, None if error is None else error.code) for offsets, error in self.core.take_completed(True)]

    def close(self) -> None:
        self.core.at(self.cluster.now_ms)
        operation = Operation("close", self.cluster.now_ms + 10_000)
        self.core.begin_close(operation)
        self.cluster.run_until(lambda: operation.is_done)
        leaving = self.core.begin_leave()
        if leaving is not None:
            self.cluster.run_until(lambda: leaving.is_done)
        self.kill()

    def subscribe(self, *topics: str) -> ShareMember:
        self.core.subscribe(topics)
        return self

    def _call_listener(self) -> bool:
        return False


def offsets(records: list[Record]) -> list[int]:
    return [record.offset for record in records]


def world(partitions: int = 1, values: int = 10, **options: Any) -> tuple[ShareCluster, Callable[..., ShareMember]]:
    """Brokers with a topic, and what makes its subscribers."""
    cluster = ShareCluster(**options)
    cluster.add_topic("t", partitions)
    for index in range(partitions):
        if values:
            cluster.append("t", index, *(b"%d" % value for value in range(values)))
    return cluster, lambda name="m", **keys: ShareMember(cluster, name, **keys).subscribe("t")
