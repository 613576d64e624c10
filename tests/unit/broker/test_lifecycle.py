"""The registration and the heartbeats of a broker: what it sends to the controller, and when."""

from __future__ import annotations

from typing import Any

import pytest
from by_hand import HandTime

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.base.scheduling import Pending
from kalda.broker.channels.lifecycle import BrokerIdentity, BrokerLifecycle, BrokerState
from kalda.metadata.image import EMPTY, MetadataDelta, Provenance
from kalda.protocol.messages.brokers import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from kalda.protocol.messages.metadata_records import RegisterBrokerRecord, UnregisterBrokerRecord
from kalda.protocol.notation import Struct

INTERVAL_MS = 2_000
REGISTRATION_MS = 60_000
DIR_FAILURE_MS = 30_000
LEFT, RIGHT = Uuid(b"l" * 16), Uuid(b"r" * 16)
INCARNATION, OTHER_INCARNATION = Uuid(b"i" * 16), Uuid(b"o" * 16)


class World:
    """One broker, and a controller whose responses the test sends."""

    def __init__(self) -> None:
        self.time = HandTime()
        self.sent: list[Any] = []
        self.fatal: list[str] = []
        self.replayed: int | None = None
        self.image = EMPTY
        self._pending: Pending[Any] = Pending()
        identity = BrokerIdentity(1, "cluster", INCARNATION, [], [], None, lambda: [RIGHT, LEFT], 6)
        self.broker = BrokerLifecycle(
            identity,
            self._send,
            self.time,
            lambda: self.image,
            lambda: 42,
            self.fatal.append,
            heartbeat_interval_ms=INTERVAL_MS,
            registration_timeout_ms=REGISTRATION_MS,
            dir_failure_timeout_ms=DIR_FAILURE_MS,
            replayed=lambda: self.replayed,
        )

    def _send(self, request: Any) -> Pending[Any]:
        assert not self.sent or self._pending.done, "one request at a time"
        self.sent.append(request)
        self._pending = Pending()
        return self._pending

    def take(self) -> Any:
        """The one request that was sent since the last call."""
        (request,) = self.sent
        self.sent.clear()
        return request

    def register(self, epoch: int = 7) -> None:
        self._pending.complete(BrokerRegistrationResponse(broker_epoch=epoch))
        self.time.advance(0)

    def answer(self, code: int = ErrorCode.NONE, **fields: bool) -> None:
        self._pending.complete(BrokerHeartbeatResponse(error_code=code, **fields))
        self.time.advance(0)

    def fail(self) -> None:
        self._pending.fail(ApiError(ErrorCode.REQUEST_TIMED_OUT))

    def replay(self, offset: int, *records: Struct) -> None:
        """The metadata has these records, of which the last is at `offset`."""
        delta = MetadataDelta(self.image)
        for record in records:
            delta.replay(record)
        self.image = delta.apply(Provenance(offset, 1, 0))

    def next_heartbeat(self) -> Any:
        self.time.advance(INTERVAL_MS)
        return self.take()


def registered(broker_id: int, epoch: int, incarnation: Uuid = INCARNATION, fenced: bool = False) -> Struct:
    return RegisterBrokerRecord(broker_id=broker_id, incarnation_id=incarnation, broker_epoch=epoch, fenced=fenced)


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
    world.sent.clear()
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
    assert world.take(), "it may have caught up with more metadata"
    world.answer(is_caught_up=True)
    assert (broker.state, milestones.caught_up.done, milestones.unfenced.done) == (BrokerState.RECOVERY, True, False)
    assert not world.sent, "it is not ready to be unfenced"
    broker.set_ready_to_unfence()
    assert not world.take().want_fence
    world.answer(is_fenced=True)
    assert not milestones.unfenced.done
    world.time.advance(10)
    world.take()
    world.answer(is_fenced=False)
    assert (broker.state, milestones.unfenced.done) == (BrokerState.RUNNING, True)
    world.time.advance(INTERVAL_MS - 1)
    assert not world.sent
    world.time.advance(1)
    assert isinstance(world.take(), BrokerHeartbeatRequest)


def test_a_registration_that_fails_is_sent_again_until_the_timeout(world: World) -> None:
    world.broker.start()
    for _ in range(REGISTRATION_MS // 1_000):
        world.take()
        assert not world.fatal
        world.fail()
        world.time.advance(1_000)
    assert len(world.fatal) == 1
    assert "initial.broker.registration.timeout.ms" in world.fatal[0]


def test_the_registration_timeout_ends_with_the_registration(running: World) -> None:
    running.time.advance(REGISTRATION_MS)
    assert not running.fatal


def test_an_unregistered_broker_does_not_register_by_itself(running: World, caplog: pytest.LogCaptureFixture) -> None:
    """As in Apache Kafka: what an administrator has removed stays away until it is restarted."""
    running.replay(7, registered(1, 7))
    running.next_heartbeat()
    running.answer(ErrorCode.STALE_BROKER_EPOCH)
    running.replay(9, UnregisterBrokerRecord(broker_id=1, broker_epoch=7))
    for _ in range(5):
        assert isinstance(running.next_heartbeat(), BrokerHeartbeatRequest)
        running.answer(ErrorCode.STALE_BROKER_EPOCH)
    assert running.broker.state is BrokerState.RUNNING
    assert [each for each in caplog.messages if "unregistered" in each] == [
        "broker 1 has been unregistered; this process serves no partition any more. Restart it to register it again"
    ]


def test_a_broker_whose_id_another_process_has_taken_does_not_take_it_back(running: World) -> None:
    running.replay(9, registered(1, 9, OTHER_INCARNATION))
    running.next_heartbeat()
    running.answer(ErrorCode.STALE_BROKER_EPOCH)
    assert isinstance(running.next_heartbeat(), BrokerHeartbeatRequest)


def test_a_process_that_is_registered_with_another_epoch_registers_anew(running: World) -> None:
    """Its registration was sent twice, and the controller processed the first one last."""
    running.next_heartbeat()
    running.answer(ErrorCode.STALE_BROKER_EPOCH)
    assert isinstance(running.next_heartbeat(), BrokerHeartbeatRequest), "the metadata has no reason yet"
    running.replay(8, registered(1, 8))
    running.answer(ErrorCode.STALE_BROKER_EPOCH)
    running.time.advance(1_000)
    assert isinstance(running.take(), BrokerRegistrationRequest)
    running.register(epoch=9)
    assert running.take().broker_epoch == 9
    assert running.broker.state is BrokerState.RUNNING


@pytest.mark.parametrize("is_known_before", [False, True])
def test_an_unregistered_broker_has_nothing_to_hand_over(running: World, is_known_before: bool) -> None:
    running.replay(9)
    running.next_heartbeat()
    if is_known_before:
        running.answer(ErrorCode.STALE_BROKER_EPOCH)
    running.broker.begin_controlled_shutdown()
    if not is_known_before:
        running.answer(ErrorCode.STALE_BROKER_EPOCH)
    assert running.broker.milestones.may_shut_down.done
    assert not running.time.timers


def test_an_urgent_request_is_sent_when_the_one_under_way_is_answered(running: World) -> None:
    running.time.advance(INTERVAL_MS)
    assert running.take().offline_log_dirs == []
    running.broker.on_directory_failure(LEFT)
    running.broker.on_directory_failure(LEFT)
    assert not running.sent
    running.answer(is_fenced=False)
    assert running.take().offline_log_dirs == [LEFT]
    running.broker.resend_registration()
    running.answer(is_fenced=False)
    assert isinstance(running.take(), BrokerRegistrationRequest)


def test_a_broker_that_has_reported_a_failed_directory_does_not_stop(running: World) -> None:
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


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.NOT_CONTROLLER])
def test_it_stops_where_no_controller_accepts_the_report_of_a_failed_directory(running: World, code: ErrorCode) -> None:
    """Only a successful response counts, and only to a heartbeat that named the directory."""
    running.time.advance(INTERVAL_MS)
    running.take()
    running.broker.on_directory_failure(LEFT)
    running.answer(code)
    running.time.advance(DIR_FAILURE_MS - 1)
    assert not running.fatal
    running.time.advance(1)
    assert len(running.fatal) == 1
    assert "log.dir.failure.timeout.ms" in running.fatal[0]


def test_a_broker_that_is_closed_has_no_timer_for_a_failed_directory(running: World) -> None:
    running.broker.on_directory_failure(LEFT)
    running.broker.close()
    assert not running.time.timers


def test_a_controlled_shutdown_sends_heartbeats_until_it_may_shut_down(running: World) -> None:
    running.broker.begin_controlled_shutdown()
    for _ in range(3):
        assert running.take().want_shut_down
        running.answer(is_fenced=False, should_shut_down=False)
        running.time.advance(50)
    running.take()
    running.answer(should_shut_down=True)
    assert running.broker.milestones.may_shut_down.done
    running.time.advance(10 * INTERVAL_MS)
    assert not running.sent


def test_a_controlled_shutdown_takes_at_most_five_minutes(running: World, caplog: pytest.LogCaptureFixture) -> None:
    running.broker.begin_controlled_shutdown()
    for _ in range(599):
        running.take()
        running.time.advance(400)
        running.answer(is_fenced=False, should_shut_down=False)
        running.time.advance(100)
    assert not running.broker.milestones.may_shut_down.done
    running.time.advance(500)
    assert running.broker.milestones.may_shut_down.done
    assert any("not moved them all within 300 s" in each for each in caplog.messages)


@pytest.mark.parametrize(
    ("others", "patience_ms"),
    [([], 1_000), ([registered(2, 5, fenced=True)], 1_000), ([registered(2, 5)], 5_000)],
)
def test_a_controlled_shutdown_does_not_wait_for_controllers_that_do_not_respond(
    running: World, others: list[Struct], patience_ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It has less patience where no other broker could lead its partitions."""
    running.replay(7, registered(1, 7), *others)
    running.broker.begin_controlled_shutdown()
    running.take()
    running.time.advance(patience_ms - 10)
    running.answer(is_fenced=False, should_shut_down=False)
    running.time.advance(patience_ms - 10)
    assert not running.broker.milestones.may_shut_down.done
    running.time.advance(10)
    assert running.broker.milestones.may_shut_down.done
    assert f"no controller has responded for {patience_ms} ms" in caplog.text
    assert not running.time.timers


def test_responses_after_the_end_are_no_failures(running: World, caplog: pytest.LogCaptureFixture) -> None:
    """When the node stops, the channel fails the heartbeat that is under way."""
    running.next_heartbeat()
    running.broker.close()
    running.fail()
    assert not running.time.timers
    assert not caplog.messages


def test_a_broker_that_leads_nothing_shuts_down_at_once(world: World) -> None:
    world.broker.start()
    world.take()
    world.broker.begin_controlled_shutdown()
    assert world.broker.milestones.may_shut_down.done
    world.register()
    world.time.advance(REGISTRATION_MS)
    assert not world.sent
    assert not world.fatal


def test_the_registration_timeout_starts_again_while_the_replay_makes_progress(world: World) -> None:
    world.replayed = 0
    world.broker.start()
    for replayed in (5_000, 900_000, 900_001):
        world.replayed = replayed
        world.time.advance(REGISTRATION_MS)
        assert world.fatal == []
    world.time.advance(REGISTRATION_MS)
    assert len(world.fatal) == 1, "the replay makes no progress"


def test_the_registration_timeout_starts_again_when_the_replay_is_complete(world: World) -> None:
    world.replayed = 0
    world.broker.start()
    world.replayed = 1_000_000
    world.time.advance(REGISTRATION_MS)
    world.time.advance(REGISTRATION_MS - 1)
    world.replayed = None
    world.time.advance(REGISTRATION_MS)
    assert world.fatal == [], "the replay was found to be complete"
    world.time.advance(REGISTRATION_MS)
    assert len(world.fatal) == 1


def test_cordoned_directories_are_sent_when_they_change_and_with_each_heartbeat(running: World) -> None:
    running.time.advance(INTERVAL_MS)
    assert running.take().cordoned_log_dirs is None, "metadata.version does not support it"
    running.answer(is_fenced=False)
    running.broker.set_cordoned_dirs([LEFT])
    assert running.take().cordoned_log_dirs == [LEFT]
    running.answer(is_fenced=False)
    running.broker.set_cordoned_dirs([LEFT])
    assert not running.sent, "nothing has changed"
    running.time.advance(INTERVAL_MS)
    assert running.take().cordoned_log_dirs == [LEFT]


def test_after_an_unknown_error_code_the_heartbeat_is_sent_again(running: World) -> None:
    running.time.advance(INTERVAL_MS)
    running.take()
    running.answer(12_345)
    running.time.advance(1_000)
    assert isinstance(running.take(), BrokerHeartbeatRequest)
