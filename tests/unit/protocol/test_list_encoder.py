"""A message whose list is encoded item by item has the bytes of the whole message."""

from __future__ import annotations

import pytest

from kalda.protocol.codec import encode
from kalda.protocol.encoder import STEP_ELEMENTS, ListEncoder
from kalda.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)


def topic(number: int, partitions: int) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        name=f"t-{number}",
        error_code=number % 3,
        partitions=[
            MetadataResponsePartition(partition_index=each, replica_nodes=[1, 2]) for each in range(partitions)
        ],
    )


@pytest.mark.parametrize("version", [0, 1, 5, 9, 12, 13])
@pytest.mark.parametrize("sizes", [[], [0], [3, 0, 200], [5] * 1_000, [20_000, 1]])
def test_the_bytes_are_those_of_the_whole_message(version: int, sizes: list[int]) -> None:
    others = MetadataResponse(brokers=[MetadataResponseBroker(node_id=1, host="h", port=1)], controller_id=1)
    encoder = ListEncoder(MetadataResponse, version, "topics")
    topics = [topic(number, size) for number, size in enumerate(sizes)]
    for each in topics:
        list(encoder.add([each]))
    buffers = encoder.message(others, b"head")
    assert bytes(buffers[0]).startswith(b"head")
    others.topics = topics
    assert b"".join(buffers) == b"head" + encode(others, version)
    assert encoder.size <= sum(map(len, buffers))
    assert sum(encoder.errors.values()) == sum(each.error_code > 0 for each in topics)


def test_a_large_item_is_encoded_in_steps() -> None:
    encoder = ListEncoder(MetadataResponse, 12, "topics")
    assert len(list(encoder.add([topic(1, 10 * STEP_ELEMENTS)]))) >= 9
