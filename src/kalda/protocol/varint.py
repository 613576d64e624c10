"""Kafka's variable-length integers: seven bits a byte, low bits first, the eighth bit set on all but the last.

These readable functions serve headers and framing. The generated codecs and the record codec have faster ones of their
own, the record codec also for signed integers.
"""

from __future__ import annotations

from kalda.base.errors import InvalidRequest
from kalda.protocol.notation import Buffer

_SMALL = tuple(bytes([value]) for value in range(128))


def encode_unsigned(value: int) -> bytes:
    """An unsigned varint; `value` is not negative."""
    if value < 128:
        return _SMALL[value]
    out = bytearray()
    while value >= 128:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_signed(value: int) -> bytes:
    """A zig-zag varint, as records have them."""
    return encode_unsigned(value << 1 if value >= 0 else (-value << 1) - 1)


def decode_unsigned(buffer: Buffer, pos: int, max_bytes: int = 5) -> tuple[int, int]:
    """The value and the position after it. Raises `InvalidRequest` for a varint that is cut short or longer than
    `max_bytes`."""
    value = shift = 0
    end = min(len(buffer), pos + max_bytes)
    while pos < end:
        byte = buffer[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 128:
            return value, pos
        shift += 7
    raise InvalidRequest(f"varint is cut short or longer than {max_bytes} bytes")
