"""Hostile and unusual compressed bytes: bombs are stopped at the bound, all forms that Kafka reads are read."""

from __future__ import annotations

import gzip
import tracemalloc

import pytest
from cramjam import snappy

from kalda.base.errors import CorruptRecord
from kalda.records.compression import Compression, compress, decompress

XERIAL = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
REAL = [codec for codec in Compression if codec is not Compression.NONE]
TEXT = b"all the world's a stage, " * 4000


def block(data: bytes) -> bytes:
    packed = bytes(snappy.compress_raw(data))
    return len(packed).to_bytes(4, "big") + packed


@pytest.mark.parametrize("codec", REAL, ids=lambda c: c.name)
def test_a_bomb_stops_at_the_bound(codec: Compression) -> None:
    bomb = compress(codec, bytes(64 * 1024 * 1024))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptRecord, match="more than the 100000 bytes"):
            decompress(codec, bomb, 100_000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000


@pytest.mark.parametrize("codec", REAL, ids=lambda c: c.name)
@pytest.mark.parametrize("level", [None, 1, 9])
def test_levels_change_the_size_not_the_content(codec: Compression, level: int | None) -> None:
    assert bytes(decompress(codec, compress(codec, TEXT, level))) == TEXT


@pytest.mark.parametrize("codec", REAL, ids=lambda c: c.name)
def test_empty_data_is_compressed_and_decompressed(codec: Compression) -> None:
    assert bytes(decompress(codec, compress(codec, b""))) == b""


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.SNAPPY, Compression.LZ4], ids=lambda c: c.name)
def test_a_cut_stream_is_corrupt(codec: Compression) -> None:
    packed = compress(codec, TEXT)
    with pytest.raises(CorruptRecord):
        decompress(codec, packed[: len(packed) - 3])


def test_snappy_without_framing_is_one_block() -> None:
    assert bytes(decompress(Compression.SNAPPY, bytes(snappy.compress_raw(TEXT)))) == TEXT


def test_snappy_frames_may_follow_one_another() -> None:
    framed = XERIAL + block(b"one ") + block(b"two ") + XERIAL + block(b"three")
    assert bytes(decompress(Compression.SNAPPY, framed)) == b"one two three"


@pytest.mark.parametrize(
    "framed",
    [
        XERIAL + b"\x00\x00",
        XERIAL + b"\x00\x00\x00\x09abc",
        XERIAL + b"\xff\xff\xff\xffabc",
        XERIAL + (5).to_bytes(4, "big") + b"\xff\xff\xff\xff\x0f",
        XERIAL[:15],
        XERIAL[:8] + b"\x00\x00\x00\x01\x00\x00\x00\x00" + block(b"x"),
        b"\xff\xff\xff\xff\x0f",
    ],
    ids=[
        "cut length",
        "cut block",
        "negative length",
        "declares 4 GiB",
        "cut header",
        "version 0",
        "raw, declares 4 GiB",
    ],
)
def test_broken_snappy_is_corrupt(framed: bytes) -> None:
    """CVE-2023-34455: the length of a block is not believed before its bytes are there."""
    with pytest.raises(CorruptRecord):
        decompress(Compression.SNAPPY, framed)


def test_gzip_members_may_follow_one_another() -> None:
    assert bytes(decompress(Compression.GZIP, gzip.compress(b"one ") + gzip.compress(b"two"))) == b"one two"


def test_kafka_writes_snappy_in_blocks_of_32_kib() -> None:
    packed = bytes(compress(Compression.SNAPPY, bytes(100_000)))
    assert packed.startswith(XERIAL)
    sizes, pos = [], len(XERIAL)
    while pos < len(packed):
        length = int.from_bytes(packed[pos : pos + 4], "big")
        sizes.append(snappy.decompress_raw_len(packed[pos + 4 : pos + 4 + length]))
        pos += 4 + length
    assert sizes == [32768, 32768, 32768, 1696]
