"""ListOffsets of a tool, which names itself as the replica -2: whichever replica it asks answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from data_path_world import Assigned, World

from kalda.base.background import run_to_end
from kalda.base.errors import ErrorCode
from kalda.broker.handlers.offsets import OffsetHandlers
from kalda.protocol.messages.partitions import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic, OffsetSpec

FOLLOWED = Assigned(2, 5, (1, 2), (1, 2))


def asked(world: World, replica_id: int, epoch: int = -1) -> tuple[ErrorCode, int]:
    partition = ListOffsetsPartition(partition_index=0, current_leader_epoch=epoch, timestamp=OffsetSpec.LATEST)
    request = ListOffsetsRequest(replica_id=replica_id, topics=[ListOffsetsTopic(name="a", partitions=[partition])])
    context: Any = SimpleNamespace(api_version=7)
    steps: Any = OffsetHandlers(world.replicas).list_offsets(context, request)
    answer = run_to_end(steps).topics[0].partitions[0]
    return ErrorCode(answer.error_code), answer.offset


@pytest.mark.parametrize("replica_id", [-1, 3])
def test_a_follower_refuses_clients_and_other_replicas(replica_id: int) -> None:
    world = World()
    world.assign("a", assigned=FOLLOWED)
    assert asked(world, replica_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


def test_a_follower_answers_a_tool_with_its_own_end() -> None:
    world = World()
    world.assign("a", assigned=FOLLOWED)
    assert asked(world, -2) == (ErrorCode.NONE, 0)
    assert asked(world, -2, 5) == (ErrorCode.NONE, 0)
    assert asked(world, -2, 4) == (ErrorCode.FENCED_LEADER_EPOCH, -1)
    assert asked(world, -2, 6) == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1)
