"""Why a client is throttled, as JSON: the eight steps, what is measured, the last decisions, what would be needed."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import nlargest
from math import inf, isfinite
from operator import itemgetter
from typing import Any

from kalda.quota.client_quotas import UNLIMITED, ClientQuotas, ClientSensors, tags_of
from kalda.quota.entities import ABSENT, Decision, printable, rounded, throttle_ms
from kalda.quota.managers import MutationSensors, QuotaManagers

_MEASURED_AT_ONCE = 1_000
_UNITS = {"byte-rate": "bytes/s", "request-time": "percent", "tokens": "partitions/s"}


def explain(managers: QuotaManagers, user: str, client_id: str, now_ms: int) -> dict[str, Any]:
    """Each quota of a client. Changes nothing: a client without sensors gets none."""
    return {
        "user": user,
        "client_id": client_id,
        "quotas": [_explain_one(quotas, user, client_id, now_ms) for quotas in managers.by_type.values()],
    }


def _explain_one(quotas: ClientQuotas, user: str, client_id: str, now_ms: int) -> dict[str, Any]:
    found: dict[str, Any] = {"quota": quotas.kind.value, "unit": _UNITS[quotas.metric_name]}
    if quotas.callback is not None:
        found["decided_by"] = type(quotas.callback).__qualname__
        tags = tags_of(quotas.callback.quota_metric_tags(quotas.kind.name, user, client_id))
    else:
        steps = quotas.steps(f"User:{user}", client_id)
        matched = next((step for step in steps if step.limit is not None), None)
        found["steps"] = [
            {"step": step.number, "entity": str(step.entity), "limit": _finite(step.limit), "counts": step is matched}
            for step in steps
        ]
        found["entity"] = None if matched is None else str(matched.entity)
        user_tag, client_tag = quotas.limits.tags(user, client_id)
        tags = tags_of({"user": user_tag, "client-id": client_tag})
        found["shared_by"] = _shared_by(user_tag, client_tag)
    sensors = quotas.find(tags)
    if sensors is None:
        found["used"] = False
        return found
    return {**found, "used": True, **measured(quotas, sensors, now_ms), "decisions": decisions(sensors)}


def _shared_by(user: str, client_id: str) -> str:
    if user == ABSENT:
        return f"all clients with the client id {printable(client_id)}"
    if client_id == ABSENT:
        return f"all clients of user {printable(user)}"
    return f"the clients of user {printable(user)} with the client id {printable(client_id)}"


def measured(quotas: ClientQuotas, sensors: ClientSensors, now_ms: int) -> dict[str, Any]:
    """O, T, W and the pause X that a request would get now; and what is left until it would be throttled."""
    limit = None if sensors.limit == UNLIMITED else sensors.limit
    if isinstance(sensors, MutationSensors):
        tokens = sensors.bucket.measure(now_ms)
        return {
            "tokens": None if limit is None else _finite(tokens),
            "limit": _finite(limit),
            "throttle_ms": max(0, rounded(-tokens / limit * 1000)) if limit is not None else 0,
            "requests": sensors.requests,
        }
    observed, window_ms = sensors.metric.measure(now_ms), sensors.metric.window_size_ms(now_ms)
    pause_ms = 0
    if observed > sensors.limit:
        pause_ms = throttle_ms(sensors.metric, sensors.limit, now_ms)[2]
        if quotas.max_throttle_ms is not None:
            pause_ms = min(pause_ms, quotas.max_throttle_ms)
    left = None if limit is None else max(0.0, (limit - observed) * window_ms / 1000)
    return {
        "observed": observed,
        "limit": _finite(limit),
        "window_ms": window_ms,
        "throttle_ms": pause_ms,
        "left": _finite(left),
        "needed": observed if observed > sensors.limit else None,
        "requests": sensors.requests,
    }


def _finite(value: float | None) -> float | None:
    """JSON has no infinite numbers, which a limit may be."""
    return value if value is not None and isfinite(value) else None


def decisions(sensors: ClientSensors) -> list[dict[str, Any]]:
    """The last decisions that throttled, the newest one last."""
    return [] if sensors.pauses is None else [decision._asdict() for decision in sensors.pauses.decisions]


def in_words(decision: Decision) -> str:
    """One decision as the line of a log."""
    if not decision.window_ms:
        return (
            f"{decision.recorded:g} at {decision.bound:g} a second leave {decision.observed:g} tokens: "
            f"pause of {decision.throttle_ms} ms"
        )
    return (
        f"rate {decision.observed:.0f} exceeds {decision.bound:g} over {decision.window_ms} ms: "
        f"pause of {decision.throttle_ms} ms"
    )


def usage(managers: QuotaManagers, now_ms: int, at_most: int = 1_000) -> Iterator[dict[str, Any] | None]:
    """Who uses how much of which quota: those with a limit, the one nearest to its limit first. There may be very many
    clients: while they are measured, each `_MEASURED_AT_ONCE` of them yield a None."""
    found: list[tuple[float, ClientQuotas, ClientSensors]] = []
    for quotas in managers.by_type.values():
        for number, sensors in enumerate(quotas.each_sensors()):
            if number % _MEASURED_AT_ONCE == 0:
                yield None
            if sensors.limit == UNLIMITED or not isfinite(sensors.limit):
                continue
            used = sensors.metric.measure(now_ms)
            if isinstance(sensors, MutationSensors):
                used = max(0.0, -sensors.bucket.measure(now_ms))
            found.append((used / sensors.limit if sensors.limit else inf, quotas, sensors))
    for _, quotas, sensors in nlargest(at_most, found, key=itemgetter(0)):
        yield {"quota": quotas.kind.value, "tags": dict(sensors.tags), **measured(quotas, sensors, now_ms)}
