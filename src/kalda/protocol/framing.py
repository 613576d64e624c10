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
from typing import Any, NamedTuple

from kalda.base.allocation import new_tuple
from kalda.base.errors import ApiError, ErrorCode, InvalidRequest
from kalda.protocol.apis import API, Api, ApiKey, api_of, response_class
from kalda.protocol.codec import counting_encoder, decode, encode_buffers, encoder, step_encoder
from kalda.protocol.decoder import MAX_TAGGED_FIELDS
from kalda.protocol.encoder import ErrorCounts
from kalda.protocol.messages.metadata import ApiVersionsRequest, ApiVersionsResponse
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


# What all clients share: frames of requests, decoding of answers, choice of versions.
#
# The API versions that a peer supports are a `PeerVersions`. A request for an API that the peer does not support, or
# supports in no common version, fails with `UNSUPPORTED_VERSION` before anything is sent.

MAX_RESPONSE_BYTES = 100 * 1024 * 1024
MIN_RESPONSE_BYTES = 4
RENEWAL_SHARE = 0.85
"""After this share of its life a session is renewed (KIP-368)."""
PeerVersions = dict[int, tuple[int, int]]
"""Lowest and highest version by API key."""


class Call(NamedTuple):
    """A request that was sent and has no answer yet."""

    api_key: int
    version: int
    correlation_id: int

    def read_answer(self, frame: memoryview) -> Any:
        """The response in `frame`. Raises `InvalidRequest` where it is not this call's answer."""
        api = api_of(self.api_key)
        correlation_id, body_at = decode_response_header(api, self.version, frame)
        if correlation_id != self.correlation_id:
            raise InvalidRequest(f"correlation id {correlation_id} came where {self.correlation_id} is due")
        version = self.version
        if api.key is ApiKey.API_VERSIONS and bytes(frame[body_at : body_at + 2]) == b"\x00\x23":
            version = 0  # UNSUPPORTED_VERSION is answered in version 0 (KIP-511)
        return decode(response_class(self.api_key), frame, version, body_at)


def frame_request(call: Call, message: Request, client_id: str | None) -> list[Buffer]:
    """The request with its size and header, as buffers; large ones are not copied."""
    buffers = encode_request(message, call.version, call.correlation_id, client_id)
    size = sum(map(len, buffers))
    return [size.to_bytes(4, "big"), *buffers]


def choose_version(message: Request, version: int | None, peer: PeerVersions | None) -> int:
    """The version to send: `version`, else the highest in common.

    Raises `ApiError` with `UNSUPPORTED_VERSION` where the peer does not support it.
    """
    api = api_of(message.API_KEY)
    if peer is None:
        return api.highest_served(unstable=False) if version is None else version
    lowest, highest = peer.get(api.key, (0, -1))
    if version is None:
        version = min(highest, api.highest_served(unstable=False))
        fits = version >= max(lowest, api.lowest)
    else:
        fits = lowest <= version <= highest
    if not fits:
        served = f"{lowest} to {highest}" if highest >= 0 else "none"
        raise ApiError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"of {api.name}, this client supports versions {api.lowest} to {api.highest}, the peer {served}",
        )
    return version


def api_versions_request(software_version: str, cluster_id: str | None = None, node_id: int = -1) -> ApiVersionsRequest:
    """The first request on a connection. With a cluster id, another node than that one refuses it (KIP-1242)."""
    return ApiVersionsRequest(
        client_software_name="kalda",
        client_software_version=software_version,
        cluster_id=cluster_id,
        node_id=node_id,
    )


def peer_versions(answer: ApiVersionsResponse) -> PeerVersions:
    """The versions in a peer's answer."""
    return {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}


def retry_version(answer: ApiVersionsResponse) -> int:
    """The version in which to repeat ApiVersions, after `UNSUPPORTED_VERSION`."""
    return peer_versions(answer).get(ApiKey.API_VERSIONS, (0, 0))[1]


class ConnectionRefused(ApiError):
    """No process listens at the address of a node."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.NETWORK_EXCEPTION, message)


def disconnected(why: str) -> ApiError:
    """The error of a connection that broke or could not be made."""
    return ApiError(ErrorCode.NETWORK_EXCEPTION, why)


def timed_out(call: Call, timeout_ms: int) -> ApiError:
    """The error of a call without an answer in time."""
    name = api_of(call.api_key).name
    return ApiError(ErrorCode.REQUEST_TIMED_OUT, f"no answer to {name} v{call.version} within {timeout_ms} ms")
