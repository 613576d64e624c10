"""Modules of a broker that are imported and made at their first use."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

import pytest

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.sensors import Sensors
from kalda.broker.handlers.group_kinds import GROUP_APIS, SHARE_MEMBER_APIS, SHARE_STATE_APIS
from kalda.broker.handlers.groups import GroupHandlers
from kalda.broker.handlers.share import ShareHandlers
from kalda.broker.handlers.share_state import ShareStateHandlers
from kalda.broker.module import AtFirstUse, Module
from kalda.broker.requests.rows import Authorization, Row
from kalda.protocol.apis import ApiKey

LATE = ("kalda.broker.handlers.groups", "kalda.broker.handlers.share", "kalda.broker.handlers.share_state")


class Made(Module):
    """Notes what is called."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def rows(self) -> Sequence[Row]:
        return [Row(ApiKey.HEARTBEAT, Mock(), Mock(), Authorization.ANYONE)]

    def on_config(self, current: Any, image: Any) -> None:
        self.calls.append(f"config {current}")

    def start(self) -> None:
        self.calls.append("start")

    def close(self) -> None:
        self.calls.append("close")


class World:
    def __init__(self) -> None:
        self.calls: list[str] = []
        self.sensors = Sensors()
        self.late = AtFirstUse([ApiKey.HEARTBEAT], self.make, self.sensors)

    def make(self) -> Made:
        self.calls.append("make")
        return Made(self.calls)

    def configure(self, config: Any) -> None:
        self.late.on_config(config, Mock())


def test_it_is_made_once_by_the_first_request_and_catches_up() -> None:
    world = World()
    [row] = world.late.rows()
    world.configure("first")
    world.configure("second")
    world.late.start()
    assert not world.calls
    assert row.key is row.make().key is ApiKey.HEARTBEAT
    assert row.make() is row.make()
    assert world.calls == ["make", "config second", "start"]
    world.configure("third")
    world.late.close()
    assert world.calls[3:] == ["config third", "close"]


def test_what_is_made_before_the_start_starts_with_the_others() -> None:
    world = World()
    assert world.late() is world.late.made
    world.configure("first")
    world.late.start()
    assert world.calls == ["make", "config first", "start"]


def test_a_list_of_all_sensors_has_those_of_modules_that_were_not_used_yet() -> None:
    world = World()
    world.sensors.add_late(lambda: world.sensors.gauge("group", "of another"))
    assert [name.name for name, _ in world.sensors.everything()] == ["of another"]
    assert world.calls == ["make"]
    list(world.sensors.everything())
    assert world.calls == ["make"]


def test_it_is_not_made_any_more_once_the_broker_stops() -> None:
    world = World()
    world.late.close()
    with pytest.raises(ApiError) as refused:
        world.late()
    assert refused.value.code is ErrorCode.BROKER_NOT_AVAILABLE
    list(world.sensors.everything())
    assert not world.calls


def test_the_apis_that_are_announced_before_are_those_of_the_rows() -> None:
    assert {row.key for row in GroupHandlers(Mock(), Mock(), Mock()).rows()} == GROUP_APIS
    assert {row.key for row in ShareHandlers(*[Mock()] * 7).rows()} == SHARE_MEMBER_APIS
    assert {row.key for row in ShareStateHandlers(Mock(), Mock(), Mock()).rows()} == SHARE_STATE_APIS


@pytest.mark.parametrize("name", LATE)
def test_each_can_be_imported_after_the_rest_of_a_broker_which_does_not_import_it(name: str) -> None:
    code = (
        "import sys, kalda.broker.handlers.services, kalda.broker.process.node\n"
        f"assert not {LATE} & sys.modules.keys()\n"
        "assert 'kalda.coordinator.groups' not in sys.modules and 'kalda.replication.share' not in sys.modules\n"
        f"import {name}"
    ).replace(f"{LATE} &", f"set({LATE}) &")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
