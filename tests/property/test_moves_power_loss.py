"""The power fails, or the process is killed, while a replica moves between log directories and records are appended.

With `flush.messages=1` nothing that was acknowledged is lost or doubled, wherever the replica is found afterwards. The
controller is a list of assignments that are sent, answered and lost like everything else.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from by_hand import HandTime
from power_world import IN_FLIGHT, TOPIC_ID, TP, Producer, Threads

from kalda.base.errors import ApiError
from kalda.base.ids import Uuid, uuid_to_text
from kalda.records.batch import iter_batches
from kalda.records.builder import read_records
from kalda.replication.dir_moves import DirMoves, _Move, _State
from kalda.replication.partition import Partition
from kalda.replication.replica_manager import ReplicaManager
from kalda.sim.disk import SimDisk
from kalda.storage.checkpoints import write_meta_properties
from kalda.storage.config import LogConfig, LogManagerConfig
from kalda.storage.dirs.future_logs import FutureLogs
from kalda.storage.dirs.log_manager import LogManager
from kalda.storage.log.log import Log

IDS = {"/d0": Uuid(b"a" * 16), "/d1": Uuid(b"b" * 16)}
CONFIG = LogConfig(segment_bytes=2_000, index_interval_bytes=200, flush_messages=1, file_delete_delay_ms=0)
STEPS = 400


class Controller:
    """The directory of the replica in the metadata. Survives every loss of power."""

    def __init__(self) -> None:
        self.directory = IDS["/d0"]
        self.waiting: list[tuple[Uuid, Callable[[], None] | None]] = []

    def assign(self, topic_id: Uuid, partition: int, directory: Uuid, agreed: Callable[[], None] | None = None) -> None:
        self.waiting = [(directory, agreed)]

    def answer(self) -> None:
        while self.waiting:
            self.directory, agreed = self.waiting.pop()
            if agreed is not None:
                agreed()

    def lose(self, rng: random.Random) -> None:
        """The broker dies: what was under way may have arrived."""
        if self.waiting and rng.random() < 0.5:
            self.directory = self.waiting[0][0]
        self.waiting.clear()


class _Assigned:
    leader, replicas, isr = 1, (1,), (1,)
    adding_replicas: tuple[int, ...] = ()

    def __init__(self, epoch: int) -> None:
        self.leader_epoch = self.partition_epoch = epoch


class Broker(HandTime):
    """From one start to the next loss of power."""

    def __init__(self, disk: SimDisk, controller: Controller, rng: random.Random, epoch: int, now_ms: int) -> None:
        self.threads = Threads(rng)
        super().__init__(now_ms)
        self.manager = LogManager(
            dict.fromkeys(IDS, disk),
            lambda topic: CONFIG,
            config=LogManagerConfig(recovery_point_interval_ms=3, high_watermark_interval_ms=2, initial_delay_ms=0),
            unique=lambda: f"{rng.getrandbits(128):032x}",
            now_ms=lambda: self.now_ms,
            on_dir_failed=lambda directory, error: pytest.fail(f"{directory.path} failed: {error}"),
            locks_dirs=False,
        )
        for job in self.manager.load_jobs():
            job.complete()
        self.manager.futures.settle(lambda tp, topic_id: controller.directory)
        replicas = ReplicaManager(1, self, self.threads, self.background(), 1 << 20, lambda *_: True)
        self.moves = DirMoves(
            replicas, self.manager, self.threads, self, lambda: self.now_ms, controller.assign, at_a_time=2
        )
        replicas.apply(TP, TOPIC_ID, _Assigned(epoch), lambda: self._log(controller))
        partition = replicas.find(*TP)
        assert partition is not None
        self.partition = partition
        self.moves.resume()

    def _log(self, controller: Controller) -> Log:
        log = self.manager.get_or_create_log(TP, TOPIC_ID, CONFIG, controller.directory)
        home = self.manager.dir_of(TP)
        assert home is not None
        assert home.directory_id is not None
        if home.directory_id != controller.directory:
            controller.assign(TOPIC_ID, TP.partition, home.directory_id)
        return log

    def maintenance(self) -> None:
        self.now_ms += 7
        for job in self.manager.maintenance.poll(self.now_ms):
            self.threads.run(job.run, lambda _, __, job=job: job.finish())
        self.advance(0)

    def values(self) -> list[int]:
        log, offset, found = self.partition.log, self.partition.log.log_start_offset, []
        while (info := log.read(offset, 1 << 20, log.log_end_offset, True)).size_bytes:
            for position, _ in iter_batches(info.records):
                found += [int(record.value or b"") for record in read_records(info.records, position)]
            offset = info.next_offset
        return found

    def settled(self, controller: Controller) -> bool:
        """No move is under way, and the metadata names the directory of the replica."""
        home = self.manager.dir_of(TP)
        return not self.moves and home is not None and home.directory_id == controller.directory


def move_through_losses_of_power(seed: int) -> int:
    """The number of moves that were made."""
    rng = random.Random(seed)
    disk = SimDisk(random.Random(seed + 1_000))
    for path, directory_id in IDS.items():
        disk.make_dirs(path)
        values = {"version": "1", "directory.id": uuid_to_text(directory_id)}
        write_meta_properties(disk, f"{path}/meta.properties", values, 0)
        disk.sync_dir(path)
    disk.sync_dir("/")
    producer, controller, epoch, moved = Producer(), Controller(), 0, 0
    broker = Broker(disk, controller, rng, epoch, 1_000)
    home = broker.manager.dir_of(TP)
    actions = ("send", "thread", "acknowledge", "maintenance", "answer", "move", "power", "kill")
    for _ in range(STEPS):
        match rng.choices(actions, (4, 12, 3, 3, 2, 0.8, 0.3, 0.3))[0]:
            case "send" if len(producer.under_way) < IN_FLIGHT:
                producer.send(broker, producer.sent)  # type: ignore[arg-type]
                producer.sent += 1
            case "thread":
                broker.threads.step()
            case "acknowledge":
                producer.take_acknowledgements(broker)  # type: ignore[arg-type]
            case "maintenance":
                broker.maintenance()
            case "answer":
                controller.answer()
            case "move":
                broker.moves.alter(TP, rng.choice(list(IDS)))
            case "power" | "kill" as how:
                producer.take_acknowledgements(broker)  # type: ignore[arg-type]
                controller.lose(rng)
                if how == "power":
                    disk.crash()
                epoch += 1
                broker = Broker(disk, controller, rng, epoch, broker.now_ms)
                values = broker.values()
                assert values == list(range(len(values))), "a record is missing, doubled or out of order"
                assert producer.acknowledged <= len(values) <= producer.sent
                producer.begin_anew(broker)  # type: ignore[arg-type]
        moved += broker.manager.dir_of(TP) is not home
        home = broker.manager.dir_of(TP)
    for _ in range(200):
        broker.threads.all()
        controller.answer()
        if broker.settled(controller):
            break
        broker.maintenance()
    assert broker.settled(controller), "a move does not end"
    broker.threads.all()
    producer.take_acknowledgements(broker)  # type: ignore[arg-type]
    assert producer.acknowledged == producer.sent
    assert broker.values() == list(range(producer.sent))
    for _ in range(3):
        broker.maintenance()
        broker.threads.all()
    names = [name for path in IDS for name in disk.list_dir(path) if name.startswith(TP.topic)]
    assert [name for name in names if not name.endswith("-stray")] == ["t-0"], (
        "a copy is left that no log manager holds"
    )
    return moved


@pytest.mark.parametrize("seed", range(40))
def test_a_move_loses_nothing(seed: int) -> None:
    move_through_losses_of_power(seed)


def test_replicas_do_move() -> None:
    assert sum(move_through_losses_of_power(seed) for seed in range(60, 70)) > 20


def _swap_at_once(patch: pytest.MonkeyPatch) -> None:
    """The copy need not be as durable as the log."""

    def swap(self: DirMoves, move: _Move) -> None:
        if move.state is _State.RECORDED and move.partition.hold_flushes():
            move.state = _State.HOLDING
            move.partition.log = self._logs.futures.swap(move.partition.topic_partition)
            del self._moves[move.partition.topic_partition]
            self._release(move)
        else:
            self._retry_later(move)

    patch.setattr(FutureLogs, "is_as_durable", lambda *_: True)
    patch.setattr(DirMoves, "_swap", swap)


def _flush_meanwhile(patch: pytest.MonkeyPatch) -> None:
    """The log is flushed while its copy is flushed."""
    patch.setattr(Partition, "hold_flushes", lambda self: self.may_fetch)
    patch.setattr(FutureLogs, "is_as_durable", lambda *_: True)


@pytest.mark.parametrize("ablate", [_swap_at_once, _flush_meanwhile])
def test_without_a_safeguard_it_is_noticed(
    ablate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    ablate(monkeypatch)
    for seed in range(400):
        try:
            move_through_losses_of_power(seed)
        except (AssertionError, ApiError, pytest.fail.Exception):
            return
    pytest.fail("no seed notices")
