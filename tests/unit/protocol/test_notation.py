"""Makers: functions that make the same struct as a call of its class."""

from __future__ import annotations

import pytest

from kalda.base.ids import ZERO_UUID
from kalda.protocol.messages.partitions import (
    FetchResponsePartitionData,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from kalda.protocol.notation import Struct, maker


@pytest.mark.parametrize("cls", [ProduceResponse, TopicProduceResponse, FetchResponsePartitionData])
def test_a_maker_without_fields_gives_the_defaults(cls: type[Struct]) -> None:
    assert maker(cls)() == cls()


def test_a_maker_takes_its_fields_in_the_order_in_which_they_were_named() -> None:
    make = maker(PartitionProduceResponse, "base_offset", "index", "record_errors")
    assert make(5, 1, []) == PartitionProduceResponse(index=1, base_offset=5, record_errors=[])


def test_lists_are_made_fresh_unless_they_are_given_and_structs_are_shared() -> None:
    make = maker(TopicProduceResponse, "name")
    one, other = make("t"), make("t")
    one.partition_responses.append(PartitionProduceResponse())
    assert other == TopicProduceResponse(name="t", topic_id=ZERO_UUID)
    make_partition = maker(PartitionProduceResponse)
    assert make_partition().current_leader is make_partition().current_leader
    assert PartitionProduceResponse().current_leader is not PartitionProduceResponse().current_leader


def test_a_maker_refuses_a_field_that_the_class_lacks() -> None:
    with pytest.raises(AssertionError, match="has not all of"):
        maker(TopicProduceResponse, "nmae")
