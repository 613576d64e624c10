"""The calls of a share consumer: the same in the blocking and the asyncio one."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias

from kalda import __version__
from kalda.base.configs.share_consumer import SHARE_CONSUMER, ShareConsumerConfig, share_consumer_config
from kalda.base.errors import ApiError, WrongState
from kalda.base.ids import TopicPartition
from kalda.base.share_states import AcknowledgeType
from kalda.client.consumer.common_calls import CommonCalls, K, Steps, V, Wait, with_deserializers
from kalda.client.transport.config_files import read_config
from kalda.clientcore.consuming.consumer_errors import Operation
from kalda.clientcore.serdes import close_all
from kalda.clientcore.share_consumer import ShareConsumerCore
from kalda.clientcore.sharing.held_records import Run
from kalda.clientcore.sharing.share_chunks import TakenColumns
from kalda.records.consuming import Record, RecordIterator

if TYPE_CHECKING:
    from typing import Unpack

    import pyarrow as pa

    from kalda.client.consumer.common_calls import Deserialize, Deserializes
    from kalda.client.keywords import ShareConsumerKeywords

log = logging.getLogger(__name__)
_numbers = itertools.count(1)
FOREVER_MS = 1000 * 3600 * 24 * 365


Acknowledgeable: TypeAlias = "Record[Any, Any] | pa.RecordBatch"


class AcknowledgementCommitCallback(Protocol):
    """Called when acknowledgements are done: the offsets of each partition, and why they have failed, or None. Those
    that have failed are for some member to process: their locks have ended."""

    def __call__(self, offsets: Mapping[TopicPartition, frozenset[int]], error: ApiError | None, /) -> Any: ...


class ShareCalls(CommonCalls, Generic[K, V]):
    """What both share consumers can do."""

    _core: ShareConsumerCore
    _config: ShareConsumerConfig
    _callback: AcknowledgementCommitCallback | None = None
    _calling: object = None
    """The thread or task that is in a call of the callback."""

    def __init__(
        self,
        config: Mapping[str, object] | str | os.PathLike[str] | None = None,
        *,
        key_deserializer: Deserialize[K] | type[Deserializes[K]] | str | None = None,
        value_deserializer: Deserialize[V] | type[Deserializes[V]] | str | None = None,
        **keywords: Unpack[ShareConsumerKeywords],
    ) -> None:
        """`config` has Kafka's keys, or names a properties file; keywords are the keys in snake_case. Raises
        `InvalidConfig`. A consumer of asyncio makes its connections in the loop of the first call that waits."""
        self._config = settings = share_consumer_config(
            read_config(SHARE_CONSUMER, config), with_deserializers(keywords, key_deserializer, value_deserializer)
        )
        self._core = ShareConsumerCore(
            settings,
            client_id=settings.client_id or f"consumer-{settings.group_id}-{next(_numbers)}",
            software_version=__version__,
            random=self._host.random,
            member_id=self._host.new_member_id(),
            now_ms=self._now_ms(),
        )
        self._core.push_metrics(self._host.wall_ms)
        self._iterator = RecordIterator(self._next_records)
        self._start()

    def subscribe(self, topics: Iterable[str] | str) -> None:
        """Read topics, as a member of the share group; names replace the subscription that there is. Partitions are
        assigned while the application polls."""
        self._require_usable()
        with self._lock:
            self._begin().subscribe([topics] if isinstance(topics, str) else topics)
        self._changed()

    def subscription(self) -> frozenset[str]:
        """The topics subscribed to."""
        return self._core.subscription.topics

    @property
    def acquisition_lock_timeout_ms(self) -> int | None:
        """For how long the brokers keep a record for this consumer, after which some member gets it again
        (`share.record.lock.duration.ms` of the group). None before the first record has come."""
        return self._core.fetcher.lock_timeout_ms

    def acknowledge(self, record: Acknowledgeable, kind: AcknowledgeType = AcknowledgeType.ACCEPT) -> None:
        """Say what has become of a record, or of each row of a `poll_arrow`: ACCEPT (it was processed), RELEASE (some
        member gets it again), REJECT (none does) or RENEW (it takes longer: the next poll returns it again, KIP-1222).
        It is sent with the next poll or commit. Needs `share.acknowledgement.mode=explicit`.

        Raises `WrongState` where no poll has returned the record, or its acknowledgement was sent."""
        if isinstance(record, Record):
            self.acknowledge_offset(record.topic, record.partition, record.offset, kind)
            return
        columns = (record.column(name).to_pylist() for name in ("topic", "partition", "offset"))
        for topic, partition, offset in zip(*columns, strict=True):
            self.acknowledge_offset(topic, partition, offset, kind)

    def acknowledge_offset(
        self, topic: str, partition: int, offset: int, kind: AcknowledgeType = AcknowledgeType.ACCEPT
    ) -> None:
        """As `acknowledge`, for the record at an offset: also for one that `UndecodableRecord` has named, which is
        released where nothing is said of it."""
        self._require_usable()
        if kind not in AcknowledgeType or kind == AcknowledgeType.GAP:
            raise ValueError(f"{kind!r} cannot be said of a record: ACCEPT, RELEASE, REJECT or RENEW is expected")
        with self._lock:
            self._begin().acknowledge(TopicPartition(topic, partition), offset, AcknowledgeType(kind))

    def set_acknowledgement_commit_callback(self, callback: AcknowledgementCommitCallback | None) -> None:
        """Call `callback(offsets, error)` when acknowledgements are done, during a later `poll`, commit or `close`."""
        self._require_usable()
        self._callback = callback

    # -- inside

    def _require_usable(self) -> None:
        self._check_open()
        if self._calling is not None and self._calling == self._current():
            raise WrongState("an acknowledgement commit callback cannot call the consumer")

    def _begin(self) -> ShareConsumerCore:
        self._core.requests.now_ms = self._now_ms()
        return self._core

    def _ends_at_ms(self, timeout: float | None) -> int:
        return self._now_ms() + (FOREVER_MS if timeout is None else int(timeout * 1000))

    def _call_back(self) -> None:
        """Call the callback for what is done."""
        callback = self._callback
        with self._lock:
            completed = self._core.take_completed(callback is not None)
        if callback is None or not completed:
            return
        self._calling = self._current()
        try:
            for offsets, error in completed:
                callback(offsets, error)
        finally:
            self._calling = None

    def _poll_steps(self, due_ms: int, take: Callable[[], list[Any]]) -> Steps:
        self._require_usable()
        if not self._core.subscription.is_by_group:
            raise WrongState("the consumer reads nothing: subscribe to topics first")
        self._driven.polling += 1
        try:
            self._call_back()
            with self._lock:
                self._begin().begin_poll()
            self._let_run()
            while True:
                self._raise_if_woken()
                taken = self._take(take)
                if taken:
                    return taken
                news = lambda: self._is_woken or self._driven.is_ending or self._core.has_news  # noqa: E731
                if not (yield Wait(news, due_ms)):
                    return []
                self._check_open()
                self._call_back()
        finally:
            self._driven.polling -= 1
            self._core.metrics.on_poll_ended(self._now_ms())

    def _record_steps(self, timeout: float | None, limit: int | None) -> Steps:
        limit = self._config.max_poll_records if limit is None else limit
        if limit < 1:
            raise ValueError(f"max_records is {limit}; at least 1 is expected")
        rest = self._iterator.rest
        if rest:
            with self._lock:
                self._begin().commit(None, rest)
            self._iterator.replace_rest(rest[limit:])
            return rest[:limit]
        return (yield from self._poll_steps(self._ends_at_ms(timeout), lambda: self._core.take_records(limit)))

    def _arrow_steps(self, timeout: float | None, rows: int) -> Steps:
        if rows < 1:
            raise ValueError(f"max_records is {rows}; at least 1 is expected")
        if self._iterator.rest:
            raise WrongState("records of a for loop are not used up: go on with it, or poll, before poll_arrow")
        taken = yield from self._poll_steps(self._ends_at_ms(timeout), lambda: self._core.take_columns(rows))
        if not taken:
            return None
        try:
            batch, failure, held = _decoded(taken, is_exact=self._config.is_explicit)
        except BaseException:  # such as a signal handler's: nothing of it was returned
            with self._lock:
                for each in taken:
                    self._core.fetcher.hold(each.source, (), [Run(each.first, each.last, AcknowledgeType.RELEASE)])
            raise
        with self._lock:
            for source, spans, settled in held:
                self._core.fetcher.hold(source, spans, settled)
        if batch is None and failure is not None:
            raise failure
        return batch

    def _commit_steps(self, timeout: float | None) -> Steps:
        self._require_usable()
        self._call_back()
        timeout_ms = self._config.default_api_timeout_ms if timeout is None else int(timeout * 1000)
        operation = Operation("the commit of acknowledgements", self._now_ms() + timeout_ms)
        with self._lock:
            self._begin().commit(operation, self._iterator.rest)
        done = lambda: operation.is_done or self._is_woken or self._driven.is_ending  # noqa: E731
        yield Wait(done, operation.deadline_ms)
        if not operation.is_done:
            self._raise_if_woken()
            self._check_open()
            raise operation.late(self._core.connections.last_failure)
        self._call_back()
        return operation.result

    def _begin_commit(self) -> None:
        self._require_usable()
        self._call_back()
        with self._lock:
            self._begin().commit(None, self._iterator.rest)
        self._changed()

    def _unsubscribe_steps(self) -> Steps:
        self._require_usable()
        self._iterator.replace_rest([])
        with self._lock:
            operation = self._begin().unsubscribe()
        if operation is not None:
            yield Wait(lambda: operation.is_done or self._driven.is_ending, operation.deadline_ms)

    def _close_steps(self, timeout: float | None) -> Steps:
        """All but the end of the I/O."""
        due_ms = self._now_ms() + int((30.0 if timeout is None else timeout) * 1000)
        operation = Operation("ending the share sessions", due_ms)
        with self._lock:
            self._begin().begin_close(operation)
        if not (yield Wait(lambda: operation.is_done or self._driven.is_ending, due_ms)):
            log.warning("the share sessions were not ended in time: brokers release the records after a while")
        try:
            self._call_back()
        finally:  # what the callback raises is raised when the member has left
            with self._lock:
                leaving = self._begin().begin_leave()
            if leaving is not None:
                yield Wait(lambda: leaving.is_done or self._driven.is_ending, min(due_ms, leaving.deadline_ms))
            yield from self._push_last_metrics(due_ms)

    def _close_objects(self) -> None:
        """The consumer has ended: deserializers that have a `close` are closed, once."""
        close_all(self._take_codecs())


def _decoded(
    taken: list[TakenColumns], *, is_exact: bool
) -> tuple[pa.RecordBatch | None, Exception | None, list[tuple[Any, list[tuple[int, int]], list[Run]]]]:
    """The rows, what has failed, and of each source which offsets are returned and which are not. `is_exact`: offsets
    without a record are kept apart from those with one, since the application acknowledges each row."""
    from kalda.client.consumer.columns import to_one_batch

    decoded = to_one_batch([each.taken for each in taken])
    held: list[tuple[Any, list[tuple[int, int]], list[Run]]] = []
    offsets = _offsets_of(decoded.batch) if is_exact else {}
    left = dict(decoded.rest)
    failed = decoded.failure
    for each in taken:
        partition = each.source.partition
        begin = left.get(partition)
        if begin is None or begin > each.last:
            through = each.last
        elif failed is not None and failed.partition == partition and each.first <= failed.offset <= each.last:
            through = failed.offset - 1
            held.append((each.source, [], [Run(failed.offset, each.last, AcknowledgeType.REJECT)]))
        else:
            through = each.first - 1
            held.append((each.source, [], [Run(each.first, each.last, AcknowledgeType.RELEASE)]))
        if through < each.first:
            continue
        spans: list[tuple[int, int]] = [(each.first, through)]
        gaps: list[Run] = []
        if is_exact:
            spans, gaps = _split(each.first, through, offsets.get(partition, frozenset()))
        held.append((each.source, spans, gaps))
    return decoded.batch, failed, held


def _offsets_of(batch: pa.RecordBatch | None) -> dict[TopicPartition, frozenset[int]]:
    found: dict[TopicPartition, set[int]] = {}
    if batch is not None:
        columns = (batch.column(name).to_pylist() for name in ("topic", "partition", "offset"))
        for topic, partition, offset in zip(*columns, strict=True):
            found.setdefault(TopicPartition(topic, partition), set()).add(offset)
    return {partition: frozenset(offsets) for partition, offsets in found.items()}


def _split(first: int, last: int, offsets: frozenset[int]) -> tuple[list[tuple[int, int]], list[Run]]:
    """The ranges of offsets with a record, and those without."""
    spans: list[tuple[int, int]] = []
    gaps: list[Run] = []
    for offset in range(first, last + 1):
        if offset not in offsets:
            gaps.append(Run(offset, offset, AcknowledgeType.GAP))
        elif spans and spans[-1][1] == offset - 1:
            spans[-1] = spans[-1][0], offset
        else:
            spans.append((offset, offset))
    return spans, gaps
