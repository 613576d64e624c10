"""What the watchdog makes of a late event loop."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
from by_hand import inline_background
from paper_connection import PaperConnection

from kalda.base.background import Background, Steps
from kalda.base.sensors import Sensors
from kalda.broker.process.shell import GROUP, LoopTimers, Watchdog
from kalda.broker.requests.api_versions import Features
from kalda.broker.requests.pipeline import RequestPipeline
from kalda.broker.system_clock import SystemClock
from kalda.network.server.connection import Connection
from kalda.protocol.messages.metadata import ApiVersionsRequest


class Loop:
    """Hand-moved time, and callbacks that hold the loop."""

    def __init__(self) -> None:
        self.now_ms = 5_000
        self.sensors = Sensors()
        self.watchdog = Watchdog(self, self.sensors)
        self.pipeline = RequestPipeline([], lambda: Features({}, {}, 0), inline_background())
        self.watchdog.watch(self.pipeline)

    def wall_ms(self) -> int:
        return self.now_ms

    def mono_ms(self) -> int:
        return self.now_ms

    def machine_ms(self) -> int:
        return self.now_ms

    def follow(self, limit_ms: int, lost_ms: int) -> None:
        """A test of the clock."""

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            self.now_ms += 100
            self.watchdog.on_turn(0)

    def hold(self, ms: int) -> None:
        """A callback that takes so long, just before the next turn is due."""
        self.now_ms += 100 + ms
        self.watchdog.on_turn(ms)

    def send(self) -> None:
        connection: Connection = PaperConnection()  # type: ignore[assignment]
        request = ApiVersionsRequest(client_software_name="c", client_software_version="1")
        self.pipeline.on_frame(connection, connection.frame(request, 4))  # type: ignore[attr-defined]

    def measured(self) -> tuple[float, float]:
        values = {name.name: sensor.measure(0) for name, sensor in self.sensors if name.group == GROUP}
        return values["MaxDelayMs"], values["DelaysOver100Ms"]


@pytest.fixture
def loop(caplog: pytest.LogCaptureFixture) -> Loop:
    caplog.set_level(logging.WARNING, "kalda.watchdog")
    return Loop()


def test_a_loop_that_is_never_held_is_never_late(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    loop.turn(600)
    assert loop.measured() == (0, 0)
    assert not caplog.records


def test_a_request_that_held_the_loop_is_named(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    loop.send()
    loop.hold(250)
    assert loop.measured() == (250, 1)
    [record] = caplog.records
    for part in ("late by 250 ms", "ApiVersions v4 of ", "client 'client'"):
        assert part in record.getMessage()


def test_a_request_of_an_earlier_turn_is_not_named(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    loop.send()
    loop.turn()
    assert loop.pipeline.handling is None, "the memory of its frame is released"
    loop.hold(101)
    assert "no request" in caplog.records[0].getMessage()


def test_a_long_step_of_the_background_is_named(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    turns: list[Callable[[], None]] = []
    background = Background(turns.append, lambda: loop.now_ms * 1_000_000)
    loop.watchdog.watch_background(background)

    def slow() -> Steps[None]:
        loop.now_ms += 150
        yield

    background.run(slow(), owner="the load of a topic")
    turns.pop()()
    loop.hold(250)
    assert "a step of 150 ms of the load of a topic" in caplog.records[-1].getMessage()
    loop.turn(20)
    loop.hold(250)
    assert "no request" in caplog.records[-1].getMessage(), "it was of an earlier turn"


def test_short_delays_are_measured_but_not_logged(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    loop.hold(100)
    assert loop.measured() == (100, 0)
    assert not caplog.records


def test_one_line_a_second_counts_the_others(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(4):
        loop.hold(150)
    assert len(caplog.records) == 1
    loop.turn(10)
    loop.hold(150)
    assert len(caplog.records) == 2
    assert "3 more delays" in caplog.records[1].getMessage()
    assert loop.measured() == (150, 5)


def test_a_loop_that_is_held_is_logged_meanwhile_and_ever_more_rarely(
    loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    loop.send()
    for _ in range(2 * 3_600):
        loop.now_ms += 500
        loop.watchdog.check()
    held_ms = [int(re.findall(r"held for (\d+) ms", record.getMessage())[0]) for record in caplog.records]
    assert held_ms[:7] == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000]
    assert {later - before for before, later in itertools.pairwise(held_ms[6:])} == {60_000}
    assert "Handled before: ApiVersions v4 of " in caplog.records[0].getMessage()
    loop.turn()
    caplog.clear()
    loop.now_ms += 1_000
    loop.watchdog.check()
    assert not caplog.records, "the thread was late, too: the process was stopped"
    loop.now_ms += 500
    loop.watchdog.check()
    assert "held for 1500 ms" in caplog.records[0].getMessage()


def test_a_thread_names_the_code_that_holds_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "kalda.watchdog")
    logged = threading.Event()

    class Notify(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "in a_callback_that_never_ends" in record.getMessage():
                logged.set()

    async def scenario() -> None:
        clock = SystemClock()
        watchdog, timers = Watchdog(clock, Sensors()), LoopTimers(asyncio.get_running_loop(), clock)
        timers.on_turn = watchdog.on_turn
        timers.start()
        watchdog.start(owns_process=False)

        def a_callback_that_never_ends() -> None:
            assert logged.wait(60)

        a_callback_that_never_ends()
        watchdog.stop()
        timers.stop()

    notify = Notify()
    logging.getLogger("kalda.watchdog").addHandler(notify)
    try:
        asyncio.run(scenario())
    finally:
        logging.getLogger("kalda.watchdog").removeHandler(notify)
    assert not [thread for thread in threading.enumerate() if thread.name == "kalda-watchdog"]


def test_code_that_keeps_the_interpreters_lock_is_named_by_the_interpreter() -> None:
    """A regular expression is such code; no other thread runs meanwhile. This one takes years, so it is never over
    before it is seen."""
    program = """
import asyncio, re
from kalda.base.sensors import Sensors
from kalda.broker.process import shell as watchdog
from kalda.broker.system_clock import SystemClock
async def main():
    watchdog._LOCKED_S = watchdog._CHECK_S = 0.1
    watchdog.Watchdog(SystemClock(), Sensors()).start(owns_process=True)
    await asyncio.sleep(0.5)
    backtracks()
def backtracks():
    re.match("(.*a){25}b", "a" * 60)
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = []
        while "in backtracks" not in "".join(lines):
            lines.append(process.stderr.readline())
            assert lines[-1], "".join(lines)
        process.kill()
