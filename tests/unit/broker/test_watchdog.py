"""What the watchdog makes of a late event loop."""

from __future__ import annotations

import logging

import pytest
from by_hand import HandTime
from paper_connection import PaperConnection

from kalda.base.sensors import Sensors
from kalda.broker.api_versions import Features
from kalda.broker.pipeline import RequestPipeline
from kalda.broker.watchdog import GROUP, Watchdog
from kalda.network.connection import Connection
from kalda.protocol.messages.metadata import ApiVersionsRequest


class Loop:
    """Hand-moved time, and callbacks that hold the loop."""

    def __init__(self) -> None:
        self.time = HandTime(5_000)
        self.held_ms = 0
        self.sensors = Sensors()
        self.watchdog = Watchdog(self.time, self, self.sensors)
        self.pipeline = RequestPipeline([], lambda: Features({}, {}, 0), lambda step: None)
        self.watchdog.watch(self.pipeline)

    def wall_ms(self) -> int:
        return self.mono_ms()

    def mono_ms(self) -> int:
        return self.time.now_ms + self.held_ms

    def hold(self, ms: int) -> None:
        """A callback that takes so long, just before the next timer is due."""
        self.held_ms += ms
        self.time.advance(100)

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
    loop = Loop()
    loop.watchdog.start()
    return loop


def test_a_loop_that_is_never_held_is_never_late(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    loop.time.advance(60_000)
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
    loop.time.advance(100)
    assert loop.pipeline.handling is None, "the memory of its frame is released"
    loop.hold(101)
    assert "no request" in caplog.records[0].getMessage()


def test_short_delays_are_measured_but_not_logged(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    loop.hold(100)
    assert loop.measured() == (100, 0)
    assert not caplog.records


def test_one_line_a_second_counts_the_others(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(4):
        loop.hold(150)
    assert len(caplog.records) == 1
    loop.time.advance(1_000)
    loop.hold(150)
    assert len(caplog.records) == 2
    assert "3 more delays" in caplog.records[1].getMessage()
    assert loop.measured() == (150, 5)


def test_a_stopped_watchdog_has_no_timer(loop: Loop) -> None:
    loop.watchdog.stop()
    assert loop.time.timers == 0
