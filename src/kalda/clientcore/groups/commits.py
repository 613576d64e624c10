"""Commits offsets, one request after the other, and reads committed ones for the application.

A commit is sent when the coordinator is known and the member's generation is in force. A synchronous one is repeated
until its deadline after errors that pass; an asynchronous one is not, since a later commit may have been made. Requests
are sent in the order of the calls, so an earlier commit never overwrites a later one.

A commit names topics by their ids, where all are known: those of which the positions were at the time of the call, so
that the coordinator commits nothing for another topic of that name. Kafka's consumer does so with
`group.protocol=consumer`, by its newest metadata; its classic one names them by name, as does this one beside brokers
before version 10 of OffsetCommit, unless its metadata has another topic of that name already.

A partition that the coordinator does not know may be newer than its metadata, or deleted. It is taken to be deleted
where metadata that came after the refusal does not have it either, or has another topic of that name: to repeat the
commit would hold up the rebalance that takes the partition away, or store the offset for that other topic.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from itertools import islice
from typing import Any

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import ZERO_UUID, TopicPartition, Uuid
from kalda.clientcore.connections.errors import refused
from kalda.clientcore.connections.requests import Requests
from kalda.clientcore.consuming.consumer_errors import CommitFailed, Operation
from kalda.clientcore.consuming.consumer_metrics import CoordinatorMetrics
from kalda.clientcore.consuming.positions import (
    FENCED,
    MAX_OFFSET_COMMIT,
    MAX_OFFSET_FETCH,
    GroupMetadata,
    commit_request,
    committed_errors,
    committed_request,
    read_committed,
)
from kalda.clientcore.consuming.subscription import OffsetAndEpoch
from kalda.clientcore.groups.membership import Membership
from kalda.protocol.messages.groups import OffsetCommitRequest
from kalda.protocol.naming import MAX_PARTITIONS_NAMED


class _Commit:
    __slots__ = ("failures", "left", "offsets", "operation", "repeats", "retry_at_ms", "topic_ids", "unknown_at_ms")

    def __init__(self, offsets: Mapping[TopicPartition, OffsetAndEpoch], operation: Operation, repeats: bool) -> None:
        self.offsets = dict(offsets)
        self.left = dict(offsets)
        """Those that are not committed yet: of very many, a request names some."""
        self.operation = operation
        self.repeats = repeats
        self.retry_at_ms = 0
        self.failures = 0
        self.topic_ids: dict[str, Uuid] = {}
        """The topics that are meant."""
        self.unknown_at_ms: int | None = None
        """When the coordinator last did not know a partition."""


class _Read:
    __slots__ = ("failures", "is_in_flight", "operation", "partitions", "retry_at_ms")

    def __init__(self, partitions: Collection[TopicPartition], operation: Operation) -> None:
        self.partitions = list(partitions)
        self.operation = operation
        self.is_in_flight = False
        self.retry_at_ms = 0
        self.failures = 0


class Committing:
    """The commits of one consumer."""

    def __init__(
        self,
        requests: Requests,
        group_id: str | None,
        membership: Callable[[], Membership | None],
        *,
        metrics: CoordinatorMetrics | None,
        require_stable: bool,
        topic_ids: Mapping[str, Uuid],
    ) -> None:
        """`topic_ids`: of the topics in which positions are. `membership` returns None where the application assigns
        the partitions; `metrics` is None without a group."""
        self._requests = requests
        self._group_id = group_id
        self._metrics = metrics
        self._membership = membership
        self._require_stable = require_stable
        self._topic_ids = topic_ids
        self._commits: deque[_Commit] = deque()
        self._in_flight: _Commit | None = None
        self._reads: list[_Read] = []

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndEpoch], operation: Operation, *, repeats: bool) -> None:
        """Commit `offsets`; `operation` is done when they are committed."""
        if not offsets:
            operation.succeed()
            return
        commit = _Commit(offsets, operation, repeats)
        for topic, _ in offsets:
            commit.topic_ids[topic] = self._topic_ids.get(topic) or self._topic_id(topic)
        self._commits.append(commit)
        self.run()

    def _topic_id(self, topic: str) -> Uuid:
        known = self._requests.metadata.topics.get(topic)
        return ZERO_UUID if known is None else known.topic_id

    def read(self, partitions: Collection[TopicPartition], operation: Operation) -> None:
        """The committed offsets: `operation` gets a dict, without the partitions that have none."""
        self._reads.append(_Read(partitions, operation))
        self.run()

    def run(self) -> None:
        """Send what is due."""
        now_ms = self._requests.now_ms
        for commit in list(self._commits):
            commit.operation.expire(now_ms)
            if commit.operation.is_done:
                self._commits.remove(commit)
        for read in list(self._reads):
            read.operation.expire(now_ms)
            if read.operation.is_done:
                self._reads.remove(read)
            elif not read.is_in_flight and now_ms >= read.retry_at_ms:
                self._send_read(read)
        if self._commits and self._in_flight is None and now_ms >= self._commits[0].retry_at_ms:
            self._send_commit(self._commits[0])

    def deadline_ms(self) -> int | None:
        """When `run` is due again."""
        times = [time for c in self._commits for time in (c.retry_at_ms, c.operation.deadline_ms)]
        times += [time for r in self._reads for time in (r.retry_at_ms, r.operation.deadline_ms)]
        return self._requests.earliest(times)

    def _send_commit(self, commit: _Commit) -> None:
        if self._group_id is None:
            self._commits.popleft()
            commit.operation.fail(ApiError(ErrorCode.INVALID_GROUP_ID, "a commit needs a group.id"))
            return
        if self._requests.coordinator_error is not None:
            self._commits.popleft()
            commit.operation.fail(self._requests.coordinator_error)
            return
        if self._is_any_made_anew(commit):
            self._on_deleted(commit)
            return
        if commit.unknown_at_ms is not None:
            if self._requests.metadata.updated_at_ms <= commit.unknown_at_ms:
                commit.retry_at_ms = self._requests.retry_at_ms()
                return
            if self._is_any_deleted(commit):
                self._on_deleted(commit)
                return
        membership = self._membership()
        group = GroupMetadata(self._group_id)
        if membership is not None:
            if not membership.may_commit:
                self._commits.popleft()
                code = ErrorCode.REBALANCE_IN_PROGRESS if membership.error is None else ErrorCode.UNKNOWN_MEMBER_ID
                commit.operation.fail(CommitFailed(code))
                return
            group = membership.group_metadata()
        node_id = self._requests.coordinator()
        if node_id is None:
            return
        self._commits.popleft()
        self._in_flight = commit
        sent_at_ms = self._requests.now_ms
        sent = dict(islice(commit.left.items(), MAX_PARTITIONS_NAMED))
        by_id = ZERO_UUID not in commit.topic_ids.values()
        request = commit_request(group, sent, commit.topic_ids if by_id else None)
        self._requests.send(
            node_id,
            request,
            lambda answer, error: self._on_committed(commit, request, sent, sent_at_ms, answer, error),
            max_version=None if by_id else MAX_OFFSET_COMMIT,
        )

    def _on_committed(
        self,
        commit: _Commit,
        request: OffsetCommitRequest,
        sent: Collection[TopicPartition],
        sent_at_ms: int,
        answer: Any,
        error: ApiError | None,
    ) -> None:
        self._in_flight = None
        if answer is not None and self._metrics is not None:
            self._metrics.commits.append(self._requests.now_ms - sent_at_ms)
        failed: ApiError | None = error
        if answer is not None:
            for partition, code in committed_errors(request, answer):
                if code in FENCED or code in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.FENCED_INSTANCE_ID):
                    self._on_fenced(commit, code)
                    return
                if code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID):
                    commit.unknown_at_ms = self._requests.now_ms
                    self._requests.metadata.request_update()
                if failed is None or failed.code.retriable:
                    failed = refused(code, f"group {self._group_id!r}, partition {partition}")
        if failed is None:
            for partition in sent:
                del commit.left[partition]
            if commit.left:
                self._commits.appendleft(commit)
            else:
                commit.operation.succeed(commit.offsets)
            self.run()
            return
        self._requests.on_coordinator_error(failed)
        self._retry(commit, failed)

    def _is_any_made_anew(self, commit: _Commit) -> bool:
        """Whether the metadata has another topic of the name of one that is meant."""
        return any(
            topic_id != ZERO_UUID and self._topic_id(topic) not in (ZERO_UUID, topic_id)
            for topic, topic_id in commit.topic_ids.items()
        )

    def _on_deleted(self, commit: _Commit) -> None:
        self._commits.popleft()
        why = "the topic was deleted, or has no such partition any more"
        commit.operation.fail(ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, why))

    def _is_any_deleted(self, commit: _Commit) -> bool:
        """Whether the metadata lacks one of the partitions, or has another topic of that name."""
        metadata = self._requests.metadata
        return any(self._topic_id(topic) != topic_id for topic, topic_id in commit.topic_ids.items()) or any(
            partition >= len(metadata.partitions_of(topic)) for topic, partition in commit.left
        )

    def _on_fenced(self, commit: _Commit, code: ErrorCode) -> None:
        membership = self._membership()
        if membership is not None:
            membership.on_commit_fenced(code)
        if code is ErrorCode.STALE_MEMBER_EPOCH and membership is not None and commit.repeats:
            self._retry(commit, ApiError(ErrorCode.REQUEST_TIMED_OUT, "the member's epoch has changed"))
            return
        commit.operation.fail(CommitFailed(code))

    def _retry(self, commit: _Commit, error: ApiError) -> None:
        if commit.repeats and error.code.retriable and not commit.operation.is_done:
            commit.failures += 1
            commit.retry_at_ms = self._requests.retry_at_ms(commit.failures)
            self._commits.appendleft(commit)
        else:
            commit.operation.fail(error)

    def _send_read(self, read: _Read) -> None:
        if self._group_id is None or self._requests.coordinator_error is not None:
            missing = ApiError(ErrorCode.INVALID_GROUP_ID, "committed offsets need a group.id")
            read.operation.fail(self._requests.coordinator_error or missing)
            return
        node_id = self._requests.coordinator()
        if node_id is None:
            return
        read.is_in_flight = True
        self._requests.send(
            node_id,
            committed_request(self._group_id, read.partitions, require_stable=self._require_stable),
            lambda answer, error: self._on_read(read, answer, error),
            max_version=MAX_OFFSET_FETCH,
        )

    def _on_read(self, read: _Read, answer: Any, error: ApiError | None) -> None:
        read.is_in_flight = False
        if answer is not None and answer.error_code:
            error = refused(answer.error_code, f"group {self._group_id!r}")
        if error is None:
            found, failed = read_committed(answer)
            asked = frozenset(read.partitions)
            failed = {partition: code for partition, code in failed.items() if partition in asked}
            if not failed:
                read.operation.succeed({partition: each for partition, each in found.items() if partition in asked})
                return
            partition, code = next(iter(failed.items()))
            error = refused(code, f"group {self._group_id!r}, partition {partition}")
        self._requests.on_coordinator_error(error)
        if error.code.retriable or error.code is ErrorCode.UNSTABLE_OFFSET_COMMIT:
            read.failures += 1
            read.retry_at_ms = self._requests.retry_at_ms(read.failures)
        else:
            read.operation.fail(error)
