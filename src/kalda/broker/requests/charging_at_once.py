"""The charge stage of most requests of a limited client: those that are answered at once and count against one quota.

This is one quota of bytes of a Produce or Fetch, or the quota of time of any request. What this costs is a part of
every request, so it is one function for each. The sensors of a client are kept at its connection, for one generation of
the quota's clients; what surely stays within the quota is recorded by one compiled call, without measuring the rate.
Replies that wait or are made in steps, requests without an answer, and those that count against two quotas are charged
by `kalda.broker.requests.charging.Charge`.

Not obvious:

- Answers that are made at once are encoded before they are charged, and encoded again, without counting errors, where
  the client pauses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kalda.broker.requests.context import RequestContext
from kalda.broker.stopwatch import RequestTimer
from kalda.network.connection import Buffer
from kalda.protocol.messages.fetch import FetchRequest, FetchResponse
from kalda.protocol.messages.produce import ProduceRequest, ProduceResponse
from kalda.protocol.notation import Request, Response
from kalda.quota.client_quotas import ClientQuotas, ClientSensors

Handler = Callable[[RequestContext, Any], Any]
Encode = Callable[[int, Response], list[Buffer]]
Paused = Callable[[RequestContext, Request, Response, int], Response]
"""Mutes the connection of a client for so many milliseconds; returns what is sent to it in place of the response."""


def charged_produce(handler: Handler, quotas: ClientQuotas, now_ms: Callable[[], int], paused: Paused) -> Handler:
    """`handler`, whose response is charged by the size of the request's frame."""

    def produce(context: RequestContext, request: ProduceRequest) -> Any:
        reply = handler(context, request)
        if type(reply) is not ProduceResponse:
            return reply
        now = now_ms()
        generation, client_id, sensors = context.connection.quota_use
        if generation is not quotas.generation or client_id != context.client_id:
            sensors = _sensors_of(quotas, context, now)
        if sensors.take_frame(context.frame, now):
            return reply
        if pause_ms := quotas.record_of(sensors, len(context.frame), now):
            sensors.note_pause(pause_ms, now)
            return paused(context, request, reply, pause_ms)
        return reply

    return produce


def charged_fetch(
    handler: Handler,
    quotas: ClientQuotas,
    now_ms: Callable[[], int],
    paused: Paused,
    encode: Encode,
    encode_again: Encode,
    header_bytes: int,
) -> Handler:
    """`handler`, whose response is encoded, and charged by its size without `header_bytes`. Followers are exempt."""

    def fetch(context: RequestContext, request: FetchRequest) -> Any:
        if request.replica_id >= 0 or request.replica_state.replica_id >= 0:
            return handler(context, request)
        generation, client_id, sensors = context.connection.quota_use
        if generation is not quotas.generation or client_id != context.client_id:
            sensors = _sensors_of(quotas, context, now_ms())
        if sensors.most_at_once < request.max_bytes:
            limit_fetch(request, sensors.most_at_once)
        reply = handler(context, request)
        if type(reply) is not FetchResponse:
            return reply
        buffers = encode(context.header.correlation_id, reply)
        now = now_ms()
        if sensors.take_buffers(buffers, header_bytes, now):
            return buffers
        size = sum(map(len, buffers)) - header_bytes
        if pause_ms := quotas.record_of(sensors, size, now):
            quotas.record_unthrottled(context.principal, context.client_id, -size, now)
            sensors.note_pause(pause_ms, now)
            return encode_again(context.header.correlation_id, paused(context, request, reply, pause_ms))
        return buffers

    return fetch


def charged_time(
    handler: Handler,
    quotas: ClientQuotas,
    timer: RequestTimer,
    now_ms: Callable[[], int],
    paused: Paused,
    encode: Encode,
    encode_again: Encode,
    response: type[Response],
) -> Handler:
    """`handler`, whose `response` is encoded, and charged by the time of the request on the timer."""

    may_be_exempt = response is FetchResponse  # a Produce with acks=0 has no response

    def timed(context: RequestContext, request: Any) -> Any:
        reply = handler(context, request)
        if type(reply) is not response:
            return reply
        if may_be_exempt and (request.replica_id >= 0 or request.replica_state.replica_id >= 0):
            return reply
        buffers = encode(context.header.correlation_id, reply)
        generation, client_id, sensors = context.connection.quota_use
        if generation is not quotas.generation or client_id != context.client_id:
            sensors = _sensors_of(quotas, context, now_ms())
        if timer.take(sensors):
            return buffers
        now = now_ms()
        if pause_ms := quotas.record_of(sensors, timer.percent, now):
            sensors.note_pause(pause_ms, now)
            return encode_again(context.header.correlation_id, paused(context, request, reply, pause_ms))
        return buffers

    return timed


def is_exempt(request: Request) -> bool:
    """Whether the time of a request counts for no quota of a client: the Fetch of a follower, and a Produce with
    acks=0, since no answer could carry the pause."""
    if type(request) is FetchRequest:
        return is_follower(request)
    return type(request) is ProduceRequest and request.acks == 0


def is_follower(request: FetchRequest) -> bool:
    """Whether a Fetch is that of a follower."""
    return request.replica_id >= 0 or request.replica_state.replica_id >= 0


def limit_fetch(request: FetchRequest, most_bytes: float) -> None:
    """Reduce the bytes of a Fetch to what its client may use at once without a pause: it would be throttled for sure
    otherwise, again and again."""
    request.max_bytes = int(min(most_bytes, request.max_bytes))
    request.min_bytes = min(request.min_bytes, request.max_bytes)


def _sensors_of(quotas: ClientQuotas, context: RequestContext, now: int) -> ClientSensors:
    """The sensors of the client, kept at its connection. A class of the operator may choose others each time."""
    sensors = quotas.sensors_of(context.principal, context.client_id, now)
    if quotas.callback is None:
        context.connection.quota_use = quotas.generation, context.client_id, sensors
    return sensors
