"""What all clients share: frames of requests, decoding of answers, choice of versions.

The API versions that a peer supports are a `PeerVersions`. A request for an API that the peer does not support,
or supports in no common version, fails with `UNSUPPORTED_VERSION` before anything is sent.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kalda.base.errors import ApiError, ErrorCode, InvalidRequest
from kalda.protocol.apis import ApiKey, api_of, response_class
from kalda.protocol.codec import decode
from kalda.protocol.framing import decode_response_header, encode_request
from kalda.protocol.messages.metadata import ApiVersionsRequest, ApiVersionsResponse
from kalda.protocol.notation import Buffer, Request

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
