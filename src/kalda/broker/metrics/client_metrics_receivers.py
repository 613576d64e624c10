"""Where the metrics go that clients push: a topic, and the operator's own classes.

`ClientMetricsTopic` appends records to `__client_metrics`, which it creates with the first one. A record goes to the
partition of its key, as any producer would send it: appended here where this broker leads it, sent to its leader
otherwise. What waits is bounded: beyond `MAX_BUFFERED_BYTES` the oldest records are dropped, and counted. A batch that
fails is dropped too: metrics are not worth a second attempt, and no client waits for them. A driver.

The classes are those of `kalda.client.metrics.plugins`. A class is named as `package.module:Class`, and made without
arguments. Each has a thread of its own with a bounded queue, so that one that is slow, that hangs or that raises harms
neither requests nor the others.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Final, NamedTuple, Protocol

from kalda.base.errors import ApiError, ErrorCode, as_api_error
from kalda.base.scheduling import Clock, Pending, Timer, Timers
from kalda.broker.channels.auto_topics import AutoTopics, TopicPlan
from kalda.broker.metadata_cache import MetadataCache
from kalda.protocol.messages.partitions import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from kalda.protocol.notation import Request
from kalda.records.builder import build_batch
from kalda.records.compression import Compression
from kalda.replication import produce
from kalda.replication.replica_manager import ReplicaManager
from kalda.telemetry.client_metrics import TOPIC, PointSource
from kalda.telemetry.otlp import DataPoint

log = logging.getLogger("kalda.client_metrics")

MAX_BUFFERED_BYTES: Final = 8 * 1024 * 1024
_RECORD_OVERHEAD_BYTES: Final = 200
_LINGER_MS: Final = 250
_RETRY_MS: Final = 1_000
_BATCH_BYTES: Final = 256 * 1024
"""Of the records of one flush, before they are compressed: they are appended on the event loop."""
_TIMEOUT_MS: Final = 10_000
PLAN: Final = TopicPlan(
    -1, -1, {"cleanup.policy": "delete", "retention.ms": str(24 * 3_600_000), "retention.bytes": str(1 << 30)}
)
"""Partitions and replicas by the defaults of the broker; what a day old is deleted, and what exceeds a gibibyte."""

Send = Callable[[int, Request, int], Pending[Any]]
"""`(broker id, request, timeout)`: the response of another broker."""


class ClientMetricsTopic:
    """One broker's."""

    def __init__(
        self,
        broker_id: int,
        replicas: ReplicaManager,
        cache: MetadataCache,
        topics: AutoTopics,
        send: Send,
        clock: Clock,
        timers: Timers,
    ) -> None:
        self._broker_id = broker_id
        self._replicas = replicas
        self._cache = cache
        self._topics = topics
        self._send = send
        self._clock = clock
        self._timers = timers
        self._rows: deque[tuple[int, bytes, bytes]] = deque()
        """Time, key, value, in order of arrival."""
        self._size_bytes = 0
        self._timer: Timer | None = None
        """For the next flush; None where nothing waits."""
        self._sending = False
        """Whether the batches of a flush are not answered yet."""
        self._closed = False
        self.written = 0
        """Records so far."""
        self.dropped = 0
        """Records so far that were not written."""
        self._failures = 0
        """Each that is a power of two is logged."""

    def put(self, records: list[tuple[bytes, bytes]]) -> None:
        """Append these keys and values soon."""
        if self._closed:
            self.dropped += len(records)
            return
        now_ms = self._clock.wall_ms()
        for key, value in records:
            self._rows.append((now_ms, key, value))
            self._size_bytes += len(key) + len(value) + _RECORD_OVERHEAD_BYTES
        while self._size_bytes > MAX_BUFFERED_BYTES:
            self._take()
            self.dropped += 1
        self._arm(_LINGER_MS)

    def close(self) -> None:
        """Append what waits, where this broker leads its partitions, and nothing from now on."""
        while self._rows and not self._sending and self._cache.topic(TOPIC) is not None:
            before = len(self._rows)
            self._flush()
            if len(self._rows) == before:
                break
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self.dropped += len(self._rows)
        self._rows.clear()

    def _arm(self, delay_ms: int) -> None:
        if self._timer is None and self._rows and not self._sending and not self._closed:
            self._timer = self._timers.call_later_ms(delay_ms, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        try:
            self._flush()
        except Exception as error:  # whatever it is, it must not harm the node
            self._sending = False
            self._note(0, as_api_error(error))
            self._arm(_RETRY_MS)

    def _take(self) -> tuple[int, bytes, bytes]:
        row = self._rows.popleft()
        self._size_bytes -= len(row[1]) + len(row[2]) + _RECORD_OVERHEAD_BYTES
        return row

    def _flush(self) -> None:
        """Append the oldest records, then set the timer for the others."""
        from kalda.records.appending import murmur2

        topic = self._cache.topic(TOPIC)
        if topic is None or any(not each.has_leader for each in topic.partitions.values()):
            if topic is None:
                self._topics.create([TOPIC])
            self._arm(_RETRY_MS)
            return
        count = len(topic.partitions)
        batches: dict[int, list[tuple[int, bytes, bytes, tuple[()]]]] = {}
        until = max(0, self._size_bytes - _BATCH_BYTES)
        while self._rows and self._size_bytes > until:
            time_ms, key, value = self._take()
            batches.setdefault((murmur2(key) & 0x7FFFFFFF) % count, []).append((time_ms, key, value, ()))
        leaders: dict[int, list[int]] = {}
        for partition in batches:
            leaders.setdefault(topic.partitions[partition].leader, []).append(partition)
        outstanding = len(leaders)
        self._sending = True

        def answered(sent: int, response: ProduceResponse | None, error: ApiError | None) -> None:
            nonlocal outstanding
            outstanding -= 1
            self._on_response(sent, response, error)
            if not outstanding:
                self._sending = False
                self._arm(0)

        for leader, partitions in leaders.items():
            data = [
                PartitionProduceData(index=each, records=build_batch(batches[each], compression=Compression.LZ4))
                for each in partitions
            ]
            request = ProduceRequest(
                acks=1,
                timeout_ms=_TIMEOUT_MS,
                topic_data=[TopicProduceData(name=TOPIC, topic_id=topic.id, partition_data=data)],
            )
            sent = sum(len(batches[each]) for each in partitions)
            self._produce(leader, request).then(
                lambda response, error, sent=sent: answered(sent, response, error)  # type: ignore[misc]
            )

    def _produce(self, leader: int, request: ProduceRequest) -> Pending[Any]:
        if leader != self._broker_id:
            return self._send(leader, request, _TIMEOUT_MS)
        pending: Pending[ProduceResponse] = Pending()
        try:
            done = produce.run(self._replicas, request, [TOPIC], self._clock.wall_ms()).finish(_TIMEOUT_MS)
        except ApiError as error:
            pending.fail(error)
            return pending
        if isinstance(done, Pending):
            return done
        pending.complete(done)
        return pending

    def _on_response(self, count: int, response: ProduceResponse | None, error: ApiError | None) -> None:
        if response is not None:
            codes = {each.error_code for topic in response.responses for each in topic.partition_responses}
            codes.discard(ErrorCode.NONE)
            if not codes:
                self.written += count
                return
            error = ApiError(ErrorCode(min(codes)))
        assert error is not None, "a Pending has a value or an error"
        self._note(count, error)

    def _note(self, count: int, error: ApiError) -> None:
        self.dropped += count
        self._failures += 1
        if self._failures & (self._failures - 1) == 0:
            log.warning(
                "%d records could not be appended to %s: %s; %d appends have failed so far, and %d records are lost",
                count,
                TOPIC,
                error,
                self._failures,
                self.dropped,
            )


KEY: Final = "kalda.client.metrics.plugins"
MAX_QUEUED: Final = 100
"""Pushes that wait for one plugin; further ones are dropped, and counted."""


class Push(NamedTuple):
    """One accepted push."""

    source: PointSource
    is_terminating: bool
    """Whether it is the client's last."""
    points: Sequence[DataPoint]
    payload: bytes
    """What the points were decoded from: an OTLP `MetricsData`, uncompressed."""


class ClientMetricsPlugin(Protocol):
    """What a class of `kalda.client.metrics.plugins` has."""

    def export(self, push: Push) -> None:
        """Take the metrics of one push. Called on a thread that only this plugin has. May raise."""
        ...


class PluginRunner:
    """One plugin and its thread, which starts with the first push."""

    def __init__(self, path: str) -> None:
        """Raises `ValueError` where there is no such class."""
        self.path = path
        self._plugin = _load(path)
        self._queue: queue.Queue[Push | None] = queue.Queue(MAX_QUEUED)
        self._thread: threading.Thread | None = None
        self.dropped = 0
        """Pushes so far for which the queue had no room."""
        self.failures = 0
        """Pushes so far that the plugin raised for."""

    def put(self, push: Push) -> None:
        """Hand over one push."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"client-metrics-{self.path}", daemon=True)
            self._thread.start()
        try:
            self._queue.put_nowait(push)
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """End the thread after the push that it works on. It is not waited for: a plugin may hang."""
        try:
            while True:
                self._queue.get_nowait()
        except queue.Empty:
            self._queue.put_nowait(None)

    def _run(self) -> None:
        while (push := self._queue.get()) is not None:
            try:
                self._plugin.export(push)
            except Exception as error:
                self.failures += 1
                if self.failures & (self.failures - 1) == 0:
                    log.error("%s=%s has failed %d times, now by %r", KEY, self.path, self.failures, error)


def _load(path: str) -> ClientMetricsPlugin:
    module_name, _, class_name = path.rpartition(":")
    if not module_name or not class_name:
        raise ValueError(f"{KEY}={path}: package.module:Class is expected")
    try:
        found: Any = getattr(import_module(module_name), class_name, None)
    except Exception as error:
        raise ValueError(
            f"{KEY}={path} cannot be imported: {error}. A Python class is expected, installed or on PYTHONPATH"
        ) from error
    if not callable(getattr(found, "export", None)):
        raise ValueError(f"{KEY}={path}: no class with the method export")
    plugin: ClientMetricsPlugin = found()
    return plugin
