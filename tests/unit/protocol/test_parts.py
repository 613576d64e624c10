"""Messages that are decoded and encoded part by part: the parts are the whole, cut anywhere."""

from __future__ import annotations

from typing import Any

import pytest

from kalda.base.background import run_to_end
from kalda.base.errors import InvalidRequest
from kalda.protocol.codec import decode, decoder, encode, step_decoder
from kalda.protocol.decoder import TooManyElements
from kalda.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from kalda.protocol.messages.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from kalda.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kalda.protocol.part_decoder import Part, part_decoder
from kalda.protocol.part_encoder import EncodedItems, part_encoder

SIZES = (("large", 7), ("empty", 0), ("small", 1), ("other", 3))
ASKED = ("groups", "topics", "partition_indexes")
ANSWERED = ("groups", "topics", "partitions")
MANY = 250_000


def asked(named: list[tuple[str, int]]) -> OffsetFetchRequest:
    """A request for topics with so many partitions, of two groups; and for all topics of a third."""
    topics = [OffsetFetchRequestTopics(name=name, partition_indexes=list(range(count))) for name, count in named]
    groups = [OffsetFetchRequestGroup(group_id=each, topics=topics, member_epoch=3) for each in ("a", "b")]
    return OffsetFetchRequest(groups=[*groups, OffsetFetchRequestGroup(group_id="c", topics=None)], require_stable=True)


def parts_of(message: Any, version: int, path: tuple[str, ...], size: int) -> list[Part]:
    frame = memoryview(b"header" + encode(message, version))
    decoder = part_decoder(type(message), version, path)
    outline = run_to_end(decoder.outline(frame, 6, MANY, MANY))
    assert outline.items == count_of(getattr(message, path[0]), path[1:])
    beside = decode(type(message), frame, version, 6)
    setattr(beside, path[0], [])
    assert outline.message == beside
    return [part for part in decoder.parts(frame, outline, size) if part is not None]


def count_of(items: list[Any], inner: tuple[str, ...]) -> int:
    return len(items) + sum(count_of(getattr(item, inner[0]) or [], inner[1:]) for item in items if inner)


@pytest.mark.parametrize("version", [8, 9])
@pytest.mark.parametrize("size", range(1, 30))
def test_the_items_of_all_parts_are_those_of_the_message(version: int, size: int) -> None:
    request = asked(list(SIZES))
    parts = parts_of(request, version, ASKED, size)
    whole = decode(OffsetFetchRequest, encode(request, version), version)
    named = []
    for part in parts:
        assert part.size == count_of(part.items, ASKED[1:])
        for group in part.items:
            assert group.member_epoch == whole.groups[0].member_epoch or group.group_id == "c"
            assert (group.topics is None) == (group.group_id == "c")
            for topic in group.topics or ():
                assert len(topic.partition_indexes) <= size
                named += [(group.group_id, topic.name, index) for index in topic.partition_indexes]
    assert named == [(group, name, index) for group in ("a", "b") for name, count in SIZES for index in range(count)]
    joined = [sum(1 for part in parts if part.joins == depth) for depth in range(4)]
    assert sum(joined) == len(parts)
    if size == 1:
        assert joined[2] >= 6, "the partitions of one topic are in seven parts"


def test_records_of_parts_are_views_of_the_frame() -> None:
    data = [PartitionProduceData(index=index, records=b"batch %d" % index) for index in range(5)]
    request = ProduceRequest(acks=1, topic_data=[TopicProduceData(name="t", partition_data=data)])
    parts = parts_of(request, 9, ("topic_data", "partition_data"), 2)
    got = [each for part in parts for topic in part.items for each in topic.partition_data]
    assert [(each.index, bytes(each.records)) for each in got] == [(each.index, each.records) for each in data]
    assert all(isinstance(each.records, memoryview) for each in got)


@pytest.mark.parametrize("version", [8, 9])
def test_no_byte_of_a_message_is_left_unchecked(version: int) -> None:
    """Cut short anywhere, or with a length that is wrong, it is refused before there is a part."""
    good = encode(asked(list(SIZES)), version)
    decoder = part_decoder(OffsetFetchRequest, version, ASKED)
    for end in range(len(good)):
        with pytest.raises(InvalidRequest):
            run_to_end(decoder.outline(memoryview(good[:end]), 0, MANY, MANY))
    for at in range(len(good)):
        for value in (0, 1, 127, 128, 255):
            bad = memoryview(good[:at] + bytes([value]) + good[at + 1 :])
            try:
                expected: Any = decode(OffsetFetchRequest, bad, version)
            except InvalidRequest:
                with pytest.raises(InvalidRequest):
                    run_to_end(decoder.outline(bad, 0, MANY, MANY))
                continue
            outline = run_to_end(decoder.outline(bad, 0, MANY, MANY))
            (part,) = decoder.parts(bad, outline, MANY) if outline.items else [Part(outline.message.groups, 0, 0)]
            assert part is not None
            assert part.items == expected.groups
            assert outline.message.require_stable == expected.require_stable


def test_too_many_elements_are_refused_and_steps_are_bounded() -> None:
    request = asked([(f"topic-{number}", 3) for number in range(3_000)])
    frame = memoryview(encode(request, 8))
    decoder = part_decoder(OffsetFetchRequest, 8, ASKED)
    elements = 3 + 2 * 3_000 * 4
    assert run_to_end(decoder.outline(frame, 0, elements, 0)).items == elements
    assert len(list(decoder.outline(frame, 0, elements, 0))) >= 3
    with pytest.raises(TooManyElements):
        run_to_end(decoder.outline(frame, 0, elements - 1, 0))


def test_elements_beside_the_items_are_bounded_by_themselves() -> None:
    topics = [OffsetFetchRequestTopics(name=f"topic-{n}", partition_indexes=list(range(n))) for n in range(20)]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=topics)])
    frame = memoryview(encode(request, 8))
    decoder = part_decoder(OffsetFetchRequest, 8, ("groups",))
    numbers = sum(n // 4 for n in range(20))
    outline = run_to_end(decoder.outline(frame, 0, 1, 20 + numbers, 4))
    assert (outline.items, outline.others) == (1, 20 + numbers)
    with pytest.raises(TooManyElements):
        run_to_end(decoder.outline(frame, 0, 1, 19 + numbers, 4))


LONG = "x" * 32_000


def test_long_strings_make_small_parts() -> None:
    topics = [MetadataRequestTopic(name=f"{LONG}{n}") for n in range(200)] + [MetadataRequestTopic(name="t")] * 500
    parts = parts_of(MetadataRequest(topics=topics), 12, ("topics",), 1_000)
    assert [topic.name for part in parts for topic in part.items] == [topic.name for topic in topics]
    assert max(sum(len(topic.name) for topic in part.items) for part in parts) < 1_200_000
    nested = parts_of(asked([(f"{LONG}{n}", 2) for n in range(100)]), 8, ASKED, 1_000)
    assert (
        max(sum(len(topic.name) for group in part.items for topic in group.topics or ()) for part in nested) < 400_000
    )


def test_long_strings_count_as_many_elements() -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=f"{LONG}{n}") for n in range(10)])
    frame = memoryview(encode(request, 12))
    each = 1 + 32_001 // 256
    assert decoder(MetadataRequest, 12)(frame, 0, 10 * each)[0] == request
    with pytest.raises(TooManyElements, match="long strings"):
        decoder(MetadataRequest, 12)(frame, 0, 10 * each - 1)
    with pytest.raises(InvalidRequest, match="name of 32768 in"):
        decode(MetadataRequest, encode(request, 12).replace(b"\x82\xfa\x01", b"\x81\x80\x02", 1), 12)
    steps = list(
        step_decoder(MetadataRequest, 12)(memoryview(encode(MetadataRequest(topics=request.topics * 20), 12)), 0)
    )
    assert len(steps) >= 10


def test_a_large_message_is_not_copied_to_be_decoded_at_once() -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=LONG) for _ in range(40)])
    frame = memoryview(encode(request, 12))
    with pytest.raises(TooManyElements, match="at once"):
        decoder(MetadataRequest, 12)(frame, 0, 100_000)
    assert decoder(MetadataRequest, 12)(frame, 0)[0] == request, "without bounds it is"
    assert run_to_end(step_decoder(MetadataRequest, 12)(frame, 0, 100_000))[0] == request


def answered(groups: list[Any]) -> OffsetFetchResponse:
    return OffsetFetchResponse(
        throttle_time_ms=7,
        groups=[
            OffsetFetchResponseGroup(
                group_id=group.group_id,
                error_code=len(group.group_id),
                topics=[
                    OffsetFetchResponseTopics(
                        name=topic.name,
                        partitions=[
                            OffsetFetchResponsePartitions(partition_index=index, metadata="m")
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in group.topics or ()
                ],
            )
            for group in groups
        ],
    )


@pytest.mark.parametrize("size", range(1, 30))
def test_responses_of_parts_are_joined_to_the_bytes_of_the_whole(size: int) -> None:
    request = asked(list(SIZES))
    encoder = part_encoder(OffsetFetchResponse, 8, ANSWERED)
    items = EncodedItems()
    for part in parts_of(request, 8, ASKED, size):
        items.join(run_to_end(encoder.items(answered(part.items), part.joins)), part.joins)
    whole = answered(request.groups)
    buffers = run_to_end(encoder.whole(b"head", OffsetFetchResponse(throttle_time_ms=7), items))
    assert b"".join(buffers) == b"head" + encode(whole, 8)
