"""Request and response headers: the bytes between a frame's size and a message's body.

A frame is four bytes of size, a header, a body. The `network` floor adds and removes the size. The request header has a
hand-written decoder, because every request needs it: one `struct` call, one slice for the client id, and a loop over
tagged fields only where there are any.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import cache
from struct import Struct as _Struct
from struct import error as _struct_error
from typing import NamedTuple

from kalda.base.allocation import new_tuple
from kalda.base.errors import InvalidRequest
from kalda.protocol.apis import API, Api, api_of
from kalda.protocol.codec import counting_encoder, encode_buffers, encoder, step_encoder
from kalda.protocol.decoder import MAX_TAGGED_FIELDS
from kalda.protocol.encoder import ErrorCounts
from kalda.protocol.notation import Buffer, Request, Response
from kalda.protocol.varint import decode_unsigned

_REQUEST = _Struct(">hhih")
_CORRELATION = _Struct(">i")
_TAGGED_CORRELATION = _Struct(">ix")
_CLIENT_ID_AT = _REQUEST.size
_NEVER = 2**15
"""Above every version: the API has no flexible one."""
_FLEXIBLE_FROM: dict[int, int] = {
    key: _NEVER if api.flexible_from is None else api.flexible_from for key, api in API.items()
}


class RequestHeader(NamedTuple):
    """The header of a request, and where its body starts in the frame."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_at: int


def decode_request_header(frame: Buffer) -> RequestHeader:
    """Decode a header of version 1, or of version 2 where the API version is flexible. Raises `InvalidRequest`.

    An unknown API version is not an error here: ApiVersions is answered whatever its version (KIP-511). Above the known
    versions the header is read as version 2, because every later API version is flexible.
    """
    try:
        api_key, api_version, correlation_id, size = _REQUEST.unpack_from(frame)
    except _struct_error:
        raise InvalidRequest(f"request header is cut short at {len(frame)} bytes") from None
    pos = _CLIENT_ID_AT
    client_id = None
    if size >= 0:
        pos += size
        if pos > len(frame):
            raise InvalidRequest(f"client id of {size} bytes in {len(frame) - _CLIENT_ID_AT}")
        try:
            client_id = str(frame[_CLIENT_ID_AT:pos], "utf-8")
        except UnicodeDecodeError:
            raise InvalidRequest("client id is not UTF-8") from None
    elif size < -1:
        raise InvalidRequest(f"client id of {size} bytes")
    flexible_from = _FLEXIBLE_FROM.get(api_key)
    if flexible_from is None:
        raise InvalidRequest(f"API key {api_key} is unknown")
    if api_version >= flexible_from:
        pos = pos + 1 if pos < len(frame) and frame[pos] == 0 else _skip_tagged(frame, pos)
    return new_tuple(RequestHeader, (api_key, api_version, correlation_id, client_id, pos))


def _skip_tagged(frame: Buffer, pos: int) -> int:
    count, pos = decode_unsigned(frame, pos)
    if count > MAX_TAGGED_FIELDS:
        raise InvalidRequest(f"request header has {count} tagged fields")
    for _ in range(count):
        _, pos = decode_unsigned(frame, pos)
        size, pos = decode_unsigned(frame, pos)
        pos += size
        if pos > len(frame):
            raise InvalidRequest(f"request header is cut short at {len(frame)} bytes")
    return pos


def encode_request(request: Request, version: int, correlation_id: int, client_id: str | None) -> list[Buffer]:
    """A request with its header, without the size."""
    is_flexible = api_of(request.API_KEY).is_flexible(version)
    header = encode_request_header(request.API_KEY, version, correlation_id, client_id, is_flexible)
    return encode_buffers(request, version, header)


def encode_request_header(
    api_key: int, version: int, correlation_id: int, client_id: str | None, is_flexible: bool
) -> bytes:
    """A header of version 2 where the API version is flexible, else of version 1."""
    client = b"" if client_id is None else client_id.encode()
    header = _REQUEST.pack(api_key, version, correlation_id, -1 if client_id is None else len(client)) + client
    return header + b"\x00" if is_flexible else header


def encode_response(correlation_id: int, response: Response, version: int) -> list[Buffer]:
    """A response with its header, without the size."""
    return response_encoder(type(response), version)(correlation_id, response)


def encode_response_in_steps(
    correlation_id: int, response: Response, version: int, counts: ErrorCounts | None = None
) -> Generator[None, None, list[Buffer]]:
    """As `encode_response`, in steps, for a response that takes long to encode. Its error codes are counted."""
    head = response_header(type(response), version)(correlation_id)
    return step_encoder(type(response), version)(
        response, bytearray(head), ErrorCounts(int) if counts is None else counts
    )


@cache
def response_encoder(cls: type[Response], version: int) -> Callable[[int, Response], list[Buffer]]:
    """The function behind `encode_response` for one version of one API. The data path keeps it, to save lookups."""
    encode, head = encoder(cls, version), response_header(cls, version)

    def encode_whole(correlation_id: int, response: Response) -> list[Buffer]:
        return encode(response, bytearray(head(correlation_id)))

    return encode_whole


def counting_response_encoder(
    cls: type[Response], version: int, counts: ErrorCounts
) -> Callable[[int, Response], list[Buffer]]:
    """As `response_encoder`; the function counts the error codes of each response."""
    encode, head = counting_encoder(cls, version), response_header(cls, version)

    def encode_and_count(correlation_id: int, response: Response) -> list[Buffer]:
        return encode(response, bytearray(head(correlation_id)), counts)

    return encode_and_count


def response_header(cls: type[Response], version: int) -> Callable[[int], bytes]:
    """A response's header, given its correlation id; in flexible versions an empty tagged section follows."""
    return (_TAGGED_CORRELATION if api_of(cls.API_KEY).response_header_version(version) else _CORRELATION).pack


def decode_response_header(api: Api, version: int, frame: Buffer) -> tuple[int, int]:
    """The correlation id of a response to `version` of `api`, and where the body starts. Raises `InvalidRequest`."""
    if len(frame) < 4:
        raise InvalidRequest(f"response header is cut short at {len(frame)} bytes")
    (correlation_id,) = _CORRELATION.unpack_from(frame)
    if not api.response_header_version(version):
        return correlation_id, 4
    return correlation_id, 5 if len(frame) > 4 and frame[4] == 0 else _skip_tagged(frame, 4)
