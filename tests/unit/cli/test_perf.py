"""`kalda perf produce` measures a sample of its records, so that what it measures is the log and not itself."""

from __future__ import annotations

from typing import Any, cast

import pytest

from kalda.cli.records.perf import Comparison, _Sending, percentile, sampled_every, total_line, window_line
from kalda.client.producer.producer import Producer


class PaperProducer:
    """Acknowledges each record at once; the record at `fails_at` fails."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.sent = self.measured = 0
        self._fails_at = fails_at

    def send(self, topic: str, value: bytes, on_delivery: Any = None) -> None:
        del topic, value
        self.sent += 1
        if on_delivery is not None:
            self.measured += 1
            on_delivery(None, OSError("the disk is full") if self._fails_at == self.sent else None)


def sending(producer: PaperProducer, size: int = 100, throughput: float = -1) -> _Sending:
    return _Sending(cast("Producer", producer), "orders", bytes(size), throughput)


def test_of_small_records_one_in_64_is_measured_and_all_are_sent() -> None:
    producer = PaperProducer()
    run = sending(producer)
    run.run(1_000, lambda _: None)
    run.run(1, lambda _: None)
    assert (producer.sent, run.sent, producer.measured, len(run.latencies.all_ms)) == (1_001, 1_001, 17, 17)


@pytest.mark.parametrize("size", [1, 100, 1_000, 8_000, 100_000])
def test_each_batch_has_a_record_that_is_measured(size: int) -> None:
    assert sampled_every(size, -1) == 1 or sampled_every(size, -1) * size <= 16_384 // 2
    assert sampled_every(size, 5_000) == 1


def test_a_record_that_was_not_written_ends_the_run() -> None:
    producer = PaperProducer(fails_at=65)
    with pytest.raises(OSError, match="the disk is full"):
        sending(producer).run(1_000, lambda _: None)
    assert producer.sent == 128


def test_lines_are_those_of_kafkas_tool() -> None:
    assert window_line(1, [2.0], 1_048_576, 1.0).startswith("1 record sent, 1.0 records/sec (1.00 MB/sec), 2.0 ms avg")
    assert total_line(200, [1.0, 3.0], 100, 2.0).startswith("200 records sent, 100.0 records/sec")
    assert percentile([1.0, 2.0, 3.0], 0.5) == 2
    line = Comparison(2.2, 1.1, 2.0, 1.0, 0.91).line(1_000_000)
    assert "500000.0 records/sec" in line
    assert "0.91 of that rate, 1.10 us of CPU a record where the loop takes 1.00 us" in line
