"""Requests that only the active controller may decide, forwarded in an envelope (KIP-590).

An envelope holds the client's frame unchanged, its principal and its address. The controller's answer to it holds a
whole response, header included, which the broker sends to the client unchanged.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable
from typing import Any

from kalda.base.errors import ApiError, ErrorCode, InvalidRequest
from kalda.base.scheduling import Pending
from kalda.base.sensors import Durations
from kalda.broker.channels.node_channels import ControllerChannel
from kalda.broker.requests.context import Encoded, RequestContext
from kalda.broker.requests.rows import Row
from kalda.network.server.connection import Answer, Buffer
from kalda.protocol.apis import API, ApiKey
from kalda.protocol.codec import decode, encode
from kalda.protocol.decoder import TooManyElements
from kalda.protocol.framing import Call, decode_request_header, encode_request
from kalda.protocol.messages.brokers import EnvelopeRequest, EnvelopeResponse
from kalda.protocol.messages.client_protocol import DefaultPrincipalData
from kalda.protocol.notation import Request

_PRINCIPAL_VERSION = 0
_CHANGES_OF_VOTERS = frozenset((ApiKey.ADD_RAFT_VOTER, ApiKey.REMOVE_RAFT_VOTER))


def encode_principal(principal: str, is_token_authenticated: bool = False) -> bytes:
    """`User:alice` as Kafka's default principal builder writes it: version, then the data."""
    kind, _, name = principal.partition(":")
    data = DefaultPrincipalData(type=kind, name=name, token_authenticated=is_token_authenticated)
    return _PRINCIPAL_VERSION.to_bytes(2, "big") + encode(data, _PRINCIPAL_VERSION)


def decode_principal(raw: bytes) -> tuple[str, bool]:
    """The inverse of `encode_principal`: the principal, and whether it has authenticated with a delegation token.
    Raises `InvalidRequest`."""
    if len(raw) < 2 or int.from_bytes(raw[:2], "big") != _PRINCIPAL_VERSION:
        raise InvalidRequest("a forwarded principal has an unknown version")
    data = decode(DefaultPrincipalData, raw, _PRINCIPAL_VERSION, 2)
    return f"{data.type}:{data.name}", data.token_authenticated


class Forwarding:
    """The broker's side: client requests into envelopes."""

    def __init__(
        self,
        channel: ControllerChannel,
        now_ms: Callable[[], int],
        changes_of_voters: ControllerChannel | None = None,
    ) -> None:
        """AddRaftVoter and RemoveRaftVoter go over `changes_of_voters`, where it is given: they are answered when the
        other node has caught up, or a timeout is over, and would delay what comes behind them."""
        self._channel = channel
        self._changes_of_voters = channel if changes_of_voters is None else changes_of_voters
        self._now_ms = now_ms
        self.times = Durations()
        """From when a request was forwarded until the controller answered it."""
        self.under_way = 0
        """Requests that the controller has not answered yet."""

    def forward(self, context: RequestContext, request: Request) -> Pending[Encoded]:
        """Send the request to the active controller; settles with the controller's own response."""
        return self._send(context, request, context.frame)

    def forward_part(self, context: RequestContext, part: Request) -> Pending[Any]:
        """Send `part` to the active controller, in place of the request that it is a part of; settles with the
        decoded response."""
        header = context.header
        return self._decoded(context, part, Call(header.api_key, header.api_version, header.correlation_id))

    def send_for(self, context: RequestContext, request: Request) -> Pending[Any]:
        """Send a request of this node's own to the active controller, with the principal and the address of the client
        for which it is; settles with the decoded response."""
        key = request.API_KEY
        return self._decoded(context, request, Call(key, API[key].highest, context.header.correlation_id))

    def _decoded(self, context: RequestContext, request: Request, call: Call) -> Pending[Any]:
        done = Pending[Any]()
        frame = b"".join(encode_request(request, call.version, call.correlation_id, context.header.client_id))

        def settle(response: Encoded | None, error: ApiError | None) -> None:
            if response is None:
                done.settle(None, error)
                return
            try:
                done.complete(call.read_answer(memoryview(_whole(response.buffers))))
            except InvalidRequest as invalid:
                done.fail(ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"of the controller's response: {invalid.message}"))

        self._send(context, request, frame).then(settle)
        return done

    def _send(self, context: RequestContext, request: Request, frame: Buffer) -> Pending[Encoded]:
        envelope = EnvelopeRequest(
            request_data=frame,
            request_principal=encode_principal(context.principal, context.is_token_authenticated),
            client_host_address=_packed_address(context.client_host),
        )
        pending: Pending[Encoded] = Pending()

        began_ms = self._now_ms()
        self.under_way += 1

        def settle(response: EnvelopeResponse | None, error: ApiError | None) -> None:
            self.under_way -= 1
            self.times.add_us((self._now_ms() - began_ms) * 1000)
            if error is not None:
                pending.fail(error)
            elif response is not None and response.error_code:
                pending.fail(ApiError(ErrorCode(response.error_code), "the controller refused the forwarded request"))
            else:
                assert response is not None
                assert response.response_data is not None
                pending.complete(Encoded([response.response_data]))

        timeout_ms: int = getattr(request, "timeout_ms", 0)
        is_change_of_voters = context.header.api_key in _CHANGES_OF_VOTERS
        channel = self._changes_of_voters if is_change_of_voters else self._channel
        channel.send(envelope, timeout_ms if timeout_ms > 0 else None).then(settle)
        return pending


def _packed_address(host: str) -> bytes:
    try:
        return ipaddress.ip_address(host.split("%")[0]).packed
    except ValueError:
        return bytes(4)


class Unwrapping:
    """The controller's side: a request out of an envelope is answered as if its client were connected here."""

    def __init__(self, rows: Iterable[Row], answer: Callable[[RequestContext], Answer]) -> None:
        """`answer` runs the request through the pipeline of the listener, whose rows mark what an envelope may hold."""
        self._forwarded = frozenset(row.key for row in rows if row.forwarded)
        self._answer = answer

    def unwrap(
        self, context: RequestContext, envelope: EnvelopeRequest
    ) -> EnvelopeResponse | Pending[EnvelopeResponse]:
        """Answer the request in the envelope, with the principal and address of its client. Raises `InvalidRequest`."""
        frame = memoryview(bytearray(envelope.request_data))
        header = decode_request_header(frame)
        if header.api_key not in self._forwarded:
            return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
        inner = RequestContext(context.connection, header, frame, context.authorizer)
        inner.forwarded_by = context.principal
        inner.forwarded_token = False
        if envelope.request_principal is not None:
            inner.principal, inner.forwarded_token = decode_principal(bytes(envelope.request_principal))
        inner.client_host = _address(bytes(envelope.client_host_address))
        try:
            answer = self._answer(inner)
        except TooManyElements:
            return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
        if not isinstance(answer, Pending):
            return EnvelopeResponse(response_data=_whole(answer))
        pending: Pending[EnvelopeResponse] = Pending()
        pending.on_abandoned = answer.abandon

        def settle(buffers: list[Buffer] | None, error: ApiError | None) -> None:
            if error is not None:
                pending.complete(EnvelopeResponse(error_code=error.code))
            else:
                pending.complete(EnvelopeResponse(response_data=_whole(buffers)))

        answer.then(settle)
        return pending


def _whole(answer: list[Buffer] | None) -> bytes:
    assert answer is not None, "an API that is forwarded answers every request"
    return b"".join(answer)


def _address(packed: bytes) -> str:
    try:
        return str(ipaddress.ip_address(packed))
    except ValueError:
        raise InvalidRequest(f"a forwarded client has an address of {len(packed)} bytes") from None


def envelope_failed(request: EnvelopeRequest, version: int, error: ApiError) -> EnvelopeResponse:
    """The error of the envelope, for the broker that sent it."""
    return EnvelopeResponse(error_code=error.code)
