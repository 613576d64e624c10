"""From a frame to an answer: header, version check, decode, handler, encode.

A listener's table says which APIs it serves and with what; ApiVersions is answered from the same table, so nothing is
announced that has no handler. A request that need not wait costs no task, future or closure: its handler returns the
response, which is encoded on the same stack.

An unsupported version of any API but ApiVersions closes the connection, as Kafka does: the client did not ask, or did
not listen.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from kalda.base.errors import ApiError, ErrorCode, InvalidRequest
from kalda.base.pending import Pending
from kalda.network.connection import Answer, AtTurn, Buffer, Connection
from kalda.protocol.apis import API, Api, ApiKey, request_class, response_class
from kalda.protocol.codec import decoder
from kalda.protocol.framing import RequestHeader, decode_request_header, encode_response, response_encoder
from kalda.protocol.messages.metadata import (
    ApiVersion,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from kalda.protocol.notation import Request, Response

log = logging.getLogger("kalda.requests")


class RequestContext:
    """Who asks, and how: what a handler may know beside the request."""

    __slots__ = (
        "api_version",
        "client_host",
        "client_id",
        "connection",
        "frame",
        "header",
        "listener_name",
        "principal",
    )

    def __init__(self, connection: Connection, header: RequestHeader, frame: memoryview) -> None:
        self.connection = connection
        self.header = header
        self.frame = frame
        self.api_version = header.api_version
        self.client_id = header.client_id or ""
        self.listener_name = connection.listener_name
        self.client_host = connection.peer_host
        self.principal = connection.principal


class ForwardedContext(RequestContext):
    """A request out of an envelope. That this is not the active controller is for the broker that sent the envelope,
    which tries again elsewhere, and not for its client."""

    __slots__ = ()


class Encoded:
    """A response that is encoded already, with its header: a forwarded one, or one kept by the metadata cache. Or one
    that is to be encoded when its turn comes."""

    __slots__ = ("buffers",)

    def __init__(self, buffers: list[Buffer] | AtTurn) -> None:
        self.buffers = buffers


Reply = Response | Encoded | Pending[Any] | None
Handler = Callable[[RequestContext, Any], Reply]
Encode = Callable[[int, Response], list[Buffer]]
"""A response's frame, given its correlation id."""
Route = tuple[Api, Handler, Callable[[Buffer, int], tuple[Any, int]], type[Response], Encode]


class Features:
    """What ApiVersions tells of features: supported ranges, finalized levels and the offset they were read at."""

    __slots__ = ("epoch", "finalized", "supported")

    def __init__(self, supported: dict[str, tuple[int, int]], finalized: dict[str, int], epoch: int) -> None:
        self.supported = supported
        self.finalized = finalized
        self.epoch = epoch


class Dispatcher:
    """Answers the frames of one kind of listener."""

    def __init__(
        self, handlers: dict[ApiKey, Handler], features: Callable[[], Features], unstable_versions: bool = False
    ) -> None:
        self._features = features
        self._entries: dict[int, tuple[Api, int, int, Handler]] = {
            key: (API[key], API[key].lowest, API[key].highest_served(unstable_versions), handler)
            for key, handler in handlers.items()
        }
        self._routes: dict[tuple[int, ...], Route] = {}
        api_versions = API[ApiKey.API_VERSIONS]
        self._entries[ApiKey.API_VERSIONS] = (
            api_versions,
            api_versions.lowest,
            api_versions.highest,
            self._api_versions,
        )

    def on_frame(self, connection: Connection, frame: memoryview) -> Answer:
        """The network's frame handler."""
        header = decode_request_header(frame)
        return self.answer(RequestContext(connection, header, frame))

    def answer(self, context: RequestContext) -> Answer:
        """Answer the request in `context.frame`."""
        header = context.header
        route = self._routes.get(header[:2]) or self._new_route(context)
        if route is None:
            return encode_response(header.correlation_id, self._unsupported_api_versions(), 0)
        api, handler, decode, response, encode = route
        request, _ = decode(context.frame, header.body_at)
        try:
            reply = handler(context, request)
        except ApiError as error:
            reply = self._failed(api, context, request, error)
        if type(reply) is not response:
            if reply is None:
                return None
            if isinstance(reply, Pending):
                return self._later(route, context, request, reply)
            if isinstance(reply, Encoded):
                return reply.buffers
        return encode(header.correlation_id, reply)

    def _new_route(self, context: RequestContext) -> Route | None:
        """How requests of this API and version are answered from now on. None for a version of ApiVersions that is not
        served; any other raises `InvalidRequest`."""
        header = context.header
        entry = self._entries.get(header.api_key)
        if entry is None:
            raise InvalidRequest(f"{API[header.api_key].name} is not served on listener {context.listener_name}")
        api, lowest, highest, handler = entry
        version = header.api_version
        if not lowest <= version <= highest:
            if api.key is ApiKey.API_VERSIONS:
                return None
            raise InvalidRequest(f"{api.name} has versions {lowest} to {highest} here, not {version}")
        response = response_class(api.key)
        decode, encode = decoder(request_class(api.key), version), response_encoder(response, version)
        route = self._routes[header[:2]] = (api, handler, decode, response, encode)
        return route

    def _later(
        self, route: Route, context: RequestContext, request: Request, reply: Pending[Any]
    ) -> Pending[list[Buffer]]:
        api, _, _, _, encode = route
        answer: Pending[list[Buffer]] = Pending()
        answer.on_abandoned = reply.abandon

        def settle(response: Reply, error: ApiError | None) -> None:
            if error is not None:
                try:
                    response = self._failed(api, context, request, error)
                except ApiError as failure:
                    answer.fail(failure)
                    return
            assert response is not None, f"{api.name} waited, so it has an answer"
            assert not isinstance(response, Pending), f"{api.name} has waited already"
            if isinstance(response, Encoded):
                assert isinstance(response.buffers, list), "what has waited is answered now"
                answer.complete(response.buffers)
                return
            try:
                buffers = encode(context.header.correlation_id, response)
            except ValueError as fault:
                log.exception("the answer to %s of %s cannot be written", api.name, context.connection)
                answer.fail(ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, str(fault)))
                return
            answer.complete(buffers)

        reply.then(settle)
        return answer

    def _failed(self, api: Api, context: RequestContext, request: Request, error: ApiError) -> Response:
        """A handler could not answer at all: say so in the way that this API has for it."""
        from kalda.broker.failures import failure_response

        if error.code is ErrorCode.INVALID_REQUEST and isinstance(error, InvalidRequest):
            raise error
        if error.code is ErrorCode.NOT_CONTROLLER and isinstance(context, ForwardedContext):
            raise error
        log.debug("%s of %s failed: %s", api.name, context.connection, error)
        return failure_response(request, context.api_version, error)

    # -- ApiVersions

    def _api_versions(self, context: RequestContext, request: Any) -> ApiVersionsResponse:
        if context.api_version >= 3:
            connection = context.connection
            name, version = request.client_software_name, request.client_software_version
            if not (_is_software_name(name) and _is_software_name(version)):
                return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
            connection.client_software_name = name
            connection.client_software_version = version
        features = self._features()
        # Features whose minimum is 0 would break older clients, whose readers take 0 for nonsense (KAFKA-17011).
        lowest = 0 if context.api_version >= 4 else 1
        return ApiVersionsResponse(
            api_keys=self._api_keys(),
            supported_features=[
                SupportedFeatureKey(name=name, min_version=first, max_version=last)
                for name, (first, last) in sorted(features.supported.items())
                if first >= lowest
            ],
            finalized_features_epoch=features.epoch,
            finalized_features=[
                FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
                for name, level in sorted(features.finalized.items())
            ],
        )

    def _unsupported_api_versions(self) -> ApiVersionsResponse:
        api = API[ApiKey.API_VERSIONS]
        return ApiVersionsResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION,
            api_keys=[ApiVersion(api_key=api.key, min_version=api.lowest, max_version=api.highest)],
        )

    def _api_keys(self) -> list[ApiVersion]:
        return [
            ApiVersion(
                api_key=key,
                min_version=api.lowest if api.advertised_from is None else api.advertised_from,
                max_version=highest,
            )
            for key, (api, _, highest, _) in sorted(self._entries.items())
        ]


def _is_software_name(text: str) -> bool:
    """Letters, digits, dots and dashes, with a letter or digit at both ends (KIP-511)."""
    return (
        bool(text)
        and text.isascii()
        and text[0].isalnum()
        and text[-1].isalnum()
        and all(character.isalnum() or character in ".-" for character in text)
    )
