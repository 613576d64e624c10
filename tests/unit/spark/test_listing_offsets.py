"""The ends of many partitions, in few requests."""

from __future__ import annotations

from typing import Any

import pytest

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.client.admin.offsets import list_offsets
from kalda.clientcore.administration import Outcomes, TargetKind
from kalda.protocol.messages.partitions import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)


def response(*partitions: int) -> ListOffsetsResponse:
    """The offset of each partition is its number."""
    found = [ListOffsetsPartitionResponse(partition_index=each, offset=each) for each in partitions]
    return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=found)])


def targets(asks: Any) -> list[tuple[TargetKind, Any]]:
    return [(each.target.kind, each.target.key) for each in asks]


def test_a_request_for_each_leader_and_after_an_error_for_each_leader_by_metadata() -> None:
    partitions = [TopicPartition("t", number) for number in range(5)]
    leaders = {partitions[0]: 7, partitions[1]: 8, partitions[2]: 7, partitions[3]: -1}
    plan = list_offsets(dict.fromkeys(partitions, -1), read_committed=False, timeout_ms=1000, leaders=leaders)
    assert targets(next(plan)) == [(TargetKind.BROKER, 7), (TargetKind.BROKER, 8)]
    dead = ApiError(ErrorCode.BROKER_NOT_AVAILABLE, "it is not alive")
    asks = plan.send([dead, response(1)])
    assert targets(asks) == [(TargetKind.LEADER, partitions[number]) for number in (0, 2, 3, 4)]
    assert not any(each.request for each in asks)
    asks = plan.send([9, 8, 9, 9])
    assert targets(asks) == [(TargetKind.NODE_THAT_LEADS, 9), (TargetKind.NODE_THAT_LEADS, 8)]
    with pytest.raises(StopIteration) as end:
        plan.send([response(0, 3, 4), response(2)])
    found = end.value.value.succeeded
    assert {each.partition: at.offset for each, at in found.items()} == {number: number for number in range(5)}


def test_what_has_succeeded_is_found_out_once_for_all_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a pass over all of them: ten thousand passes over ten thousand partitions take a quarter of a minute."""
    passes = []
    whole = Outcomes.succeeded.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(Outcomes, "succeeded", property(lambda self: passes.append(len(self)) or whole(self)))
    partitions = [TopicPartition("t", number) for number in range(10)]
    leaders = dict.fromkeys(partitions, 7)
    plan = list_offsets(dict.fromkeys(partitions, -1), read_committed=False, timeout_ms=1000, leaders=leaders)
    next(plan)
    with pytest.raises(StopIteration) as end:
        plan.send([response(*range(10))])
    assert (passes, len(end.value.value)) == ([10], 10)
