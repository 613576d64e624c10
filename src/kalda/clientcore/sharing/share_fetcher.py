"""Fetches records of a share group from the leaders of the assigned partitions, and acknowledges them there.

    want_records()          a poll has found nothing buffered: one round of ShareFetch is sent
    acknowledge(...)        send acknowledgements to the brokers that have handed the records out
    run()                   send what can be sent
    take_records(limit)     the next records; `held` has them until they are acknowledged
    take_columns(rows)      the next batches, for columns; `held` has their offsets after `hold`

A broker is sent one request at a time: both kinds count in its share session. Acknowledgements travel in the next
ShareFetch to their broker where one is to be sent, else in a ShareAcknowledge. Nothing is fetched ahead of polls: a
lock on a record begins when the broker hands it out. With `share.acquire.mode=record_limit` one broker is fetched
from at a time, so that no more than `max.poll.records` are locked.

The broker that has handed records out is the one that can acknowledge them: where the partition has another leader by
now, or the session has ended, the acknowledgements fail, and some member gets the records again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from kalda.base.configs.share_consumer import ShareConsumerConfig
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import ZERO_UUID, TopicPartition, Uuid
from kalda.base.share_states import AcknowledgeType, AcquireMode
from kalda.clientcore.connections.errors import refused
from kalda.clientcore.connections.metadata import Broker
from kalda.clientcore.connections.requests import FETCH_BASE, Requests
from kalda.clientcore.consuming.consumer_errors import Operation
from kalda.clientcore.consuming.subscription import Subscription
from kalda.clientcore.sharing.held_records import HeldRecords, Run, ShareSource, batches_of, joined
from kalda.clientcore.sharing.share_chunks import ShareChunk, TakenColumns
from kalda.clientcore.sharing.share_metrics import ShareConsumerMetrics
from kalda.protocol.messages.share import (
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
    ShareAcknowledgeRequestAcknowledgementBatch,
    ShareAcknowledgeResponse,
    ShareFetchRequest,
    ShareFetchRequestAcknowledgementBatch,
    ShareFetchRequestFetchPartition,
    ShareFetchRequestFetchTopic,
    ShareFetchRequestForgottenTopic,
    ShareFetchResponse,
    ShareFetchResponsePartitionData,
)
from kalda.records.consuming import Record

# Share sessions (KIP-932): the partitions that a broker hands out to this member. A request names changes only.
#
# A session begins with a ShareFetch of epoch 0, which names all its partitions and acknowledges nothing. Every
# further ShareFetch and ShareAcknowledge has the next epoch. After an error of the session, or a lost request, the
# broker has released what this member held, or will: the next request begins a new session. Epoch -1 ends it.

FINAL_EPOCH: Final = -1
_MAX_EPOCH: Final = 2**31 - 1
SESSION_ERRORS: Final = frozenset(
    (
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
        ErrorCode.SHARE_SESSION_LIMIT_REACHED,
    )
)
"""Errors after which a new session begins."""

IdAndNumber = tuple[Uuid, int]


class SessionChange(NamedTuple):
    """What a ShareFetch names of its session: by topic id, the numbers of partitions."""

    epoch: int
    added: dict[Uuid, list[int]]
    forgotten: dict[Uuid, list[int]]


class ShareClientSession:
    """The session with one broker. At most one request is in flight."""

    def __init__(self) -> None:
        self.epoch = 0
        """Of the next request; 0: it begins a session."""
        self._partitions: dict[IdAndNumber, TopicPartition] = {}
        """What the broker has, once the request in flight has arrived."""
        self._names: dict[Uuid, str] = {}

    def build(self, wanted: Mapping[TopicPartition, Uuid]) -> SessionChange:
        """The next ShareFetch, after which the broker hands out `wanted` and nothing else."""
        partitions = {(topic_id, partition.partition): partition for partition, topic_id in wanted.items()}
        added: dict[Uuid, list[int]] = {}
        forgotten: dict[Uuid, list[int]] = {}
        for topic_id, number in partitions:
            if (topic_id, number) not in self._partitions:
                added.setdefault(topic_id, []).append(number)
        for topic_id, number in self._partitions:
            if (topic_id, number) not in partitions:
                forgotten.setdefault(topic_id, []).append(number)
        self._partitions = partitions
        self._names.update((topic_id, partition.topic) for partition, topic_id in wanted.items())
        return SessionChange(self.epoch, added, forgotten)

    def partition_of(self, topic_id: Uuid, number: int) -> TopicPartition | None:
        """A partition of a response; None where no request of this session has named it."""
        name = self._names.get(topic_id)
        return None if name is None else TopicPartition(name, number)

    @property
    def is_empty(self) -> bool:
        """Whether the broker hands out nothing."""
        return not self._partitions

    def on_answer(self) -> None:
        """The request was accepted."""
        self.epoch = self.epoch + 1 if self.epoch < _MAX_EPOCH else 1

    def restart(self) -> None:
        """The request was lost, or refused because of its session: the next one begins a new session."""
        self.epoch = 0
        self._partitions = {}


log = logging.getLogger(__name__)
_MOVED = frozenset(
    (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    )
)
"""Errors of a partition after which its metadata is fetched again. Its locks have ended: nothing is repeated."""


class Acknowledged(NamedTuple):
    """What has become of one partition's acknowledgements in one request."""

    source: ShareSource
    runs: Sequence[Run]
    error: ApiError | None


class Commit:
    """Acknowledgements that the application sends at once, to any number of brokers."""

    def __init__(self, operation: Operation | None, deadline_ms: int) -> None:
        """`operation` ends when all of them are answered, with the error, or None, of each partition."""
        self.operation = operation
        self.deadline_ms = deadline_ms
        self.left = 0
        self.results: dict[TopicPartition, ApiError | None] = {}


class _Sending:
    """What a commit sends to one broker."""

    __slots__ = ("commit", "failures", "has_renewals", "retry_at_ms", "runs")

    def __init__(self, commit: Commit, runs: dict[ShareSource, Sequence[Run]]) -> None:
        self.commit = commit
        self.runs = runs
        self.has_renewals = any(run.type is AcknowledgeType.RENEW for each in runs.values() for run in each)
        self.failures = 0
        self.retry_at_ms = 0

    def is_joined(self, others: Mapping[ShareSource, Sequence[Run]]) -> bool:
        """Send these with it, where no call waits for either; False where that is not possible."""
        renews = any(run.type is AcknowledgeType.RENEW for each in others.values() for run in each)
        if self.commit.operation is not None or self.failures or self.has_renewals or renews:
            return False
        for source, runs in others.items():
            before = self.runs.get(source)
            self.runs[source] = runs if before is None else joined(sorted((*before, *runs)))
            self.commit.left += before is None
        return True


class _Node:
    """One broker."""

    def __init__(self) -> None:
        self.session = ShareClientSession()
        self.is_in_flight = False
        self.is_fetching = False
        self.retry_at_ms = 0
        self.failures = 0
        self.sending: deque[_Sending] = deque()


class ShareFetcher:
    """One share consumer's requests to the leaders of partitions, and its buffers."""

    def __init__(
        self,
        config: ShareConsumerConfig,
        member_id: Callable[[], str],
        subscription: Subscription,
        requests: Requests,
        metrics: ShareConsumerMetrics,
        readers: tuple[Any, Any],
    ) -> None:
        """`member_id` is that of the membership; `readers` make keys and values, or are None."""
        self._config = config
        self._member_id = member_id
        self._subscription = subscription
        self._requests = requests
        self._metrics = metrics
        self._readers = readers
        self._nodes: dict[int, _Node] = {}
        self._chunks: deque[ShareChunk] = deque()
        """In the order of arrival."""
        self._wants_records = False
        self._turn = 0
        """Counts rounds, so that each begins with another partition."""
        self._failures: deque[Exception] = deque()
        self._partition_retry_ms: dict[TopicPartition, int] = {}
        self.held: dict[ShareSource, HeldRecords] = {}
        """What polls have returned and the application has not acknowledged."""
        self._renewed: deque[tuple[ShareSource, Record]] = deque()
        """Records whose renewal has succeeded: the next poll returns them, and they are held again."""
        self.completed: deque[Acknowledged] = deque()
        """For the application's callback."""
        self.lock_timeout_ms: int | None = None
        """For how long a broker keeps a record for this member; None: no broker has said."""
        self._closing: Operation | None = None
        """Of the close, once it has begun."""

    # -- what the core calls

    def want_records(self) -> None:
        """Nothing is buffered, and the application polls."""
        if not self._wants_records and not self._chunks:
            self._wants_records = True
            self._turn += 1

    def acknowledge(self, taken: Mapping[ShareSource, Sequence[Run]], operation: Operation | None) -> None:
        """Send these; `operation` gets the error, or None, of each partition."""
        deadline_ms = self._requests.now_ms + self._config.default_api_timeout_ms
        commit = Commit(operation, deadline_ms if operation is None else operation.deadline_ms)
        commit.left = len(taken)
        by_node: dict[int, dict[ShareSource, Sequence[Run]]] = {}
        for source, runs in taken.items():
            by_node.setdefault(source.node_id, {})[source] = runs
        for node_id, of_node in by_node.items():
            sending = self._node(node_id).sending
            if operation is None and sending and sending[-1].is_joined(of_node):
                continue  # what waits for the answer to the request before is one request
            sending.append(_Sending(commit, of_node))
        if not taken and operation is not None:
            operation.succeed({})

    def take_held(self) -> dict[ShareSource, Sequence[Run]]:
        """What is to be acknowledged of all that is held."""
        taken: dict[ShareSource, Sequence[Run]] = {
            source: runs for source, held in self.held.items() if (runs := held.take())
        }
        self.held = {s: held for s, held in self.held.items() if not held.is_empty or held.renewing}
        return taken

    def begin_close(self, operation: Operation) -> None:
        """End the sessions, once all acknowledgements are answered: brokers release what is still held."""
        self._closing = operation
        self._wants_records = False
        self._chunks.clear()

    def run(self) -> None:
        """Send what can be sent."""
        now_ms = self._requests.now_ms
        self._expire(now_ms)
        wanted = self._wanted(now_ms)
        for node_id in [*wanted, *(each for each in self._nodes if each not in wanted)]:
            self._run_node(node_id, self._node(node_id), wanted.get(node_id, {}), now_ms)
        if self._closing is not None and not self._is_busy:
            self._closing.succeed()

    def deadline_ms(self) -> int | None:
        """When `run` may have something to send that it does not have now."""
        times = list(self._partition_retry_ms.values())
        for node in self._nodes.values():
            times.append(node.retry_at_ms)
            times += [time for each in node.sending for time in (each.retry_at_ms, each.commit.deadline_ms)]
        return self._requests.earliest(times)

    @property
    def _is_busy(self) -> bool:
        return any(node.is_in_flight or node.sending or node.session.epoch > 0 for node in self._nodes.values())

    # -- sending

    def _node(self, node_id: int) -> _Node:
        found = self._nodes.get(node_id)
        if found is None:
            found = self._nodes[node_id] = _Node()
        return found

    def _wanted(self, now_ms: int) -> dict[int, dict[TopicPartition, Uuid]]:
        """What each broker is to hand out, where records are wanted; the brokers in the order of their turn."""
        if not self._wants_records or self._closing is not None or not self._member_id():
            return {}
        found: dict[int, dict[TopicPartition, Uuid]] = {}
        partitions = sorted(self._subscription.partitions)
        begin = self._turn % max(1, len(partitions))
        for partition in partitions[begin:] + partitions[:begin]:
            if self._partition_retry_ms.get(partition, 0) > now_ms:
                continue
            leader = self._requests.metadata.leader_of(*partition)
            if leader is None or leader.topic_id == ZERO_UUID:
                self._requests.metadata.request_leader(partition.topic)
                continue
            found.setdefault(leader.node_id, {})[partition] = leader.topic_id
        if self._config.acquire_mode is AcquireMode.RECORD_LIMIT and found:
            if any(node.is_fetching for node in self._nodes.values()):
                return {}
            first = next((node_id for node_id in found if self._node(node_id).retry_at_ms <= now_ms), None)
            return {} if first is None else {first: found[first]}
        return found

    def _run_node(self, node_id: int, node: _Node, wanted: dict[TopicPartition, Uuid], now_ms: int) -> None:
        if node.is_in_flight:
            return
        self._drop_hopeless(node_id, node)
        first = node.sending[0] if node.sending else None
        if first is not None and first.retry_at_ms > now_ms:
            return
        may_fetch = bool(wanted) and node.retry_at_ms <= now_ms
        ends = self._closing is not None and first is None and node.session.epoch > 0
        if first is None and not may_fetch and not ends:
            return
        if not self._requests.is_ready(FETCH_BASE + node_id):
            if self._closing is not None and not self._requests.connections.is_connected(FETCH_BASE + node_id):
                node.session.restart()  # the broker ends the session with its connection
            return
        if ends:
            self._send_acknowledge(node_id, node, None)
        elif first is not None and (not may_fetch or len(node.sending) > 1 or not self._may_ride(first)):
            self._send_acknowledge(node_id, node, node.sending.popleft())
        else:
            self._send_fetch(node_id, node, wanted, node.sending.popleft() if first is not None else None)

    def _may_ride(self, sending: _Sending) -> bool:
        """Whether acknowledgements may be part of a ShareFetch: no call waits for them."""
        return sending.commit.operation is None and not sending.has_renewals and not sending.failures

    def _drop_hopeless(self, node_id: int, node: _Node) -> None:
        """Acknowledgements whose locks are known to have ended."""
        for sending in list(node.sending):
            if node.session.epoch == 0:
                error = refused(ErrorCode.SHARE_SESSION_NOT_FOUND, "the share session has ended, with its locks")
                node.sending.remove(sending)
                self._finish(sending, dict.fromkeys(sending.runs, error))
                continue
            moved = {
                source: refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"partition {source.partition}")
                for source in sending.runs
                if (leader := self._requests.metadata.leader_of(*source.partition)) is not None
                and leader.topic_id == source.topic_id
                and leader.node_id != node_id
            }
            if moved:
                self._finish(sending, moved)
                if not sending.runs:
                    node.sending.remove(sending)

    def _expire(self, now_ms: int) -> None:
        for node in self._nodes.values():
            for sending in [each for each in node.sending if now_ms >= each.commit.deadline_ms]:
                node.sending.remove(sending)
                late = ApiError(ErrorCode.REQUEST_TIMED_OUT, "the acknowledgements were not sent in time")
                self._finish(sending, dict.fromkeys(sending.runs, late))

    def _send_fetch(
        self, node_id: int, node: _Node, wanted: dict[TopicPartition, Uuid], sending: _Sending | None
    ) -> None:
        config = self._config
        change = node.session.build(wanted)
        topics: dict[Uuid, dict[int, ShareFetchRequestFetchPartition]] = {}
        for topic_id, numbers in change.added.items():
            topics[topic_id] = {n: ShareFetchRequestFetchPartition(partition_index=n) for n in numbers}
        for source, runs in (sending.runs if sending is not None else {}).items():
            of_topic = topics.setdefault(source.topic_id, {})
            number = source.partition.partition
            named = of_topic.setdefault(number, ShareFetchRequestFetchPartition(partition_index=number))
            named.acknowledgement_batches = [
                ShareFetchRequestAcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=types)
                for first, last, types in batches_of(runs)
            ]
        request = ShareFetchRequest(
            group_id=config.group_id,
            member_id=self._member_id(),
            share_session_epoch=change.epoch,
            max_wait_ms=config.fetch_max_wait_ms,
            min_bytes=config.fetch_min_bytes,
            max_bytes=config.fetch_max_bytes,
            max_records=config.max_poll_records,
            batch_size=config.max_poll_records,
            share_acquire_mode=int(config.acquire_mode),
            topics=[
                ShareFetchRequestFetchTopic(topic_id=topic_id, partitions=list(each.values()))
                for topic_id, each in topics.items()
            ],
            forgotten_topics_data=[
                ShareFetchRequestForgottenTopic(topic_id=topic_id, partitions=numbers)
                for topic_id, numbers in change.forgotten.items()
            ],
        )
        node.is_fetching = True
        self._send(node_id, node, request, sending, self._on_fetched)

    def _send_acknowledge(self, node_id: int, node: _Node, sending: _Sending | None) -> None:
        """`sending` None: end the session."""
        topics: dict[Uuid, list[AcknowledgePartition]] = {}
        for source, runs in (sending.runs if sending is not None else {}).items():
            batches = [
                ShareAcknowledgeRequestAcknowledgementBatch(
                    first_offset=first, last_offset=last, acknowledge_types=types
                )
                for first, last, types in batches_of(runs)
            ]
            topics.setdefault(source.topic_id, []).append(
                AcknowledgePartition(partition_index=source.partition.partition, acknowledgement_batches=batches)
            )
        request = ShareAcknowledgeRequest(
            group_id=self._config.group_id,
            member_id=self._member_id(),
            share_session_epoch=FINAL_EPOCH if sending is None else node.session.epoch,
            is_renew_ack=sending is not None and sending.has_renewals,
            topics=[AcknowledgeTopic(topic_id=topic_id, partitions=each) for topic_id, each in topics.items()],
        )
        if sending is None:
            node.session.restart()
        self._send(node_id, node, request, sending, self._on_acknowledged)

    def _send(self, node_id: int, node: _Node, request: Any, sending: _Sending | None, on_answer: Any) -> None:
        node.is_in_flight = True
        sent_at_ms = self._requests.now_ms
        if sending is not None:
            counted = sum(run.last - run.first + 1 for runs in sending.runs.values() for run in runs)
            self._metrics.acknowledged.append(counted)

        def on_done(answer: Any, error: ApiError | None) -> None:
            node.is_in_flight = node.is_fetching = False
            if answer is None:
                assert error is not None
                self._on_lost(node, sending, error)
                return
            self._metrics.node(FETCH_BASE + node_id).latency.append(self._requests.now_ms - sent_at_ms)
            if answer.acquisition_lock_timeout_ms > 0:
                self.lock_timeout_ms = answer.acquisition_lock_timeout_ms
            on_answer(node_id, node, sending, answer, sent_at_ms)

        self._requests.send(FETCH_BASE + node_id, request, on_done, timeout_ms=self._config.request_timeout_ms)

    # -- receiving

    def _on_lost(self, node: _Node, sending: _Sending | None, error: ApiError) -> None:
        node.session.restart()
        node.failures += 1
        node.retry_at_ms = self._requests.retry_at_ms(node.failures)
        self._requests.metadata.request_update()
        if sending is not None:
            self._finish(sending, dict.fromkeys(sending.runs, error))
        if not error.code.retriable and self._closing is None:
            self._failures.append(error)

    def _on_refused(self, node: _Node, sending: _Sending | None, answer: Any) -> None:
        """The request has failed as a whole."""
        code = ErrorCode(answer.error_code)
        error = refused(answer.error_code, f"share group {self._config.group_id!r}", answer.error_message)
        node.failures += 1
        node.retry_at_ms = self._requests.retry_at_ms(node.failures)
        if code in SESSION_ERRORS:
            node.session.restart()
        else:
            node.session.on_answer()
            if code in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID):
                self._requests.metadata.request_update()
            elif not code.retriable and code is not ErrorCode.UNKNOWN_SERVER_ERROR and self._closing is None:
                self._failures.append(error)
        if sending is not None:
            self._settle(node, sending, dict.fromkeys(sending.runs, error))

    def _on_fetched(
        self, node_id: int, node: _Node, sending: _Sending | None, answer: ShareFetchResponse, sent_at_ms: int
    ) -> None:
        now_ms = self._requests.now_ms
        self._metrics.fetches.append(now_ms - sent_at_ms)
        self._metrics.throttle.append(answer.throttle_time_ms)
        if answer.error_code:
            self._on_refused(node, sending, answer)
            return
        node.failures = 0
        node.session.on_answer()
        brokers = [Broker(each.node_id, each.host, each.port, each.rack) for each in answer.node_endpoints]
        errors: dict[tuple[Uuid, int], ApiError] = {}
        size_bytes = records = 0
        for topic in answer.responses:
            for data in topic.partitions:
                partition = node.session.partition_of(topic.topic_id, data.partition_index)
                if data.acknowledge_error_code:
                    what = f"the acknowledgements of {partition or data.partition_index}"
                    errors[topic.topic_id, data.partition_index] = refused(
                        data.acknowledge_error_code, what, data.acknowledge_error_message
                    )
                if partition is None:
                    continue
                if data.error_code:
                    self._on_partition_error(partition, data, brokers)
                elif data.acquired_records and self._closing is None:
                    chunk = ShareChunk(
                        ShareSource(node_id, topic.topic_id, partition), data, self._readers, self._config.check_crcs
                    )
                    size_bytes += chunk.size_bytes
                    records += chunk.acquired_count
                    self._chunks.append(chunk)
        if records:
            self._wants_records = False
            self._metrics.fetched_bytes.append(size_bytes)
            self._metrics.fetched_records.append(records)
        if sending is not None:
            self._settle(node, sending, _errors_by_source(sending, errors))

    def _on_partition_error(
        self, partition: TopicPartition, data: ShareFetchResponsePartitionData, brokers: list[Broker]
    ) -> None:
        code = ErrorCode(data.error_code)
        self._partition_retry_ms[partition] = self._requests.retry_at_ms()
        if code in _MOVED:
            if self._follow_leader(partition, data.current_leader, brokers):
                del self._partition_retry_ms[partition]
        elif code.retriable or code is ErrorCode.UNKNOWN_SERVER_ERROR:
            log.warning("the ShareFetch of %s has failed with %s: it is repeated", partition, code.name)
        else:
            self._failures.append(refused(data.error_code, f"partition {partition}", data.error_message))

    def _follow_leader(self, partition: TopicPartition, leader: Any, brokers: list[Broker]) -> bool:
        """Whether the answer has named a later leader; where it has not, the metadata is fetched again."""
        metadata = self._requests.metadata
        if metadata.update_leader(*partition, leader.leader_id, leader.leader_epoch, brokers):
            return True
        metadata.request_update()
        return False

    def _on_acknowledged(
        self, node_id: int, node: _Node, sending: _Sending | None, answer: ShareAcknowledgeResponse, _sent_at_ms: int
    ) -> None:
        if sending is None:
            return
        if answer.error_code:
            self._on_refused(node, sending, answer)
            return
        node.failures = 0
        node.session.on_answer()
        brokers = [Broker(each.node_id, each.host, each.port, each.rack) for each in answer.node_endpoints]
        errors: dict[tuple[Uuid, int], ApiError] = {}
        names = {(source.topic_id, source.partition.partition): source.partition for source in sending.runs}
        for topic in answer.responses:
            for data in topic.partitions:
                partition = names.get((topic.topic_id, data.partition_index))
                if not data.error_code or partition is None:
                    continue
                what = f"the acknowledgements of {partition}"
                errors[topic.topic_id, data.partition_index] = refused(data.error_code, what, data.error_message)
                if data.error_code in _MOVED:
                    self._follow_leader(partition, data.current_leader, brokers)
        self._settle(node, sending, _errors_by_source(sending, errors))

    # -- outcomes

    def _settle(self, node: _Node, sending: _Sending, errors: Mapping[ShareSource, ApiError | None]) -> None:
        """A request is answered; what has failed with an error that passes is sent again, until the deadline."""
        may_repeat = node.session.epoch > 0 and self._requests.now_ms < sending.commit.deadline_ms
        left = {source: runs for source, runs in sending.runs.items() if may_repeat and _passes(errors[source])}
        self._finish(sending, {source: error for source, error in errors.items() if source not in left})
        if left:
            sending.failures += 1
            sending.retry_at_ms = self._requests.retry_at_ms(sending.failures)
            node.sending.appendleft(sending)

    def _finish(self, sending: _Sending, errors: Mapping[ShareSource, ApiError | None]) -> None:
        """These partitions' acknowledgements are done."""
        commit = sending.commit
        for source, error in errors.items():
            runs = sending.runs.pop(source)
            if error is not None:
                self._metrics.refused.append(sum(run.last - run.first + 1 for run in runs))
            commit.results[source.partition] = error or commit.results.get(source.partition)
            commit.left -= 1
            self.completed.append(Acknowledged(source, runs, error))
            held = self.held.get(source)
            if held is not None and held.renewing:
                self._renewed += [(source, record) for record in held.on_answer(runs, succeeded=error is None)]
        if not commit.left and commit.operation is not None:
            commit.operation.succeed(commit.results)

    # -- handing out

    @property
    def has_records(self) -> bool:
        """Whether a call that takes records returns or raises something."""
        return bool(self._failures or self._chunks or self._renewed)

    def take_records(self, limit: int) -> list[Record]:
        """Up to `limit` records, renewed ones first; none where none is buffered. Raises what has failed."""
        if self._failures:
            raise self._failures.popleft()
        out: list[Record] = []
        while self._renewed and len(out) < limit:
            source, record = self._renewed.popleft()
            self._hold(source).add([record], [(record.offset, record.offset)])
            out.append(record)
        while self._chunks and len(out) < limit:
            chunk = self._chunks[0]
            taken = chunk.take(limit - len(out))
            held = self._hold(chunk.source)
            held.settle(taken.settled)
            if taken.records:
                held.add(taken.records if self._config.is_explicit else (), taken.spans)
                out += taken.records
            if chunk.is_empty:
                self._chunks.popleft()
            if taken.failure is not None:
                if taken.undecodable >= 0:
                    held.let_choose(taken.undecodable, AcknowledgeType.RELEASE)
                self._failures.append(taken.failure)
                break
        if not out and self._failures:
            raise self._failures.popleft()
        return out

    def take_columns(self, rows: int) -> list[TakenColumns]:
        """Offsets of up to `rows` records, for columns; `hold` follows for those whose records are returned. Raises
        what has failed."""
        if self._failures:
            raise self._failures.popleft()
        out: list[TakenColumns] = []
        left = rows
        while self._chunks and left > 0:
            chunk = self._chunks[0]
            taken, settled, failure = chunk.take_columns(left)
            self._hold(chunk.source).settle(settled)
            out += taken
            left -= sum(each.last - each.first + 1 for each in taken)
            if chunk.is_empty:
                self._chunks.popleft()
            if failure is not None:
                self._failures.append(failure)
                break
        if not out and self._failures:
            raise self._failures.popleft()
        return out

    def hold(self, source: ShareSource, spans: Sequence[tuple[int, int]], settled: Sequence[Run]) -> None:
        """Records of a chunk are returned, as columns."""
        held = self._hold(source)
        held.add((), spans)
        held.settle(settled)

    def _hold(self, source: ShareSource) -> HeldRecords:
        found = self.held.get(source)
        if found is None:
            found = self.held[source] = HeldRecords(source)
        return found


def _passes(error: ApiError | None) -> bool:
    """Whether it may help to send the acknowledgements again."""
    return error is not None and error.code.retriable and error.code not in (*_MOVED, *SESSION_ERRORS)


def _errors_by_source(
    sending: _Sending, errors: Mapping[tuple[Uuid, int], ApiError]
) -> dict[ShareSource, ApiError | None]:
    return {source: errors.get((source.topic_id, source.partition.partition)) for source in sending.runs}
