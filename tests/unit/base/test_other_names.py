"""Keys of other clients are answered with Kalda's."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from kalda.base.configs import client
from kalda.base.configs.admin import ADMIN
from kalda.base.configs.consumer import CONSUMER, consumer_config
from kalda.base.configs.definition import InvalidConfig
from kalda.base.configs.producer import PRODUCER, producer_config

SERVERS = {"bootstrap.servers": "localhost:9092"}
Make = Callable[[Mapping[str, object], Mapping[str, object]], object]


@pytest.mark.parametrize(
    ("make", "given", "said"),
    [
        (producer_config, "queue.buffering.max.ms", "it is librdkafka's name for linger.ms"),
        (producer_config, "message.timeout.ms", "it is librdkafka's name for delivery.timeout.ms"),
        (producer_config, "batch.num.messages", "it is librdkafka's name for batch.size, which is in bytes"),
        (producer_config, "queue.buffering.max.kbytes", "it is librdkafka's; give buffer.memory, which is in bytes"),
        (consumer_config, "enable.auto.offset.store", "it is librdkafka's; give enable.auto.commit=false"),
        (consumer_config, "sasl.username", "it is librdkafka's; give sasl.jaas.config"),
        (consumer_config, "stats_cb", r"it is librdkafka's; metrics\(\)"),
    ],
)
def test_a_key_of_librdkafka_is_answered_with_ours(make: Make, given: str, said: str) -> None:
    with pytest.raises(InvalidConfig, match=f"there is no configuration {given}: {said}"):
        make({**SERVERS, given: "1"}, {})


def test_keywords_of_kafka_python_too() -> None:
    with pytest.raises(InvalidConfig, match=r"no configuration ssl_cafile: it is kafka-python's; .*truststore"):
        consumer_config(SERVERS, {"ssl_cafile": "ca.pem"})
    with pytest.raises(InvalidConfig, match=r"no configuration queue_buffering_max_ms: .* linger.ms"):
        producer_config(SERVERS, {"queue_buffering_max_ms": 5})


@pytest.mark.parametrize(
    ("policy", "ours"), [("smallest", "earliest"), ("beginning", "earliest"), ("largest", "latest"), ("error", "none")]
)
def test_policies_of_auto_offset_reset_too(policy: str, ours: str) -> None:
    with pytest.raises(InvalidConfig, match=f"Invalid value {policy} .*: it is librdkafka's name for {ours}"):
        consumer_config({**SERVERS, "auto.offset.reset": policy}, {})


def test_what_is_named_exists_and_what_exists_is_not_answered() -> None:
    ours = {*PRODUCER.names(), *CONSUMER.names(), *ADMIN.names()}
    assert {name.partition(",")[0] for name in client._LIBRDKAFKA.values()} <= ours
    assert not ours & {*client._LIBRDKAFKA, *client._LIBRDKAFKA_ADVICE, *client._KAFKA_PYTHON}
