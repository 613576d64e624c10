"""Real clients on listeners with TLS and SASL: each mechanism, with and without TLS, and the error of a failed login.

One node for each security protocol, in process. Each client sends a record and reads one back.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaConnectionError
from kafka.net.sasl.oauth import AbstractTokenProvider as BlockingTokenProvider

import kalda
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.security.certificates import Authority
from kalda.security.oauthbearer import unsecured_token
from kalda.testing import Cluster
from waiting import wait_until

pytestmark = pytest.mark.compat

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
CASES = [("SSL", "")] + [(protocol, each) for protocol in ("SASL_PLAINTEXT", "SASL_SSL") for each in MECHANISMS]
WAIT_S = 20
WRONG = "wr0ng-secret"
PLAIN_REFUSED = "Authentication failed: Invalid username or password"


@pytest.fixture(scope="module")
def cluster_of() -> Iterator[Callable[[str], Cluster]]:
    """A node of a security protocol, made once, with a topic t."""
    made: dict[str, Cluster] = {}

    def find(protocol: str) -> Cluster:
        if protocol not in made:
            made[protocol] = Cluster(security=protocol, config={"ssl.client.auth": "required"}).start()
            made[protocol].create_topic("t")
        return made[protocol]

    yield find
    for cluster in made.values():
        cluster.stop()


def token() -> str:
    return unsecured_token({"sub": "alice", "exp": int(time.time()) + 3600})


class Tokens(AbstractTokenProvider):
    async def token(self) -> str:
        return token()


class BlockingTokens(BlockingTokenProvider):
    def __init__(self) -> None:
        pass

    def token(self) -> str:
        return token()


def by_kalda(cluster: Cluster, mechanism: str, password: str | None = None) -> bytes | None:
    config = cluster.client_config("alice", mechanism or "PLAIN", password)
    with kalda.Producer(config) as producer:
        producer.send("t", b"kalda").result(WAIT_S)
    with kalda.Consumer(config, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("t", 0)])
        return next(iter(consumer)).value


def by_librdkafka(cluster: Cluster, mechanism: str, password: str = "alice-secret") -> bytes | None:
    config = cluster.client_config("alice")
    own: dict[str, Any] = {key: config[key] for key in ("bootstrap.servers", "security.protocol")}
    if "ssl.truststore.location" in config:
        own["ssl.ca.location"] = config["ssl.truststore.location"]
    if "ssl.keystore.location" in config:
        own["ssl.certificate.location"] = own["ssl.key.location"] = config["ssl.keystore.location"]
    if mechanism == "OAUTHBEARER":
        own |= {"sasl.mechanism": mechanism, "oauth_cb": lambda _: (token(), time.time() + 3600)}
    elif mechanism:
        own |= {"sasl.mechanism": mechanism, "sasl.username": "alice", "sasl.password": password}
    errors: list[str] = []
    own["error_cb"] = lambda error: errors.append(error.str())
    producer = confluent_kafka.Producer({**own, "log_level": 0})
    producer.produce("t", b"librdkafka")
    for _ in range(WAIT_S):
        if not producer.flush(1) or errors:
            break
    if errors:
        raise ConnectionError(errors[0])
    consumer = confluent_kafka.Consumer({**own, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.assign([confluent_kafka.TopicPartition("t", 0, 0)])
    message = consumer.poll(WAIT_S)
    consumer.close()
    return message.value() if message is not None else None


def by_kafka_python(cluster: Cluster, mechanism: str) -> bytes | None:
    config = cluster.client_config("alice")
    own: dict[str, Any] = {
        "bootstrap_servers": config["bootstrap.servers"],
        "security_protocol": config["security.protocol"],
        "ssl_cafile": config.get("ssl.truststore.location"),
        "ssl_certfile": config.get("ssl.keystore.location"),
        "ssl_keyfile": config.get("ssl.keystore.location"),
    }
    if mechanism == "OAUTHBEARER":
        own |= {"sasl_mechanism": mechanism, "sasl_oauth_token_provider": BlockingTokens()}
    elif mechanism:
        own |= {"sasl_mechanism": mechanism, "sasl_plain_username": "alice", "sasl_plain_password": "alice-secret"}
    producer = kafka.KafkaProducer(**own)
    producer.send("t", b"kafka-python").get(WAIT_S)
    producer.close()
    consumer = kafka.KafkaConsumer(**own, auto_offset_reset="earliest", group_id=None)
    consumer.assign([kafka.TopicPartition("t", 0)])
    value: bytes | None = next(iter(consumer)).value
    consumer.close()
    return value


def by_aiokafka(cluster: Cluster, mechanism: str, password: str = "alice-secret") -> bytes | None:
    config = cluster.client_config("alice")
    own: dict[str, Any] = {
        "bootstrap_servers": config["bootstrap.servers"],
        "security_protocol": config["security.protocol"],
    }
    if "ssl.truststore.location" in config:
        own["ssl_context"] = ssl.create_default_context(cafile=str(config["ssl.truststore.location"]))
        if "ssl.keystore.location" in config:
            own["ssl_context"].load_cert_chain(config["ssl.keystore.location"])
    if mechanism == "OAUTHBEARER":
        own |= {"sasl_mechanism": mechanism, "sasl_oauth_token_provider": Tokens()}
    elif mechanism:
        own |= {"sasl_mechanism": mechanism, "sasl_plain_username": "alice", "sasl_plain_password": password}

    async def run() -> bytes | None:
        producer = AIOKafkaProducer(**own)
        try:
            await producer.start()
            await producer.send_and_wait("t", b"aiokafka")
        finally:
            await producer.stop()
        async with AIOKafkaConsumer("t", **own, auto_offset_reset="earliest") as consumer:
            return (await asyncio.wait_for(consumer.getone(), WAIT_S)).value

    return asyncio.run(run())


@pytest.mark.parametrize("client", [by_kalda, by_librdkafka, by_kafka_python, by_aiokafka])
@pytest.mark.parametrize(("protocol", "mechanism"), CASES)
def test_clients_log_in(
    cluster_of: Callable[[str], Cluster], client: Callable[..., bytes | None], protocol: str, mechanism: str
) -> None:
    cluster = cluster_of(protocol)
    assert client(cluster, mechanism)


def test_a_handshake_that_fails_is_not_tried_again(
    cluster_of: Callable[[str], Cluster], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As an `SslAuthenticationException` of Kafka's client: the error names the cause, whichever side refuses. The log
    of the node has the cause, too."""
    cluster = cluster_of("SSL")
    now = datetime.datetime.now(datetime.UTC)
    stranger = Authority("CN=stranger", now)
    other = tmp_path / "other.pem"
    issued = stranger.issue("CN=alice")
    other.write_text(issued.key + issued.certificate)
    (tmp_path / "ca.pem").write_text(stranger.issued.certificate)
    config = cluster.client_config("alice")
    address = str(config["bootstrap.servers"])
    for wrong, why, logged in (
        ({"ssl.keystore.location": str(other)}, "SSL handshake with 127.0.0.1 failed: .*unknown ca", "verify failed"),
        (
            {"ssl.keystore.location": ""},
            "SSL handshake with 127.0.0.1 failed: .*certificate required",
            "not return a cert",
        ),
        ({"ssl.truststore.location": str(tmp_path / "ca.pem")}, "certificate of 127.0.0.1 is refused", "unknown ca"),
        ({"bootstrap.servers": address.replace("127.0.0.1", "127.1")}, "certificate is not valid for '127.1'", ""),
    ):
        caplog.clear()
        with pytest.raises(ApiError, match=why), kalda.Producer({**config, **wrong}) as producer:
            producer.send("t", b"x").result(WAIT_S)
        # The client has its error before the node has read the alert that it logs.
        wait_until(
            lambda logged=logged: logged in caplog.text and "Failed authentication with /127.0.0.1" in caplog.text
        )


@pytest.mark.parametrize("mechanism", MECHANISMS[:3])
def test_a_wrong_password_is_an_error_of_the_login(
    cluster_of: Callable[[str], Cluster], mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The clients see Kafka's text; the log has the reason and the address, not the password."""
    caplog.set_level(logging.DEBUG, "kalda")
    cluster = cluster_of("SASL_SSL")
    general = f"Authentication failed during authentication due to invalid credentials with SASL mechanism {mechanism}"
    expected = PLAIN_REFUSED if mechanism == "PLAIN" else general
    with pytest.raises(ApiError) as refused:
        by_kalda(cluster, mechanism, WRONG)
    assert refused.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert refused.value.message == expected
    with pytest.raises(ConnectionError, match=expected):
        by_librdkafka(cluster, mechanism, WRONG)
    with pytest.raises(KafkaConnectionError):
        by_aiokafka(cluster, mechanism, WRONG)
    wait_until(lambda: caplog.text.count("Failed authentication with /127.0.0.1") >= 3)
    lines = [record.getMessage() for record in caplog.records]
    assert any("Failed authentication with /127.0.0.1" in line and expected in line for line in lines)
    assert WRONG not in "".join(lines)
