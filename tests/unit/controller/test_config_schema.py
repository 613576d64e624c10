"""What the controller says of configs of groups, by this node's properties."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from kalda.base.configs.definition import InvalidConfig
from kalda.base.configs.resources import ConfigResourceType
from kalda.controller.config_schema import NodeConfigSchema
from kalda.metadata.configs import ConfigResource

KAFKAS = "org.apache.kafka.coordinator.group.streams.assignor.StickyTaskAssignor"
GROUP = ConfigResource(ConfigResourceType.GROUP, "g")


class Mine:
    name = "mine"

    def assign(self, spec: object) -> None:
        raise NotImplementedError


def refusal(assignors: str, chosen: str) -> str | None:
    schema = NodeConfigSchema({"group.streams.assignors": assignors})
    try:
        schema.validate(GROUP, {"streams.assignor.name": chosen}, {})
    except InvalidConfig as error:
        return error.message
    return None


def test_a_group_chooses_its_task_assignor_by_the_name_of_the_assignor(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("assignors_of_mine")
    module.Mine = Mine  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    both = f"{KAFKAS},assignors_of_mine:Mine"
    assert refusal("sticky", "sticky") is None
    assert refusal(both, "sticky") is None
    assert refusal(both, "mine") is None
    for unknown in (KAFKAS, "assignors_of_mine:Mine", "nosuch"):
        expected = f"'{unknown}' is not a registered task assignor. Registered assignors are: [sticky, mine]."
        assert refusal(both, unknown) == f"streams.assignor.name {expected}"
