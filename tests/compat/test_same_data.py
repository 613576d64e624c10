"""Produce, Fetch, sessions, offsets: the same answers as Apache Kafka's, in every version, for valid and invalid
requests."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import pytest
from data_requests import TIME, batch, fetch, produce
from harness.blocking import BlockingConnection
from same_answers import Asker

from kalda.base.ids import ZERO_UUID, Uuid
from kalda.protocol.messages.metadata import ApiVersionsRequest
from kalda.protocol.messages.partitions import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    FetchRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kalda.protocol.messages.transactions import (
    DescribeProducersRequest,
    DescribeProducersRequestTopicRequest,
    InitProducerIdRequest,
)
from kalda.records.batch import crc32c
from kalda.records.builder import build_batch
from kalda.records.compression import Compression

pytestmark = pytest.mark.compat

SOME_ID = Uuid(b"\1" * 16)
Both = Callable[[Callable[[Asker], None]], None]


def patched(at: int, what: bytes) -> bytearray:
    """A batch with other bytes in its header, and the right checksum."""
    made = batch(3)
    made[at : at + len(what)] = what
    made[17:21] = crc32c(memoryview(made)[21:]).to_bytes(4, "big")
    return made


def list_offsets(name: str, *asked: tuple[int, int], epoch: int = -1, **fields: int) -> ListOffsetsRequest:
    partitions = [
        ListOffsetsPartition(partition_index=index, timestamp=time_ms, current_leader_epoch=epoch)
        for index, time_ms in asked
    ]
    fields.setdefault("replica_id", -1)
    return ListOffsetsRequest(topics=[ListOffsetsTopic(name=name, partitions=partitions)], timeout_ms=1000, **fields)


def test_invalid_versions_frames_and_software_names(both: Both) -> None:
    def scenario(asker: Asker) -> None:
        for name, version in (("", ""), ("a", "-"), ("a b", "1"), ("ok", "1.0+x"), ("-a", "1"), ("a-", "1")):
            answer = asker.quiet(ApiVersionsRequest(client_software_name=name, client_software_version=version), 3)
            asker.note(f"software {name!r} {version!r}", answer.error_code)
        for key, version in (
            (18, 6), (18, 99), (3, 14), (3, 99), (0, 0), (0, 2), (0, 14), (2, 0), (1, 3), (4, 0), (7, 0),
            (93, 0), (999, 0), (-1, 0), (10, 7), (11, 10),
        ):  # fmt: skip
            frame = struct.pack(">hhih", key, version, 77, 4) + b"test"
            asker.raw(struct.pack(">i", len(frame)) + frame, f"key {key} version {version}")
        for sizes in (b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x0c\0\0\0", b"\0\0\0\3abc"):
            asker.raw(sizes, f"frame {sizes.hex()}")

    both(scenario)


def test_produce(both: Both, fresh: Callable[[str], str]) -> None:
    plain, compact, small, strict = fresh("same"), fresh("same"), fresh("same"), fresh("same")

    def scenario(asker: Asker) -> None:
        at = (plain, asker.make(plain, 3))
        compacted = (compact, asker.make(compact, cleanup_policy="compact"))
        tight = (small, asker.make(small, max_message_bytes="200"))
        safe = (strict, asker.make(strict, min_insync_replicas="2"))
        bad_crc = batch()
        bad_crc[20] ^= 1
        keyless = build_batch([(1, b"k", b"v", ()), (2, None, b"v", ())])
        for version in range(3, 14):
            for codec in Compression:
                asker.ask(produce(*at, (0, batch(3, codec))), version, codec.name)
            for acks in (127, 2, -2, 1):
                asker.ask(produce(*at, (0, batch()), acks=acks), version, f"acks {acks}")
            asker.ask(produce(*at, (0, batch()), (1, batch(2)), (7, batch()), (-1, batch())), version, "partitions")
            asker.ask(produce(*at, (0, batch()), (0, batch())), version, "a partition twice")
            asker.ask(produce("nope", SOME_ID, (0, batch())), version, "unknown topic")
            for label, records in (
                ("nothing", b""), ("crc", bad_crc), ("cut", batch()[:40]), ("cut late", batch()[:-3]),
                ("two", batch() + batch()), ("control", batch(is_control=True)),
            ):  # fmt: skip
                asker.ask(produce(*at, (0, records)), version, label)
            asker.ask(produce(*compacted, (0, keyless)), version, "without a key")
            asker.ask(produce(*tight, (0, batch(30))), version, "too large")
            asker.ask(produce(*safe, (0, batch())), version, "too few replicas")
        for at_byte, what in (
            (16, b"\0"), (16, b"\1"), (16, b"\3"), (57, b"\0\0\0\x09"), (57, b"\0\0\0\0"), (57, b"\xff\xff\xff\xff"),
            (23, b"\0\0\0\x09"), (21, b"\0\x08"), (0, b"\0\0\0\0\0\0\0\x37"), (8, b"\xff\xff\xff\xff"), (8, bytes(4)),
        ):  # fmt: skip
            asker.ask(produce(*at, (0, patched(at_byte, what))), 12, f"patched at {at_byte} {what.hex()}")
        for name in ("", "a b"):
            asker.ask(produce(name, ZERO_UUID, (0, batch())), 12, f"name {name!r}")
        asker.ask(produce("", ZERO_UUID, (0, batch())), 13, "no id")

    both(scenario)


def test_produce_to_topics_of_coordinators(both: Both) -> None:
    def scenario(asker: Asker) -> None:
        at = ("__share_group_state", asker.make("__share_group_state"))
        for version in (3, 12, 13):
            asker.ask(produce(*at, (0, batch())), version, "client")
            asker.ask(produce(*at, (7, batch())), version, "unknown partition")
            with BlockingConnection("127.0.0.1", asker.port, client_id="__admin_client", negotiate=False) as admin:
                answer = admin.request(produce(*at, (0, batch()), acks=1), version)
            asker.note("admin client", answer.responses[0].partition_responses[0].error_code)

    both(scenario)


def test_idempotent_producers(both: Both, fresh: Callable[[str], str]) -> None:
    name = fresh("same")

    def scenario(asker: Asker) -> None:
        topic_id = asker.make(name)
        own = -1
        while own < 0:  # Apache Kafka allocates ids only at the first request for one
            wanted = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
            own = asker.quiet(wanted, 5).producer_id
        for sequence, count, epoch, producer in (
            (0, 1, 0, own), (1, 3, 0, own), (0, 1, 0, own), (1, 3, 0, own), (1, 2, 0, own), (9, 1, 0, own),
            (4, 1, 0, own), (5, 1, 0, own), (6, 1, 0, own), (7, 1, 0, own), (8, 1, 0, own), (0, 1, 0, own),
            (9, 1, 1, own), (0, 1, 1, own), (10, 1, 0, own), (5, 1, 0, own + 100_000), (0, 1, 0, own + 200_000),
            (-1, 1, 0, own), (2**31 - 1, 1, 2, own), (0, 1, 2, own), (2**31 - 2, 3, 2, own),
        ):  # fmt: skip
            made = batch(count, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
            asker.ask(produce(name, topic_id, (0, made)), 12, f"{sequence} of {count} in epoch {epoch}")
        topics = [DescribeProducersRequestTopicRequest(name=each, partition_indexes=[0, 1]) for each in (name, "nope")]
        asker.ask(DescribeProducersRequest(topics=topics), 0)
        for version in range(6):
            for timeout_ms in (1000, -1):
                asker.ask(
                    InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=timeout_ms), version, timeout_ms
                )

    both(scenario)


def test_fetch(both: Both, fresh: Callable[[str], str]) -> None:
    name = fresh("same")

    def scenario(asker: Asker) -> None:
        at = (name, asker.make(name, 3))
        for number in range(5):
            asker.quiet(produce(*at, (0, batch(3, time_ms=TIME + 10 * number)), (1, batch())))
        for version in range(4, 19):
            for offset in (0, 1, 3, 7, 14, 15, 16, -1, 10**9):
                asker.ask(fetch((*at, 0, offset)), version, f"offset {offset}")
            for limit in (0, 1, 100, 200):
                asker.ask(fetch((*at, 0, 0), (*at, 1, 0), partition_bytes=limit), version, f"{limit} a partition")
                asker.ask(fetch((*at, 0, 0), (*at, 1, 0), max_bytes=limit), version, f"{limit} in all")
            asker.ask(fetch((*at, 0, 0), (*at, 7, 0), (*at, -1, 0)), version, "unknown partitions")
            asker.ask(fetch(("nope", SOME_ID, 0, 0)), version, "unknown topic")
            asker.ask(fetch((*at, 2, 0)), version, "empty")
            asker.ask(fetch((*at, 2, 0), min_bytes=0), version, "empty, no wait")
            asker.ask(fetch((*at, 0, 0), isolation_level=1), version, "committed")
            asker.ask(fetch((*at, 0, 0), (*at, 0, 3)), version, "a partition twice")
            asker.ask(fetch((name, ZERO_UUID, 0, 0)), version, "no id")
            asker.ask(fetch(), version, "nothing")
            for epoch in (0, 1, -2) if version >= 9 else ():
                asker.ask(fetch((*at, 0, 0), epoch=epoch), version, f"epoch {epoch}")
            for fetched, offset in ((0, 3), (0, 20), (1, 3), (5, 3)) if version >= 12 else ():
                asker.ask(fetch((*at, 0, offset), fetched_epoch=fetched), version, f"fetched {fetched} {offset}")

    both(scenario)


def test_fetch_sessions(both: Both, fresh: Callable[[str], str]) -> None:
    name, other = fresh("same"), fresh("same")

    def scenario(asker: Asker) -> None:
        at, beside = (name, asker.make(name, 3)), (other, asker.make(other))
        unknown = ("nope", SOME_ID, 0, 0)
        asker.quiet(produce(*at, (0, batch(3)), (1, batch())))
        for version in (7, 12, 13, 18):
            first = asker.ask(fetch((*at, 0, 0), (*at, 1, 0), (*at, 2, 0), session=(0, 0)), version, "new")
            own = first.session_id
            steps: Sequence[tuple[FetchRequest, str]] = (
                (fetch(session=(own, 1)), "again"),
                (fetch((*at, 0, 3), (*at, 1, 1), session=(own, 2)), "at the end"),
                (fetch(session=(own, 3)), "no news"),
                (fetch((*beside, 0, 0), session=(own, 4)), "one more"),
                (fetch(session=(own, 5), forget=[(*beside, 0)]), "one less"),
                (fetch(session=(own, 5)), "an old epoch"),
                (fetch(session=(own, 7)), "an epoch too many"),
                (fetch(session=(own, 6)), "the right epoch"),
                (fetch(session=(12_345, 6)), "an unknown session"),
                (fetch(unknown, session=(own, 7)), "an unknown topic"),
                (fetch(session=(own, 8)), "still unknown"),
                (fetch((*at, 0, 99), session=(own, 9)), "out of range"),
                (fetch(session=(own, -1)), "closed"),
                (fetch(session=(own, 10)), "after that"),
                (fetch(session=(0, 0)), "new and empty"),
                (fetch((*at, 0, 0), session=(0, 5)), "none, with an epoch"),
                (fetch((*at, 0, 0), session=(777, 0)), "unknown, to be new"),
            )
            for request, label in steps:
                asker.ask(request, version, label)
        named = asker.quiet(fetch((*at, 0, 0), session=(0, 0)), 12).session_id
        asker.ask(fetch((*at, 1, 0), session=(named, 1)), 13, "ids in a session of names")
        asker.ask(fetch(session=(named, 2)), 13, "and again")

    both(scenario)


def test_offsets(both: Both, fresh: Callable[[str], str]) -> None:
    name, compact = fresh("same"), fresh("same")

    def scenario(asker: Asker) -> None:
        topic_id = asker.make(name, 2)
        asker.make(compact, cleanup_policy="compact")
        for number in range(5):
            asker.quiet(produce(name, topic_id, (0, batch(3, time_ms=TIME + 10 * number))))
        for version in range(1, 12):
            for time_ms in (-1, -2, -3, -4, -5, -6, -7, 0, TIME, TIME + 1, TIME + 5, TIME + 42, TIME + 43, 2**62):
                asker.ask(list_offsets(name, (0, time_ms), (1, time_ms)), version, f"time {time_ms}")
            asker.ask(list_offsets(name, (0, -1), (0, -2)), version, "twice")
            asker.ask(list_offsets(name, (9, -1), (-1, -1)), version, "unknown partitions")
            asker.ask(list_offsets("nope", (0, -1)), version, "unknown topic")
            asker.ask(list_offsets(name, (0, -1), replica_id=-2), version, "for debugging")
            for epoch in (0, 1, -2) if version >= 4 else ():
                asker.ask(list_offsets(name, (0, -1), epoch=epoch), version, f"epoch {epoch}")
            if version >= 2:
                asker.ask(list_offsets(name, (0, -1), (1, 0), isolation_level=1), version, "committed")
        for version in (2, 3, 4):
            for current, wanted in ((-1, 0), (0, 0), (1, 0), (-1, 1), (-1, -1), (-2, 0)):
                asked = [
                    OffsetForLeaderPartition(partition=index, current_leader_epoch=current, leader_epoch=wanted)
                    for index in (0, 1, 9)
                ]
                topics = [OffsetForLeaderTopic(topic=name, partitions=asked)]
                asker.ask(OffsetForLeaderEpochRequest(replica_id=-1, topics=topics), version, f"{current} {wanted}")
        for version in range(3):
            for topic, index, offset in (
                (name, 0, 0), (name, 0, version + 1), (name, 0, -2), (name, 0, 100), (name, 0, 1), (name, 9, 1),
                (name, 1, 0), ("nope", 0, 1), ("a b", 0, 1), (compact, 0, 0), ("__consumer_offsets", 0, 0),
                (name, 1, -1),
            ):  # fmt: skip
                partitions = [DeleteRecordsPartition(partition_index=index, offset=offset)]
                topics_ = [DeleteRecordsTopic(name=topic, partitions=partitions)]
                asker.ask(DeleteRecordsRequest(topics=topics_, timeout_ms=1000), version, f"{topic} {index} {offset}")
        for time_ms in (-1, -2, -3, -4, 0):
            asker.ask(list_offsets(name, (0, time_ms)), 11, f"after, {time_ms}")

    both(scenario)
