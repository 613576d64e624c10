"""The producer's configuration: Kafka's keys and defaults, what excludes what, and errors that name the key."""

from __future__ import annotations

import pytest

from kalda.base.configs.definition import InvalidConfig
from kalda.base.configs.producer import ProducerConfig, producer_config

SERVERS = {"bootstrap.servers": "h:1"}


def config(**keys: object) -> ProducerConfig:
    return producer_config({**SERVERS, **{key.replace("_", "."): value for key, value in keys.items()}}, {})


def test_defaults_are_kafkas() -> None:
    found = config()
    assert (found.acks, found.batch_size, found.linger_ms, found.buffer_memory) == (-1, 16_384, 5, 33_554_432)
    assert (found.retries, found.delivery_timeout_ms, found.request_timeout_ms) == (2**31 - 1, 120_000, 30_000)
    assert (found.max_block_ms, found.max_in_flight, found.max_request_size) == (60_000, 5, 1_048_576)
    assert found.enable_idempotence
    assert found.adaptive_partitioning
    assert not found.ignore_keys


def test_keywords_are_the_keys_in_snake_case() -> None:
    found = producer_config(None, {"bootstrap_servers": ["a:1", "b:2"], "linger_ms": 7, "enable_idempotence": False})
    assert (found.bootstrap_servers, found.linger_ms, found.enable_idempotence) == (("a:1", "b:2"), 7, False)


def test_an_unknown_key_names_the_nearest() -> None:
    with pytest.raises(InvalidConfig, match=r"no configuration linger.mss; the nearest is linger.ms"):
        producer_config({**SERVERS, "linger.mss": 1}, {})
    with pytest.raises(InvalidConfig, match=r"no configuration bach_size; the nearest is batch.size"):
        producer_config(SERVERS, {"bach_size": 1})


def test_a_key_given_twice_names_both_values() -> None:
    with pytest.raises(InvalidConfig, match=r"linger.ms is given twice: 1 in the mapping, 2 as the keyword linger_ms"):
        producer_config({**SERVERS, "linger.ms": 1}, {"linger_ms": 2})
    assert producer_config({**SERVERS, "linger.ms": 2}, {"linger_ms": 2}).linger_ms == 2


def test_bootstrap_servers_are_needed() -> None:
    with pytest.raises(InvalidConfig, match=r"bootstrap\.servers is missing"):
        producer_config(None, {})


@pytest.mark.parametrize(
    ("key", "value"), [("acks", "2"), ("linger_ms", "x"), ("compression_type", "zip"), ("retries", -1)]
)
def test_invalid_values_name_the_key(key: str, value: object) -> None:
    with pytest.raises(InvalidConfig, match=key.replace("_", ".")):
        config(**{key: value})


def test_a_batch_size_of_zero_is_one() -> None:
    assert config(batch_size=0).batch_size == 1


def test_idempotence_gives_way_to_weaker_settings_unless_it_is_asked_for() -> None:
    assert not config(acks="1").enable_idempotence
    assert not config(retries=0).enable_idempotence
    for weaker in ({"acks": "0"}, {"retries": 0}, {"max_in_flight_requests_per_connection": 6}):
        with pytest.raises(InvalidConfig, match="idempotent producer"):
            config(enable_idempotence=True, **weaker)
    with pytest.raises(InvalidConfig, match=r"max.in.flight.requests.per.connection to at most 5"):
        config(max_in_flight_requests_per_connection=6)


def test_a_transactional_id_needs_idempotence() -> None:
    with pytest.raises(InvalidConfig, match=r"transactional.id without also enabling idempotence"):
        config(transactional_id="t", enable_idempotence=False)
    with pytest.raises(InvalidConfig, match="Must set acks to all"):
        config(transactional_id="t", acks="1")


def test_the_delivery_timeout_covers_linger_and_a_request() -> None:
    assert config(request_timeout_ms=200_000, linger_ms=10).delivery_timeout_ms == 200_010
    with pytest.raises(InvalidConfig, match=r"delivery.timeout.ms should be equal to or larger"):
        config(request_timeout_ms=1_000, linger_ms=10, delivery_timeout_ms=1_009)


def test_an_unknown_security_protocol_is_refused_by_name() -> None:
    assert config(security_protocol="sasl_ssl").values["security.protocol"] == "sasl_ssl"
    with pytest.raises(InvalidConfig, match=r"TLS for configuration security.protocol"):
        config(security_protocol="TLS")
