"""Requests that only the active controller may decide, forwarded in an envelope (KIP-590).

The client's frame travels as it came, with who the client is beside it; the controller's answer comes back as a whole
response, header included, and goes to the client as it is.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Any

from kalda.base.errors import ApiError, ErrorCode, InvalidRequest
from kalda.base.pending import Pending
from kalda.broker.controller_channel import ControllerChannel
from kalda.broker.dispatch import Encoded, ForwardedContext, RequestContext
from kalda.network.connection import Answer
from kalda.protocol.codec import decode, encode
from kalda.protocol.messages.brokers import EnvelopeRequest, EnvelopeResponse
from kalda.protocol.messages.client_protocol import DefaultPrincipalData

_PRINCIPAL_VERSION = 0


def encode_principal(principal: str) -> bytes:
    """`User:alice` as Kafka's default principal builder writes it: version, then the data."""
    kind, _, name = principal.partition(":")
    data = DefaultPrincipalData(type=kind, name=name, token_authenticated=False)
    return _PRINCIPAL_VERSION.to_bytes(2, "big") + encode(data, _PRINCIPAL_VERSION)


def decode_principal(raw: bytes) -> str:
    """The inverse. Raises `InvalidRequest`."""
    if len(raw) < 2 or int.from_bytes(raw[:2], "big") != _PRINCIPAL_VERSION:
        raise InvalidRequest("a forwarded principal has an unknown version")
    data = decode(DefaultPrincipalData, raw, _PRINCIPAL_VERSION, 2)
    return f"{data.type}:{data.name}"


class Forwarding:
    """The broker's side: client requests into envelopes."""

    def __init__(self, channel: ControllerChannel) -> None:
        self._channel = channel

    def forward(self, context: RequestContext, request: Any) -> Pending[Encoded]:
        """Hand the request to the active controller; settles with the controller's own response."""
        envelope = EnvelopeRequest(
            request_data=context.frame,
            request_principal=encode_principal(context.principal),
            client_host_address=_packed_address(context.client_host),
        )
        pending: Pending[Encoded] = Pending()

        def settle(response: EnvelopeResponse | None, error: ApiError | None) -> None:
            if error is not None:
                pending.fail(error)
            elif response is not None and response.error_code:
                pending.fail(ApiError(ErrorCode(response.error_code), "the controller refused the forwarded request"))
            else:
                assert response is not None
                assert response.response_data is not None
                pending.complete(Encoded([response.response_data]))

        timeout_ms = getattr(request, "timeout_ms", 0)
        self._channel.send(envelope, timeout_ms if timeout_ms > 0 else None).then(settle)
        return pending


def _packed_address(host: str) -> bytes:
    try:
        return ipaddress.ip_address(host.split("%")[0]).packed
    except ValueError:
        return bytes(4)


class Unwrapping:
    """The controller's side: envelopes into requests, answered as if their client were here."""

    def __init__(self, answer: Callable[[RequestContext], Answer]) -> None:
        self._answer = answer

    def unwrap(
        self, context: RequestContext, envelope: EnvelopeRequest
    ) -> EnvelopeResponse | Pending[EnvelopeResponse]:
        """Answer the request inside, with the forwarded principal and client."""
        from kalda.protocol.apis import API
        from kalda.protocol.framing import decode_request_header

        frame = memoryview(bytearray(envelope.request_data))
        header = decode_request_header(frame)
        if not API[header.api_key].forwarded:
            return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
        inner = ForwardedContext(context.connection, header, frame)
        if envelope.request_principal is not None:
            inner.principal = decode_principal(bytes(envelope.request_principal))
        inner.client_host = str(ipaddress.ip_address(bytes(envelope.client_host_address)))
        answer = self._answer(inner)
        if not isinstance(answer, Pending):
            assert isinstance(answer, list), "only what the controller decides is forwarded"
            return EnvelopeResponse(response_data=b"".join(answer))
        pending: Pending[EnvelopeResponse] = Pending()

        def settle(buffers: Any, error: ApiError | None) -> None:
            if error is not None:
                pending.complete(EnvelopeResponse(error_code=error.code))
            else:
                pending.complete(EnvelopeResponse(response_data=b"".join(buffers)))

        answer.then(settle)
        return pending
