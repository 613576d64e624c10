"""The registration of a controller: when it is sent, and sent again."""

from __future__ import annotations

from typing import Any

import pytest
from by_hand import HandTime

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.base.scheduling import Pending
from kalda.broker.channels.lifecycle import ControllerRegistrationManager
from kalda.metadata.features import FEATURE_NAME, MetadataVersion
from kalda.metadata.image import EMPTY, MetadataDelta, Provenance
from kalda.protocol.messages.brokers import ControllerRegistrationRequest, ControllerRegistrationResponse
from kalda.protocol.messages.metadata_records import FeatureLevelRecord, RegisterControllerRecord
from kalda.protocol.notation import Struct

MINE, OTHER = Uuid(b"m" * 16), Uuid(b"o" * 16)


class World:
    """Controller 1, whose requests the test answers."""

    def __init__(self) -> None:
        self.time = HandTime()
        self.sent: list[Pending[Any]] = []
        self.image = EMPTY
        request = ControllerRegistrationRequest(controller_id=1, incarnation_id=MINE)
        self.manager = ControllerRegistrationManager(request, self._send, self.time)

    def _send(self, request: Any) -> Pending[Any]:
        assert all(pending.done for pending in self.sent), "one request at a time"
        self.sent.append(Pending())
        return self.sent[-1]

    def replay(self, *records: Struct) -> None:
        delta = MetadataDelta(self.image)
        for record in records:
            delta.replay(record)
        self.image = delta.apply(Provenance(self.image.offset + 1, 1, 0))
        self.manager.on_metadata_update(delta, self.image, None)

    def fail(self, code: ErrorCode = ErrorCode.REQUEST_TIMED_OUT) -> None:
        self.sent[-1].fail(ApiError(code))


def level(version: MetadataVersion) -> Struct:
    return FeatureLevelRecord(name=FEATURE_NAME, feature_level=version.value)


def registered(incarnation: Uuid, controller_id: int = 1) -> Struct:
    return RegisterControllerRecord(controller_id=controller_id, incarnation_id=incarnation)


SUPPORTED = level(MetadataVersion.IBP_3_7_IV0)


@pytest.fixture
def world() -> World:
    return World()


def test_the_first_image_without_this_process_registers_it(world: World) -> None:
    world.replay(SUPPORTED, registered(OTHER))
    assert len(world.sent) == 1
    world.sent[0].complete(ControllerRegistrationResponse(error_message=None))
    world.replay(registered(MINE))
    world.replay(registered(OTHER, controller_id=2))
    assert (len(world.sent), world.time.timers) == (1, 0)


def test_a_registration_that_fails_is_sent_again_later_each_time(world: World) -> None:
    world.replay(SUPPORTED)
    for attempt, delay_ms in enumerate((100, 200, 400, 800), 1):
        assert len(world.sent) == attempt
        if attempt % 2:
            world.fail()
        else:
            world.sent[-1].complete(ControllerRegistrationResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR))
        world.time.advance(delay_ms - 1)
        assert len(world.sent) == attempt
        world.time.advance(1)
    for _ in range(30):
        world.fail()
        world.time.advance(120_000)
    assert len(world.sent) == 35, "at least every two minutes"


def test_another_active_controller_is_sent_the_registration_at_once(world: World) -> None:
    world.replay(SUPPORTED)
    for _ in range(8):
        world.fail()
        world.time.advance(120_000)
    world.fail()
    world.manager.on_controller_change(None, 3)
    assert len(world.sent) == 9, "there is none"
    world.manager.on_controller_change(2, 4)
    assert len(world.sent) == 10
    world.fail()
    world.time.advance(100)
    assert len(world.sent) == 11, "the backoff has started anew"


def test_a_registration_that_is_replaced_is_sent_again(world: World) -> None:
    world.replay(SUPPORTED, registered(MINE))
    assert not world.sent
    world.replay(registered(OTHER))
    assert len(world.sent) == 1


def test_a_response_that_the_metadata_contradicts_does_not_count(world: World) -> None:
    """A leader that lost its epoch may have answered; the next one does not have the record."""
    world.replay(SUPPORTED)
    world.sent[0].complete(ControllerRegistrationResponse(error_message=None))
    world.manager.on_controller_change(2, 4)
    assert len(world.sent) == 2


def test_nothing_is_sent_before_metadata_version_supports_it(world: World) -> None:
    world.replay(level(MetadataVersion.IBP_3_6_IV2))
    world.manager.on_controller_change(2, 4)
    assert not world.sent
    world.replay(SUPPORTED)
    assert len(world.sent) == 1


def test_a_manager_that_is_closed_sends_nothing(world: World) -> None:
    world.replay(SUPPORTED)
    world.manager.close()
    world.fail()
    world.replay(registered(OTHER))
    world.time.advance(1_000_000)
    assert len(world.sent) == 1
