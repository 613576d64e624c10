"""The groups' partitions: what is appended to them, and loading them where disks fail."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kalda.base.errors import ApiError, ErrorCode
from kalda.broker.coordinator_shell import GroupCoordinatorShell, GroupLog
from kalda.records.batch import read_header
from kalda.records.builder import read_records
from kalda.records.compression import Compression
from kalda.storage.reading import ColdRead


class Coordinator:
    """Hears what the shell tells."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.told.append(name)


class Log(SimpleNamespace):
    log_start_offset, log_end_offset, high_watermark = 0, 5, 5
    failure: OSError | None = None

    def take_over(self, read: ColdRead) -> None:
        self.failure = read.failure


def refuse(*_: object) -> None:
    raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)


def failing(*_: object) -> ColdRead:
    class Read:
        failure = OSError(5, "no disk")

        def __call__(self, *_: object) -> None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)

    read: Any = Read()
    return read  # type: ignore[no-any-return]


class Jobs:
    def run(self, job: Any, finish: Any) -> None:
        try:
            finish(job(), None)
        except ApiError as error:
            finish(None, error)


@pytest.mark.parametrize("cold_read", [refuse, failing])
def test_a_partition_that_cannot_be_read_is_coordinated_by_nobody(cold_read: Any) -> None:
    coordinator, jobs = Coordinator(), Jobs()
    unused: Any = SimpleNamespace(mono_ms=lambda: 0)
    machine: Any = coordinator
    shell = GroupCoordinatorShell(machine, unused, unused, unused, jobs)
    log = Log(cold_read=cold_read)
    partition: Any = SimpleNamespace(
        topic_partition=SimpleNamespace(partition=0), leader_epoch=1, is_leader=True, log=log, on_high_watermark=None
    )
    shell.on_elected(partition)
    assert coordinator.told == ["begin_load", "on_resigned"]
    assert (log.failure is not None) is (cold_read is failing), "the log hears of the disk"


@pytest.mark.parametrize("codec", Compression)
def test_commits_are_stored_in_the_codec_of_the_offsets_topic(codec: Compression) -> None:
    appended: list[bytearray] = []

    def append(batch: bytearray, *_: object) -> Any:
        appended.append(batch)
        return SimpleNamespace(last_offset=7)

    replicas: Any = SimpleNamespace(get=lambda topic, partition: SimpleNamespace(append=append))
    assert GroupLog(replicas, codec).append(3, [(b"key", b"value" * 50), (b"gone", None)], 1_000) == 8
    (batch,) = appended
    assert read_header(batch).compression == codec
    assert [(record.key, record.value) for record in read_records(batch)] == [(b"key", b"value" * 50), (b"gone", None)]
