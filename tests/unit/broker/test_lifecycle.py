"""A broker's life by what it asks of the controller, and when."""

from __future__ import annotations

from typing import Any

import pytest
from by_hand import HandTime

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.base.pending import Pending
from kalda.broker.lifecycle import BrokerIdentity, BrokerLifecycle, BrokerState
from kalda.protocol.messages.brokers import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)

INTERVAL_MS = 2_000
REGISTRATION_MS = 60_000
DIR_FAILURE_MS = 30_000
LEFT, RIGHT = Uuid(b"l" * 16), Uuid(b"r" * 16)


class World:
    """One broker, and a controller that answers when the test says so."""

    def __init__(self) -> None:
        self.time = HandTime()
        self.asked: list[Any] = []
        self.fatal: list[str] = []
        self.replayed: int | None = None
        self._pending: Pending[Any] = Pending()
        identity = BrokerIdentity(1, "cluster", Uuid(b"i" * 16), [], [], None, lambda: [RIGHT, LEFT], 6)
        self.broker = BrokerLifecycle(
            identity,
            self._send,
            self.time,
            lambda: 42,
            self.fatal.append,
            heartbeat_interval_ms=INTERVAL_MS,
            registration_timeout_ms=REGISTRATION_MS,
            dir_failure_timeout_ms=DIR_FAILURE_MS,
            replayed=lambda: self.replayed,
        )

    def _send(self, request: Any) -> Pending[Any]:
        assert not self.asked or self._pending.done, "one request at a time"
        self.asked.append(request)
        self._pending = Pending()
        return self._pending

    def take(self) -> Any:
        """The one request that has been sent since the last."""
        (request,) = self.asked
        self.asked.clear()
        return request

    def register(self, epoch: int = 7) -> None:
        self._pending.complete(BrokerRegistrationResponse(broker_epoch=epoch))
        self.time.advance(0)

    def answer(self, code: int = ErrorCode.NONE, **told: bool) -> None:
        self._pending.complete(BrokerHeartbeatResponse(error_code=code, **told))
        self.time.advance(0)

    def fail(self) -> None:
        self._pending.fail(ApiError(ErrorCode.REQUEST_TIMED_OUT))


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def running(world: World) -> World:
    """Registered with epoch 7, caught up, unfenced."""
    world.broker.start()
    world.register()
    world.answer(is_caught_up=True)
    world.broker.set_ready_to_unfence()
    world.answer(is_fenced=False)
    assert world.broker.state is BrokerState.RUNNING
    world.asked.clear()
    return world


def test_from_start_to_running(world: World) -> None:
    broker, milestones = world.broker, world.broker.milestones
    broker.start()
    registration = world.take()
    assert isinstance(registration, BrokerRegistrationRequest)
    assert (registration.log_dirs, registration.previous_broker_epoch) == ([LEFT, RIGHT], 6)
    world.register(epoch=7)
    first = world.take()
    assert (first.broker_epoch, first.current_metadata_offset, first.want_fence) == (7, 42, True)
    world.answer(is_caught_up=False)
    broker.on_metadata_offset()
    assert world.take(), "more metadata is worth a heartbeat at once"
    world.answer(is_caught_up=True)
    assert (broker.state, milestones.caught_up.done, milestones.unfenced.done) == (BrokerState.RECOVERY, True, False)
    assert not world.asked, "recovery takes its time"
    broker.set_ready_to_unfence()
    assert not world.take().want_fence
    world.answer(is_fenced=True)
    assert not milestones.unfenced.done
    world.time.advance(10)
    world.take()
    world.answer(is_fenced=False)
    assert (broker.state, milestones.unfenced.done) == (BrokerState.RUNNING, True)
    world.time.advance(INTERVAL_MS - 1)
    assert not world.asked
    world.time.advance(1)
    assert isinstance(world.take(), BrokerHeartbeatRequest)


def test_a_registration_that_fails_is_tried_again_until_its_time_is_over(world: World) -> None:
    world.broker.start()
    for _ in range(REGISTRATION_MS // 1_000):
        world.take()
        assert not world.fatal
        world.fail()
        world.time.advance(1_000)
    assert len(world.fatal) == 1
    assert "initial.broker.registration.timeout.ms" in world.fatal[0]


def test_who_has_registered_may_take_its_time(running: World) -> None:
    running.time.advance(REGISTRATION_MS)
    assert not running.fatal


def test_a_broker_whose_epoch_is_stale_registers_anew_and_goes_on(running: World) -> None:
    running.time.advance(INTERVAL_MS)
    running.take()
    running.answer(ErrorCode.STALE_BROKER_EPOCH)
    running.time.advance(1_000)
    assert isinstance(running.take(), BrokerRegistrationRequest)
    running.register(epoch=9)
    assert running.take().broker_epoch == 9
    assert running.broker.state is BrokerState.RUNNING


def test_what_is_urgent_waits_for_the_answer_and_no_longer(running: World) -> None:
    running.time.advance(INTERVAL_MS)
    assert running.take().offline_log_dirs == []
    running.broker.on_directory_failure(LEFT)
    running.broker.on_directory_failure(LEFT)
    assert not running.asked
    running.answer(is_fenced=False)
    assert running.take().offline_log_dirs == [LEFT]
    running.broker.resend_registration()
    running.answer(is_fenced=False)
    assert isinstance(running.take(), BrokerRegistrationRequest)


def test_who_has_told_of_a_failed_directory_goes_on(running: World) -> None:
    running.time.advance(INTERVAL_MS)
    running.take()
    running.broker.on_directory_failure(LEFT)
    running.answer(is_fenced=False)
    assert running.take().offline_log_dirs == [LEFT], "the first one did not name it yet"
    running.answer(ErrorCode.NOT_CONTROLLER)
    running.time.advance(1_000)
    running.take()
    running.answer(is_fenced=False)
    running.time.advance(INTERVAL_MS)
    assert running.take().offline_log_dirs == [LEFT]
    running.time.advance(DIR_FAILURE_MS)
    assert not running.fatal


@pytest.mark.parametrize("told", [ErrorCode.NONE, ErrorCode.NOT_CONTROLLER])
def test_it_gives_up_where_nobody_hears_of_a_failed_directory(running: World, told: ErrorCode) -> None:
    """An answer counts only to a heartbeat that has named the directory, and only if it is one."""
    running.time.advance(INTERVAL_MS)
    running.take()
    running.broker.on_directory_failure(LEFT)
    running.answer(told)
    running.time.advance(DIR_FAILURE_MS - 1)
    assert not running.fatal
    running.time.advance(1)
    assert len(running.fatal) == 1
    assert "log.dir.failure.timeout.ms" in running.fatal[0]


def test_who_stops_meanwhile_need_not_give_up(running: World) -> None:
    running.broker.on_directory_failure(LEFT)
    running.broker.close()
    assert not running.time.timers


def test_a_controlled_shutdown_asks_until_it_may_go(running: World) -> None:
    running.broker.begin_controlled_shutdown()
    for _ in range(3):
        assert running.take().want_shut_down
        running.answer(is_fenced=False, should_shut_down=False)
        running.time.advance(50)
    running.take()
    running.answer(should_shut_down=True)
    assert running.broker.milestones.may_shut_down.done
    running.time.advance(10 * INTERVAL_MS)
    assert not running.asked


def test_who_leads_nothing_need_not_ask(world: World) -> None:
    world.broker.start()
    world.take()
    world.broker.begin_controlled_shutdown()
    assert world.broker.milestones.may_shut_down.done
    world.register()
    world.time.advance(REGISTRATION_MS)
    assert not world.asked
    assert not world.fatal


def test_it_does_not_give_up_while_the_node_gets_on_with_its_replay(world: World) -> None:
    world.replayed = 0
    world.broker.start()
    for replayed in (5_000, 900_000, 900_001):
        world.replayed = replayed
        world.time.advance(REGISTRATION_MS)
        assert world.fatal == []
    world.time.advance(REGISTRATION_MS)
    assert len(world.fatal) == 1, "it hangs"


def test_it_gives_up_a_while_after_the_replay(world: World) -> None:
    world.replayed = 0
    world.broker.start()
    world.replayed = 1_000_000
    world.time.advance(REGISTRATION_MS)
    world.time.advance(REGISTRATION_MS - 1)
    world.replayed = None
    world.time.advance(REGISTRATION_MS)
    assert world.fatal == [], "it had just been through at the last look"
    world.time.advance(REGISTRATION_MS)
    assert len(world.fatal) == 1


def test_cordoned_directories_are_told_when_they_change_and_ever_after(running: World) -> None:
    running.time.advance(INTERVAL_MS)
    assert running.take().cordoned_log_dirs is None, "the metadata cannot say"
    running.answer(is_fenced=False)
    running.broker.set_cordoned_dirs([LEFT])
    assert running.take().cordoned_log_dirs == [LEFT]
    running.answer(is_fenced=False)
    running.broker.set_cordoned_dirs([LEFT])
    assert not running.asked, "no news"
    running.time.advance(INTERVAL_MS)
    assert running.take().cordoned_log_dirs == [LEFT]


def test_an_error_of_a_newer_controller_is_one_that_is_tried_again(running: World) -> None:
    running.time.advance(INTERVAL_MS)
    running.take()
    running.answer(12_345)
    running.time.advance(1_000)
    assert isinstance(running.take(), BrokerHeartbeatRequest)
