"""Client quotas against vectors of Kafka's own managers: the same throttle times for the same requests."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from kalda.base.background import run_to_end
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.stats import MetricConfig
from kalda.quota import client_quotas
from kalda.quota.client_quotas import (
    IDLE_MS,
    SENSOR_LIFETIME_MS,
    UNLIMITED,
    ClientQuotas,
    MetricTags,
    QuotaType,
    RequestQuotas,
)
from kalda.quota.entities import ABSENT, DEFAULT, Entity, Levels
from kalda.quota.managers import MutationQuotas
from kalda.quota.replication_quotas import ReplicationQuota

GOLDEN = Path(__file__).parents[2] / "golden" / "quota" / "vectors.jsonl.gz"
CONFIG = MetricConfig(1_000, 11)


def vectors(kind: str) -> list[dict[str, Any]]:
    with gzip.open(GOLDEN, "rt") as lines:
        return [each for each in map(json.loads, lines) if each["kind"] == kind]


def entity(user: str | None, client_id: str | None) -> Entity:
    """Of a vector, where null stands for a name that is absent and "" for the default."""

    def name(text: str | None) -> str | None:
        return ABSENT if text is None else text or DEFAULT

    return Entity(name(user), name(client_id))


def config_of(vector: dict[str, Any]) -> MetricConfig:
    return MetricConfig(vector["window_ms"], vector["samples"])


@pytest.mark.parametrize("vector", vectors("clients"))
def test_clients_are_throttled_as_by_kafka(vector: dict[str, Any]) -> None:
    quotas = ClientQuotas(QuotaType.PRODUCE, config_of(vector))
    throttled = 0
    for kind, *row in vector["rows"]:
        if kind == "set":
            user, client_id, bound, levels = row
            quotas.set_limit(entity(user, client_id), bound)
            assert quotas.limits.levels == levels, row
            continue
        now_ms, user, client_id, value, *expected = row
        principal = f"User:{user}"
        if kind == "max":
            if quotas.is_enabled:
                most = quotas.sensors_of(principal, client_id, now_ms).most_at_once
                assert most == pytest.approx(min(value, UNLIMITED), abs=1), (now_ms, row)
        elif kind == "unrecord":
            quotas.record_unthrottled(principal, client_id, -value, now_ms)
        else:
            pause_ms = quotas.record(principal, client_id, value, now_ms) if quotas.is_enabled else 0
            (_, user_tag), (_, client_tag) = quotas.sensors_of(principal, client_id, now_ms).tags
            assert [pause_ms, quote(user_tag, safe=""), client_tag] == expected, (now_ms, row)
            throttled += pause_ms > 0
    assert throttled > 20, "the vectors throttle"


@pytest.mark.parametrize("vector", vectors("mutations"))
def test_mutations_are_charged_as_by_kafka(vector: dict[str, Any]) -> None:
    quotas = MutationQuotas(config_of(vector))
    throttled = 0
    for kind, *row in vector["rows"]:
        if kind == "set":
            user, client_id, bound, levels = row
            quotas.set_limit(entity(user, client_id), bound)
            assert quotas.limits.levels == levels
            continue
        now_ms, user, client_id, value, *expected = row
        if kind == "max":
            continue  # of Fetch alone
        if not quotas.is_enabled:
            assert expected == [False, 0, 0]
        else:
            charge = quotas.charge_of(f"User:{user}", client_id, now_ms, strict=kind == "strict")
            code = ErrorCode.NONE
            try:
                charge.record(value, now_ms)
            except ApiError as error:
                code = error.code
            refused = code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
            assert [refused, charge.throttle_ms(now_ms), charge.throttle_ms(now_ms + 70)] == expected, (now_ms, row)
            throttled += expected[1] > 0
    assert throttled > 20


@pytest.mark.parametrize("vector", vectors("replication"))
def test_replication_exceeds_its_rate_when_kafkas_does(vector: dict[str, Any]) -> None:
    quota = ReplicationQuota(config_of(vector))
    quota.set_bound(2_000)
    for kind, now_ms, value, *expected in vector["rows"]:
        if kind == "set":
            quota.set_bound(value)
        else:
            quota.record(value, now_ms)
            assert [quota.is_exceeded(now_ms)] == expected


# -- what no vector has


def produce_quotas(**limits: float) -> ClientQuotas:
    quotas = ClientQuotas(QuotaType.PRODUCE, CONFIG)
    for client_id, limit in limits.items():
        quotas.set_limit(Entity(ABSENT, client_id), limit)
    return quotas


def test_a_limit_that_changes_keeps_the_usage() -> None:
    quotas = produce_quotas(c=1_000)
    assert quotas.record("User:u", "c", 10_000, 0) == 0
    quotas.set_limit(Entity(ABSENT, "c"), 500)
    assert quotas.record("User:u", "c", 0, 0) == 10_000, "(1000 - 500) / 500 * 10 s"
    quotas.set_limit(Entity(ABSENT, "c"), None)
    assert quotas.record("User:u", "c", 1e9, 0) == 0
    quotas.set_limit(Entity(ABSENT, DEFAULT), 1_000)
    assert quotas.record("User:u", "c", 0, 0) > 0, "what was used without a limit counts too"


def test_a_change_of_a_default_costs_what_is_used_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be a hundred thousand clients."""
    quotas = ClientQuotas(QuotaType.PRODUCE, CONFIG)
    quotas.set_limit(Entity(ABSENT, DEFAULT), 10.0)
    for number in range(1_000):
        quotas.record("User:a", f"id {number}", 1, 0)
    looked_up: list[MetricTags] = []
    limit_of = quotas._limit_of

    def counted(tags: MetricTags) -> float:
        looked_up.append(tags)
        return limit_of(tags)

    monkeypatch.setattr(quotas, "_limit_of", counted)
    quotas.set_limit(Entity(ABSENT, DEFAULT), 20.0)
    assert looked_up == []
    assert quotas.sensors_of("User:a", "id 7", 0).limit == 20.0
    assert quotas.sensors_of("User:a", "id 7", 0).limit == 20.0
    assert looked_up == [("user", "", "client-id", "id 7")]
    assert {sensors.limit for sensors in quotas.each_sensors()} == {20.0}
    quotas.set_limit(Entity(ABSENT, DEFAULT), None)
    assert {sensors.limit for sensors in quotas.each_sensors()} == {UNLIMITED}


def test_a_default_gives_each_client_a_limit_of_its_own() -> None:
    quotas = ClientQuotas(QuotaType.FETCH, CONFIG)
    quotas.set_limit(Entity(DEFAULT, ABSENT), 1_000)
    assert quotas.record("User:a", "x", 20_000, 0) == 10_000
    assert quotas.record("User:b", "x", 10_000, 0) == 0
    assert quotas.record("User:a", "y", 0, 0) == 10_000, "the client ids of a user share it"


def test_the_pause_for_request_time_is_one_window_at_most() -> None:
    quotas = RequestQuotas(CONFIG)
    quotas.set_limit(Entity(ABSENT, "c"), 0.001)
    assert quotas.record("User:u", "c", 100, 0) == 1_000


def test_a_pause_is_at_most_what_a_response_can_carry() -> None:
    assert produce_quotas(c=1e-300).record("User:u", "c", 1e9, 0) == 2**31 - 1


def test_sensors_expire_after_an_hour_without_a_record() -> None:
    quotas = produce_quotas(c=1_000)
    for number in range(6_000):
        quotas.record("User:u", f"c{number}", 1, 0)
    quotas.record("User:u", "c7", 1, 1_000)
    run_to_end(quotas.expire(SENSOR_LIFETIME_MS))
    assert len(quotas.sensors) == 6_000
    run_to_end(quotas.expire(SENSOR_LIFETIME_MS + 1))
    assert [dict(each.tags)["client-id"] for each in quotas.sensors.values()] == ["c7"]
    assert quotas.record("User:u", "c1", 1, SENSOR_LIFETIME_MS + 2) == 0


def test_an_idle_client_costs_little_and_is_throttled_as_before() -> None:
    count, now_ms = 1_000, 50_000
    quotas, kept = ClientQuotas(QuotaType.PRODUCE, CONFIG), ClientQuotas(QuotaType.PRODUCE, CONFIG)
    for each in (quotas, kept):
        each.set_limit(Entity(DEFAULT, DEFAULT), 1_000.0)
        each.set_limit(Entity(DEFAULT, ABSENT), 1_000.0)

    def use(each: ClientQuotas, client: int, at_ms: int) -> int:
        return each.record(f"User:user-{client}", f"client-{client}", 1_500.0 + client, at_ms)

    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for step in range(13):
        pauses = [use(quotas, client, now_ms + step * 700) for client in range(count)]
    assert all(pauses), "each has decisions to keep"
    del pauses
    now_ms += 13 * 700 + IDLE_MS
    run_to_end(quotas.expire(now_ms))
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (after - before) / count <= 600, "bytes for each client, its name included"
    for step in range(13):
        use(kept, 0, 50_000 + step * 700)
    for step in range(60):
        assert use(quotas, 0, now_ms + step * 431) == use(kept, 0, now_ms + step * 431)
    assert use(quotas, 0, now_ms + 26_000) > 0


def test_names_that_clients_make_up_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_quotas, "MAX_SENSORS", 64)
    monkeypatch.setattr(client_quotas, "MAX_NAME_BYTES", 10_000)
    quotas = produce_quotas(c=1_000)
    for number in range(1_000):
        quotas.record("User:u", f"c{number}", 1, 0)
        quotas.record("User:u", f"{number:05}" + "\x00" * 4_000, 1, 0)
        assert len(quotas.sensors) <= 64
        assert quotas._name_bytes <= 10_000
        assert len(quotas._by_client) <= 64


class OneQuota:
    """All clients of a user's first letter share a quota."""

    def __init__(self) -> None:
        self.limits: dict[str, float] = {"a": 100}
        self.updates: list[Any] = []
        self.changed = False

    def quota_metric_tags(self, quota_type: str, user: str, client_id: str) -> Mapping[str, str]:
        return {"letter": user[0]}

    def quota_limit(self, quota_type: str, metric_tags: Mapping[str, str]) -> float | None:
        return self.limits.get(metric_tags["letter"])

    def update_quota(self, quota_type: str, entity: Entity, value: float) -> None:
        self.updates.append((quota_type, entity, value))

    def remove_quota(self, quota_type: str, entity: Entity) -> None:
        self.updates.append((quota_type, entity))

    def quota_reset_required(self, quota_type: str) -> bool:
        changed, self.changed = self.changed, False
        return changed


def test_an_operators_class_decides_in_place_of_the_levels() -> None:
    callback = OneQuota()
    quotas = ClientQuotas(QuotaType.PRODUCE, CONFIG, callback)
    assert quotas.is_enabled
    assert quotas.record("User:alice", "x", 1_000, 0) == 0
    assert quotas.record("User:anna", "y", 1_000, 0) == 10_000
    assert quotas.record("User:bob", "x", 1e9, 0) == 0
    callback.limits, callback.changed = {"a": 1_000, "b": 1}, True
    assert quotas.record("User:anna", "y", 0, 0) == 0
    assert quotas.record("User:bob", "x", 0, 0) > 0
    quotas.set_limit(Entity("bob", ABSENT), 5.0)
    quotas.set_limit(Entity("bob", ABSENT), None)
    assert callback.updates == [("PRODUCE", Entity("bob", ABSENT), 5.0), ("PRODUCE", Entity("bob", ABSENT))]


def test_levels_are_in_use_while_an_entity_of_theirs_has_a_limit() -> None:
    quotas = produce_quotas(a=1, b=2)
    assert quotas.limits.levels == Levels.CLIENT_ID
    quotas.set_limit(Entity("u", DEFAULT), 1)
    assert quotas.limits.levels == Levels.CLIENT_ID | Levels.USER_CLIENT_ID
    quotas.set_limit(Entity(ABSENT, "a"), None)
    quotas.set_limit(Entity(ABSENT, "b"), None)
    assert quotas.limits.levels == Levels.USER_CLIENT_ID
    quotas.set_limit(Entity("u", DEFAULT), None)
    assert not quotas.is_enabled


@pytest.mark.parametrize(
    ("limit", "size"), [(1e6, 16_384), (1e6, 250_000), (5e6, 250_000), (20e6, 1_000_000), (500e6, 1_000_000)]
)
def test_a_client_that_sends_without_a_pause_of_its_own_gets_the_rate_of_its_quota(limit: float, size: int) -> None:
    """Over some of the periods in which it swings: after the first windows a client pauses for long, then it may catch
    up. Within one such period of 22 seconds the rate is 0.85 to 1.12 of the quota where a request has the bytes of a
    second, in Apache Kafka as here; so a measurement has to cover whole periods."""
    quotas = ClientQuotas(QuotaType.PRODUCE, CONFIG)
    quotas.set_limit(Entity(ABSENT, "c"), limit)
    now_us, sent = 100_000_000, 0
    began_us = now_us + 22_000_000
    ends_us = began_us + 220_000_000 if limit < 20e6 else began_us + 44_000_000
    while now_us < ends_us:
        if now_us >= began_us:
            sent += size
        pause_ms = quotas.record("User:ANONYMOUS", "c", size, now_us // 1_000)
        now_us += 1_000 * pause_ms or max(1, int(size / 4 / limit * 1e6))  # four times the quota
    rate = sent / (ends_us - began_us) * 1e6
    assert 0.95 <= rate / limit <= 1.05
