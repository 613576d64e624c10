"""Logins of clients of a secured cluster are counted: those that succeed, those that fail, and renewals (KIP-368)."""

from __future__ import annotations

import pytest

from kalda.base.errors import ApiError
from kalda.client.producer.producer import Producer
from kalda.testing import Cluster


def test_logins_are_counted() -> None:
    with Cluster(security="SASL_PLAINTEXT", config={"connections.max.reauth.ms": 1_000}) as cluster:
        cluster.create_topic("t", partitions=1)
        settings = {**cluster.client_config(), "bootstrap.servers": cluster.bootstrap_servers}
        with Producer(settings) as producer:
            producer.send("t", b"1").result(30)
            found = producer.metrics()
            made = found["connection-creation-total"]
            assert found["successful-authentication-total"] == made > 0
            assert found["successful-authentication-no-reauth-total"] == made, "as in Kafka's clients"
            assert found["failed-authentication-total"] == 0
            for _ in range(100_000):  # a session ends after a second
                producer.send("t", b"1").result(30)
                found = producer.metrics()
                if found["successful-reauthentication-total"]:
                    break
            assert found["reauthentication-latency-max"] >= found["reauthentication-latency-avg"] >= 0
            assert found["connection-creation-total"] == made
        wrong = {**settings, "sasl.jaas.config": str(settings["sasl.jaas.config"]).replace("secret", "wrong")}
        with Producer(wrong) as producer:
            with pytest.raises(ApiError):
                producer.send("t", b"1").result(30)
            found = producer.metrics()
            assert found["failed-authentication-total"] > 0
            assert found["successful-authentication-total"] == 0
