"""The four codecs of record batches, with bounded output.

Kafka writes gzip and zstd as plain streams, lz4 in the frame format (64 KiB independent blocks) and snappy in the
xerial framing: a 16-byte header, then blocks that each start with their compressed length. A snappy section without
that header is one raw block; `decompress` accepts both, as Kafka's reader does.

Compressed bytes may be hostile. A declared size is compared with the bound before a buffer of that size is allocated.
Output without a declared size is produced in growing chunks, up to one byte past the bound.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
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
_PIECE: Final = 256 * 1024
_MAX_CHUNK: Final = 8 * 1024 * 1024
_GZIP_SLICE: Final = 16 * 1024
_GZIP_MAX_MEMBERS: Final = 1_000
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


def decompress_small(codec: Compression, data: Buffer, max_bytes: int) -> Buffer | None:
    """`data` decompressed, where that is one piece of at most `max_bytes`; None where it is more, or empty. Raises
    `CorruptRecord`."""
    pieces = _STREAMS[codec](data, max_bytes, max_bytes)
    whole = next(pieces, None)
    return None if next(pieces, None) is not None else whole


class Packer:
    """Compresses what comes in pieces, and keeps only what has been compressed. Raises `PackedTooLarge` as soon as that
    is more than `max_bytes`."""

    __slots__ = ("_feed", "_finish", "_left", "_packed")

    def __init__(self, codec: Compression, level: int | None, max_bytes: int) -> None:
        self._left = max_bytes
        self._packed: list[Buffer] = []
        first, self._feed, self._finish = _PACKERS[codec](level)
        self._keep(first)

    def feed(self, piece: Buffer) -> None:
        """Compress the next bytes. `piece` is not kept."""
        self._keep(self._feed(piece))

    def finish(self) -> list[Buffer]:
        """The compressed bytes, in order."""
        self._keep(self._finish())
        return self._packed

    def _keep(self, packed: Buffer) -> None:
        self._left -= len(packed)
        if self._left < 0:
            raise PackedTooLarge
        if len(packed):
            self._packed.append(packed)


class PackedTooLarge(Exception):
    """The compressed bytes are more than the packer's bound."""


def decompress(codec: Compression, data: Buffer, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> Buffer:
    """`data` decompressed. Raises `CorruptRecord` for malformed bytes, and for more than `max_bytes` of output."""
    if codec is Compression.NONE:
        return data
    if codec is Compression.SNAPPY:
        return _decompress_snappy(data, max_bytes)
    pieces = list(decompress_pieces(codec, data, max_bytes, _first_chunk(data), _MAX_CHUNK))
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def decompress_pieces(
    codec: Compression,
    data: Buffer,
    max_bytes: int = MAX_DECOMPRESSED_BYTES,
    first_bytes: int = _PIECE,
    largest_bytes: int = _PIECE,
) -> Iterator[Buffer]:
    """`data` decompressed, in pieces: the first of at most `first_bytes`, each twice the one before, none above
    `largest_bytes` (of snappy, a block at a time, as it was compressed). Only one piece is in memory at a time.

    Raises `CorruptRecord` as `decompress` does, after the pieces before the fault.
    """
    left = max_bytes
    for piece in _STREAMS[codec](data, min(first_bytes, left + 1), min(largest_bytes, left + 1)):
        left -= len(piece)
        if left < 0:
            raise _too_large(codec, max_bytes)
        yield piece


def _undecodable(codec: Compression, error: Exception) -> CorruptRecord:
    return CorruptRecord(f"{codec.name.lower()} data cannot be decompressed: {error}")


def _too_large(codec: Compression, max_bytes: int) -> CorruptRecord:
    return CorruptRecord(f"{codec.name.lower()} data decompresses to more than the {max_bytes} bytes allowed")


def _first_chunk(data: Buffer) -> int:
    return min(max(_CHUNK, 8 * len(data)), _MAX_CHUNK)


def _compress_gzip(data: Buffer, level: int | None) -> bytes:
    deflate = zlib.compressobj(DEFAULT_LEVELS[Compression.GZIP] if level is None else level, zlib.DEFLATED, 31)
    return deflate.compress(data) + deflate.flush()


def _slices(data: Buffer, _size: int, largest: int) -> Iterator[Buffer]:
    view = memoryview(data)
    for start in range(0, len(view), largest):
        yield view[start : start + largest]


def _stream_gzip(data: Buffer, size: int, largest: int) -> Iterator[Buffer]:
    """One member, or several in a row, as Java's GZIPInputStream reads them. The input goes in by slices, because zlib
    copies what it has not consumed at each call."""
    view = memoryview(data)
    pos = 0
    for _ in range(_GZIP_MAX_MEMBERS):
        inflate = zlib.decompressobj(31)
        fed: Buffer = b""
        while not inflate.eof:
            if not fed:
                fed = view[pos : pos + _GZIP_SLICE]
                pos += len(fed)
            try:
                piece = inflate.decompress(fed, size)
            except zlib.error as e:
                raise _undecodable(Compression.GZIP, e) from e
            if piece:
                yield piece
            elif not fed:
                raise CorruptRecord("gzip data ends early")
            fed = inflate.unconsumed_tail
            size = min(2 * size, largest)
        pos -= len(inflate.unused_data)
        if pos >= len(view):
            return
    raise CorruptRecord(f"gzip data has more than {_GZIP_MAX_MEMBERS} members")


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
    blocks = list(_xerial_blocks(view)) if bytes(view[:8]) == _XERIAL_MAGIC else [view]
    try:
        sizes = [int(snappy.decompress_raw_len(block)) for block in blocks]
        for block, size in zip(blocks, sizes, strict=True):
            _check_block(block, size)
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


def _xerial_blocks(view: memoryview) -> Iterator[memoryview]:
    """The compressed blocks. A second header inside is skipped: streams may have been put one after the other."""
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
        yield view[pos : pos + size]
        pos += size


def _compress_lz4(data: Buffer, level: int | None) -> bytes:
    import lz4.frame

    framed: bytes = lz4.frame.compress(
        data,
        compression_level=_lz4_level(level),
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        store_size=False,
    )
    return framed


def _lz4_level(level: int | None) -> int:
    """Kafka's default level, 9, is its fast compressor; any other selects the slow one."""
    return 0 if level is None or level == DEFAULT_LEVELS[Compression.LZ4] else min(max(level, 3), 12)


def _stream_lz4(data: Buffer, size: int, largest: int) -> Iterator[Buffer]:
    import lz4.frame

    frame = lz4.frame.LZ4FrameDecompressor()
    fed: Buffer = data
    while not frame.eof:
        try:
            piece = frame.decompress(fed, max_length=size)
        except RuntimeError as e:
            raise _undecodable(Compression.LZ4, e) from e
        fed = b""
        if piece:
            yield piece
        elif not frame.eof:
            raise CorruptRecord("lz4 frame ends early")
        size = min(2 * size, largest)


def _compress_zstd(data: Buffer, level: int | None) -> bytes:
    import zstandard

    compressor = zstandard.ZstdCompressor(level=DEFAULT_LEVELS[Compression.ZSTD] if level is None else level)
    packed: bytes = compressor.compress(data)
    return packed


def _stream_zstd(data: Buffer, size: int, largest: int) -> Iterator[Buffer]:
    import zstandard

    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_MAX_WINDOW)
    with decompressor.stream_reader(data, read_across_frames=True) as reader:
        while True:
            try:
                piece = reader.read(size)
            except zstandard.ZstdError as e:
                raise _undecodable(Compression.ZSTD, e) from e
            if not piece:
                return
            yield piece
            size = min(2 * size, largest)


def _stream_snappy(data: Buffer, size: int, largest: int) -> Iterator[Buffer]:
    from cramjam import DecompressionError, snappy

    view = memoryview(data)
    for block in _xerial_blocks(view) if bytes(view[:8]) == _XERIAL_MAGIC else (view,):
        try:
            length = int(snappy.decompress_raw_len(block))
            _check_block(block, length)
            out = bytearray(length)
            if length and snappy.decompress_raw_into(block, out) != length:
                raise CorruptRecord("snappy block is shorter than its declared size")
        except DecompressionError as e:
            raise _undecodable(Compression.SNAPPY, e) from e
        yield out


def _check_block(block: memoryview, length: int) -> None:
    if length > _SNAPPY_MAX_RATIO * len(block):
        raise CorruptRecord(
            f"snappy block of {len(block)} bytes has a declared size of {length}, more than any block can have"
        )


_Packing = tuple[Buffer, Callable[[Buffer], Buffer], Callable[[], Buffer]]
"""What comes first, what a piece adds, and what comes last."""


def _pack_plain(_level: int | None) -> _Packing:
    return b"", bytes, bytes


def _pack_gzip(level: int | None) -> _Packing:
    deflate = zlib.compressobj(DEFAULT_LEVELS[Compression.GZIP] if level is None else level, zlib.DEFLATED, 31)
    return b"", deflate.compress, deflate.flush


def _pack_snappy(_level: int | None) -> _Packing:
    from cramjam import snappy

    waiting = bytearray()

    def blocks(whole: int) -> bytes:
        out: list[bytes] = []
        for start in range(0, whole, _XERIAL_BLOCK):
            block = bytes(snappy.compress_raw(bytes(waiting[start : min(start + _XERIAL_BLOCK, whole)])))
            out += (_INT32.pack(len(block)), block)
        del waiting[:whole]
        return b"".join(out)

    def feed(piece: Buffer) -> bytes:
        waiting.extend(piece)
        return blocks(len(waiting) - len(waiting) % _XERIAL_BLOCK)

    return _XERIAL_HEADER, feed, lambda: blocks(len(waiting))


def _pack_lz4(level: int | None) -> _Packing:
    import lz4.frame

    frame = lz4.frame.LZ4FrameCompressor(
        compression_level=_lz4_level(level), block_size=lz4.frame.BLOCKSIZE_MAX64KB, block_linked=False
    )
    return frame.begin(), frame.compress, frame.flush


def _pack_zstd(level: int | None) -> _Packing:
    import zstandard

    stream = zstandard.ZstdCompressor(level=DEFAULT_LEVELS[Compression.ZSTD] if level is None else level).compressobj()
    return b"", stream.compress, stream.flush


_PACKERS: Final[dict[Compression, Callable[[int | None], _Packing]]] = {
    Compression.NONE: _pack_plain,
    Compression.GZIP: _pack_gzip,
    Compression.SNAPPY: _pack_snappy,
    Compression.LZ4: _pack_lz4,
    Compression.ZSTD: _pack_zstd,
}
_STREAMS: Final[dict[Compression, Callable[[Buffer, int, int], Iterator[Buffer]]]] = {
    Compression.NONE: _slices,
    Compression.GZIP: _stream_gzip,
    Compression.SNAPPY: _stream_snappy,
    Compression.LZ4: _stream_lz4,
    Compression.ZSTD: _stream_zstd,
}
