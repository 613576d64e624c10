"""Options: their values, and the errors for wrong ones."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")
from pyspark.sql.types import StringType, StructField, StructType

from kalda.base.ids import TopicPartition
from kalda.spark.options import (
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Edge,
    OptionError,
    ReadOptions,
    TopicSubscription,
    read_options,
)
from kalda.spark.sink_options import write_options

VALUES = StructType([StructField("value", StringType())])
BASE = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "logs"}


def read(**more: str) -> ReadOptions:
    return read_options({**BASE, **more})


def stream(**more: str) -> ReadOptions:
    return read_options({**BASE, **more}, is_streaming=True)


def refusal(options: dict[str, str]) -> str:
    with pytest.raises(OptionError) as caught:
        read_options(options)
    return str(caught.value)


def test_defaults_are_those_of_sparks_source() -> None:
    options = read()
    assert options.subscription == TopicSubscription(topics=("logs",))
    assert (options.start, options.end) == (Edge.EARLIEST, Edge.LATEST)
    assert options.fail_on_data_loss
    assert not options.include_headers
    assert not options.read_committed
    assert (options.min_partitions, options.max_records_per_partition) == (None, None)


def test_defaults_of_a_stream_are_those_of_sparks_source() -> None:
    options = stream()
    assert (options.start, options.end) == (Edge.LATEST, Edge.LATEST)
    assert (options.max_offsets_per_trigger, options.min_offsets_per_trigger) == (None, None)
    assert options.max_trigger_delay_ms == 900_000
    assert stream(startingOffsets="earliest").start is Edge.EARLIEST
    assert stream(startingOffsets='{"logs": {"0": -1, "1": -2}}').start == AtOffsets(
        {TopicPartition("logs", 0): -1, TopicPartition("logs", 1): -2}
    )


@pytest.mark.parametrize(("text", "expected_ms"), [("500", 500), ("90s", 90_000), ("2h", 7_200_000), ("15m", 900_000)])
def test_durations(text: str, expected_ms: int) -> None:
    assert stream(maxTriggerDelay=text).max_trigger_delay_ms == expected_ms


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("endingOffsets", "latest", "an end is not valid in a streaming query"),
        ("endingTimestamp", "5", "an end is not valid in a streaming query"),
        ("maxTriggerDelay", "soon", "90s, 15m or 2h is expected"),
        ("minOffsetsPerTrigger", "9", "it is higher than maxOffsetsPerTrigger (5)"),
    ],
)
def test_what_a_stream_refuses(name: str, value: str, words: str) -> None:
    with pytest.raises(OptionError) as caught:
        stream(**{name: value, "maxOffsetsPerTrigger": "5"})
    assert words in str(caught.value)


def test_options_of_kafka_reach_the_consumer_by_kafkas_keys() -> None:
    options = read(**{"kafka.client.rack": "a", "kafka.max.partition.fetch.bytes": "9", "kafka.group.id": "g"})
    assert options.kafka["bootstrap.servers"] == "localhost:9092"
    assert (options.kafka["client.rack"], options.kafka["max.partition.fetch.bytes"]) == ("a", "9")
    assert "group.id" not in options.kafka
    assert read(**{"kafka.isolation.level": "read_committed"}).read_committed


def test_case_of_names_does_not_matter() -> None:
    options = read_options({"KAFKA.BOOTSTRAP.SERVERS": "a:1", "SubScribe": "x, y,x", "MINPARTITIONS": "7"})
    assert options.subscription.topics == ("x", "y")
    assert options.min_partitions == 7


def test_offsets_for_each_partition() -> None:
    options = read(startingOffsets='{"logs": {"0": 3, "1": -2}}', endingOffsets='{"logs": {"0": -1, "1": 9}}')
    assert options.start == AtOffsets({TopicPartition("logs", 0): 3, TopicPartition("logs", 1): -2})
    assert options.end == AtOffsets({TopicPartition("logs", 0): -1, TopicPartition("logs", 1): 9})


def test_one_time_overrides_times_and_times_override_offsets() -> None:
    times = '{"logs": {"0": 5}}'
    assert read(startingOffsets="earliest", startingOffsetsByTimestamp=times).start == AtTimestamps(
        {TopicPartition("logs", 0): 5}
    )
    assert read(startingTimestamp="8", startingOffsetsByTimestamp=times).start == AtTimestamp(8)
    assert read(endingTimestamp="9", endingOffsets="latest").end == AtTimestamp(9)


def test_assigned_partitions() -> None:
    options = read_options({"kafka.bootstrap.servers": "a", "assign": '{"b": [1, 0, 1], "a": [2]}'})
    assert options.subscription.assigned == (("b", 1), ("b", 0), ("a", 2))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": "logs"}, "option kafka.bootstrap.servers = None: HOST:PORT of a broker is expected"),
        ({**BASE, "kafka.bootstrap.servers": "a:x"}, "kafka.bootstrap.servers = 'a:x'"),
        ({"kafka.bootstrap.servers": "a"}, "one of assign, subscribe, subscribePattern, not none"),
        ({**BASE, "subscribePattern": "l.*"}, "not subscribe and subscribePattern"),
        ({**BASE, "subscribe": " ,"}, "name a topic"),
        ({"kafka.bootstrap.servers": "a", "subscribePattern": "("}, "regular expression"),
        ({"kafka.bootstrap.servers": "a", "assign": '{"a": ["0"]}'}, 'JSON such as {"logs": [0, 1]}'),
        (
            {**BASE, "startingoffset": "latest"},
            "startingoffset = 'latest': there is no such option; the nearest is startingOffsets",
        ),
        ({**BASE, "startingOffsets": "latest"}, "a batch cannot start there"),
        ({**BASE, "endingOffsets": "earliest"}, "a batch cannot end there"),
        ({**BASE, "startingOffsets": "first"}, "startingOffsets = 'first': JSON such as"),
        ({**BASE, "startingOffsets": '{"logs": {"0": -1}}'}, "-2 for earliest"),
        ({**BASE, "endingOffsets": '{"logs": {"0": -2}}'}, "-1 for latest"),
        ({**BASE, "endingOffsets": '{"logs": {"x": 2}}'}, "logs, x: 2"),
        ({**BASE, "endingOffsets": '{"logs": {"0": 1.5}}'}, "logs, 0: 1.5"),
        ({**BASE, "endingOffsets": '{"logs": {"0": NaN}}'}, "JSON such as"),
        ({**BASE, "endingOffsets": "[" * 100_000}, "JSON such as"),
        ({**BASE, "startingTimestamp": "yesterday"}, "a whole number from 0"),
        ({**BASE, "minPartitions": "0"}, "minPartitions = '0': a whole number from 1"),
        ({**BASE, "failOnDataLoss": "maybe"}, "failOnDataLoss = 'maybe': true or false"),
        ({**BASE, "kafka.isolation.level": "all"}, "READ_COMMITTED, READ_UNCOMMITTED"),
        ({**BASE, "kafka.auto.offset.reset": "latest"}, "kafka.auto.offset.reset = 'latest': it is not supported"),
        ({**BASE, "kafka.fetch.max.wait.ms": "x"}, "option kafka.fetch.max.wait.ms = 'x'"),
        (
            {**BASE, "kafka.fetch.maxwait": "1"},
            "there is no configuration fetch.maxwait; the nearest is fetch.max.wait",
        ),
    ],
)
def test_errors_have_option_value_and_remedy(options: dict[str, str], words: str) -> None:
    assert words in refusal(options)


def test_no_error_shows_a_secret() -> None:
    for name in ("sasl.jaas.config", "kafka.ssl.keystore.passwrd"):
        assert f"option {name} = (hidden)" in refusal({**BASE, name: "hunter2"})
    assert "hunter2" not in str(OptionError("kafka.ssl.keystore.key", "hunter2", "it is no key"))
    assert "'TLS'" in str(OptionError("kafka.ssl.protocol", "TLS", "it is too old"))


def test_options_of_sparks_caches_have_no_effect() -> None:
    assert read(groupIdPrefix="x", **{"kafka.max.poll.records": "5"}) == read()


def test_a_connection_stands_for_the_keys_of_a_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its secrets, and without keys of other programs, or that a source refuses; an option beside it wins."""
    (tmp_path / "secrets.properties").write_text("password = hunter2\n")
    profile = f"""
        [prod]
        "config.providers" = "file"
        config.providers.file.class = "org.apache.kafka.common.config.provider.FileConfigProvider"
        bootstrap.servers = "a:1"
        security.protocol = "SASL_PLAINTEXT"
        ssl.truststore.password = "${{file:{tmp_path}/secrets.properties:password}}"
        client.id = "shared"
        acks = "all"
        auto.offset.reset = "earliest"
        schema.registry.url = "http://r"
        """
    (tmp_path / "profiles.toml").write_text(profile)
    monkeypatch.setenv("KALDA_PROFILES", str(tmp_path / "profiles.toml"))
    given = {"kalda.connection": "prod", "subscribe": "logs", "kafka.Client.id": "own"}
    found = read_options(given).kafka
    assert {key: found.get(key) for key in ("bootstrap.servers", "ssl.truststore.password", "acks", "client.id")} == {
        "bootstrap.servers": "a:1",
        "ssl.truststore.password": "hunter2",
        "acks": None,
        "client.id": "own",
    }
    written = write_options({"kalda.connection": "prod", "topic": "t"}, VALUES, is_streaming=True).kafka
    assert (written["acks"], written["client.id"]) == ("all", "shared")
    with pytest.raises(OptionError, match=r"kalda\.connection = 'dev': there is no profile dev in .*: prod"):
        read_options({"kalda.connection": "dev", "subscribe": "logs"})
