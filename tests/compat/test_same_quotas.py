"""Quotas: the same throttle times as Apache Kafka's, to the millisecond.

The first request of a client whose quota is unused is throttled for a time that its size alone decides: over windows of
eleven seconds (S / 10 - T) / T * 10 s. So the times do not depend on when the requests arrive.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from harness.blocking import BlockingConnection
from same_answers import Asker

from kalda.protocol.messages.admin import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    OpData,
)
from kalda.protocol.messages.partitions import (
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kalda.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from kalda.protocol.notation import Request
from kalda.records.builder import build_batch
from waiting import wait_until

pytestmark = pytest.mark.compat

Both = Callable[[Callable[[Asker], None]], None]
Fresh = Callable[[str], str]
PRODUCE_VERSIONS = (3, 7, 9, 11, 12)
FETCH_VERSIONS = (4, 7, 11, 12)
READY_S = 30


def limit(asker: Asker, client_id: str, key: str, value: float) -> None:
    entity = [AlterClientQuotasRequestEntityData(entity_type="client-id", entity_name=client_id)]
    entry = AlterClientQuotasRequestEntryData(entity=entity, ops=[OpData(key=key, value=value)])
    assert asker.quiet(AlterClientQuotasRequest(entries=[entry])).entries[0].error_code == 0


def send(asker: Asker, client_id: str, request: Request, version: int) -> Any:
    """The answer on a connection of its own, which may be muted then."""
    connection = BlockingConnection("127.0.0.1", asker.port, client_id=client_id, timeout_ms=60_000)
    try:
        return connection.request(request, version)
    finally:
        connection.close()


def produce(topic: str, size: int) -> ProduceRequest:
    batch = build_batch([(1, None, bytes(size), ())])
    data = [PartitionProduceData(index=0, records=batch)]
    return ProduceRequest(acks=1, timeout_ms=10_000, topic_data=[TopicProduceData(name=topic, partition_data=data)])


def wait_for_quotas(asker: Asker, topic: str) -> None:
    """Until the broker has applied the last quota, and so all before it."""
    limit(asker, "sentinel", "producer_byte_rate", 1.0)
    wait_until(lambda: send(asker, "sentinel", produce(topic, 10), 9).throttle_time_ms, "it is applied", READY_S)


def test_throttle_times_of_first_requests(both: Both, fresh: Fresh) -> None:
    name = fresh("throttled")

    def scenario(asker: Asker) -> None:
        asker.make(name)
        for version in PRODUCE_VERSIONS:
            limit(asker, f"p{version}", "producer_byte_rate", 1_000.0)
        for version in FETCH_VERSIONS:
            for epoch in (-1, 0):
                limit(asker, f"f{version}{epoch}", "consumer_byte_rate", 1_000.0)
        for version in (5, 6):
            limit(asker, f"m{version}", "controller_mutation_rate", 1.0)
        wait_for_quotas(asker, name)
        send(asker, "unlimited", produce(name, 50_000), 9)
        for version in PRODUCE_VERSIONS:
            answer = send(asker, f"p{version}", produce(name, 50_000), version)
            asker.note(f"produce v{version}", answer.throttle_time_ms)
            assert answer.throttle_time_ms > 40_000
        asked = [FetchRequestFetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)]
        topics = [FetchRequestFetchTopic(topic=name, partitions=asked)]
        for version in FETCH_VERSIONS:
            for epoch in (-1, 0):
                request = FetchRequest(max_bytes=1 << 20, max_wait_ms=100, session_epoch=epoch, topics=topics)
                asked[0].fetch_offset = 1
                answer = send(asker, f"f{version}{epoch}", request, version)
                asker.note(f"fetch v{version} {epoch}", (answer.throttle_time_ms, answer.session_id))
                asker.note(f"fetch v{version} {epoch}: topics", len(answer.responses))
                assert answer.throttle_time_ms > 40_000
        for version in (5, 6):
            for number in (1, 2):
                topic = CreatableTopic(name=f"{name}-{version}-{number}", num_partitions=30, replication_factor=1)
                request = CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
                answer = send(asker, f"m{version}", request, version)
                asker.note(f"create v{version} {number}", (answer.topics[0].error_code, answer.topics[0].error_message))
                asker.note(f"create v{version} {number}: s", round(answer.throttle_time_ms, -4))

    both(scenario)
