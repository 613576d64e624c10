"""Messages to bytes and back, by functions compiled on first use.

`decode` raises `InvalidRequest` and nothing else, whatever the bytes; `encode` raises `ValueError` where a message
cannot be said in that version, which is a fault of this program and not of a peer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from kalda.protocol.decoder import Decoder, compile_decoder
from kalda.protocol.encoder import Encoder, compile_encoder
from kalda.protocol.notation import Buffer, Message

M = TypeVar("M", bound=Message)

_decoders: dict[tuple[type[Message], int], Decoder] = {}
_encoders: dict[tuple[type[Message], int], Encoder] = {}


def decode(cls: type[M], buffer: Buffer, version: int, pos: int = 0) -> M:
    """The message that starts at `pos`. Bytes after it are ignored, as Kafka ignores them."""
    return decode_at(cls, buffer, version, pos)[0]


def decode_at(cls: type[M], buffer: Buffer, version: int, pos: int = 0) -> tuple[M, int]:
    """The message that starts at `pos`, and the position after it. `Records` fields are views of `buffer`."""
    return decoder(cls, version)(buffer, pos)


def decoder(cls: type[M], version: int) -> Callable[[Buffer, int], tuple[M, int]]:
    """What `decode_at` does, for one version: to be kept where requests pass by the thousand."""
    known = _decoders.get((cls, version))
    if known is None:
        known = _decoders[cls, version] = compile_decoder(cls, version)
    return known


def encode_buffers(message: Message, version: int, head: bytes = b"") -> list[Buffer]:
    """The message as a list of buffers; the bytes of `Records` fields are among them as they are, not copied.

    `head` is what stands before the message in the first buffer: its header, where it has one.
    """
    return encoder(type(message), version)(message, bytearray(head))


def encoder(cls: type[Message], version: int) -> Encoder:
    """What `encode_buffers` does, for one version; its second argument, the first buffer so far, is added to."""
    known = _encoders.get((cls, version))
    if known is None:
        known = _encoders[cls, version] = compile_encoder(cls, version)
    return known


def encode(message: Message, version: int) -> bytes:
    """The message as one `bytes`."""
    return b"".join(encode_buffers(message, version))
