"""The four codecs of record batches, bounded.

Kafka writes gzip and zstd as plain streams, lz4 in the frame format (64 KiB independent blocks) and snappy in the
xerial framing: a 16-byte header, then blocks that each start with their compressed length. A snappy section without
that header is one raw block; Kafka's reader takes both, and so does `decompress`.

Compressed bytes are hostile. A claimed size is compared with the bound before a buffer of that size is made, and
output whose size nobody claims is taken in growing chunks that stop one byte past the bound.
"""

from __future__ import annotations

import zlib
from enum import IntEnum
from struct import Struct
from typing import Final

import cramjam
import lz4.frame
import zstandard

from kalda.base.errors import CorruptRecord

Buffer = bytes | bytearray | memoryview

MAX_DECOMPRESSED_BYTES: Final = 256 * 1024 * 1024
"""What one batch may unfold to. Producers stay far below: their batches are bounded before compression."""


class Compression(IntEnum):
    """Codec ids, as in the low three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @property
    def config_name(self) -> str:
        """The word in `compression.type`; no codec is `uncompressed` for a topic and `none` for a producer."""
        return "uncompressed" if self is Compression.NONE else self.name.lower()


DEFAULT_LEVELS: Final = {Compression.GZIP: -1, Compression.LZ4: 9, Compression.ZSTD: 3}
"""`compression.<codec>.level` when it is not set (KIP-390). Snappy has no levels."""

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_VERSIONS = Struct(">ii")
_XERIAL_BLOCK: Final = 32 * 1024
_INT32 = Struct(">i")
_SNAPPY_MAX_RATIO: Final = 22
"""The densest snappy element is three bytes that stand for 64."""

_CHUNK: Final = 64 * 1024
_MAX_CHUNK: Final = 8 * 1024 * 1024
_ZSTD_MAX_WINDOW: Final = 1 << 27


def compress(codec: Compression, data: Buffer, level: int | None = None) -> bytes | Buffer:
    """`data` by `codec`; `level` as in `compression.<codec>.level`, None for the codec's default."""
    match codec:
        case Compression.NONE:
            return data
        case Compression.GZIP:
            deflate = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, 31)
            return deflate.compress(data) + deflate.flush()
        case Compression.SNAPPY:
            return _compress_xerial(data)
        case Compression.LZ4:
            return _compress_lz4(data, level)
        case Compression.ZSTD:
            compressor = zstandard.ZstdCompressor(level=3 if level is None else level, write_content_size=True)
            return bytes(compressor.compress(data))


def decompress(codec: Compression, data: Buffer, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> Buffer:
    """What `data` unfolds to. Raises `CorruptRecord` for bytes that are not the codec's, or unfold beyond the bound."""
    try:
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
    except CorruptRecord:
        raise
    except (zlib.error, cramjam.DecompressionError, zstandard.ZstdError, RuntimeError, EOFError, ValueError) as e:
        raise CorruptRecord(f"{codec.name.lower()} data cannot be decompressed: {e}") from e


def _too_large(codec: Compression, max_bytes: int) -> CorruptRecord:
    return CorruptRecord(f"{codec.name.lower()} data unfolds to more than the {max_bytes} bytes allowed")


def _join(codec: Compression, chunks: list[bytes], max_bytes: int) -> bytes:
    joined = chunks[0] if len(chunks) == 1 else b"".join(chunks)
    if len(joined) > max_bytes:
        raise _too_large(codec, max_bytes)
    return joined


def _first_chunk(data: Buffer) -> int:
    return min(max(_CHUNK, 8 * len(data)), _MAX_CHUNK)


def _decompress_gzip(data: Buffer, max_bytes: int) -> bytes:
    """One member, or several in a row, as Java's GZIPInputStream reads them."""
    chunks: list[bytes] = []
    room = max_bytes + 1
    rest: Buffer = data
    while rest and room > 0:
        inflate = zlib.decompressobj(31)
        chunk = inflate.decompress(rest, room)
        room -= len(chunk)
        chunks.append(chunk)
        if not inflate.eof and room > 0:
            raise CorruptRecord("gzip data ends early")
        rest = inflate.unused_data
    return _join(Compression.GZIP, chunks or [b""], max_bytes)


def _compress_xerial(data: Buffer) -> bytes:
    view = memoryview(data)
    out = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        out.append(_INT32.pack(len(block)))
        out.append(block)
    return b"".join(out)


def _decompress_snappy(data: Buffer, max_bytes: int) -> Buffer:
    view = memoryview(data)
    if bytes(view[:8]) != _XERIAL_MAGIC:
        return _join_blocks([view], max_bytes)
    return _join_blocks(_xerial_blocks(view), max_bytes)


def _xerial_blocks(view: memoryview) -> list[memoryview]:
    """The compressed blocks. A second header inside is skipped: streams may have been put one after the other."""
    blocks = []
    pos = 0
    while pos < len(view):
        if bytes(view[pos : pos + 8]) == _XERIAL_MAGIC:
            if len(view) - pos < len(_XERIAL_HEADER):
                raise CorruptRecord("snappy framing header is cut off")
            if _XERIAL_VERSIONS.unpack_from(view, pos + 8)[1] < 1:
                raise CorruptRecord("snappy framing is older than version 1")
            pos += len(_XERIAL_HEADER)
            continue
        if len(view) - pos < 4:
            raise CorruptRecord("snappy block length is cut off")
        (size,) = _INT32.unpack_from(view, pos)
        pos += 4
        if size < 0 or size > len(view) - pos:
            raise CorruptRecord(f"snappy block of {size} bytes where {len(view) - pos} are left")
        blocks.append(view[pos : pos + size])
        pos += size
    return blocks


def _join_blocks(blocks: list[memoryview], max_bytes: int) -> Buffer:
    sizes = [_snappy_size(block) for block in blocks]
    total = sum(sizes)
    if total > max_bytes:
        raise _too_large(Compression.SNAPPY, max_bytes)
    out = bytearray(total)
    with memoryview(out) as target:
        pos = 0
        for block, size in zip(blocks, sizes, strict=True):
            if size and cramjam.snappy.decompress_raw_into(block, target[pos : pos + size]) != size:
                raise CorruptRecord("snappy block is shorter than it says")
            pos += size
    return out


def _snappy_size(block: memoryview) -> int:
    """The size that a raw block claims; one that its bytes cannot reach is a lie."""
    size = int(cramjam.snappy.decompress_raw_len(block))
    if size > _SNAPPY_MAX_RATIO * len(block):
        raise CorruptRecord(f"snappy block of {len(block)} bytes claims to unfold to {size}")
    return size


def _compress_lz4(data: Buffer, level: int | None) -> bytes:
    """Kafka's default level, 9, is its fast compressor; any other asks for the slow one."""
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
    frame = lz4.frame.LZ4FrameDecompressor()
    chunks: list[bytes] = []
    room = max_bytes + 1
    size = _first_chunk(data)
    fed: Buffer = data
    while room > 0 and not frame.eof:
        chunk = frame.decompress(fed, max_length=min(room, size))
        if not chunk and not frame.eof and frame.needs_input:
            raise CorruptRecord("lz4 frame ends early")
        fed = b""
        chunks.append(chunk)
        room -= len(chunk)
        size = min(2 * size, _MAX_CHUNK)
    return _join(Compression.LZ4, chunks or [b""], max_bytes)


def _decompress_zstd(data: Buffer, max_bytes: int) -> bytes:
    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_MAX_WINDOW)
    chunks: list[bytes] = []
    room = max_bytes + 1
    size = _first_chunk(data)
    with decompressor.stream_reader(data, read_across_frames=True) as reader:
        while room > 0:
            chunk = reader.read(min(room, size))
            if not chunk:
                break
            chunks.append(chunk)
            room -= len(chunk)
            size = min(2 * size, _MAX_CHUNK)
    return _join(Compression.ZSTD, chunks or [b""], max_bytes)
