"""The records of a range of offsets, fetched by a task from the partition's leader.

A consumer is kept in Spark's worker process from task to task: a micro-batch of a hundred small ranges then pays for no
connections. It fetches nothing beyond the range, so that no Fetch that waits for records delays the next task.

Where the log has lost offsets of the range, or the topic was deleted, the task fails, or reads what there is where
`failOnDataLoss` is false.

Not obvious:

- `RangeConsumer.release` must not assign nothing, which drops the topic's metadata.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.client.consumer.consumer import Consumer
from kalda.clientcore.consuming.consumer_errors import OffsetOutOfRange
from kalda.clientcore.consuming.fetcher import Taken
from kalda.clientcore.consuming.subscription import OffsetAndEpoch
from kalda.spark.options import ReadOptions
from kalda.spark.partitions import DataLoss, OffsetRange

log = logging.getLogger(__name__)
_TURN_S = 1.0
"""How long one poll waits, before the topic's metadata is checked."""
_MISSING_S = 10.0
"""How long a topic may be missing from the metadata: it may be new, or a broker may have just started."""
_idle: dict[tuple[tuple[str, str], ...], RangeConsumer] = {}
"""Consumers that no task uses, by configuration; of this process only."""
_owner_pid = os.getpid()


class RangeConsumer(Consumer):
    """A consumer that reads one range after another."""

    def chunks(self, offsets: OffsetRange, options: ReadOptions) -> Iterator[Taken]:
        """Whole batches of the range. The first may begin before the range's start, the last may reach beyond its end.

        Raises `DataLoss`, and `ApiError` where nothing comes for `kafkaConsumer.pollTimeoutMs`."""
        partition = TopicPartition(offsets.topic, offsets.partition)
        self._check_open()
        with self._lock:  # between an assignment and its position, the background thread would look up a position
            core = self._begin()
            core.kept_topics = frozenset()
            core.assign([partition])
            state = core.subscription.state(partition)
            state.until = offsets.end
            state.seek(OffsetAndEpoch(offsets.start))
        self._changed()

        def take() -> list[Taken | None]:
            # None: what is left of the range has no records.
            return [*core.take_chunks(sys.maxsize)] or ([None] if state.offset >= offsets.end else [])

        last_s = time.monotonic()
        while state.offset < offsets.end:
            try:
                taken = self._poll(_TURN_S, take)
            except OffsetOutOfRange:
                if not self._skip_lost(partition, state.offset, offsets, options):
                    return
                continue
            if taken:
                last_s = time.monotonic()
            elif self._is_deleted(partition, time.monotonic() - last_s):
                lost = f"offsets {state.offset} to {offsets.end} were planned, and the topic or partition was deleted"
                self._report(partition, lost, options)
                return
            elif time.monotonic() - last_s > options.poll_timeout_ms / 1000:
                raise _stalled(partition, state.offset, offsets.end, options.poll_timeout_ms)
            for each in taken:
                if each is not None and each.start < offsets.end:
                    yield each._replace(end=offsets.end if each.end is None else min(each.end, offsets.end))

    def release(self) -> None:
        """Read nothing until the next range. Unlike `assign([])`, it keeps the topic's metadata: the next range is
        mostly of the same topic, and a Metadata response has all of the topic's partitions."""
        with self._lock:
            subscription = self._core.subscription
            self._core.kept_topics = frozenset(partition.topic for partition in subscription.partitions)
            subscription.assign(())

    def _skip_lost(self, partition: TopicPartition, at: int, offsets: OffsetRange, options: ReadOptions) -> bool:
        """Continue at the first offset of the range that the log has; False where it has none."""
        first = self.beginning_offsets(partition)[partition]
        end = self.end_offsets(partition)[partition]
        self._report(
            partition, f"offset {at} of {offsets.start} to {offsets.end} is lost: the log has {first} to {end}", options
        )
        if not at < first < offsets.end:
            return False
        self.seek(partition, first)
        return True

    def _is_deleted(self, partition: TopicPartition, waited_s: float) -> bool:
        """Whether the metadata has lacked the partition for long."""
        if waited_s < _MISSING_S:
            return False
        with self._lock:
            topic = self._core.metadata.topics.get(partition.topic)
        if topic is None:
            return False
        if topic.error_code:
            return topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return partition.partition >= len(topic.partitions)

    @staticmethod
    def _report(partition: TopicPartition, problem: str, options: ReadOptions) -> None:
        if options.fail_on_data_loss:
            raise DataLoss(partition, problem)
        log.warning("%s: %s. The query continues without them: failOnDataLoss is false", partition, problem)


def fetch(options: ReadOptions, offsets: OffsetRange) -> Iterator[Taken]:
    """The batches of the range, by a consumer of this worker process."""
    global _owner_pid
    if _owner_pid != os.getpid():
        _idle.clear()
        _owner_pid = os.getpid()
    key = tuple(sorted(options.kafka.items()))
    consumer = _idle.pop(key, None) or RangeConsumer(dict(options.kafka))
    try:
        yield from consumer.chunks(offsets, options)
    except GeneratorExit:
        _give_back(key, consumer)
        raise
    except BaseException:
        consumer.close(timeout=0)
        raise
    _give_back(key, consumer)


def _give_back(key: tuple[tuple[str, str], ...], consumer: RangeConsumer) -> None:
    consumer.release()
    other = _idle.pop(key, None)
    _idle[key] = consumer
    if other is not None:
        other.close(timeout=0)


def _stalled(partition: TopicPartition, at: int, end: int, timeout_ms: int) -> ApiError:
    return ApiError(
        ErrorCode.REQUEST_TIMED_OUT,
        f"partition {partition}: offsets up to {end} were planned, but nothing beyond {at} came for {timeout_ms} ms. "
        f"Check whether its leader is alive; option kafkaConsumer.pollTimeoutMs is how long a task waits",
    )
