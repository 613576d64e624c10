"""The charge stage of the request pipeline: an answer that is known is charged to the quotas of its client.

A route has this stage only while a quota is in use that counts its requests; without quotas a request costs nothing.
The throttle decides for how long the client pauses. The answer still leaves at once, with that time where its version
has the field, and the connection is muted at the same moment (KIP-219). An answer that is made at once is encoded
before it is charged, because a Fetch is charged by its size and any request by the time that it takes. Where the client
has to pause it is encoded again, of a row with `throttled` the response of that, which has no records. A response that
has waited or taken steps is charged before it is encoded, in steps, but a Fetch.

While the time of requests is a quota, the time for which a request holds the event loop is measured: from its decoding
to its encoded answer, without the time for which it waits. A `RequestTimer` measures the requests that are answered at
once, a `Stopwatch` each of the others.

Not obvious:

- The charge stage writes `throttle_time_ms` into the response, so a handler never returns an object that several
  requests share.
- While mutations of the controller are charged, such a request holds its connection alone (`answer_alone`): the pause
  is known when the controller has answered. `Charge.encode_again` must not count errors twice.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from struct import pack_into, unpack_from
from typing import Any, TypeVar, cast

from kalda.broker.requests.charging_at_once import Handler, charged_fetch, charged_produce, charged_time
from kalda.broker.requests.context import Encoded, RequestContext
from kalda.broker.requests.rows import QuotaClass, Row, Throttle
from kalda.broker.stopwatch import Decode, RequestTimer, Stopwatch
from kalda.network.connection import Buffer
from kalda.protocol.apis import API, response_class
from kalda.protocol.notation import Request, Response
from kalda.protocol.schema import is_flexible, wire_struct
from kalda.quota.client_quotas import NANOS_TO_PERCENT

T = TypeVar("T")
_FIELD_BYTES = 4
_HEADER = 4
"""The length of a response's header: its correlation id."""
_TAGGED_HEADER = _HEADER + 1
"""With an empty tagged section, in flexible versions."""
_THROTTLE_TIME = "throttle_time_ms"


class Charge:
    """The charge stage of one version of one API."""

    __slots__ = (
        "_encode",
        "_encode_again",
        "_has_throttle_time",
        "_header_bytes",
        "_quota_of_bytes",
        "_quota_of_time",
        "_response",
        "_throttle",
        "_throttle_time_at",
        "_timer",
        "_waits_alone",
        "decode",
        "row",
    )

    def __init__(
        self,
        throttle: Throttle,
        row: Row,
        version: int,
        encode: Callable[[int, Response], list[Buffer]],
        encode_again: Callable[[int, Response], list[Buffer]],
        decode: Decode,
    ) -> None:
        """`encode` encodes a response, `encode_again` one in place of a response that was encoded already. `decode`
        decodes a request."""
        self._throttle = throttle
        self._encode = encode
        self._encode_again = encode_again
        self.row = row
        self._waits_alone = row.quota is QuotaClass.CONTROLLER_MUTATION or (
            row.forwarded and row.quota is not QuotaClass.EXEMPT
        )
        """Whether the next request of the connection is served after the answer, which the controller makes."""
        self._timer: RequestTimer | None = None
        """None where requests are not timed."""
        if throttle.measures_time:
            self._timer = RequestTimer(decode, throttle.now_ns, throttle.now_ms, NANOS_TO_PERCENT)
        self.decode: Decode = decode if self._timer is None else self._timer.decode
        """Decodes a request of this route, whose time begins."""
        self._quota_of_bytes = throttle.quota_of_bytes(row.quota)
        """The only quota that requests count against; None where there are others."""
        self._quota_of_time = None if self._waits_alone else throttle.quota_of_time(row.quota)
        """As `_quota_of_bytes`. None, too, for requests that wait for the controller."""
        self._response = response = response_class(row.key)
        layout = wire_struct(response, version, is_flexible(response, version))
        self._has_throttle_time = any(each.name == _THROTTLE_TIME for each in layout.fields + layout.tagged)
        self._header_bytes = _TAGGED_HEADER if API[row.key].response_header_version(version) else _HEADER
        self._throttle_time_at = -1
        """Where an encoded answer has its throttle time; -1 where it is not the first field."""
        if layout.fields and layout.fields[0].name == _THROTTLE_TIME:
            self._throttle_time_at = self._header_bytes

    # -- before the answer is known

    def handler(self, handler: Handler) -> Handler:
        """`handler` with what the throttle does before it."""
        throttle, quota = self._throttle, self.row.quota
        if self._waits_alone:
            # The pause is known when the controller has answered. The next request waits for it, as in Kafka, where a
            # connection has one request at a time; all that were sent at once would escape the pause otherwise.
            counts_partitions = quota is QuotaClass.CONTROLLER_MUTATION

            def handle(context: RequestContext, request: Request) -> Any:
                if context.forwarded_by is None:
                    context.connection.answer_alone()
                if counts_partitions:
                    context.charge = throttle.mutations_of(context)
                return handler(context, request)

            return handle
        if quota is QuotaClass.FETCH:

            def fetch(context: RequestContext, request: Request) -> Any:
                throttle.limit_fetch(context, request)
                return handler(context, request)

            return fetch
        return handler

    @property
    def returned_at_once(self) -> type | None:
        """What `handler_at_once` returns of a charged response: itself, or the buffers that it was encoded into. None
        where there is no `handler_at_once`."""
        if self._quota_of_time is not None:
            return list
        if self._quota_of_bytes is None:
            return None
        return self._response if self.row.throttled is None else list

    def handler_at_once(self, handler: Handler) -> Handler:
        """`handler` with what the throttle does before it; a response that waits for nothing is charged already when it
        is returned, and must not be passed to `answer`."""
        now_ms = self._throttle.now_ms
        if (quotas := self._quota_of_time) is not None:
            assert self._timer is not None, "the time of requests is a quota"
            timer, encode, again = self._timer, self._encode, self._encode_again
            return charged_time(handler, quotas, timer, now_ms, self._paused, encode, again, self._response)
        if (quotas := self._quota_of_bytes) is None:
            return self.handler(handler)
        if self.row.quota is QuotaClass.PRODUCE:
            return charged_produce(handler, quotas, now_ms, self._paused)
        return charged_fetch(
            handler, quotas, now_ms, self._paused, self._encode, self._encode_again, self._header_bytes - _HEADER
        )

    def pause_time(self, context: RequestContext) -> None:
        """The request waits from now on."""
        if self._timer is not None:
            _stopwatch_of(context, self._timer).stop()

    def resume_time(self, context: RequestContext) -> None:
        """The request is being handled again."""
        if self._timer is not None:
            _stopwatch_of(context, self._timer).start()

    def timed_steps(self, context: RequestContext, steps: Generator[None, None, T]) -> Generator[None, None, T]:
        """`steps`, with the stopwatch stopped between them."""
        if self._timer is None:
            return (yield from steps)
        watch = _stopwatch_of(context, self._timer)
        try:
            while True:
                watch.start()
                try:
                    next(steps)
                except StopIteration as finished:
                    return cast(T, finished.value)
                finally:
                    watch.stop()
                yield
        finally:
            steps.close()

    # -- the answer

    def answer(
        self, context: RequestContext, request: Request, reply: Response | Encoded | None
    ) -> list[Buffer] | None:
        """Charge an answer, and encode it."""
        if reply is None:
            self._decide(context, request, None, 0, 0)
            return None
        if isinstance(reply, Encoded):
            return self._with_pause(context, request, reply)
        correlation_id = context.header.correlation_id
        buffers = self._encode(correlation_id, reply)
        pause_ms = self._decide(context, request, reply, sum(map(len, buffers)), 0)
        if pause_ms:
            buffers = self._encode_again(correlation_id, self._throttled(request, reply, pause_ms))
        return buffers

    def charge(
        self,
        context: RequestContext,
        request: Request,
        reply: Response | Encoded | None,
        response: Response | None = None,
    ) -> None:
        """Charge an answer before it is encoded, which takes steps. `response`, where it is given in place of `reply`,
        gets the pause."""
        if response is None and isinstance(reply, Response):
            response = reply
        pause_ms = self._decide(context, request, reply, 0, 0)
        if pause_ms and response is not None:
            self._set_throttle_time(response, pause_ms)

    def _with_pause(self, context: RequestContext, request: Request, reply: Encoded) -> list[Buffer]:
        """A forwarded request may have been throttled by the controller; the longer pause of the two counts."""
        at, buffers = self._throttle_time_at, reply.buffers
        first = buffers[0] if buffers else b""
        in_reach = 0 <= at <= len(first) - _FIELD_BYTES
        known_ms = unpack_from(">i", first, at)[0] if in_reach else 0
        pause_ms = self._decide(context, request, reply, 0, known_ms)
        if not in_reach or pause_ms == known_ms:
            return buffers
        changed = bytearray(first)  # the buffer may be shared by many answers
        pack_into(">i", changed, at, pause_ms)
        return [changed, *buffers[1:]]

    def _decide(
        self, context: RequestContext, request: Request, reply: Response | Encoded | None, size: int, known_ms: int
    ) -> int:
        """Charge the client, and mute its connection. Returns the pause; `known_ms` is one that it has already."""
        busy_ns = 0 if self._timer is None else _stopwatch_of(context, self._timer).read()
        pause_ms = self._throttle.charge(context, self.row.quota, request, reply, size, busy_ns)
        pause_ms = max(pause_ms, known_ms)
        if pause_ms > 0:
            self._mute(context, pause_ms)
        return pause_ms

    def _mute(self, context: RequestContext, pause_ms: int) -> None:
        """Mute the connection; the broker that forwarded a request mutes that of the client."""
        if context.forwarded_by is None:
            context.connection.mute(pause_ms)
            self._throttle.note_pause(self.row.key, pause_ms)

    def _paused(self, context: RequestContext, request: Request, reply: Response, pause_ms: int) -> Response:
        """Mute the client; what it gets in place of the response."""
        self._mute(context, pause_ms)
        return self._throttled(request, reply, pause_ms)

    def _throttled(self, request: Request, reply: Response, pause_ms: int) -> Response:
        """What a client that pauses gets in place of the response."""
        if self.row.throttled is not None:
            reply = self.row.throttled(request, reply)
        self._set_throttle_time(reply, pause_ms)
        return reply

    def _set_throttle_time(self, reply: Response, pause_ms: int) -> None:
        if self._has_throttle_time:
            cast(Any, reply).throttle_time_ms = pause_ms


def _stopwatch_of(context: RequestContext, timer: RequestTimer) -> Stopwatch:
    """The stopwatch of a request. It is made on the stack that has decoded the request, before the next one begins."""
    try:
        return context.stopwatch
    except AttributeError:
        watch = context.stopwatch = timer.stopwatch()
        return watch
