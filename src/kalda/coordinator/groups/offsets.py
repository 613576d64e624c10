"""Committed offsets: the replayed state, and the requests on it.

Offsets are kept by group, then by topic and partition. Those of open transactions are kept by producer until the marker
that ends the transaction: a commit adds them to the group's, unless a later record has committed the partition
meanwhile; an abort drops them. State changes only in `replay` and `replay_marker`; every handler computes records.

An offset with a topic id belongs to the topic of that id: a fetch with another id does not find it, and the deletion of
another topic of the same name does not remove it. A fetch by name means the topic that has the name now: the tombstones
of a former topic were not written where it was deleted while the partition of the group had no coordinator.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol, TypeAlias, TypeVar

from kalda.base.errors import ErrorCode
from kalda.base.ids import ZERO_UUID, Uuid
from kalda.coordinator.groups.classic_group import ClassicGroup, GroupState
from kalda.coordinator.groups.config import GroupCoordinatorConfig, TopicSource
from kalda.coordinator.groups.consumer_group import ConsumerGroup
from kalda.coordinator.groups.records import NO_EXPIRY, CommittedOffset, GroupLogRecord, OffsetRecord
from kalda.coordinator.groups.streams.group import StreamsGroup
from kalda.protocol.messages.groups import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from kalda.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from kalda.statemachine.timeline import LATEST, SnapshotRegistry, TimelineDict

NO_OFFSET = -1
_NO_RETENTION_TIME = -1
_MAX_TIME = 2**63 - 1
"""A record holds no later time. A retention past it lasts as long as there are records."""
TOPIC_IDS_FROM = 10
TXN_TOPIC_IDS_FROM = 6

TopicPartitionKey: TypeAlias = tuple[str, int]
GroupOffsets: TypeAlias = TimelineDict[TopicPartitionKey, CommittedOffset]
PendingKey: TypeAlias = tuple[str, str, int]
CommitResponse = TypeVar("CommitResponse", OffsetCommitResponse, TxnOffsetCommitResponse)


class KnownTopics(TopicSource, Protocol):
    """What the coordinator reads of the cluster's metadata."""

    def id_of(self, name: str) -> Uuid | None: ...

    def has_partition(self, name: str, partition: int) -> bool: ...


class Offsets:
    """The offsets of one shard's groups."""

    def __init__(self, registry: SnapshotRegistry, config: GroupCoordinatorConfig, topics: KnownTopics) -> None:
        self._registry = registry
        self._config = config
        self._topics = topics
        self.by_group: TimelineDict[str, GroupOffsets] = TimelineDict(registry)
        """Committed offsets, by group, then by topic and partition. No group has an empty dict here."""
        self.by_producer: TimelineDict[int, TimelineDict[PendingKey, CommittedOffset]] = TimelineDict(registry)
        """Offsets of open transactions, by producer id, then by group, topic and partition."""
        self._producers_of: TimelineDict[PendingKey, frozenset[int]] = TimelineDict(registry)
        """By group, topic and partition: the producers with an open transaction that commits it. The inverse of
        `by_producer`."""

    @property
    def count(self) -> int:
        """Committed offsets, those of open transactions not counted. Visits all groups."""
        return sum(len(each) for each in self.by_group.values())

    def committed(self) -> Iterator[tuple[str, str, int, int]]:
        """Group, topic, partition and offset of each commit, those of open transactions left out."""
        for group_id, offsets in self.by_group.items():
            for (topic, partition), value in offsets.items():
                yield group_id, topic, partition, value.offset

    # -- replay --------------------------------------------------------------------------------------------------

    def replay(self, record: OffsetRecord, record_offset: int, producer_id: int) -> None:
        """Apply a commit or a tombstone; `producer_id` is -1 outside of transactions."""
        if record.value is None:
            self._replay_tombstone(record)
            return
        value = CommittedOffset(*record.value[:-1], record_offset)
        if producer_id < 0:
            self._group_offsets(record.group_id)[record.topic, record.partition] = value
            return
        pending = self.by_producer.get(producer_id)
        if pending is None:
            pending = self.by_producer[producer_id] = TimelineDict(self._registry)
        key = (record.group_id, record.topic, record.partition)
        pending[key] = value
        self._producers_of[key] = self._producers_of.get(key, frozenset[int]()) | {producer_id}

    def _group_offsets(self, group_id: str) -> GroupOffsets:
        offsets = self.by_group.get(group_id)
        if offsets is None:
            offsets = self.by_group[group_id] = TimelineDict(self._registry)
        return offsets

    def _replay_tombstone(self, record: OffsetRecord) -> None:
        offsets = self.by_group.get(record.group_id)
        if offsets is not None:
            offsets.pop((record.topic, record.partition), None)
            if not offsets:
                del self.by_group[record.group_id]
        key = (record.group_id, record.topic, record.partition)
        for producer_id in sorted(self._producers_of.pop(key, frozenset())):
            self.by_producer[producer_id].pop(key, None)

    def replay_marker(self, producer_id: int, *, committed: bool) -> None:
        """The producer's transaction has ended. It may have no offsets here: then nothing changes."""
        pending = self.by_producer.pop(producer_id, None)
        if pending is None:
            return
        for key, value in pending.items():
            others = self._producers_of[key] - {producer_id}
            if others:
                self._producers_of[key] = others
            else:
                del self._producers_of[key]
            if committed:
                offsets = self._group_offsets(key[0])
                present = offsets.get(key[1:])
                # The last record counts, not the transaction that ended last.
                if present is None or value.record_offset > present.record_offset:
                    offsets[key[1:]] = value

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction commits this offset."""
        return bool(self._producers_of) and (group_id, topic, partition) in self._producers_of

    def has_open_transactions(self, group_id: str) -> bool:
        """Whether an open transaction commits offsets of the group."""
        return any(key[0] == group_id for key in self._producers_of)

    # -- OffsetCommit --------------------------------------------------------------------------------------------

    def commit(
        self, request: OffsetCommitRequest, version: int, wall_ms: int
    ) -> tuple[list[GroupLogRecord], OffsetCommitResponse]:
        """Records for the partitions that may be committed, and the response, with an error for each of the others."""
        retention_ms = request.retention_time_ms
        expire_ms = NO_EXPIRY if retention_ms == _NO_RETENTION_TIME else min(_MAX_TIME, wall_ms + retention_ms)
        stamps = wall_ms, expire_ms
        records: list[GroupLogRecord] = []
        topics: list[OffsetCommitResponseTopic] = []
        for topic in request.topics:
            name = self._resolve(topic.name, topic.topic_id, version)
            # A commit by name means the topic that has the name now: a later topic of that name begins without offsets.
            topic_id = topic.topic_id if version >= TOPIC_IDS_FROM else self._topics.id_of(topic.name) or ZERO_UUID
            results = [
                OffsetCommitResponsePartition(partition_index=index, error_code=error)
                for index, error in self._commit_topic(request.group_id, name, topic_id, topic, stamps, records)
            ]
            topics.append(OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=results))
        return records, OffsetCommitResponse(topics=topics)

    def commit_in_transaction(
        self, request: TxnOffsetCommitRequest, version: int, wall_ms: int
    ) -> tuple[list[GroupLogRecord], TxnOffsetCommitResponse]:
        """As `commit`, of offsets that count once their transaction is committed."""
        records: list[GroupLogRecord] = []
        topics: list[TxnOffsetCommitResponseTopic] = []
        for topic in request.topics:
            name = name_in_transaction(self._topics, topic, version)
            topic_id = topic.topic_id if version >= TXN_TOPIC_IDS_FROM else self._topics.id_of(topic.name) or ZERO_UUID
            committed = self._commit_topic(request.group_id, name, topic_id, topic, (wall_ms, NO_EXPIRY), records)
            results = [
                TxnOffsetCommitResponsePartition(partition_index=index, error_code=error) for index, error in committed
            ]
            topics.append(TxnOffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=results))
        return records, TxnOffsetCommitResponse(topics=topics)

    def _commit_topic(
        self,
        group_id: str,
        name: str | None,
        topic_id: Uuid,
        topic: OffsetCommitRequestTopic | TxnOffsetCommitRequestTopic,
        stamps: tuple[int, int],
        records: list[GroupLogRecord],
    ) -> Iterator[tuple[int, ErrorCode]]:
        """Add the records of one topic, None where it does not exist; each partition with its error. `stamps`: when
        the offsets are committed, and expire."""
        for partition in topic.partitions:
            index, metadata = partition.partition_index, partition.committed_metadata or ""
            if name is None:
                error = ErrorCode.UNKNOWN_TOPIC_ID
            elif not self._topics.has_partition(name, index):
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif self._is_too_large(metadata):
                error = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                error = ErrorCode.NONE
                offset, leader_epoch = partition.committed_offset, partition.committed_leader_epoch
                value = CommittedOffset(offset, leader_epoch, metadata, *stamps, topic_id)
                records.append(OffsetRecord(group_id, name, index, value))
            yield index, error

    def _resolve(self, name: str, topic_id: Uuid, version: int) -> str | None:
        return name if version < TOPIC_IDS_FROM else self._topics.name_of(topic_id)

    def _is_too_large(self, metadata: str) -> bool:
        """offset.metadata.max.bytes; as in Kafka it limits the UTF-16 units of the string, not its bytes."""
        limit = self._config.offset_metadata_max_bytes
        return len(metadata) * 2 > limit and len(metadata.encode("utf-16-le", "surrogatepass")) // 2 > limit

    # -- OffsetFetch ---------------------------------------------------------------------------------------------

    def fetch(
        self, request: OffsetFetchRequestGroup, version: int, epoch: int = LATEST, *, require_stable: bool
    ) -> OffsetFetchResponseGroup:
        """The offsets requested, or all of the group where no topics are. One that was never committed is -1, without
        an error. Topics of unknown ids come last.

        `epoch` is the snapshot to read at. With `require_stable`, an offset that an open transaction is about to
        replace is UNSTABLE_OFFSET_COMMIT.
        """
        offsets = self.by_group.get(request.group_id, None, epoch)
        if request.topics is None:
            topics = self._fetch_all(request.group_id, offsets, version, epoch, require_stable)
            return OffsetFetchResponseGroup(group_id=request.group_id, topics=topics)
        topics = []
        unknown: list[OffsetFetchResponseTopics] = []
        for topic in request.topics:
            name = self._resolve(topic.name, topic.topic_id, version)
            results = [
                self._fetch_one(request.group_id, name, index, topic.topic_id, offsets, epoch, require_stable)
                for index in topic.partition_indexes
            ]
            found = OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id, partitions=results)
            (unknown if name is None else topics).append(found)
        return OffsetFetchResponseGroup(group_id=request.group_id, topics=topics + unknown)

    def _fetch_one(
        self,
        group_id: str,
        name: str | None,
        index: int,
        topic_id: Uuid,
        offsets: GroupOffsets | None,
        epoch: int,
        require_stable: bool,
    ) -> OffsetFetchResponsePartitions:
        if name is None:
            return _no_offset(index, ErrorCode.UNKNOWN_TOPIC_ID)
        if require_stable and self.is_pending(group_id, name, index):
            return _no_offset(index, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        value = None if offsets is None else offsets.get((name, index), None, epoch)
        if topic_id == ZERO_UUID:
            topic_id = self._topics.id_of(name) or ZERO_UUID
        if value is None or _of_another_topic(value.topic_id, topic_id):
            return _no_offset(index, ErrorCode.NONE)
        return _some_offset(index, value)

    def _fetch_all(
        self, group_id: str, offsets: GroupOffsets | None, version: int, epoch: int, require_stable: bool
    ) -> list[OffsetFetchResponseTopics]:
        topics: dict[str, OffsetFetchResponseTopics] = {}
        for (name, index), value in offsets.items(epoch) if offsets is not None else ():
            if _of_another_topic(value.topic_id, self._topics.id_of(name) or ZERO_UUID):
                continue
            topic = topics.get(name)
            if topic is None:
                topic = topics[name] = OffsetFetchResponseTopics(name=name)
            if topic.topic_id == ZERO_UUID:
                topic.topic_id = value.topic_id
            unstable = require_stable and self.is_pending(group_id, name, index)
            topic.partitions.append(
                _no_offset(index, ErrorCode.UNSTABLE_OFFSET_COMMIT) if unstable else _some_offset(index, value)
            )
        if version < TOPIC_IDS_FROM:
            return list(topics.values())
        for name, topic in topics.items():
            if topic.topic_id == ZERO_UUID:
                topic.topic_id = self._topics.id_of(name) or ZERO_UUID
        # These versions have topic ids only.
        return [topic for topic in topics.values() if topic.topic_id != ZERO_UUID]

    # -- deletion ------------------------------------------------------------------------------------------------

    def delete(
        self, group: ClassicGroup | ConsumerGroup | StreamsGroup | None, request: OffsetDeleteRequest
    ) -> tuple[list[GroupLogRecord], OffsetDeleteResponse]:
        """Tombstones for the offsets requested; a topic that members subscribe to keeps its offsets."""
        records: list[GroupLogRecord] = []
        response = OffsetDeleteResponse()
        offsets = self.by_group.get(request.group_id)
        for topic in request.topics:
            if self._topics.id_of(topic.name) is None:
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif group is not None and group.is_subscribed(topic.name):
                error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            else:
                error = ErrorCode.NONE
            results: list[OffsetDeleteResponsePartition] = []
            for partition in topic.partitions:
                index = partition.partition_index
                if not self._topics.has_partition(topic.name, index):
                    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    results.append(OffsetDeleteResponsePartition(partition_index=index, error_code=code))
                    continue
                results.append(OffsetDeleteResponsePartition(partition_index=index, error_code=error))
                if error is ErrorCode.NONE and (
                    (offsets is not None and (topic.name, index) in offsets)
                    or self.is_pending(request.group_id, topic.name, index)
                ):
                    records.append(OffsetRecord(request.group_id, topic.name, index, None))
            response.topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=results))
        return records, response

    def tombstones_of_group(self, group_id: str) -> list[GroupLogRecord]:
        """Tombstones for every offset of the group, committed or in an open transaction."""
        keys: dict[TopicPartitionKey, None] = dict.fromkeys(self.by_group.get(group_id) or ())
        keys.update((key[1:], None) for key in self._producers_of if key[0] == group_id)
        return [OffsetRecord(group_id, topic, partition, None) for topic, partition in keys]

    def tombstones_of_topics(self, topics: Mapping[str, Uuid]) -> list[GroupLogRecord]:
        """All groups' offsets of deleted topics, given by name and id: those committed without an id or under it."""
        keys: dict[PendingKey, None] = {}
        for group_id, offsets in self.by_group.items():
            _collect(keys, ((group_id, *key, value) for key, value in offsets.items()), topics)
        for pending in self.by_producer.values():
            _collect(keys, ((*key, value) for key, value in pending.items()), topics)
        return [OffsetRecord(group_id, topic, partition, None) for group_id, topic, partition in keys]

    # -- expiration ----------------------------------------------------------------------------------------------

    def expire(
        self, group: ClassicGroup | ConsumerGroup | StreamsGroup, wall_ms: int, records: list[GroupLogRecord]
    ) -> bool:
        """Add tombstones for the group's expired offsets to `records`; True where none will be left.

        Retention counts from when a classic group became Empty (KIP-211). Of a simple group, of topics that a Stable
        group of classic consumers does not subscribe to, and in consumer and streams groups (KIP-848, KIP-1071) it
        counts from each commit. A client's own retention time (OffsetCommit versions 2 to 4) replaces
        `offsets.retention.minutes`, and counts from the commit.
        """
        offsets = self.by_group.get(group.group_id)
        if offsets is None:
            return not self.has_open_transactions(group.group_id)
        empty_since_ms: int | None = None
        if isinstance(group, ClassicGroup) and group.protocol_type is not None:
            if group.is_empty:
                empty_since_ms = group.state_timestamp_ms
            elif not (
                group.uses_consumer_protocol
                and group.subscribed_topics is not None
                and group.state is GroupState.STABLE
            ):
                return False
        all_expired = True
        for (topic, partition), value in offsets.items():
            since_ms = value.commit_timestamp_ms if empty_since_ms is None else empty_since_ms
            if value.expire_timestamp_ms != NO_EXPIRY:
                expired = wall_ms >= value.expire_timestamp_ms
            else:
                expired = wall_ms - since_ms >= self._config.offsets_retention_ms
            if expired and not group.is_subscribed(topic) and not self.is_pending(group.group_id, topic, partition):
                records.append(OffsetRecord(group.group_id, topic, partition, None))
            else:
                all_expired = False
        return all_expired and not self.has_open_transactions(group.group_id)


def name_in_transaction(topics: KnownTopics, topic: TxnOffsetCommitRequestTopic, version: int) -> str | None:
    """The name of a topic of TxnOffsetCommit, which has the id instead from version 6 on (KIP-1319); None for an
    unknown id."""
    return topic.name if version < TXN_TOPIC_IDS_FROM else topics.name_of(topic.topic_id)


def fail_commit(response: CommitResponse, code: ErrorCode) -> CommitResponse:
    """`response` with this error for every partition that exists; those that do not keep their error."""
    for topic in response.topics:
        for partition in topic.partitions:
            if partition.error_code in (ErrorCode.NONE, ErrorCode.OFFSET_METADATA_TOO_LARGE):
                partition.error_code = int(code)
    return response


def _no_offset(index: int, error: ErrorCode) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(partition_index=index, committed_offset=NO_OFFSET, error_code=int(error))


def _some_offset(index: int, value: CommittedOffset) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=value.offset,
        committed_leader_epoch=value.leader_epoch,
        metadata=value.metadata,
    )


def _of_another_topic(committed: Uuid, requested: Uuid) -> bool:
    """Whether the ids are of different topics; False where one of them is missing."""
    return ZERO_UUID not in (committed, requested) and committed != requested


def _collect(
    keys: dict[PendingKey, None],
    found: Iterable[tuple[str, str, int, CommittedOffset]],
    topics: Mapping[str, Uuid],
) -> None:
    for group_id, topic, partition, value in found:
        if topic in topics and not _of_another_topic(value.topic_id, topics[topic]):
            keys[group_id, topic, partition] = None
