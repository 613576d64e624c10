"""What is measured of a node's process."""

from __future__ import annotations

import random

from kalda.base.sensors import Durations, Sensors
from kalda.broker.metrics.node_gauges import IdleShare, add_process_gauges
from kalda.broker.process.disk import RealDisk
from kalda.broker.system_clock import SystemClock


def test_the_idle_share_is_of_the_last_windows() -> None:
    now = cpu = 1_000_000_000
    share = IdleShare(lambda: now, lambda: cpu)
    assert share() == 1.0, "no time has passed"
    now, cpu = now + 4_000_000_000, cpu + 1_000_000_000
    assert share() == 0.75
    now, cpu = now + 36_000_000_000, cpu + 29_000_000_000
    assert share() == 0.25, "since the start, which is one window ago"
    now += 40_000_000_000
    assert share() == 1.0, "of the last window"


def test_syncs_are_timed_and_disks_and_start_shown(tmp_path: object) -> None:
    disk, sensors = RealDisk(), Sensors()
    add_process_gauges(sensors, 7, ["broker"], SystemClock(), disk.syncs)
    with_names = {name.name: sensor for name, sensor in sensors.everything()}
    assert with_names["start-time-ms"].measure(0) > 1_600_000_000_000
    assert with_names["linux-disk-write-bytes"].measure(0) >= 0
    assert sum(disk.syncs.counts) == 0
    file = disk.without_reserve.open(f"{tmp_path}/{random.random()}", create=True)
    file.write(0, b"x")
    file.sync()
    assert sum(disk.syncs.counts) == 1
    file.close()
    assert isinstance(disk.syncs, Durations)
    assert "LogFlushRateAndTimeMs" in {name.name for name, _ in sensors.everything()}
