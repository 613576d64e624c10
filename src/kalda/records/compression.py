"""The four codecs of record batches, with bounded output.

Kafka writes gzip and zstd as plain streams, lz4 in the frame format (64 KiB independent blocks) and snappy in the
xerial framing: a 16-byte header, then blocks that each start with their compressed length. A snappy section without
that header is one raw block; `decompress` accepts both, as Kafka's reader does.

Compressed bytes may be hostile. A declared size is compared with the bound before a buffer of that size is allocated.
Output without a declared size is produced in growing chunks, up to one byte past the bound.
"""

from __future__ import annotations

import zlib
from enum import IntEnum
from struct import Struct
from typing import Final

from kalda.base.errors import CorruptRecord

Buffer = bytes | bytearray | memoryview

MAX_DECOMPRESSED_BYTES: Final = 256 * 1024 * 1024
"""The most that one batch may decompress to. Producers stay far below: they bound batches before compression."""


class Compression(IntEnum):
    """Codec ids, as in the low three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @property
    def config_name(self) -> str:
        """The codec's name in a topic's `compression.type`. (A producer's has `none` for `uncompressed`.)"""
        return "uncompressed" if self is Compression.NONE else self.name.lower()


DEFAULT_LEVELS: Final = {Compression.GZIP: -1, Compression.LZ4: 9, Compression.ZSTD: 3}
"""`compression.<codec>.level` when it is not set (KIP-390). Snappy has no levels."""

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_VERSIONS = Struct(">ii")
_XERIAL_BLOCK: Final = 32 * 1024
_INT32 = Struct(">i")
_SNAPPY_MAX_RATIO: Final = 22
"""The densest snappy element is three bytes that decompress to 64."""

_CHUNK: Final = 64 * 1024
_MAX_CHUNK: Final = 8 * 1024 * 1024
_ZSTD_MAX_WINDOW: Final = 1 << 27


def compress(codec: Compression, data: Buffer, level: int | None = None) -> Buffer:
    """`data` compressed by `codec`; `level` as in `compression.<codec>.level`, None for the codec's default."""
    match codec:
        case Compression.NONE:
            return data
        case Compression.GZIP:
            return _compress_gzip(data, level)
        case Compression.SNAPPY:
            return _compress_xerial(data)
        case Compression.LZ4:
            return _compress_lz4(data, level)
        case Compression.ZSTD:
            return _compress_zstd(data, level)


def decompress(codec: Compression, data: Buffer, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> Buffer:
    """`data` decompressed. Raises `CorruptRecord` for malformed bytes, and for more than `max_bytes` of output."""
    match codec:
        case Compression.NONE:
            return data
        case Compression.GZIP:
            return _decompress_gzip(data, max_bytes)
        case Compression.SNAPPY:
            return _decompress_snappy(data, max_bytes)
        case Compression.LZ4:
            return _decompress_lz4(data, max_bytes)
        case Compression.ZSTD:
            return _decompress_zstd(data, max_bytes)


def _undecodable(codec: Compression, error: Exception) -> CorruptRecord:
    return CorruptRecord(f"{codec.name.lower()} data cannot be decompressed: {error}")


def _too_large(codec: Compression, max_bytes: int) -> CorruptRecord:
    return CorruptRecord(f"{codec.name.lower()} data decompresses to more than the {max_bytes} bytes allowed")


def _join(codec: Compression, chunks: list[bytes], max_bytes: int) -> bytes:
    if sum(map(len, chunks)) > max_bytes:
        raise _too_large(codec, max_bytes)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _first_chunk(data: Buffer) -> int:
    return min(max(_CHUNK, 8 * len(data)), _MAX_CHUNK)


def _compress_gzip(data: Buffer, level: int | None) -> bytes:
    deflate = zlib.compressobj(DEFAULT_LEVELS[Compression.GZIP] if level is None else level, zlib.DEFLATED, 31)
    return deflate.compress(data) + deflate.flush()


def _decompress_gzip(data: Buffer, max_bytes: int) -> bytes:
    """One member or several in a row, as Java's GZIPInputStream reads them."""
    chunks: list[bytes] = []
    room = max_bytes + 1
    rest: Buffer = data
    while rest and room > 0:
        inflate = zlib.decompressobj(31)
        try:
            chunk = inflate.decompress(rest, room)
        except zlib.error as e:
            raise _undecodable(Compression.GZIP, e) from e
        room -= len(chunk)
        chunks.append(chunk)
        if not inflate.eof and room > 0:
            raise CorruptRecord("gzip data ends early")
        rest = inflate.unused_data
    return _join(Compression.GZIP, chunks, max_bytes)


def _compress_xerial(data: Buffer) -> bytes:
    from cramjam import snappy

    view = memoryview(data)
    out = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        out.append(_INT32.pack(len(block)))
        out.append(block)
    return b"".join(out)


def _decompress_snappy(data: Buffer, max_bytes: int) -> bytearray:
    from cramjam import DecompressionError, snappy

    view = memoryview(data)
    blocks = _xerial_blocks(view) if bytes(view[:8]) == _XERIAL_MAGIC else [view]
    try:
        sizes = [int(snappy.decompress_raw_len(block)) for block in blocks]
        for block, size in zip(blocks, sizes, strict=True):
            if size > _SNAPPY_MAX_RATIO * len(block):
                raise CorruptRecord(f"snappy block of {len(block)} bytes declares a decompressed size of {size}")
        total = sum(sizes)
        if total > max_bytes:
            raise _too_large(Compression.SNAPPY, max_bytes)
        out = bytearray(total)
        with memoryview(out) as target:
            pos = 0
            for block, size in zip(blocks, sizes, strict=True):
                if size and snappy.decompress_raw_into(block, target[pos : pos + size]) != size:
                    raise CorruptRecord("snappy block is shorter than its declared size")
                pos += size
    except DecompressionError as e:
        raise _undecodable(Compression.SNAPPY, e) from e
    return out


def _xerial_blocks(view: memoryview) -> list[memoryview]:
    """The compressed blocks. Further headers are skipped: several streams may follow one another."""
    blocks = []
    pos = 0
    while pos < len(view):
        left = len(view) - pos
        if bytes(view[pos : pos + 8]) == _XERIAL_MAGIC:
            if left < len(_XERIAL_HEADER):
                raise CorruptRecord("snappy framing header is cut off")
            if _XERIAL_VERSIONS.unpack_from(view, pos + 8)[1] < 1:
                raise CorruptRecord("snappy framing is older than version 1")
            pos += len(_XERIAL_HEADER)
            continue
        if left < 4:
            raise CorruptRecord("snappy block length is cut off")
        (size,) = _INT32.unpack_from(view, pos)
        pos += 4
        if size <= 0 or size > left - 4:
            raise CorruptRecord(f"snappy block of {size} bytes where {left - 4} are left")
        blocks.append(view[pos : pos + size])
        pos += size
    return blocks


def _compress_lz4(data: Buffer, level: int | None) -> bytes:
    """Kafka's default level, 9, selects its fast compressor; any other level selects the slow one."""
    import lz4.frame

    own_level = 0 if level is None or level == DEFAULT_LEVELS[Compression.LZ4] else min(max(level, 3), 12)
    framed: bytes = lz4.frame.compress(
        data,
        compression_level=own_level,
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        store_size=False,
    )
    return framed


def _decompress_lz4(data: Buffer, max_bytes: int) -> bytes:
    import lz4.frame

    frame = lz4.frame.LZ4FrameDecompressor()
    chunks: list[bytes] = []
    room = max_bytes + 1
    size = _first_chunk(data)
    fed: Buffer = data
    while room > 0 and not frame.eof:
        try:
            chunk = frame.decompress(fed, max_length=min(room, size))
        except RuntimeError as e:
            raise _undecodable(Compression.LZ4, e) from e
        if not chunk and not frame.eof:
            raise CorruptRecord("lz4 frame ends early")
        fed = b""
        chunks.append(chunk)
        room -= len(chunk)
        size = min(2 * size, _MAX_CHUNK)
    return _join(Compression.LZ4, chunks, max_bytes)


def _compress_zstd(data: Buffer, level: int | None) -> bytes:
    import zstandard

    compressor = zstandard.ZstdCompressor(level=DEFAULT_LEVELS[Compression.ZSTD] if level is None else level)
    packed: bytes = compressor.compress(data)
    return packed


def _decompress_zstd(data: Buffer, max_bytes: int) -> bytes:
    import zstandard

    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_MAX_WINDOW)
    chunks: list[bytes] = []
    room = max_bytes + 1
    size = _first_chunk(data)
    with decompressor.stream_reader(data, read_across_frames=True) as reader:
        while room > 0:
            try:
                chunk = reader.read(min(room, size))
            except zstandard.ZstdError as e:
                raise _undecodable(Compression.ZSTD, e) from e
            if not chunk:
                break
            chunks.append(chunk)
            room -= len(chunk)
            size = min(2 * size, _MAX_CHUNK)
    return _join(Compression.ZSTD, chunks, max_bytes)
