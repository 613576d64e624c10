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


class Coordinator:
    """Hears what the shell tells."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.told.append(name)


class Log(SimpleNamespace):
    log_start_offset, log_end_offset, high_watermark = 0, 5, 5


def refuse(*_: object) -> None:
    raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)


class FailingRead:
    """A disk that fails under the thread."""

    def run(self, min_one: bool) -> bool:
        return False

    def finish(self, last: bool) -> ApiError:
        return ApiError(ErrorCode.KAFKA_STORAGE_ERROR)


class Jobs:
    def run(self, job: Any, finish: Any) -> None:
        finish(job(), None)


@pytest.mark.parametrize("read_later", [refuse, lambda *_: FailingRead()], ids=["at once", "on a thread"])
def test_a_partition_that_cannot_be_read_is_coordinated_by_nobody(read_later: Any) -> None:
    coordinator, jobs = Coordinator(), Jobs()
    unused: Any = SimpleNamespace(mono_ms=lambda: 0)
    machine: Any = coordinator
    shell = GroupCoordinatorShell(machine, unused, unused, unused, jobs)
    log = Log(read_later=read_later)
    partition: Any = SimpleNamespace(
        topic_partition=SimpleNamespace(partition=0), leader_epoch=1, is_leader=True, log=log, on_high_watermark=None
    )
    shell.on_elected(partition)
    assert coordinator.told == ["begin_load", "on_resigned"]


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
