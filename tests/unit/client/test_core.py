"""Decisions of clients, compared with those of Apache Kafka's own classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kalda.assignors.stateless import Subscriber, assign_range
from kalda.base.ids import TopicPartition
from kalda.clientcore.connections.metadata import Address, parse_bootstrap
from kalda.clientcore.consuming.fetcher import aborted_batches
from kalda.records.appending import murmur2
from kalda.records.builder import build_batch
from kalda.records.control import transaction_marker_batch

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "client" / "vectors.json").read_text())


@pytest.mark.parametrize("vector", GOLDEN["murmur2"], ids=lambda vector: vector["hex"] or "empty")
def test_keys_hash_as_in_kafka(vector: dict[str, Any]) -> None:
    key = bytes.fromhex(vector["hex"])
    assert murmur2(key) == vector["murmur2"] & 0xFFFFFFFF
    for count, partition in vector["partition_of"].items():
        assert (murmur2(key) & 0x7FFFFFFF) % int(count) == partition


@pytest.mark.parametrize("case", GOLDEN["range"])
def test_range_assigns_as_kafka_does(case: dict[str, Any]) -> None:
    subscribers = [Subscriber(m["id"], tuple(m["topics"]), m.get("instance")) for m in case["members"]]
    for order in (subscribers, subscribers[::-1]):
        assigned = assign_range(order, case["topics"])
        expected = {
            member: [
                TopicPartition(topic, partition) for topic, partitions in topics.items() for partition in partitions
            ]
            for member, topics in case["out"].items()
        }
        assert {member: sorted(partitions) for member, partitions in assigned.items()} == {
            member: sorted(partitions) for member, partitions in expected.items()
        }


def batch(offset: int, producer_id: int, transactional: bool = True) -> bytes:
    rows = [(0, None, b"v", ()), (0, None, b"w", ())]
    return bytes(
        build_batch(
            rows, base_offset=offset, producer_id=producer_id, producer_epoch=0, base_sequence=0,
            is_transactional=transactional,
        )
    )  # fmt: skip


def marker(offset: int, producer_id: int, commit: bool) -> bytes:
    return bytes(
        transaction_marker_batch(
            producer_id=producer_id, producer_epoch=0, commit=commit, coordinator_epoch=0, timestamp_ms=0,
            base_offset=offset,
        )
    )  # fmt: skip


def test_an_aborted_transaction_ends_at_its_marker() -> None:
    log = [
        batch(0, 7),  # aborted
        batch(2, 8),  # committed
        batch(4, 9, transactional=False),
        marker(6, 7, commit=False),
        batch(7, 7),  # the next one of the same producer, committed
        marker(9, 7, commit=True),
        marker(10, 8, commit=True),
    ]
    assert aborted_batches(b"".join(log), [(7, 0)]) == {0}
    assert aborted_batches(b"".join(log), [(7, 7), (7, 0)]) == {0, 7}
    assert aborted_batches(b"".join(log), []) == frozenset()


def test_a_transaction_that_began_before_the_fetch_is_dropped_from_its_first_batch() -> None:
    assert aborted_batches(batch(100, 7) + marker(102, 7, commit=False), [(7, 40)]) == {100}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:1,b:2", (Address("a", 1), Address("b", 2))),
        (" kafka.example.com ", (Address("kafka.example.com", 9092),)),
        ("[::1]:9000,[fe80::1]", (Address("::1", 9000), Address("fe80::1", 9092))),
        ("PLAINTEXT://a:1,SASL_SSL://[::1]:2", (Address("a", 1), Address("::1", 2))),
        ("my.listener-1://b,://c:3", (Address("b", 9092), Address("c", 3))),
    ],
)
def test_bootstrap_addresses(text: str, expected: tuple[Address, ...]) -> None:
    assert parse_bootstrap(text) == expected
    assert parse_bootstrap(",".join(map(str, expected))) == expected


@pytest.mark.parametrize(
    "text", ["", ",", "a:b", "a:0", "a:70000", ":9092", "::1", "[::1", "[::1]9", "a:-1", "a://", "a:1://b", "a://b://c"]
)
def test_malformed_addresses(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected|is written"):
        parse_bootstrap(text)
