"""Messages to bytes and back, by functions compiled on first use.

`decode` raises `InvalidRequest` and nothing else, whatever the bytes. `encode` raises `ValueError` where the version
cannot express the message: an error of this program, never of a peer.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from functools import cache
from typing import TypeVar

from kalda.base.ids import Uuid, uuid_to_text
from kalda.protocol.decoder import Decoder, compile_decoder
from kalda.protocol.encoder import (
    CountingEncoder,
    Encoder,
    StepEncoder,
    compile_counting_encoder,
    compile_encoder,
    compile_step_encoder,
)
from kalda.protocol.notation import Buffer, Message, Struct

M = TypeVar("M", bound=Message)

_decoders: dict[tuple[type[Message], int], Decoder] = {}
_encoders: dict[tuple[type[Message], int], Encoder] = {}


def decode(cls: type[M], buffer: Buffer, version: int, pos: int = 0) -> M:
    """The message that starts at `pos`. Bytes after it are ignored, as Kafka ignores them."""
    return decode_at(cls, buffer, version, pos)[0]


def decode_at(cls: type[M], buffer: Buffer, version: int, pos: int = 0) -> tuple[M, int]:
    """The message that starts at `pos`, and the position after it. `Records` fields are views of `buffer`."""
    return decoder(cls, version)(buffer, pos)


def decoder(cls: type[M], version: int) -> Callable[..., tuple[M, int]]:
    """The function behind `decode_at` for one version; see `compile_decoder`. The data path keeps it, to save a lookup
    for each message."""
    compiled = _decoders.get((cls, version))
    if compiled is None:
        compiled = _decoders[cls, version] = compile_decoder(cls, version)
    return compiled


@cache
def counting_encoder(cls: type[Message], version: int) -> CountingEncoder:
    """As `encoder`, for messages whose error codes are counted."""
    return compile_counting_encoder(cls, version)


@cache
def step_encoder(cls: type[Message], version: int) -> StepEncoder:
    """As `counting_encoder`, in steps: a generator for a message that takes long to encode."""
    return compile_step_encoder(cls, version)


def encode_buffers(message: Message, version: int, head: bytes = b"") -> list[Buffer]:
    """The message as a list of buffers. The buffers of `Records` fields are in it themselves, not copies of them.

    The first buffer begins with `head`: the message's header, where it has one.
    """
    return encoder(type(message), version)(message, bytearray(head))


def encoder(cls: type[Message], version: int) -> Encoder:
    """The function behind `encode_buffers` for one version. It appends to its second argument, the first buffer."""
    compiled = _encoders.get((cls, version))
    if compiled is None:
        compiled = _encoders[cls, version] = compile_encoder(cls, version)
    return compiled


def encode(message: Message, version: int) -> bytes:
    """The message as one `bytes`."""
    return b"".join(encode_buffers(message, version))


# Messages as JSON types, for people and for tables.


def plain_fields(struct: Struct) -> dict[str, object]:
    """The fields of a message as JSON types: UUIDs in Kafka's base64 form, other bytes as text where
    they are UTF-8, else as an object with their base64."""
    return {name: _plain(struct, name, getattr(struct, name)) for name in type(struct).declared}


def _plain(struct: Struct, name: str, value: object) -> object:
    if isinstance(value, Struct):
        return plain_fields(value)
    if isinstance(value, list | tuple):
        return [_plain(struct, name, inner) for inner in value]
    if isinstance(value, bytes | bytearray | memoryview):
        if "Uuid" in type(struct).__annotations__[name]:
            return uuid_to_text(Uuid(bytes(value)))
        try:
            return bytes(value).decode("utf-8")
        except UnicodeDecodeError:
            return {"base64": b64encode(value).decode("ascii")}
    return value
