"""Random messages of every kind and version: encoding and decoding are inverse, here and in another implementation."""

from __future__ import annotations

import io
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka_golden import message_classes
from random_messages import random_message

from kalda.base.errors import InvalidRequest
from kalda.protocol import codec
from kalda.protocol.apis import API, request_class, response_class
from kalda.protocol.schema import supported_versions
from kalda.protocol.varint import decode_unsigned, encode_unsigned

SEEDS = range(5)


@pytest.mark.parametrize("name", sorted(message_classes()))
def test_decoding_inverts_encoding(name: str) -> None:
    cls = message_classes()[name]
    for version in supported_versions(cls):
        for seed in SEEDS:
            message = random_message(Random(f"{name} {version} {seed}"), cls, version)
            raw = codec.encode(message, version)
            where = f"version {version}, seed {seed}"
            assert codec.decode_at(cls, raw, version) == (message, len(raw)), where
            inside = memoryview(bytearray(b"before" + raw + b"after"))
            assert codec.decode_at(cls, inside, version, 6) == (message, 6 + len(raw)), where
            assert b"".join(codec.encode_buffers(message, version, b"head")) == b"head" + raw, where


@pytest.mark.parametrize("name", sorted(message_classes()))
def test_a_message_cut_short_is_refused(name: str) -> None:
    cls = message_classes()[name]
    for version in supported_versions(cls):
        raw = codec.encode(random_message(Random(f"{name} {version}"), cls, version), version)
        for size in {*range(min(len(raw), 40)), *range(0, len(raw), 17)}:
            with pytest.raises(InvalidRequest):
                codec.decode(cls, raw[:size], version)


@pytest.mark.parametrize("key", [int(key) for key in API])
def test_kio_reads_and_writes_the_same(key: int) -> None:
    index = pytest.importorskip("kio.index")
    serial = pytest.importorskip("kio.serial")
    pairs = ((request_class(key), index.load_request_schema), (response_class(key), index.load_response_schema))
    for cls, load_schema in pairs:
        for version in supported_versions(cls):
            try:
                schema = load_schema(key, version)
            except index.KioIndexError:
                continue
            for seed in SEEDS:
                raw = codec.encode(random_message(Random(f"{key} {version} {seed}"), cls, version), version)
                where = f"{cls.__name__} version {version}, seed {seed}"
                theirs, end = serial.entity_reader(schema)(raw, 0)
                assert end == len(raw), where
                out = io.BytesIO()
                serial.entity_writer(schema)(out, theirs)
                assert out.getvalue() == raw, where


@given(st.integers(0, 2**64 - 1))
def test_unsigned_varints(value: int) -> None:
    raw = encode_unsigned(value)
    assert decode_unsigned(b"x" + raw + b"y", 1, 10) == (value, 1 + len(raw))
    for size in range(len(raw)):
        with pytest.raises(InvalidRequest):
            decode_unsigned(raw[:size], 0, 10)
