"""A coordinator's partitions on a broker: what is appended to them, and loading them where disks fail.

The coordinator is a made-up one that sums numbers: the shell treats all kinds alike.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from broker_by_hand import COUNTERS, BrokerByHand, DiskLog, counters, served
from by_hand import HandTime, inline_background
from coordinator_world import CountingShard, counter_batch

from kalda.base.background import Steps
from kalda.broker.replicas.coordinators import CoordinatorShell, InternalTopicLog
from kalda.coordinator.runtime import CoordinatorRuntime
from kalda.coordinator.timers import RETRY_MS, TimerTask
from kalda.records.batch import read_header
from kalda.records.builder import read_records
from kalda.records.compression import Compression


def shell_over(broker: Any) -> tuple[CoordinatorShell, CoordinatorRuntime[CountingShard]]:
    runtime = counters()
    return CoordinatorShell(COUNTERS.name, runtime, broker, broker, broker, broker, inline_background()), runtime


@pytest.mark.parametrize("how", ["refused", "failed", "cut off"])
def test_a_load_that_fails_is_tried_again_until_it_succeeds(how: str) -> None:
    broker = BrokerByHand()
    shell, runtime = shell_over(broker)
    log = DiskLog(counter_batch(0, 3, 4), 2)
    if how == "refused":
        log.refuses = True
    elif how == "failed":
        log.failure = OSError(5, "no disk")
    else:
        log.data = log.data[:-1]
    shell.on_elected(broker.lead(COUNTERS.name, 0, log))
    assert served(runtime) == "NOT_COORDINATOR"
    assert len(log.failed_reads) == (how == "failed"), "the log learns that its disk has failed"
    broker.pass_time(1_000)
    assert served(runtime) == "NOT_COORDINATOR"
    log.refuses, log.failure, log.data = False, None, counter_batch(0, 3, 4)
    broker.pass_time(1_999)
    assert served(runtime) == "NOT_COORDINATOR", "the second attempt was to wait for twice as long"
    broker.pass_time(1)
    assert served(runtime) == "7"


def test_a_load_is_not_tried_again_when_another_broker_leads() -> None:
    broker = BrokerByHand()
    shell, runtime = shell_over(broker)
    log = DiskLog(b"", 2)
    log.refuses = True
    partition = broker.lead(COUNTERS.name, 0, log)
    shell.on_elected(partition)
    shell.on_resigned(0)
    log.refuses = False
    broker.pass_time(3_600_000)
    assert served(runtime) == "NOT_COORDINATOR"
    assert partition.on_high_watermark is None


def test_a_log_that_ends_before_its_end_is_loaded() -> None:
    """Compaction may have left nothing between the last batch and the end."""
    broker = BrokerByHand()
    shell, runtime = shell_over(broker)
    shell.on_elected(broker.lead(COUNTERS.name, 0, DiskLog(b"", 5)))
    assert served(runtime) == "0"


def test_a_load_that_meets_a_damaged_batch_does_not_take_it_for_the_end() -> None:
    """What follows it would be missing, and the coordinator would serve without it."""
    broker = BrokerByHand()
    shell, runtime = shell_over(broker)
    log = DiskLog(b"", 5)
    log.segments.active.size = 100
    shell.on_elected(broker.lead(COUNTERS.name, 0, log))
    assert served(runtime) == "NOT_COORDINATOR"


def test_a_batch_that_is_longer_than_its_segment_fails_the_load() -> None:
    broker = BrokerByHand()
    shell, runtime = shell_over(broker)
    log = DiskLog(b"", 5)
    log.is_cut_off = True
    shell.on_elected(broker.lead(COUNTERS.name, 0, log))
    assert served(runtime) == "NOT_COORDINATOR"


@pytest.mark.parametrize("codec", Compression)
def test_records_are_stored_in_the_codec_of_their_topic(codec: Compression) -> None:
    appended: list[bytearray] = []

    def append(batch: bytearray, *_: object) -> Any:
        appended.append(batch)
        return SimpleNamespace(last_offset=7)

    replicas: Any = SimpleNamespace(get=lambda topic, partition: SimpleNamespace(append=append))
    log = InternalTopicLog("__consumer_offsets", replicas, codec)
    assert log.append(3, [(b"key", b"value" * 50), (b"gone", None)], 1_000) == 8
    (batch,) = appended
    assert read_header(batch).compression == codec
    assert [(record.key, record.value) for record in read_records(batch)] == [(b"key", b"value" * 50), (b"gone", None)]


def test_a_closed_shell_reads_nothing_and_sets_no_timer() -> None:
    broker = BrokerByHand()
    shell, runtime = shell_over(broker)
    log = DiskLog(counter_batch(0, 3, 4), 2)
    log.refuses = True
    shell.on_elected(broker.lead(COUNTERS.name, 0, log))
    shell.close()
    shell.arm()
    log.refuses = False
    broker.pass_time(3_600_000)
    assert served(runtime) == "NOT_COORDINATOR", "the load that failed is not tried again"


def test_a_timer_that_fails_ends_neither_itself_nor_the_others(caplog: pytest.LogCaptureFixture) -> None:
    broker = BrokerByHand()
    shell, runtime = shell_over(broker)
    fired: list[str] = []

    def fail_once(_now_ms: int) -> None:
        fired.append("one")
        if fired == ["one"]:
            raise ZeroDivisionError

    runtime.timers.arm(TimerTask(fail_once), 10)
    runtime.timers.arm(TimerTask(lambda _: fired.append("other")), 10)
    shell.arm()
    broker.pass_time(11)
    assert fired == ["one", "other"]
    assert "a timer of the coordinator of" in caplog.text
    broker.pass_time(RETRY_MS)
    assert fired == ["one", "other", "one"]


def test_what_a_timer_does_in_steps_is_done_in_the_background() -> None:
    broker, time = BrokerByHand(), HandTime()
    runtime = counters()
    shell = CoordinatorShell(COUNTERS.name, runtime, broker, broker, broker, broker, time.background())  # type: ignore[arg-type]
    fired: list[str] = []

    def work(_now_ms: int) -> Steps[None]:
        fired.append("began")
        yield
        runtime.timers.arm(TimerTask(lambda _: fired.append("armed by the last step")), 20)

    runtime.timers.arm(TimerTask(work), 10)
    shell.arm()
    broker.pass_time(11)
    assert fired == []
    time.advance(0)
    assert fired == ["began"]
    broker.pass_time(20)
    assert fired == ["began", "armed by the last step"]


def test_a_closed_shell_takes_no_more_steps_of_a_timer() -> None:
    """They would write to logs that are closed."""
    broker, time = BrokerByHand(), HandTime()
    runtime = counters()
    shell = CoordinatorShell(COUNTERS.name, runtime, broker, broker, broker, broker, time.background())  # type: ignore[arg-type]
    steps_taken: list[int] = []

    def work(_now_ms: int) -> Steps[None]:
        for step in range(3):
            steps_taken.append(step)
            if step == 1:
                shell.close()
            yield

    runtime.timers.arm(TimerTask(work), 10)
    shell.arm()
    broker.pass_time(11)
    time.advance(0)
    assert steps_taken == [0, 1]
