"""A driver on a real directory, with time, threads and network that the test moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from kalda.base.background import Background
from kalda.base.ids import ZERO_UUID, Uuid
from kalda.base.scheduling import Pending
from kalda.broker.process.disk import RealDisk
from kalda.broker.quorum.raft_driver import RaftDriver
from kalda.protocol.messages.metadata_records import TopicRecord
from kalda.protocol.notation import Request
from kalda.protocol.record_framing import VersionedRecord
from kalda.raft.metadata_log import MetadataLog, MetadataLogConfig
from kalda.raft.snapshots import CommittedBatch, SnapshotReader
from kalda.raft.voters import Destination, RaftConfig, ReplicaKey, VoterEndpoint, VoterSet

T0 = 1_700_000_000_000


class Handle:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class World:
    """Clock, timers and jobs; `run` runs them until none is due."""

    def __init__(self) -> None:
        self.now = 0
        self.calls: list[tuple[int, int, Callable[[], None], Handle]] = []
        self.jobs: list[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = []
        self.sequence = 0
        self.hold_jobs = False

    def wall_ms(self) -> int:
        return T0 + self.now

    def mono_ms(self) -> int:
        return 1000 + self.now

    def call_later_ms(self, delay_ms: int, callback: Callable[[], None]) -> Handle:
        self.sequence += 1
        handle = Handle()
        self.calls.append((self.now + delay_ms, self.sequence, callback, handle))
        return handle

    def call_soon(self, callback: Callable[[], None]) -> Handle:
        return self.call_later_ms(0, callback)

    def start_job(self, job: Callable[[], Any], finish: Callable[[Any, BaseException | None], None]) -> None:
        self.jobs.append((job, finish))

    def run(self, ms: int = 0) -> None:
        until = self.now + ms
        while True:
            if self.jobs and not self.hold_jobs:
                job, finish = self.jobs.pop(0)
                try:
                    value, error = job(), None
                except BaseException as problem:
                    value, error = None, problem
                finish(value, error)
                continue
            due = sorted(call for call in self.calls if call[0] <= until and not call[3].cancelled)
            if not due:
                break
            self.calls.remove(due[0])
            self.now = max(self.now, due[0][0])
            due[0][2]()
        self.now = until


class Jobs:
    def __init__(self, world: World) -> None:
        self.run = world.start_job


class Recorder:
    """A listener that records what it receives."""

    def __init__(self) -> None:
        self.batches: list[CommittedBatch] = []
        self.snapshots: list[tuple[int, int]] = []
        self.loaded: list[VersionedRecord] = []
        self.leaders: list[tuple[int | None, int]] = []

    def on_commit(self, batches: list[CommittedBatch]) -> None:
        for batch in batches:
            if self.batches:
                assert batch.base_offset == self.batches[-1].last_offset + 1
            self.batches.append(batch)

    def on_load_snapshot(self, reader: SnapshotReader) -> Iterator[None] | None:
        self.snapshots.append(tuple(reader.snapshot))  # type: ignore[arg-type]
        self.loaded = [record for batch in reader for record in batch.records]
        self.batches = []
        return None

    def on_leader_change(self, leader_id: int | None, epoch: int) -> None:
        self.leaders.append((leader_id, epoch))

    @property
    def records(self) -> list[VersionedRecord]:
        return [record for batch in self.batches for record in batch.records]


class Replica:
    def __init__(
        self,
        world: World,
        directory: str,
        node_id: int = 1,
        *,
        directory_id: Uuid = ZERO_UUID,
        static_voters: VoterSet | None = None,
        config: MetadataLogConfig | None = None,
        send: Callable[[Destination, Request, int], Pending[Any]] | None = None,
        **raft: Any,
    ) -> None:
        self.world = world
        self.failures: list[BaseException] = []
        self.listener = Recorder()
        disk = RealDisk()
        log = MetadataLog.open(disk, directory, config or MetadataLogConfig(), now_ms=T0)
        endpoint = VoterEndpoint("CONTROLLER", "127.0.0.1", 9000 + node_id)
        raft_config = RaftConfig(ReplicaKey(node_id, directory_id), "cluster", endpoints=(endpoint,), **raft)
        self.driver = RaftDriver(
            raft_config,
            log,
            static_voters or VoterSet(),
            clock=world,
            timers=world,
            jobs=Jobs(world),  # type: ignore[arg-type]
            background=Background(lambda turn: world.call_later_ms(0, turn), lambda: 0),
            send=send or (lambda destination, request, timeout_ms: Pending()),
            random_below=Random(node_id).randrange,
            on_fatal=self.failures.append,
        )
        self.driver.listeners.register(self.listener)

    def start(self) -> None:
        self.driver.start()
        self.world.run(1)
        assert not self.failures, self.failures


def append(driver: RaftDriver, epoch: int, records: list[VersionedRecord]) -> int:
    """Prepare and schedule a batch; returns the offset of its last record."""
    last = driver.prepare_append(epoch, records)
    driver.schedule_append()
    return last


def topic(name: str) -> VersionedRecord:
    return VersionedRecord(TopicRecord(name=name, topic_id=Uuid(name.encode().ljust(16, b"."))), 0)


def static_voter(node_id: int = 1) -> VoterSet:
    return VoterSet.static("CONTROLLER", [(node_id, "127.0.0.1", 9000 + node_id)])
