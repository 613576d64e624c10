"""Hostile bytes: they decode or raise `InvalidRequest`, and take memory of at most a small multiple of their size."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka_golden import message_classes
from peak_memory import measuring_process, peak_bytes
from random_messages import random_message, smallest_messages

from kalda.base.errors import InvalidRequest
from kalda.protocol import codec, decoder, framing, record_framing
from kalda.protocol.apis import API
from kalda.protocol.decoder import MAX_ELEMENTS, MAX_TAGGED_FIELDS
from kalda.protocol.messages.admin import AlterClientQuotasRequest
from kalda.protocol.messages.metadata import ApiVersionsRequest, MetadataRequest
from kalda.protocol.messages.partitions import FetchRequest, ProduceRequest
from kalda.protocol.messages.share import ShareFetchRequest
from kalda.protocol.notation import Message
from kalda.protocol.schema import supported_versions
from kalda.protocol.varint import encode_unsigned

LARGEST_MULTIPLE = 64
FIXED_BYTES = 16 * 1024
MUTATIONS = 12
PIECES = (
    b"\xff" * 4, b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\x00", b"\xff", b"\x7f\xff", b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x7f", b"\x80" * 9, b"\x81\x80\x80\x80\x08", b"\x00\x0f\x42\x40", b"\xc3", b"\x01" * 8,
)  # fmt: skip


def decodes_or_refuses(cls: type[Message], raw: bytes, version: int) -> Message | None:
    try:
        message, end = codec.decode_at(cls, memoryview(bytearray(raw)), version)
    except InvalidRequest:
        return None
    assert end <= len(raw)
    return message


def mutated(rng: Random, raw: bytes) -> bytes:
    out = bytearray(raw)
    for _ in range(rng.randint(1, 3)):
        at = rng.randint(0, len(out))
        match rng.randrange(5):
            case 0 if out:
                out[at % len(out)] ^= 1 << rng.randrange(8)
            case 1:
                piece = rng.choice(PIECES)
                out[at : at + len(piece)] = piece
            case 2:
                out[at:at] = rng.choice(PIECES)
            case 3:
                del out[at : at + rng.randint(1, 9)]
            case _:
                out[at:at] = out[: rng.randint(0, 30)]
    return bytes(out)


@pytest.mark.parametrize("name", sorted(message_classes()))
def test_mutated_messages(name: str) -> None:
    cls = message_classes()[name]
    for version in supported_versions(cls):
        rng = Random(f"{name} {version}")
        for _ in range(MUTATIONS):
            raw = mutated(rng, codec.encode(random_message(rng, cls, version), version))
            message = decodes_or_refuses(cls, raw, version)
            if message is not None:
                # A decoded message can be encoded, and decoding that and encoding it again gives the same bytes.
                again = codec.encode(message, version)
                assert codec.encode(codec.decode(cls, again, version), version) == again


@settings(max_examples=300)
@given(st.sampled_from(sorted(message_classes())), st.data())
def test_random_bytes(name: str, data: st.DataObject) -> None:
    cls = message_classes()[name]
    version = data.draw(st.sampled_from(supported_versions(cls)))
    decodes_or_refuses(cls, data.draw(st.binary(max_size=200)), version)


@settings(max_examples=500)
@given(st.binary(max_size=60))
def test_random_headers(raw: bytes) -> None:
    for key in (b"", b"\x00\x01\x00\x0c", b"\x00\x12\x00\x03", b"\x00\x11\x00\x01"):
        frame = key + raw
        try:
            header = framing.decode_request_header(memoryview(frame))
        except InvalidRequest:
            continue
        assert header.body_at <= len(frame)
    for api in API.values():
        try:
            assert framing.decode_response_header(api, api.highest, raw)[1] <= len(raw)
        except InvalidRequest:
            continue


@settings(max_examples=500)
@given(st.binary(max_size=60), st.integers(0, 40))
def test_random_records(raw: bytes, kind: int) -> None:
    attempts = (
        lambda: record_framing.decode_metadata_record(bytes((1, kind, 0)) + raw),
        lambda: record_framing.decode_metadata_record(raw, "remote_log_records"),
        lambda: record_framing.decode_coordinator_key("group_records", bytes((0, kind)) + raw),
        lambda: record_framing.decode_coordinator_value("group_records", kind, b"\x00\x00" + raw),
        lambda: record_framing.decode_coordinator_value("share_records", kind, raw),
        lambda: record_framing.decode_coordinator_key("transaction_records", raw),
    )
    for attempt in attempts:
        try:
            attempt()
        except InvalidRequest:
            continue


@pytest.fixture(scope="module")
def measuring() -> Iterator[ProcessPoolExecutor]:
    with measuring_process() as pool:
        yield pool


def assert_small(pool: ProcessPoolExecutor, cls: type[Message], version: int, raws: list[bytes]) -> None:
    """Each decodes or is refused with a small multiple of its size in memory."""
    for raw, peak in zip(raws, pool.submit(peak_bytes, cls, version, raws).result(), strict=True):
        assert peak <= LARGEST_MULTIPLE * len(raw) + FIXED_BYTES, (version, raw)


@pytest.mark.parametrize("name", sorted(message_classes()))
def test_memory_of_the_smallest_elements(name: str, measuring: ProcessPoolExecutor) -> None:
    """Arrays of the smallest elements take the most memory for their bytes: still a small multiple."""
    cls = message_classes()[name]
    versions = supported_versions(cls)
    for version in {versions[0], versions[-1]}:
        raws = [codec.encode(message, version) for message in smallest_messages(cls, version, 200)]
        assert_small(measuring, cls, version, raws)


@pytest.mark.parametrize("name", sorted(message_classes()))
def test_memory_of_announced_counts_and_lengths(name: str, measuring: ProcessPoolExecutor) -> None:
    """No memory is allocated for a size that exceeds the bytes: huge counts and lengths at many places of a message."""
    cls = message_classes()[name]
    version = supported_versions(cls)[-1]
    raw = codec.encode(random_message(Random(name), cls, version), version)
    pieces = (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\x0f")
    places = range(0, min(len(raw), 120), 3)
    assert_small(measuring, cls, version, [raw[:at] + piece + raw[at + 4 :] for piece in pieces for at in places])


def nested_quotas(outer: int, inner: int) -> bytes:
    """`outer` entries, each of `inner` operations with an empty key."""
    entry = b"\x01" + encode_unsigned(inner + 1) + (b"\x01" + bytes(8) + b"\x00" + b"\x00") * inner + b"\x00"
    return encode_unsigned(outer + 1) + entry * outer + b"\x00\x00"


def test_elements_are_bounded_over_the_whole_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each array is short enough here; all of them together have too many elements."""
    assert MAX_ELEMENTS == 1_000_000
    monkeypatch.setattr(decoder, "MAX_ELEMENTS", 1000)
    decode = decoder.compile_decoder(AlterClientQuotasRequest, 1)
    assert len(decode(nested_quotas(9, 110), 0)[0].entries) == 9
    with pytest.raises(InvalidRequest, match="ops has too many elements: 110"):
        decode(nested_quotas(10, 110), 0)


def test_numbers_are_bounded_too() -> None:
    """Ten batches of a million one-byte numbers each: ten megabytes that would take four hundred in memory."""
    numbers = encode_unsigned(1_000_001) + b"\x80" * 1_000_000
    batch = bytes(16) + numbers + b"\x00"
    partition = bytes(4) + encode_unsigned(11) + batch * 10 + b"\x00"
    topic = bytes(16) + b"\x02" + partition + b"\x00"
    raw = b"\x02g\x02m" + bytes(4 * 6) + b"\x02" + topic + b"\x01\x00"
    with pytest.raises(InvalidRequest, match="acknowledge_types"):
        codec.decode(ShareFetchRequest, raw, 1)


def test_tagged_fields_are_bounded() -> None:
    def tags(count: int) -> bytes:
        return encode_unsigned(count) + b"".join(encode_unsigned(tag) + b"\x00" for tag in range(count))

    head = b"\x05rust\x021"  # software name and version
    codec.decode(ApiVersionsRequest, b"\x05rust\x021" + tags(MAX_TAGGED_FIELDS), 3)
    for bad in (tags(MAX_TAGGED_FIELDS + 1), b"\x02\x05\x00\x05\x00", b"\x02\x05\x00\x04\x00", b"\x01\x00\x7f"):
        with pytest.raises(InvalidRequest):
            codec.decode(ApiVersionsRequest, head + bad, 3)


def test_short_frames_with_huge_counts(measuring: ProcessPoolExecutor) -> None:
    """Seventy bytes in which every count and length is about two billion. Such a frame crashed a published parser."""
    raws = [b"\xff\xff\xff\xff\x07" * 14, b"\x7f\xff\xff\xff" * 18, b"\x00\x01" * 35]
    for cls in (ProduceRequest, FetchRequest, MetadataRequest):
        for version in supported_versions(cls):
            assert max(measuring.submit(peak_bytes, cls, version, raws).result()) < FIXED_BYTES
