"""Which offsets the next batch of a streaming query reads, as Spark's own source decides it.

An offset of the query is JSON, `{"topic": {"0": 23, "1": 42}}`: in each partition, the next offset to read. Spark
writes it to the checkpoint. Partitions that appear later are read from their first offset.

Data loss (a partition that has disappeared, records that were deleted before they were read) fails the query, or is
written to the log where `failOnDataLoss` is false.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping

from kalda.base.ids import TopicPartition
from kalda.spark.options import ReadOptions
from kalda.spark.planning import Logs, OffsetRange

log = logging.getLogger(__name__)
Position = Mapping[TopicPartition, int]
"""The next offset to read of each partition."""
_MAX_OFFSET = 2**63 - 1


class StreamDataLoss(RuntimeError):
    """Records of a streaming query were lost before they were read."""


def to_json(position: Position) -> dict[str, dict[str, int]]:
    """In the order of topics and partitions: equal positions are equal texts."""
    found: dict[str, dict[str, int]] = {}
    for partition, offset in sorted(position.items()):
        found.setdefault(partition.topic, {})[str(partition.partition)] = offset
    return found


def from_json(offsets: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    """Raises `ValueError` where it is not an offset of this source."""
    try:
        return {
            TopicPartition(topic, int(partition)): int(offset)
            for topic, found in offsets.items()
            for partition, offset in found.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise ValueError(f"the checkpoint has {offsets!r}, which is not an offset of topics; use a new one") from None


def report_loss(problem: str, options: ReadOptions) -> None:
    """Raises `StreamDataLoss`, or writes a line of the log where data loss does not fail the query."""
    if options.fail_on_data_loss:
        raise StreamDataLoss(
            f"{problem}. Some data may have been lost: it was deleted before the query has read it. If the query may "
            f"continue without it, set option failOnDataLoss to false"
        )
    log.warning("%s. The query continues without these records: failOnDataLoss is false", problem)


class Rate:
    """The bounds of a batch: `minOffsetsPerTrigger` with `maxTriggerDelay`, and `maxOffsetsPerTrigger`."""

    def __init__(self, options: ReadOptions, now_ms: Callable[[], int]) -> None:
        self._minimum = options.min_offsets_per_trigger
        self._maximum = options.max_offsets_per_trigger
        self._delay_ms = options.max_trigger_delay_ms
        self._now_ms = now_ms
        self._last_batch_ms: int | None = None
        """When a batch was last let through; None: never."""

    def is_delayed(self, start: Position, latest: Position) -> bool:
        """Whether there are too few records for a batch, and the longest delay has not passed."""
        if self._minimum is None:
            return False
        now_ms = self._now_ms()
        is_due = self._last_batch_ms is None or now_ms - self._last_batch_ms >= self._delay_ms
        if is_due or sum(latest[each] - start.get(each, 0) for each in latest) >= self._minimum:
            self._last_batch_ms = now_ms
            return False
        return True

    def limited(self, start: Position, latest: Position) -> dict[TopicPartition, int]:
        """The end of a batch with about `maxOffsetsPerTrigger` records, in proportion to what each partition has.
        `start` has all partitions of `latest` that can be read."""
        if self._maximum is None:
            return dict(latest)
        sizes = {each: end - start[each] for each, end in latest.items() if each in start and end > start[each]}
        total = sum(sizes.values())
        if total < 1:
            return dict(latest)
        ends = dict(latest)
        for partition, size in sizes.items():
            share = self._maximum * size / total
            # A small partition gets one record a batch at least.
            step = int(share) if share >= 1 else 1
            ends[partition] = min(latest[partition], start[partition] + step)
        return ends


def latest_position(
    logs: Logs,
    options: ReadOptions,
    known: Position,
    pause: Callable[[int], None],
) -> dict[TopicPartition, int]:
    """The ends of all logs. Where one is below a known offset, the answer may be of a replica that has not caught up:
    the ends are requested again, for a bounded number of times."""
    for attempt in range(options.offset_attempts):
        if attempt:
            pause(options.offset_retry_ms)
        partitions = logs.partitions(options.subscription, missing_is_error=False)
        found = logs.latest(partitions, read_committed=options.read_committed, missing_is_error=False)
        below = [each for each, end in found.items() if end < known.get(each, 0)]
        if not below:
            break
        log.warning(
            "%s ends at %d, below %d that was read: requested again", below[0], found[below[0]], known[below[0]]
        )
    return found


def ranges_between(logs: Logs, options: ReadOptions, start: Position, end: Position) -> list[OffsetRange]:
    """What a batch reads. Raises `StreamDataLoss`."""
    new = [partition for partition in end if partition not in start]
    first = logs.earliest(new, missing_is_error=False) if new else {}
    deleted = [partition for partition in new if partition not in first]
    if deleted:
        report_loss(f"{_listed(deleted)} were added and deleted before they were read", options)
    for partition, offset in first.items():
        if offset:
            report_loss(f"{partition} was added, and its log starts at offset {offset} instead of 0", options)
    gone = [partition for partition in start if partition not in end]
    if gone:
        report_loss(f"{_listed(gone)} do not exist any more", options)
    ranges = []
    for partition, until in sorted(end.items()):
        at = start.get(partition, first.get(partition))
        if at is None:
            continue
        if until < at:
            report_loss(
                f"{partition} was read up to offset {at}, and its log now ends at {until}: the topic was deleted and "
                f"created again, or the starting offset is beyond its end",
                options,
            )
        elif until > at:
            ranges.append(OffsetRange(*partition, at, min(until, _MAX_OFFSET)))
    return ranges


def with_new(logs: Logs, start: Position, latest: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """`start`, with the first offsets of partitions that were added."""
    new = [partition for partition in latest if partition not in start]
    return {**start, **logs.earliest(new, missing_is_error=False)} if new else dict(start)


def _listed(partitions: Collection[TopicPartition]) -> str:
    shown = ", ".join(map(str, sorted(partitions)[:5]))
    return shown if len(partitions) <= 5 else f"{shown} and {len(partitions) - 5} more"
