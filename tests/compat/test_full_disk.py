"""A node whose disk is full: its answers, the partitions that continue, and the recovery when there is room again.

Each log directory is a small tmpfs of its own, which one write fills. Needs the right to mount.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.blocking import BlockingConnection
from lone_node import LoneNode

from kalda.base.errors import ApiError, ErrorCode
from kalda.protocol.messages.metadata import MetadataRequest
from kalda.protocol.messages.partitions import (
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kalda.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from kalda.records.batch import iter_batches
from kalda.records.builder import build_batch, read_records

pytestmark = [
    pytest.mark.compat,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a small tmpfs"),
]

MOUNT_MB = 6
SETTINGS = {"log.segment.bytes": 1 << 20, "log.initial.task.delay.ms": 100, "metadata.max.idle.interval.ms": 200}


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Makes small disks."""
    made: list[Path] = []

    def mount(name: str) -> Path:
        path = tmp_path / name
        path.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={MOUNT_MB}m", "tmpfs", str(path)], capture_output=True, check=False
        )
        if done.returncode != 0:
            pytest.skip(f"a tmpfs cannot be mounted here: {done.stderr.decode().strip()}")
        made.append(path)
        return path

    yield mount
    for path in made:
        subprocess.run(["umount", "-l", str(path)], check=False)


class Filler:
    """A file of another program that fills the disk, and can be removed."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "somebody-elses"

    def fill(self, leave_bytes: int = 0) -> None:
        with contextlib.suppress(OSError), self._path.open("ab", buffering=0) as file:
            while file.write(bytes(4096)) == 4096:
                pass
        if leave_bytes:
            os.truncate(self._path, max(0, self._path.stat().st_size - leave_bytes))

    def go(self) -> None:
        self._path.unlink()


def create(client: BlockingConnection, name: str, partitions: int) -> None:
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    assert client.request(CreateTopicsRequest(topics=[topic])).topics[0].error_code == 0


def produce(client: BlockingConnection, partition: int, value: bytes) -> ErrorCode:
    batch = build_batch([(time.time_ns() // 1_000_000, None, value, [])])
    data = [TopicProduceData(name="t", partition_data=[PartitionProduceData(index=partition, records=batch)])]
    answer = client.request(ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=data), 9)
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


def read_all(client: BlockingConnection, partition: int) -> list[bytes]:
    found: list[bytes] = []
    while True:
        ask = FetchRequestFetchPartition(partition=partition, fetch_offset=len(found), partition_max_bytes=1 << 20)
        topics = [FetchRequestFetchTopic(topic="t", partitions=[ask])]
        answer = client.request(FetchRequest(max_wait_ms=0, max_bytes=1 << 24, topics=topics), 11)
        data = answer.responses[0].partitions[0]
        assert data.error_code == 0
        records = bytes(data.records or b"")
        if not records:
            return found
        for position, _ in iter_batches(records):
            found += [record.value or b"" for record in read_records(records, position) if record.offset >= len(found)]


def test_one_of_two_disks_is_full(tmp_path: Path, mounted: Callable[[str], Path]) -> None:
    """Its partitions answer KAFKA_STORAGE_ERROR, and the log has the reason; others continue; with room all recover."""
    full, other = mounted("full"), tmp_path / "other"
    settings = {**SETTINGS, "log.dirs": f"{full / 'logs'},{other}", "metadata.log.dir": other}
    filler = Filler(full)
    with LoneNode(tmp_path / "node", settings) as node:
        node.format()
        node.start()
        with node.client() as client:
            create(client, "t", 2)
            node.wait_led("t", 2)
            on_full = next(index for index in (0, 1) if (full / "logs" / f"t-{index}").exists())
            acknowledged: dict[int, list[bytes]] = {0: [], 1: []}
            for number in range(20):
                for index in (0, 1):
                    assert produce(client, index, b"%d" % number) is ErrorCode.NONE
                    acknowledged[index].append(b"%d" % number)
            filler.fill(leave_bytes=40_000)
            outcome = ErrorCode.NONE
            while outcome is ErrorCode.NONE:
                value = bytes([len(acknowledged[on_full])]) * 3_000
                outcome = produce(client, on_full, value)
                if outcome is ErrorCode.NONE:
                    acknowledged[on_full].append(value)
            assert outcome is ErrorCode.KAFKA_STORAGE_ERROR
            node.wait_line(rf"log directory {full}/logs is offline.*No space left")
            assert produce(client, on_full, b"more") in (
                ErrorCode.KAFKA_STORAGE_ERROR,
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
            )
            for _ in range(20):
                assert produce(client, 1 - on_full, b"goes on") is ErrorCode.NONE
                acknowledged[1 - on_full].append(b"goes on")
        node.stop()
        filler.go()
        node.start()
        with node.client() as client:
            for index in (0, 1):
                assert read_all(client, index) == acknowledged[index]
                assert produce(client, index, b"again") is ErrorCode.NONE
        node.stop()


def test_the_only_disk_is_full(tmp_path: Path, mounted: Callable[[str], Path]) -> None:
    """The node stops with a clear line and exit code 1; with room it starts, and has all acknowledged records."""
    disk = mounted("disk")
    filler = Filler(disk)
    with LoneNode(tmp_path / "node", {**SETTINGS, "log.dirs": disk / "logs"}) as node:
        node.format()
        node.start()
        acknowledged: list[bytes] = []
        with node.client() as client:
            create(client, "t", 1)
            node.wait_led("t", 1)
            assert produce(client, 0, b"first") is ErrorCode.NONE
            acknowledged.append(b"first")
            filler.fill()
            with contextlib.suppress(ApiError):
                for number in range(10_000):
                    value = b"%d" % number * 1_000
                    if produce(client, 0, value) is not ErrorCode.NONE:
                        break
                    acknowledged.append(value)
        assert node.wait_exit(30) == 1
        assert node.says(r"CRITICAL node 1 stops: .*(No space left|all log directories have failed)")
        filler.go()
        node.start()
        with node.client() as client:
            found = read_all(client, 0)
            assert found[: len(acknowledged)] == acknowledged
            assert len(found) <= len(acknowledged) + 1, "more than one batch was under way"
            assert produce(client, 0, b"again") is ErrorCode.NONE
        node.stop()


def test_the_metadata_disk_is_full(tmp_path: Path, mounted: Callable[[str], Path]) -> None:
    """Without its metadata log the node stops, and logs why. After the restart it has the acknowledged topics."""
    metadata = mounted("metadata")
    filler = Filler(metadata)
    settings = {**SETTINGS, "log.dirs": tmp_path / "logs", "metadata.log.dir": metadata / "quorum"}
    with LoneNode(tmp_path / "node", settings) as node:
        node.format()
        node.start()
        created = []
        with node.client() as client:
            create(client, "t", 1)
            node.wait_led("t", 1)
            created.append("t")
            filler.fill()
            with contextlib.suppress(ApiError, AssertionError):
                for number in range(2_000):
                    create(client, f"topic-{number}", 1)
                    created.append(f"topic-{number}")
        assert node.wait_exit(30) == 1
        assert node.says(r"CRITICAL node 1 stops: the metadata quorum failed: .*No space left")
        filler.go()
        node.start()
        with node.client() as client:
            topics = {topic.name for topic in client.request(MetadataRequest(topics=None)).topics}
            assert set(created) <= topics
        node.stop()
