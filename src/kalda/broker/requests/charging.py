"""The charge stage of the request pipeline: an answer that is known is charged to the quotas of its client.

A route has this stage only while a quota is in use that counts its requests; without quotas a request costs nothing.
A Produce counts by the size of its frame, a Fetch by that of its response, every request by the time for which it holds
the event loop. The longest pause counts. The answer still leaves at once, with that time where its version has the
field, and the connection is muted at the same moment (KIP-219). It is charged before it is encoded, but a Fetch: where
its client has to pause, it is encoded again, without records. As in Kafka:

- a Produce with acks=0 is charged by its size only, and its connection is muted without an answer;
- a consumer's Fetch may return at most what its quota allows in all windows but one: a larger response would be
  throttled for sure, again and again. A Fetch that is throttled is answered without records, so its size is taken back;
- a follower's Fetch and requests between nodes are exempt: their time is measured, but counts for no quota;
- a request out of an envelope is charged for the partitions that it changes, by the controller. Its time counts at the
  broker that holds the connection;
- the time of encoding does not count, since the response says how long the pause is. That of decoding does; the time
  for which a request waits does not.

Not obvious:

- The charge stage writes `throttle_time_ms` into the response, so a handler never returns an object that several
  requests share.
- While mutations of the controller are charged, such a request holds its connection alone (`answer_alone`): the pause
  is known when the controller has answered.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from struct import pack_into, unpack_from
from typing import Any, TypeVar, cast

from kalda.broker.requests.context import Encoded, RequestContext
from kalda.broker.requests.rows import QuotaClass, Row
from kalda.broker.requests.throttling import ClientThrottle, is_follower, mutation_pause_ms
from kalda.network.server.connection import Buffer
from kalda.protocol.apis import API, response_class
from kalda.protocol.messages.partitions import FetchRequest
from kalda.protocol.notation import Request, Response
from kalda.protocol.schema import is_flexible, wire_struct
from kalda.quota.client_quotas import NANOS_TO_PERCENT, ClientQuotas

T = TypeVar("T")
Handler = Callable[[RequestContext, Any], Any]
_FIELD_BYTES = 4
_HEADER = 4
"""The length of a response's header: its correlation id."""
_TAGGED_HEADER = _HEADER + 1
"""With an empty tagged section, in flexible versions."""
_THROTTLE_TIME = "throttle_time_ms"


class Charge:
    """The charge stage of one version of one API."""

    __slots__ = (
        "_added_bytes",
        "_bytes",
        "_encode",
        "_has_throttle_time",
        "_is_exempt",
        "_is_fetch",
        "_is_produce",
        "_now_ms",
        "_row",
        "_throttle",
        "_throttle_time_at",
        "_throttled",
        "_time",
        "now_ns",
    )

    def __init__(
        self, throttle: ClientThrottle, row: Row, version: int, encode: Callable[[int, Response], list[Buffer]]
    ) -> None:
        """`encode` encodes a response, given its correlation id."""
        self._throttle = throttle
        self._row = row
        self._now_ms = throttle.now_ms
        managers = throttle.managers
        self._time = managers.request
        self.now_ns = throttle.now_ns if managers.request.is_enabled else None
        """The clock of the time that requests are charged; None where they are not."""
        self._is_exempt = row.quota is QuotaClass.EXEMPT
        self._is_produce = row.quota is QuotaClass.PRODUCE
        self._is_fetch = row.quota is QuotaClass.FETCH
        quotas = managers.fetch if self._is_fetch else managers.produce
        self._bytes = quotas if quotas.is_enabled and (self._is_fetch or self._is_produce) else None
        """The quota of bytes that counts the requests; None where none does."""
        self._throttled = row.throttled
        self._encode = encode
        response = response_class(row.key)
        layout = wire_struct(response, version, is_flexible(response, version))
        self._has_throttle_time = any(each.name == _THROTTLE_TIME for each in layout.fields + layout.tagged)
        header_bytes = _TAGGED_HEADER if API[row.key].response_header_version(version) else _HEADER
        self._added_bytes = _HEADER - header_bytes
        """What a Fetch is charged more than the size of its answer."""
        self._throttle_time_at = -1
        """Where an encoded answer has its throttle time; -1 where it is not the first field."""
        if layout.fields and layout.fields[0].name == _THROTTLE_TIME:
            self._throttle_time_at = header_bytes

    # -- before the answer is known

    def handler(self, handler: Handler) -> Handler:
        """`handler` with what the throttle does before it."""
        throttle, quota = self._throttle, self._row.quota
        if quota is QuotaClass.CONTROLLER_MUTATION or (self._row.forwarded and quota is not QuotaClass.EXEMPT):
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
        quotas, now_ms = self._bytes, self._now_ms
        if quotas is None or not self._is_fetch:
            return handler

        def fetch(context: RequestContext, request: FetchRequest) -> Any:
            if not is_follower(request):
                context.free_use = sensors = quotas.sensors_of(context.principal, context.client_id, now_ms())
                most_bytes = sensors.most_at_once
                if most_bytes < request.max_bytes:
                    # With more its client would be throttled for sure, again and again.
                    request.max_bytes = most_bytes
                    request.min_bytes = min(request.min_bytes, most_bytes)
            return handler(context, request)

        return fetch

    def pause_time(self, context: RequestContext) -> None:
        """The request waits from now on."""
        if self.now_ns is not None:
            context.busy_ns += self.now_ns()

    def resume_time(self, context: RequestContext) -> None:
        """The request is being handled again."""
        if self.now_ns is not None:
            context.busy_ns -= self.now_ns()

    def timed_steps(self, context: RequestContext, steps: Generator[None, None, T]) -> Generator[None, None, T]:
        """`steps`; between them the request waits."""
        try:
            while True:
                try:
                    next(steps)
                except StopIteration as finished:
                    return cast(T, finished.value)
                self.pause_time(context)
                yield
                self.resume_time(context)
        finally:
            steps.close()

    # -- the answer

    def answer(
        self, context: RequestContext, request: Request, reply: Response | Encoded | None
    ) -> list[Buffer] | None:
        """Charge an answer, and encode it."""
        if isinstance(reply, Encoded):
            return self._with_pause(context, request, reply)
        if reply is None:
            self._pause_ms(context, request)
            return None
        return self.encoded(context, request, reply)

    def encoded(self, context: RequestContext, request: Request, response: Response) -> list[Buffer]:
        """Charge a response, and encode it."""
        correlation_id = context.header.correlation_id
        if self._throttled is None:
            if pause_ms := self._pause_ms(context, request):
                self._set_throttle_time(response, pause_ms)
            return self._encode(correlation_id, response)
        buffers = self._encode(correlation_id, response)
        size_bytes = sum(map(len, buffers), self._added_bytes)
        free_use = context.free_use
        if free_use is not None and self.now_ns is None and free_use.take(size_bytes, self._now_ms()):
            return buffers  # nearly all of them, in a tenth of the time of what follows
        if pause_ms := self._pause_ms(context, request, size_bytes):
            response = self._throttled(request, response)
            self._set_throttle_time(response, pause_ms)
            buffers = self._encode(correlation_id, response)
        return buffers

    def charge(self, context: RequestContext, request: Request, response: Response) -> None:
        """Charge a response that is encoded afterwards; its size does not count."""
        if pause_ms := self._pause_ms(context, request):
            self._set_throttle_time(response, pause_ms)

    def _with_pause(self, context: RequestContext, request: Request, reply: Encoded) -> list[Buffer]:
        """A forwarded request may have been throttled by the controller; the longer pause of the two counts."""
        at, buffers = self._throttle_time_at, reply.buffers
        first = buffers[0] if buffers else b""
        in_reach = 0 <= at <= len(first) - _FIELD_BYTES
        known_ms = unpack_from(">i", first, at)[0] if in_reach else 0
        pause_ms = self._pause_ms(context, request, known_ms=known_ms)
        if not in_reach or pause_ms == known_ms:
            return buffers
        changed = bytearray(first)  # the buffer may be shared by many answers
        pack_into(">i", changed, at, pause_ms)
        return [changed, *buffers[1:]]

    def _pause_ms(self, context: RequestContext, request: Any, size_bytes: int = 0, known_ms: int = 0) -> int:
        """Charge the client, and mute its connection for the longest pause that its quotas demand, which is returned.
        `size_bytes` is that of the answer to a Fetch as Kafka counts it, its body and four bytes: with a pause nothing
        of it is sent or counted. `known_ms` is a pause that the client has already."""
        if context.forwarded_by is not None:
            # The broker that forwarded the request charges the rest, and mutes its client.
            return max(known_ms, mutation_pause_ms(context, self._now_ms()))
        now_ms, pause_ms, own_ms = self._now_ms(), 0, 0
        principal, client_id = context.principal, context.client_id
        is_of_follower = self._is_fetch and is_follower(request)
        if self.now_ns is not None:
            percent = (context.busy_ns + self.now_ns()) * NANOS_TO_PERCENT
            if self._is_exempt or is_of_follower or (self._is_produce and request.acks == 0):
                self._time.exempt.record(percent, now_ms)
            else:
                pause_ms = self._time.record(principal, client_id, percent, now_ms)
        own: ClientQuotas = self._time
        if self._bytes is not None and not is_of_follower:
            own = self._bytes
            if self._is_produce:
                size_bytes = len(context.frame)
            own_ms = own.record(principal, client_id, size_bytes, now_ms)
            if self._is_fetch and (own_ms or pause_ms):
                own.record_unthrottled(principal, client_id, -size_bytes, now_ms)
        elif context.charge is not None:
            own, own_ms = self._throttle.managers.mutations, mutation_pause_ms(context, now_ms)
        if own_ms or pause_ms:
            if own_ms <= pause_ms:
                own, own_ms = self._time, pause_ms
            own.note_throttle(principal, client_id, own_ms, now_ms)
        elif not known_ms:
            return 0
        pause_ms = max(own_ms, known_ms)
        context.connection.mute(pause_ms)
        self._throttle.note_pause(self._row.key, pause_ms)
        return pause_ms

    def _set_throttle_time(self, response: Response, pause_ms: int) -> None:
        if self._has_throttle_time:
            cast(Any, response).throttle_time_ms = pause_ms
