"""The last stable offset: it never moves back, is never above the high watermark, and reaches it after the faults.

An open transaction ends by its client or by its timeout. So after the last fault was healed and the last transaction
ended or was given up, the last stable offset reaches the high watermark within the transaction timeout, and the time
that the coordinator takes to find what has timed out (`Settings.slack_ms`). In the final logs it has reached it.
"""

from __future__ import annotations

from collections.abc import Iterator

from kalda.base.ids import TopicPartition
from kalda.verify.findings import Finding, Rule
from kalda.verify.history import OffsetSample, Place
from kalda.verify.view import HistoryIndex


def stable_offset_findings(view: HistoryIndex) -> Iterator[Finding]:
    by_partition: dict[TopicPartition, list[OffsetSample]] = {}
    for sample in view.history.samples:
        by_partition.setdefault(sample.partition, []).append(sample)
    quiet_us = _quiet_us(view)
    reported: set[TopicPartition] = set()
    for partition, samples in by_partition.items():
        samples.sort(key=lambda sample: sample.at_us)
        yield from _monotonic(partition, samples)
        stuck = _stuck(view, partition, samples, quiet_us)
        if stuck is not None:
            reported.add(partition)
            yield stuck
    for partition, log in view.history.logs.items():
        if log.last_stable_offset < log.end and partition not in reported:
            yield _stuck_at(view, partition, log.last_stable_offset, log.end, "after everything has ended")


def _quiet_us(view: HistoryIndex) -> int:
    """When the last fault had been healed and the last transaction had ended, been given up or been begun."""
    moments = [fault.ended_us for fault in view.history.faults]
    for transaction in view.history.transactions.values():
        moments += [transaction.begun_us, transaction.commit_sent_us or 0, transaction.ended_us or 0]
    return max(moments, default=0)


def _monotonic(partition: TopicPartition, samples: list[OffsetSample]) -> Iterator[Finding]:
    highest = -1
    for sample in samples:
        place = Place(partition, sample.last_stable_offset)
        if sample.last_stable_offset < highest:
            text = f"the last stable offset of {partition} was {highest}, and then {sample.last_stable_offset}"
            yield Finding(Rule.LSO_BACKWARDS, text, None, None, place)
        if sample.last_stable_offset > sample.high_watermark:
            text = (
                f"the last stable offset of {partition} was {sample.last_stable_offset}, above its high watermark "
                f"{sample.high_watermark}"
            )
            yield Finding(Rule.LSO_BACKWARDS, text, None, None, place)
        highest = max(highest, sample.last_stable_offset)


def _stuck(view: HistoryIndex, partition: TopicPartition, samples: list[OffsetSample], quiet_us: int) -> Finding | None:
    """It may become unstable again: a record that arrives late begins a transaction which may never be ended."""
    settings = view.history.settings
    longest_us = (settings.transaction_timeout_ms + settings.slack_ms) * 1_000
    since_us = quiet_us
    for sample in samples:
        waited_us = sample.at_us - since_us
        if waited_us < 0:
            continue
        if sample.last_stable_offset >= sample.high_watermark:
            since_us = sample.at_us
        elif waited_us > longest_us:
            since = "the last fault and the last request" if since_us == quiet_us else "it had reached it last"
            when = f"{waited_us / 1e6:.1f} s after {since}"
            return _stuck_at(view, partition, sample.last_stable_offset, sample.high_watermark, when)
    return None


def _stuck_at(view: HistoryIndex, partition: TopicPartition, stable: int, end: int, when: str) -> Finding:
    """Names the transaction whose record is first at or above the last stable offset, where it is in the log."""
    log = view.history.logs.get(partition)
    first = next((record for record in log.records if record.offset >= stable), None) if log is not None else None
    writer = view.writers.get(first.value) if first is not None else None
    place = Place(partition, stable)
    whose = f"; the first record there is {first.value!r}" if first is not None else ""
    whose += f" of transaction {writer[0].name}" if writer is not None else ""
    text = f"the last stable offset of {partition} is {stable}, below its high watermark {end}, {when}{whose}"
    name = writer[0].name if writer is not None else None
    return Finding(Rule.LSO_STUCK, text, name, first.value if first is not None else None, place)
