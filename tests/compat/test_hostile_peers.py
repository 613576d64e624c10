"""Peers that send garbage, too much, too little or nothing, or never read: all other clients are served meanwhile.

After each attack an ordinary client must get its answers within a second, the node's memory must be near what it was,
and the node must still be running. One node gets all attacks.
"""

from __future__ import annotations

import contextlib
import random
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lone_node import LoneNode

from kalda import Producer
from kalda.base.errors import ApiError, ErrorCode
from kalda.cli.common.command_admin import CommandAdmin
from kalda.client.admin.topics import NewTopic
from kalda.protocol.codec import encode
from kalda.protocol.framing import encode_request
from kalda.protocol.messages.metadata import ApiVersionsRequest, MetadataRequest, MetadataRequestTopic
from kalda.protocol.messages.partitions import (
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kalda.protocol.messages.topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kalda.protocol.notation import Request
from kalda.records.batch import write_crc
from kalda.records.builder import build_batch
from kalda.records.compression import Compression, compress
from waiting import wait_until

pytestmark = pytest.mark.compat

SMALL_MB = 48
"""The memory that one attack may use, and may leave in use: buffers, and memory that the allocator keeps."""
BOMB_MB = 150
"""A batch may unfold to 64 MB, and no further."""
WIDE_OPEN = [
    b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    b"SSH-2.0-OpenSSH_9.6\r\n",
    b"\x7f\xff\xff\xff" + bytes(100),
    b"\xff\xff\xff\xff" + bytes(100),
    b"\x80\x00\x00\x00",
    b"\x00\x00\x00\x00",
    b"\x00\x00\x00\x04" + bytes(4),
]
NOW_MS = time.time_ns() // 1_000_000


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoneNode]:
    with LoneNode(tmp_path_factory.mktemp("hostile")) as node:
        node.format()
        node.start()
        with node.client() as client:
            topics = [
                CreatableTopic(name="plain", num_partitions=1, replication_factor=1),
                CreatableTopic(
                    name="compacted",
                    num_partitions=1,
                    replication_factor=1,
                    configs=[CreatableTopicConfig(name="cleanup.policy", value="compact")],
                ),
            ]
            assert [each.error_code for each in client.request(CreateTopicsRequest(topics=topics)).topics] == [0, 0]
            node.wait_led("plain")
            node.wait_led("compacted")
            for _ in range(40):
                assert produce(client, build_batch([(NOW_MS, None, bytes(1_000_000), [])])) is ErrorCode.NONE
        yield node
        assert node.process is not None
        assert node.process.poll() is None, "the node died"
        assert not node.says("Traceback"), "an attack was a surprise:\n" + "\n".join(node.lines[-60:])


@pytest.fixture(autouse=True)
def unharmed(target: LoneNode) -> Iterator[None]:
    """The ordinary client, before and after."""
    with target.client() as client:
        prompt(client)
        before_mb = target.rss_mb()
        yield
        prompt(client)
        wait_until(lambda: target.rss_mb() - before_mb < SMALL_MB, "what the attack has taken is given back")


def prompt(client: object) -> None:
    """One answer within a second."""
    began = time.monotonic()
    client.request(MetadataRequest(topics=[MetadataRequestTopic(name="plain")]))  # type: ignore[attr-defined]
    taken = time.monotonic() - began
    assert taken < 1, f"an ordinary client waited {taken:.2f} s"


def produce(client: object, batch: bytes | bytearray, topic: str = "plain") -> ErrorCode:
    data = [TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])]
    answer = client.request(ProduceRequest(acks=1, timeout_ms=5_000, topic_data=data), 9)  # type: ignore[attr-defined]
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def request_bytes(message: Request, version: int, correlation_id: int = 1) -> bytes:
    return framed(b"".join(encode_request(message, version, correlation_id, "attacker")))


def closes(peer: socket.socket) -> bool:
    """True where the node closes the connection, with or without an answer."""
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):
        while peer.recv(65536):
            pass
    return True


# -- garbage


@pytest.mark.parametrize("opening", WIDE_OPEN, ids=lambda opening: repr(opening[:8]))
def test_other_protocols_are_closed(target: LoneNode, opening: bytes) -> None:
    with target.raw() as peer:
        peer.sendall(opening)
        assert closes(peer)


def test_random_bytes(target: LoneNode) -> None:
    rng = random.Random(5)
    for _ in range(300):
        with target.raw() as peer:
            body = rng.randbytes(rng.randrange(1, 400))
            peer.sendall(framed(body) if rng.random() < 0.8 else body)
            peer.shutdown(socket.SHUT_WR)
            assert closes(peer)


def test_mutated_requests(target: LoneNode) -> None:
    """Real requests with changed bytes: arrays of absurd counts, lengths beyond the end, unknown tags."""
    rng = random.Random(6)
    partition = FetchRequestFetchPartition(partition=0, partition_max_bytes=1000)
    originals: list[tuple[Request, int]] = [
        (MetadataRequest(topics=[MetadataRequestTopic(name="plain")]), 9),
        (MetadataRequest(topics=[MetadataRequestTopic(name="plain")]), 4),
        (FetchRequest(max_wait_ms=0, topics=[FetchRequestFetchTopic(topic="plain", partitions=[partition])]), 11),
        (ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3),
        (CreateTopicsRequest(topics=[CreatableTopic(name="x", num_partitions=1)], validate_only=True), 5),
    ]
    for _ in range(400):
        body = bytearray(b"".join(encode_request(*rng.choice(originals), 1, "attacker")))
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(8, len(body))
            body[at : at + rng.choice((1, 4))] = rng.choice((b"\xff", b"\x7f\xff\xff\xff", b"\x80", rng.randbytes(1)))
        with target.raw() as peer:
            peer.sendall(framed(bytes(body)))
            peer.shutdown(socket.SHUT_WR)
            assert closes(peer)


@pytest.mark.parametrize(("key", "version"), [(9999, 0), (-1, 0), (3, 99), (3, -1), (0, 2), (52, 0), (70, 0)])
def test_unknown_requests_are_closed(target: LoneNode, key: int, version: int) -> None:
    header = key.to_bytes(2, "big", signed=True) + version.to_bytes(2, "big", signed=True) + bytes(4) + b"\xff\xff\x00"
    with target.raw() as peer:
        peer.sendall(framed(header + bytes(20)))
        assert closes(peer)


@pytest.mark.parametrize("count", [b"\x7f\xff\xff\xff", b"\x00\x0f\x42\x3f", b"\xff\xff\xff\xfe"])
def test_arrays_of_absurd_counts(target: LoneNode, count: bytes) -> None:
    header = (3).to_bytes(2, "big") + (4).to_bytes(2, "big") + bytes(4) + b"\xff\xff"
    with target.raw() as peer:
        peer.sendall(framed(header + count + bytes(40)))
        assert closes(peer)


# -- too little


def test_many_that_begin_a_frame_and_stop(target: LoneNode) -> None:
    """Half of them announce 100 MB, send a little and wait; the others send nothing."""
    peers = []
    rss_mb = target.rss_mb()
    try:
        with target.client() as client:
            for number in range(1_000):
                if number % 20 == 0:
                    prompt(client)  # it accepts the others first: beyond its backlog, a connection takes seconds
                peer = socket.create_connection(("127.0.0.1", target.port), timeout=10)
                peers.append(peer)
                if number % 2:
                    peer.sendall((100_000_000).to_bytes(4, "big") + b"\x00\x00")
            prompt(client)
        assert target.rss_mb() - rss_mb < 20
    finally:
        for peer in peers:
            peer.close()


def test_a_frame_in_single_bytes(target: LoneNode) -> None:
    """A slow client gets its answer."""
    with target.raw() as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in request_bytes(ApiVersionsRequest(), 0):
            peer.sendall(bytes([byte]))
        assert int.from_bytes(peer.recv(4), "big") > 10


# -- too much


def test_ten_thousand_requests_at_once(target: LoneNode) -> None:
    """They are sent without reading, until the node reads no more; then all answers come, in order."""
    count = 10_000
    data = b"".join(request_bytes(ApiVersionsRequest(), 0, number) for number in range(count))
    answered = 0
    buffer = bytearray()
    with target.raw(30) as peer:
        peer.setblocking(False)
        sent = 0
        deadline = time.monotonic() + 60
        stuck_since = time.monotonic()
        while sent < len(data) and time.monotonic() - stuck_since < 0.5:
            with contextlib.suppress(BlockingIOError):
                sent += peer.send(data[sent : sent + 65536])
                stuck_since = time.monotonic()
        with target.client() as client:
            prompt(client)
        while answered < count:
            assert time.monotonic() < deadline, f"{answered} answers"
            with contextlib.suppress(BlockingIOError):
                sent += peer.send(data[sent : sent + 65536])
            with contextlib.suppress(BlockingIOError):
                buffer += peer.recv(1 << 20)
            at = 0
            while len(buffer) - at >= 8 and len(buffer) - at >= 4 + int.from_bytes(buffer[at : at + 4], "big"):
                assert int.from_bytes(buffer[at + 4 : at + 8], "big") == answered
                at += 4 + int.from_bytes(buffer[at : at + 4], "big")
                answered += 1
            del buffer[:at]


def test_large_answers_that_are_not_read(target: LoneNode) -> None:
    """Fifty peers request 40 MB each, eight times, and read nothing; then they close in the middle."""
    partition = FetchRequestFetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 30)
    topics = [FetchRequestFetchTopic(topic="plain", partitions=[partition])]
    ask = request_bytes(FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 30, topics=topics), 11)
    rss_mb = target.rss_mb()
    with contextlib.ExitStack() as stack:
        for _ in range(50):
            peer = stack.enter_context(target.raw())
            peer.sendall(ask * 8)
            assert peer.recv(8), "the answer has begun"
        with target.client() as client:
            prompt(client)
        used_mb = target.rss_mb() - rss_mb
    assert used_mb < 50 * 45 + SMALL_MB, f"{used_mb:.0f} MB for 50 peers"


# -- bad records


def spoilt(change: Callable[[bytearray], None], **how: object) -> bytearray:
    batch = build_batch([(NOW_MS, b"k", b"v" * 100, [])], **how)  # type: ignore[arg-type]
    change(batch)
    return batch


def _flip_crc(batch: bytearray) -> None:
    batch[-1] ^= 1


def _set_length(length: int) -> Callable[[bytearray], None]:
    def change(batch: bytearray) -> None:
        batch[8:12] = length.to_bytes(4, "big", signed=True)

    return change


def _resealed(at: int, piece: bytes) -> Callable[[bytearray], None]:
    """Change bytes, and compute the CRC again."""

    def change(batch: bytearray) -> None:
        batch[at : at + len(piece)] = piece
        write_crc(batch, 0, len(batch))

    return change


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (_flip_crc, ErrorCode.CORRUPT_MESSAGE),
        (_set_length(-5), ErrorCode.CORRUPT_MESSAGE),
        (_set_length(3), ErrorCode.CORRUPT_MESSAGE),
        (_set_length(2**31 - 1), ErrorCode.INVALID_RECORD),
        (_resealed(16, b"\x01"), ErrorCode.INVALID_RECORD),  # magic
        (_resealed(16, b"\x07"), ErrorCode.CORRUPT_MESSAGE),
        (_resealed(21, b"\x00\x07"), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (_resealed(21, b"\x00\x20"), ErrorCode.INVALID_RECORD),  # a control batch
        (_resealed(57, b"\x7f\xff\xff\xff"), ErrorCode.INVALID_RECORD),  # count of records
        (_resealed(23, b"\x00\x00\x00\x09"), ErrorCode.INVALID_RECORD),  # last offset delta
    ],
    ids=["crc", "length -5", "length 3", "length max", "magic 1", "magic 7", "codec 7", "control", "count", "delta"],
)
def test_bad_batches_are_refused(target: LoneNode, change: Callable[[bytearray], None], code: ErrorCode) -> None:
    with target.client() as client:
        assert produce(client, spoilt(change)) is code


@pytest.mark.parametrize(
    "body",
    [b"\x7f" * 40, b"\xff\xff\xff\xff\x0f" + bytes(40), b"\x02\x00" * 20, bytes(40)],
    ids=["lengths", "record length", "header count", "zeros"],
)
def test_bad_records_in_a_compacted_topic(target: LoneNode, body: bytes) -> None:
    batch = bytearray(build_batch([(NOW_MS, b"k", b"v", [])])[:61]) + body
    _set_length(len(batch) - 12)(batch)
    write_crc(batch, 0, len(batch))
    with target.client() as client:
        assert produce(client, batch, "compacted") is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD])
def test_batches_that_decompress_beyond_the_bound(target: LoneNode, codec: Compression) -> None:
    """Batches to a compacted topic are decompressed; one beyond the bound is refused before it uses the memory."""
    size = 90_000_000 if codec is not Compression.SNAPPY else 15_000_000
    packed = bytes(compress(codec, bytes(size), 1 if codec is Compression.GZIP else None))
    if len(packed) > 1_000_000:
        packed = packed[:1_000_000]
    batch = bytearray(build_batch([(NOW_MS, b"k", b"v", [])], compression=codec)[:61]) + packed
    _set_length(len(batch) - 12)(batch)
    write_crc(batch, 0, len(batch))
    before_mb = target.rss_mb()
    with target.client() as client, target.client() as other:
        data = [TopicProduceData(name="compacted", partition_data=[PartitionProduceData(index=0, records=batch)])]
        call = client.send(ProduceRequest(acks=1, timeout_ms=5_000, topic_data=data), 9)
        prompt(other)
        answer = client.receive(call)
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_RECORD
    assert target.rss_mb() - before_mb < BOMB_MB


def test_an_unknown_version_is_answered_with_the_supported_ones(target: LoneNode) -> None:
    body = (18).to_bytes(2, "big") + (99).to_bytes(2, "big") + (7).to_bytes(4, "big") + b"\xff\xff\x00"
    with target.raw() as peer:
        peer.sendall(framed(body + encode(ApiVersionsRequest(), 4)))
        answer = peer.recv(4096)
        assert int.from_bytes(answer[8:10], "big") == ErrorCode.UNSUPPORTED_VERSION


def test_a_request_of_an_unknown_version_is_refused(target: LoneNode) -> None:
    with target.client() as client, pytest.raises(ApiError):
        client.request(MetadataRequest(), 99)


def test_a_flood_leaves_descriptors_to_new_topics(tmp_path: Path) -> None:
    """A node of 300 descriptors, whose clients and brokers share a listener, and 600 connections that send nothing."""
    with LoneNode(tmp_path) as node:
        node.format()
        node.open_files = 300
        node.start()
        with contextlib.ExitStack() as held:
            for _ in range(600):
                peer = held.enter_context(socket.socket())
                peer.setblocking(False)
                peer.connect_ex(("127.0.0.1", node.port))
            with CommandAdmin(node.address) as client:
                client.create_topics([NewTopic("t", 8, 1)]).check()
                producer = held.enter_context(Producer(bootstrap_servers=node.address))
                for partition in range(8):
                    producer.send("t", b"x", partition=partition).result(60)
        assert not node.says("no file descriptor is left")
