"""DescribeShareGroupOffsets (90), AlterShareGroupOffsets (91), DeleteShareGroupOffsets (92); the end of share groups.

The offsets of a share group are at the share coordinator, so each request has two parts: what the group's record of its
initialized partitions says before, and after the share coordinator has answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import ZERO_UUID, Uuid
from kalda.base.scheduling import Pending
from kalda.base.share_states import NO_OFFSET, SharePartitionKey
from kalda.coordinator.groups.config import ShareGroupSettings
from kalda.coordinator.groups.shard import GroupShard
from kalda.coordinator.groups.share_group import Initialization, ShareGroup, Topic
from kalda.coordinator.share.records import LatestOffsets, StateSummary
from kalda.protocol.messages.share import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)

R = TypeVar("R")
_NO_TOPIC = "This server does not host this topic-partition."
_NO_COUNT = -1
_NO_LAG = -1


class ShareOffsets:
    """Of one broker's share groups."""

    def __init__(
        self,
        settings: ShareGroupSettings,
        latest: LatestOffsets,
        shard_of: Callable[[str], GroupShard],
        wall_ms: Callable[[], int],
    ) -> None:
        """`shard_of(group)` raises NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS and INVALID_GROUP_ID."""
        self._states = settings.states
        self._topics = settings.catalog
        self._latest = latest
        self._shard_of = shard_of
        self._wall_ms = wall_ms

    # -- description -----------------------------------------------------------------------------------------------

    def describe(
        self, request: DescribeShareGroupOffsetsRequestGroup
    ) -> Pending[DescribeShareGroupOffsetsResponseGroup]:
        """The offsets and lags of one group, of all initialized partitions where the request names none. Topics that do
        not exist have no offset."""
        answer: Pending[DescribeShareGroupOffsetsResponseGroup] = Pending()
        response = DescribeShareGroupOffsetsResponseGroup(group_id=request.group_id)
        names: dict[SharePartitionKey, str] = {}
        missing: list[DescribeShareGroupOffsetsResponseTopic] = []
        try:
            shard = self._shard_of(request.group_id)
            if request.topics is None:
                group = shard.shares.groups.get(request.group_id, None, shard.partition.committed_epoch())
                initialized = {} if group is None else group.initialization.initialized
                for topic_id, topic in initialized.items():
                    name = self._topics.name_of(topic_id)
                    for number in sorted(topic.partitions) if name is not None else ():
                        names[SharePartitionKey(request.group_id, topic_id, number)] = name or ""
            else:
                for asked in request.topics:
                    found = self._topics.shape_of(asked.topic_name)
                    if found is None:
                        missing.append(_unknown_topic(asked.topic_name, asked.partitions))
                        continue
                    for number in asked.partitions:
                        names[SharePartitionKey(request.group_id, found[0], number)] = asked.topic_name
        except ApiError as error:
            response.error_code, response.error_message = int(error.code), error.message or None
            answer.complete(response)
            return answer
        if not names:
            response.topics = missing
            answer.complete(response)
            return answer
        return self._states.summarize(names).and_then(
            lambda summaries: self._with_lags(response, names, missing, summaries)
        )

    def _with_lags(
        self,
        response: DescribeShareGroupOffsetsResponseGroup,
        names: dict[SharePartitionKey, str],
        missing: list[DescribeShareGroupOffsetsResponseTopic],
        summaries: dict[SharePartitionKey, StateSummary | ApiError],
    ) -> Pending[DescribeShareGroupOffsetsResponseGroup]:
        consumed = [(names[key], key.partition) for key, summary in summaries.items() if _has_lag(summary)]

        def finish(ends: dict[tuple[str, int], int | ApiError]) -> DescribeShareGroupOffsetsResponseGroup:
            topics: dict[Uuid, DescribeShareGroupOffsetsResponseTopic] = {}
            for key, summary in summaries.items():
                topic = topics.get(key.topic_id)
                if topic is None:
                    topic = topics[key.topic_id] = DescribeShareGroupOffsetsResponseTopic(
                        topic_name=names[key], topic_id=key.topic_id, partitions=[]
                    )
                topic.partitions.append(_described(key.partition, summary, ends.get((names[key], key.partition))))
            response.topics = [*topics.values(), *missing]
            return response

        return self._latest.find(consumed).and_then(finish)

    # -- alteration ------------------------------------------------------------------------------------------------

    def alter(self, request: AlterShareGroupOffsetsRequest) -> Pending[AlterShareGroupOffsetsResponse]:
        """Begin partitions anew at other offsets, in a group without members, which is made where there is none."""
        answer: Pending[AlterShareGroupOffsetsResponse] = Pending()
        try:
            shard = self._shard_of(request.group_id)
            group = shard.shares.groups.get(request.group_id)
            if group is None:
                if shard.has_other_than_share(request.group_id):
                    shard.shares.get(request.group_id)
                group = ShareGroup(request.group_id, shard.partition.registry)
            group.check_deletable()
        except ApiError as error:
            answer.complete(
                AlterShareGroupOffsetsResponse(error_code=int(error.code), error_message=error.message or None)
            )
            return answer
        response, offsets, topics = self._altered(request)
        if not offsets:
            answer.complete(response)
            return answer
        begun = shard.partition.write([group.initialization_record(group.initialization.begun(topics))])
        state_epoch = group.epochs.group

        def initialize(_: None) -> Pending[AlterShareGroupOffsetsResponse]:
            return self._states.initialize(offsets, state_epoch).and_then(
                lambda errors: self._end_alteration(shard, request.group_id, response, topics, errors)
            )

        return begun.and_then(initialize)

    def _altered(
        self, request: AlterShareGroupOffsetsRequest
    ) -> tuple[AlterShareGroupOffsetsResponse, dict[SharePartitionKey, int], dict[Uuid, Topic]]:
        """The response if all succeeds, the offset of each partition, and the partitions by topic."""
        response = AlterShareGroupOffsetsResponse(responses=[])
        offsets: dict[SharePartitionKey, int] = {}
        topics: dict[Uuid, Topic] = {}
        now_ms = self._wall_ms()
        for asked in request.topics:
            found = self._topics.shape_of(asked.topic_name)
            topic_id, count = (ZERO_UUID, 0) if found is None else (found[0], found[1].partitions)
            topic = AlterShareGroupOffsetsResponseTopic(topic_name=asked.topic_name, topic_id=topic_id, partitions=[])
            response.responses.append(topic)
            for each in asked.partitions:
                result = AlterShareGroupOffsetsResponsePartition(partition_index=each.partition_index)
                topic.partitions.append(result)
                if not 0 <= each.partition_index < count:
                    result.error_code = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                    result.error_message = _NO_TOPIC
                    continue
                offsets[SharePartitionKey(request.group_id, topic_id, each.partition_index)] = each.start_offset
                held = topics.get(topic_id, Topic(asked.topic_name, frozenset(), now_ms))
                topics[topic_id] = held._replace(partitions=held.partitions | {each.partition_index})
        return response, offsets, topics

    def _end_alteration(
        self,
        shard: GroupShard,
        group_id: str,
        response: AlterShareGroupOffsetsResponse,
        topics: dict[Uuid, Topic],
        errors: dict[SharePartitionKey, ApiError | None],
    ) -> Pending[AlterShareGroupOffsetsResponse]:
        for topic in response.responses:
            for result in topic.partitions:
                error = errors.get(SharePartitionKey(group_id, topic.topic_id, result.partition_index))
                if error is not None:
                    result.error_code, result.error_message = int(error.code), error.message or None
        failed = any(error is not None for error in errors.values())

        def change(held: Initialization) -> Initialization:
            return held.failed(topics) if failed else held.done(topics)

        return _record(shard, group_id, change, response)

    # -- deletion --------------------------------------------------------------------------------------------------

    def delete(self, request: DeleteShareGroupOffsetsRequest) -> Pending[DeleteShareGroupOffsetsResponse]:
        """Delete the state of topics of a group without members."""
        answer: Pending[DeleteShareGroupOffsetsResponse] = Pending()
        try:
            shard = self._shard_of(request.group_id)
            group = shard.shares.get(request.group_id)
            group.check_deletable()
        except ApiError as error:
            answer.complete(
                DeleteShareGroupOffsetsResponse(error_code=int(error.code), error_message=error.message or None)
            )
            return answer
        held = group.initialization
        results: list[DeleteShareGroupOffsetsResponseTopic] = []
        deleted: dict[Uuid, str] = {}
        keys: list[SharePartitionKey] = []
        for asked in request.topics:
            found = self._topics.shape_of(asked.topic_name)
            topic_id = None if found is None else found[0]
            if found is None or topic_id is None:
                results.append(_undeleted(asked.topic_name, _NO_TOPIC))
            elif topic_id in held.initialized or topic_id in held.deleting:
                known = held.initialized.get(topic_id)
                numbers: Iterable[int] = range(found[1].partitions) if known is None else known.partitions
                keys += (SharePartitionKey(request.group_id, topic_id, number) for number in sorted(numbers))
                deleted[topic_id] = asked.topic_name
            else:
                results.append(_undeleted(asked.topic_name, "There is no offset information to delete."))
        if not keys:
            answer.complete(DeleteShareGroupOffsetsResponse(responses=results))
            return answer
        left = {topic_id: topic for topic_id, topic in held.initialized.items() if topic_id not in deleted}
        begun = held._replace(initialized=left, deleting={**held.deleting, **deleted})

        def end(errors: dict[SharePartitionKey, ApiError | None]) -> Pending[DeleteShareGroupOffsetsResponse]:
            failed = {key.topic_id: error for key, error in errors.items() if error is not None}
            for topic_id, name in deleted.items():
                error = failed.get(topic_id)
                result = DeleteShareGroupOffsetsResponseTopic(topic_name=name, topic_id=topic_id)
                if error is not None:
                    result.error_code, result.error_message = int(error.code), error.message or None
                results.append(result)

            def change(present: Initialization) -> Initialization:
                rest = {key: name for key, name in present.deleting.items() if key in failed or key not in deleted}
                return present._replace(deleting=rest)

            return _record(shard, request.group_id, change, DeleteShareGroupOffsetsResponse(responses=results))

        written = shard.partition.write([group.initialization_record(begun)])
        return written.and_then(lambda _: self._states.delete(keys).and_then(end))

    def end_state(self, shard: GroupShard, group: ShareGroup) -> Pending[None]:
        """Delete all state of a group that is about to be deleted. Fails with the error of a partition."""
        ended: Pending[None] = Pending()
        held = group.initialization
        numbers: dict[Uuid, tuple[str, frozenset[int]]] = {}
        for topics in (held.initializing, held.initialized):
            for topic_id, topic in topics.items():
                _, known = numbers.get(topic_id, ("", frozenset()))
                numbers[topic_id] = topic.name, known | topic.partitions
        for topic_id in held.deleting:
            name = self._topics.name_of(topic_id)
            found = None if name is None else self._topics.shape_of(name)
            if name is not None and found is not None:
                numbers[topic_id] = name, frozenset(range(found[1].partitions))
        if not numbers:
            ended.complete(None)
            return ended
        keys = [
            SharePartitionKey(group.group_id, topic_id, number)
            for topic_id, (_, partitions) in numbers.items()
            for number in sorted(partitions)
        ]
        deleting = Initialization({}, {}, {topic_id: name for topic_id, (name, _) in numbers.items()})

        def end(errors: dict[SharePartitionKey, ApiError | None]) -> None:
            for error in errors.values():
                if error is not None and error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise error

        written = shard.partition.write([group.initialization_record(deleting)])
        return written.and_then(lambda _: self._states.delete(keys).and_then(end))


def _record(
    shard: GroupShard, group_id: str, change: Callable[[Initialization], Initialization], response: R
) -> Pending[R]:
    """Write what has changed of a group's partitions, and answer when it is committed."""
    group = shard.shares.groups.get(group_id)
    if group is None or not shard.partition.is_active:
        done: Pending[R] = Pending()
        done.complete(response)
        return done
    return shard.partition.write_with([group.initialization_record(change(group.initialization))], response)


def _has_lag(summary: StateSummary | ApiError) -> bool:
    return (
        isinstance(summary, StateSummary)
        and summary.start_offset != NO_OFFSET
        and summary.delivery_complete_count != _NO_COUNT
    )


def _described(
    number: int, summary: StateSummary | ApiError, end: int | ApiError | None
) -> DescribeShareGroupOffsetsResponsePartition:
    if isinstance(summary, ApiError):
        return DescribeShareGroupOffsetsResponsePartition(partition_index=number, start_offset=NO_OFFSET, lag=_NO_LAG)
    if isinstance(end, ApiError):
        return DescribeShareGroupOffsetsResponsePartition(
            partition_index=number, error_code=int(end.code), error_message=end.message or None
        )
    lag = _NO_LAG if end is None else end - summary.start_offset - summary.delivery_complete_count
    return DescribeShareGroupOffsetsResponsePartition(
        partition_index=number, start_offset=summary.start_offset, leader_epoch=summary.leader_epoch, lag=lag
    )


def _unknown_topic(name: str, partitions: Iterable[int]) -> DescribeShareGroupOffsetsResponseTopic:
    return DescribeShareGroupOffsetsResponseTopic(
        topic_name=name,
        topic_id=ZERO_UUID,
        partitions=[
            DescribeShareGroupOffsetsResponsePartition(partition_index=number, start_offset=NO_OFFSET)
            for number in partitions
        ],
    )


def _undeleted(name: str, message: str) -> DeleteShareGroupOffsetsResponseTopic:
    return DeleteShareGroupOffsetsResponseTopic(
        topic_name=name, error_code=int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), error_message=message
    )
