"""What is measured of a node's process: how idle its event loop is, its disks, its start, its memory and CPU. A shell.

Kafka has pools of network threads and of request handlers, and dashboards show how idle these are. Here one event loop
does the work of both, so both names have the same value.

Memory, CPU time, descriptors and start have the names that Prometheus has given them for processes of all languages.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from kalda.base.clock import Clock
from kalda.base.durations import Durations, quantile_sensors
from kalda.base.sensors import NO_TAGS, Counter, Measurable, SensorName, Sensors, gauged

PROCESS: Final = "process"

_FLUSHES: Final = "kafka.log:type=LogFlushStats"
_SERVERS: Final = {"broker": "KafkaServer", "controller": "ControllerServer"}
_IO_FILE: Final = "/proc/self/io"
_WINDOW_NS: Final = 30_000_000_000


class IdleShare:
    """The share of time in which the event loop's thread did not run, of the last one to two windows of 30 s. Measured
    on that thread."""

    def __init__(self, now_ns: Callable[[], int], cpu_ns: Callable[[], int]) -> None:
        """`cpu_ns` is the CPU time of the calling thread."""
        self._now_ns = now_ns
        self._cpu_ns = cpu_ns
        self._before = self._then = (now_ns(), cpu_ns())
        """Times and CPU times when two windows began: `_before` one to two windows ago, `_then` at most one."""

    def __call__(self) -> float:
        now = self._now_ns(), self._cpu_ns()
        if now[0] - self._then[0] >= _WINDOW_NS:
            self._before, self._then = self._then, now
        elapsed_ns = now[0] - self._before[0]
        return max(0.0, 1 - (now[1] - self._before[1]) / elapsed_ns) if elapsed_ns else 1.0


def add_process_gauges(
    sensors: Sensors, node_id: int, roles: Iterable[str], clock: Clock, flushes: Durations | None
) -> None:
    """Called on the thread of the event loop. `roles` are `process.roles`; `flushes`: how long files were synced, None
    where that is not measured."""
    idle = IdleShare(time.monotonic_ns, time.thread_time_ns)
    sensors.gauge("kafka.server:type=KafkaRequestHandlerPool", "RequestHandlerAvgIdlePercent", read=idle)
    sensors.gauge("kafka.network:type=SocketServer", "NetworkProcessorAvgIdlePercent", read=idle)
    started_ms = clock.wall_ms()
    sensors.gauge("kafka.server:type=app-info", "start-time-ms", (("id", str(node_id)),), lambda: started_ms)
    for role in roles if _io_bytes() else ():
        for name in ("read", "write"):
            read = partial(_io_bytes_of, f"{name}_bytes")
            sensors.gauge(f"kafka.server:type={_SERVERS[role]}", f"linux-disk-{name}-bytes", read=read)
    sensors.add_source(_process)
    if flushes is not None:
        sensors.add_source(lambda: _flush_times(flushes))


class _CpuSeconds(Counter):
    __slots__ = ()

    def measure(self, now_ms: int) -> float:
        """User and system time of all threads."""
        return time.process_time()


def _process() -> Iterator[tuple[SensorName, Measurable]]:
    """Nothing of what the system does not say: all but the CPU time is of Linux."""
    yield SensorName(PROCESS, "cpu_seconds"), _CpuSeconds()
    for name, read in (
        ("resident_memory_bytes", _resident_bytes),
        ("start_time_seconds", _start_s),
        ("open_fds", lambda: len(os.listdir("/proc/self/fd"))),
        ("max_fds", lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
    ):
        try:
            yield SensorName(PROCESS, name), gauged(read())
        except (OSError, ValueError):
            continue


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def _start_s() -> float:
    """Seconds since 1970."""
    with open("/proc/self/stat", encoding="ascii") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    with open("/proc/uptime", encoding="ascii") as file:
        up_s = float(file.read().split()[0])
    return time.time() - up_s + ticks / os.sysconf("SC_CLK_TCK")


def _flush_times(flushes: Durations) -> Iterator[tuple[SensorName, Measurable]]:
    return quantile_sensors(_FLUSHES, "LogFlushRateAndTimeMs", NO_TAGS, flushes)


def _io_bytes_of(name: str) -> int:
    return _io_bytes().get(name, 0)


def _io_bytes() -> dict[str, int]:
    """What this process has read from its disks and written to them; empty where the system does not say."""
    try:
        with open(_IO_FILE, encoding="ascii") as file:
            return {name: int(value) for name, value in (line.split(":") for line in file)}
    except (OSError, ValueError):
        return {}
