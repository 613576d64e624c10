"""A worker of Spark reads one range of offsets after another, with one consumer."""

from __future__ import annotations

import pytest

from kalda import Producer
from kalda.testing import Cluster

pytest.importorskip("pyspark")

from kalda.spark.options import read_options
from kalda.spark.partitions import OffsetRange
from kalda.spark.range_reader import RangeConsumer


def test_the_next_range_of_a_topic_requests_no_metadata() -> None:
    """A response has all partitions of the topic: with a thousand of them, it took longer than the range."""
    with Cluster() as cluster:
        cluster.create_topic("ranges", partitions=3)
        with Producer(cluster.client_config()) as producer:
            for number in range(30):
                producer.send("ranges", b"%d" % number, partition=number % 3)
        options = read_options({"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": "ranges"})
        with RangeConsumer(dict(options.kafka)) as consumer:
            versions = set()
            for partition in (0, 1, 2, 0):
                taken = list(consumer.chunks(OffsetRange("ranges", partition, 2, 7), options))
                assert (taken[0].start, taken[-1].end) == (2, 7)
                consumer.release()
                assert not consumer.assignment()
                with consumer._lock:  # as the background thread does, at any time between two ranges
                    consumer._core.run(consumer._core.requests.now_ms, is_polling=False)
                versions.add(consumer._core.metadata.version)
            assert len(versions) == 1
