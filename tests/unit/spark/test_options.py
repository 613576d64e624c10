"""Options: their values, and the errors for wrong ones."""

from __future__ import annotations

import pytest

from kalda.base.ids import TopicPartition
from kalda.spark.options import (
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Edge,
    OptionError,
    ReadOptions,
    Subscription,
    read_options,
)

BASE = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "logs"}


def read(**more: str) -> ReadOptions:
    return read_options({**BASE, **more})


def refusal(options: dict[str, str]) -> str:
    with pytest.raises(OptionError) as caught:
        read_options(options)
    return str(caught.value)


def test_defaults_are_those_of_sparks_source() -> None:
    options = read()
    assert options.subscription == Subscription(topics=("logs",))
    assert (options.start, options.end) == (Edge.EARLIEST, Edge.LATEST)
    assert options.fail_on_data_loss
    assert not options.include_headers
    assert not options.fetch.read_committed
    assert (options.min_partitions, options.max_records_per_partition) == (None, None)


def test_the_timeout_is_that_of_kafkas_consumer() -> None:
    assert read().fetch.timeout_ms == 60_000
    assert read(**{"kafka.request.timeout.ms": "5"}).fetch.timeout_ms == 5
    both = {"kafka.request.timeout.ms": "5", "kafka.default.api.timeout.ms": "7"}
    assert read(**both).fetch.timeout_ms == 7


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
        ({**BASE, "startingoffset": "latest"}, "option startingoffset = 'latest': there is no such option"),
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
        ({**BASE, "kafka.isolation.level": "all"}, "read_uncommitted or read_committed"),
        ({**BASE, "kafka.security.protocol": "SASL_SSL"}, "only PLAINTEXT is supported"),
    ],
)
def test_errors_have_option_value_and_remedy(options: dict[str, str], words: str) -> None:
    assert words in refusal(options)


def test_options_of_sparks_consumers_have_no_effect() -> None:
    assert read(groupIdPrefix="x", **{"kafka.max.poll.records": "5", "fetchOffset.numRetries": "3"}) == read()
