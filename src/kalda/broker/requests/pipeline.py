"""From a frame to an answer: header, version check, decode, then the stages of the API's row, then encode.

The stages are: authorize, handle, (fail), charge, answer. What a row needs of them in one version is decided when the
first request of that version arrives, and kept as a route: a stage that has nothing to do is not in the route. A
request that does not wait costs no task, future or closure: its handler returns the response, which is encoded on the
same stack.

A listener serves the APIs that have a row, and ApiVersions announces these, but those that are hidden now. An
unsupported version of any API but ApiVersions closes the connection, as in Kafka: the client has ignored what
ApiVersions announced.

The charge stage is described in `kalda.broker.requests.charging`. A request out of an envelope is not charged here: the
broker that holds the client's connection charges it. Only the partitions that it creates or deletes are.

Not obvious:

- `pipeline.errors` is set before the first route is made. A page of metrics is listed in pieces, of which some are
  empty.
- A `Pending` that a handler returns is answered by a call in the background, not on the stack that settles it.
- A row with `Authorization.UNCHECKED` is refused as a whole where there is an authorizer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Container, Iterable
from functools import partial
from types import GeneratorType
from typing import Any

from kalda.base.background import Background, Steps
from kalda.base.errors import ApiError, ErrorCode, InvalidRequest, as_api_error
from kalda.base.scheduling import Pending
from kalda.base.sensors import Counter
from kalda.broker.requests.api_versions import ApiVersionsHandlers, Features, NodeIdentity, unsupported_api_versions
from kalda.broker.requests.charging import Charge
from kalda.broker.requests.context import Encoded, Reply, RequestContext
from kalda.broker.requests.rows import Authorization, LateRow, Row
from kalda.broker.requests.throttling import ClientThrottle
from kalda.network.server.connection import Answer, Buffer, Connection
from kalda.protocol.access import Authorizer, Caller
from kalda.protocol.apis import API, ApiKey, request_class, response_class
from kalda.protocol.codec import decoder
from kalda.protocol.decoder import TooManyElements
from kalda.protocol.encoder import ErrorCounts
from kalda.protocol.framing import (
    counting_response_encoder,
    decode_request_header,
    encode_response,
    encode_response_in_steps,
    response_encoder,
)
from kalda.protocol.notation import Request, Response

log = logging.getLogger("kalda.requests")

_DATA_PATH = frozenset((ApiKey.PRODUCE, ApiKey.FETCH))
_SHORT_REQUEST = 16 * 1024
"""Bytes: some hundred partitions."""

Handler = Callable[[RequestContext, Any], Reply[Any]]
Check = Callable[[Caller, Any], ApiError | None]


class Route:
    """How requests of one version of one API are answered."""

    __slots__ = (
        "charge",
        "decode",
        "encode",
        "errors",
        "handler",
        "max_elements",
        "name",
        "now_ns",
        "requests",
        "response",
        "row",
    )

    def __init__(
        self, row: Row, version: int, throttle: ClientThrottle | None, requests: Counter, errors: ErrorCounts | None
    ) -> None:
        """`requests` counts those of this version, over all routes that it has had, `errors` the error codes of their
        responses but NONE; None where nothing reads it."""
        self.row = row
        self.name = API[row.key].name
        self.max_elements = row.max_elements
        self.requests = requests
        self.errors = errors
        self.decode = decoder(request_class(row.key), version)
        """A request and the position behind it, given its frame."""
        self.response = response = response_class(row.key)
        self.encode = (
            response_encoder(response, version)
            if errors is None
            else counting_response_encoder(response, version, errors)
        )
        """A response's frame, given its correlation id."""
        self.charge = None if throttle is None else Charge(throttle, row, version, self.encode)
        """The charge stage; None where the route has none."""
        self.now_ns = None if self.charge is None else self.charge.now_ns
        self.handler: Handler = row.handler if self.charge is None else self.charge.handler(row.handler)
        """The row's handler, behind its checks."""

    def is_encoded_whole(self, context: RequestContext) -> bool:
        """Whether responses that have waited are encoded in one go, not in steps: those that are charged by their size,
        and those of the data path, which are hardly longer than their requests."""
        if self.row.throttled is not None and self.charge is not None:
            return True
        return self.row.key in _DATA_PATH and len(context.frame) <= _SHORT_REQUEST


class RequestPipeline:
    """Answers the frames of one kind of listener."""

    def __init__(
        self,
        rows: Iterable[Row | LateRow],
        features: Callable[[], Features],
        background: Background,
        *,
        unstable_versions: bool = False,
        authorizer: Authorizer | None = None,
        throttle: ClientThrottle | None = None,
        hidden: Callable[[], Container[ApiKey]] = tuple,
        node: NodeIdentity | None = None,
    ) -> None:
        """Without an authorizer every caller may do everything; without a throttle nothing is charged. `hidden()` are
        the APIs that ApiVersions does not announce now. `node`: what ApiVersions compares with the node that a client
        means, on listeners where that is checked."""
        self.handling: RequestContext | None = None
        """The last request that was passed to `on_frame`, for the watchdog, which clears it."""
        self._faults = RequestFaults()
        self._background = background
        self._authorizer = authorizer
        self._throttle = throttle
        self._rows: dict[int, Row | LateRow] = {row.key: row for row in rows}
        self._versions: dict[ApiKey, range] = {
            row.key: range(API[row.key].lowest, API[row.key].highest_served(unstable_versions) + 1)
            for row in self._rows.values()
        }
        self._routes: dict[tuple[int, ...], Route] = {}
        self.errors: dict[int, ErrorCounts] | None = None
        """Error codes in responses so far, by API key and code; None where they are not counted, which is decided
        before the first request."""
        self.requests: dict[tuple[int, int], Counter] = {}
        """Requests so far, by API key and version."""
        assert ApiKey.API_VERSIONS not in self._rows, "the pipeline has its own row of ApiVersions"
        own = ApiVersionsHandlers(self._versions, features, hidden, node).row()
        self._rows[own.key] = own
        self._versions[own.key] = range(API[own.key].lowest, API[own.key].highest + 1)

    def on_frame(self, connection: Connection, frame: memoryview, context: RequestContext | None = None) -> Answer:
        """The network's frame handler. The context is made here, unless the request comes out of an envelope."""
        if context is None:
            header = decode_request_header(frame)
            context = RequestContext(connection, header, frame, self._authorizer)
        else:
            header = context.header
        self.handling = context
        try:
            route = self._routes[header[:2]]
        except KeyError:
            made = self._new_route(context)
            if made is None:
                return encode_response(header.correlation_id, unsupported_api_versions(), 0)
            route = made
        route.requests.value += 1
        if route.now_ns is not None:
            context.busy_ns = -route.now_ns()
        try:
            request, _ = route.decode(frame, header.body_at, route.max_elements, 1)
        except TooManyElements as error:
            raise TooManyElements(
                f"{route.name} v{header.api_version} of client {header.client_id!r} has more than the "
                f"{route.max_elements} elements that a request may have; {error.message}"
            ) from None
        try:
            reply = route.handler(context, request)
            if type(reply) is route.response:
                if route.charge is None:
                    return route.encode(header.correlation_id, reply)
                return route.charge.encoded(context, request, reply)
        except Exception as error:
            reply = self._failed(route, context, request, as_api_error(error))
        return self._reply(route, context, request, reply)

    def renew_routes(self) -> None:
        """Decide anew which routes are charged, with the next request of each: other quotas are in use."""
        self._routes = {}

    def answer(self, context: RequestContext) -> Answer:
        """Answer a request out of an envelope."""
        return self.on_frame(context.connection, context.frame, context)

    # -- routes

    def _new_route(self, context: RequestContext) -> Route | None:
        """How requests of this API and version are answered from now on. None for a version of ApiVersions that is not
        served; any other raises `InvalidRequest`."""
        header = context.header
        row = self._rows.get(header.api_key)
        if row is None:
            raise InvalidRequest(f"{API[header.api_key].name} is not served on listener {context.listener_name}")
        api, version, served = API[row.key], header.api_version, self._versions[row.key]
        if version not in served:
            if row.key is ApiKey.API_VERSIONS:
                return None
            raise InvalidRequest(f"{api.name} has versions {served.start} to {served.stop - 1} here, not {version}")
        if isinstance(row, LateRow):
            row = self._rows[row.key] = row.make()
        throttle = self._throttle
        requests = self.requests.setdefault((row.key, version), Counter())
        charged = throttle is not None and throttle.applies_to(row.quota)
        errors = None if self.errors is None else self.errors.setdefault(row.key, ErrorCounts(int))
        route = self._routes[header[:2]] = Route(row, version, throttle if charged else None, requests, errors)
        route.handler = self._behind_checks(row, route.handler)
        return route

    def _behind_checks(self, row: Row, handler: Handler) -> Handler:
        """The row's handler, behind its authorization."""
        if self._authorizer is None:
            return handler
        if row.authorize is Authorization.UNCHECKED:
            return _unauthorized
        if row.items is not None:
            handler = row.items(handler)
        if not isinstance(row.authorize, Authorization):
            handler = _authorized(row.authorize, handler)
        return handler

    # -- replies

    def _reply(
        self, route: Route, context: RequestContext, request: Request, reply: Any, *, has_waited: bool = False
    ) -> Answer:
        """The answer of a reply, whatever it is. `has_waited`: the request has waited for something, or taken steps."""
        if isinstance(reply, Pending):
            return self._later(route, context, request, reply)
        if isinstance(reply, GeneratorType):
            return self._in_steps(route, context, request, reply)
        if has_waited and isinstance(reply, Response) and not route.is_encoded_whole(context):
            return self._first_step(self._encoded(route, context, request, reply), context)
        if isinstance(reply, Encoded) and reply.errors and route.errors is not None:
            for code, count in reply.errors.items():
                route.errors[code] += count
        try:
            if route.charge is not None:
                return route.charge.answer(context, request, reply)
            if reply is None:
                return None
            if isinstance(reply, Encoded):
                return reply.buffers
            return route.encode(context.header.correlation_id, reply)
        except Exception as error:
            return self._after_fault(route, context, request, error)

    def _encoded(
        self, route: Route, context: RequestContext, request: Request, response: Response
    ) -> Steps[list[Buffer]]:
        """Charge a response, and encode it in steps: it may be much longer than its request."""
        try:
            if route.charge is not None:
                route.charge.charge(context, request, response)
            return (
                yield from encode_response_in_steps(
                    context.header.correlation_id, response, context.api_version, route.errors
                )
            )
        except Exception as fault:
            return self._after_fault(route, context, request, fault)

    def _first_step(self, steps: Steps[list[Buffer]], context: RequestContext) -> list[Buffer] | Pending[list[Buffer]]:
        """Do the first step here: most responses are encoded in one. The rest is done in the background."""
        try:
            next(steps)
        except StopIteration as finished:
            buffers: list[Buffer] = finished.value
            return buffers
        return self._background.run(steps, owner=context)

    def _later(
        self, route: Route, context: RequestContext, request: Request, reply: Pending[Any]
    ) -> Pending[list[Buffer]]:
        answer: Pending[list[Buffer]] = Pending()
        is_abandoned = False
        if route.charge is not None:
            route.charge.pause_time(context)

        def abandon() -> None:
            nonlocal is_abandoned
            is_abandoned = True
            reply.abandon()

        def settle(value: Any, error: ApiError | None) -> None:
            if is_abandoned:
                return
            try:
                if route.charge is not None:
                    route.charge.resume_time(context)
                if error is not None:
                    value = self._failed(route, context, request, error)
                known = self._reply(route, context, request, value, has_waited=True)
            except Exception as failure:  # this runs on the stack that settled the reply, which must not be harmed
                answer.fail(as_api_error(failure))
                return
            if isinstance(known, Pending):
                answer.on_abandoned = known.abandon
                known.then(answer.settle)
            else:
                answer.complete(known or [])

        def settle_in_time(value: Any, error: ApiError | None) -> None:
            """One event may settle thousands: a rebalance answers all members of its group."""
            self._background.call(partial(settle, value, error))

        answer.on_abandoned = abandon
        reply.then(settle_in_time)
        return answer

    def _in_steps(self, route: Route, context: RequestContext, request: Request, steps: Steps[Any]) -> Answer:
        """The first step is done here, so that a small request is answered without another turn of the loop."""
        if route.charge is not None:
            steps = route.charge.timed_steps(context, steps)
        try:
            next(steps)
        except StopIteration as finished:
            return self._reply(route, context, request, finished.value)
        except Exception as error:
            return self._reply(
                route, context, request, self._failed(route, context, request, as_api_error(error)), has_waited=True
            )
        run = partial(self._background.run, self._made(route, context, request, steps), owner=context)
        connection = context.connection
        if context.forwarded_by is not None:
            return run()
        # The answer may be large: a peer that reads nothing must not have many of them made.
        connection.answer_alone()
        return connection.begin_answer(run) if route.row.has_large_answer else run()

    def _made(
        self, route: Route, context: RequestContext, request: Request, steps: Steps[Any]
    ) -> Steps[list[Buffer] | Pending[list[Buffer]]]:
        """The answer of a request whose first step is done: its other steps, and those of encoding the response."""
        try:
            reply = yield from steps
        except Exception as error:
            reply = self._failed(route, context, request, as_api_error(error))
        if isinstance(reply, Response) and not route.is_encoded_whole(context):
            return (yield from self._encoded(route, context, request, reply))
        return self._reply(route, context, request, reply) or []

    def _failed(self, route: Route, context: RequestContext, request: Request, error: ApiError) -> Response | None:
        """The response for a request that failed as a whole. None where its client expects no response: the connection
        is closed, which is the only way to report the failure. Raises what the peer has to learn otherwise."""
        if isinstance(error, InvalidRequest):
            raise error
        if error.code is ErrorCode.NOT_CONTROLLER and context.forwarded_by is not None:
            # For the broker that sent the envelope, which tries another controller; its client could do nothing.
            raise error
        if error.code is ErrorCode.UNKNOWN_SERVER_ERROR and error.__cause__ is not None:
            self._faults.report(route.name, context.connection, error)
        else:
            log.debug("%s of %s failed: %s", route.name, context.connection, error)
        response = route.row.failed(request, context.api_version, error)
        if response is None:
            context.connection.close()
        return response

    def _after_fault(self, route: Route, context: RequestContext, request: Request, fault: Exception) -> list[Buffer]:
        """The answer to a request whose response could not be made or encoded."""
        response = self._failed(route, context, request, as_api_error(fault))
        return [] if response is None else route.encode(context.header.correlation_id, response)


def _unauthorized(context: RequestContext, request: Any) -> Reply[Any]:
    """The handler of rows whose items nothing checks, where there is an authorizer."""
    raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "requests of this API are not authorized item by item")


def _authorized(check: Check, handler: Handler) -> Handler:
    def authorize_then_handle(context: RequestContext, request: Request) -> Reply[Any]:
        refusal = check(context, request)
        if refusal is not None:
            raise refusal
        return handler(context, request)

    return authorize_then_handle


log = logging.getLogger("kalda.requests")

QUIET_S = 1.0


class RequestFaults:
    """Log lines about exceptions that a handler must not raise. A client may send the same request in a loop: the
    traceback is logged once in `QUIET_S` seconds; what came meanwhile is counted, and the next line has the count."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._quiet_until_s = 0.0
        """Nothing is logged before."""
        self._unlogged = 0
        """Faults since the last line."""

    def report(self, api: str, client: object, error: ApiError) -> None:
        """A request failed with `error`, whose cause was not foreseen."""
        now_s = self._now_s()
        if now_s < self._quiet_until_s:
            self._unlogged += 1
            return
        self._quiet_until_s = now_s + QUIET_S
        log.error(
            "%s of %s fails with %s%s",
            api,
            client,
            error,
            f" ({self._unlogged} more requests have failed like this)" if self._unlogged else "",
            exc_info=error.__cause__,
        )
        self._unlogged = 0
