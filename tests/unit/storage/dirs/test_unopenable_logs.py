"""What a disk says that no log can have: the directory goes offline and the error names the file; the node goes on."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kalda.base.ids import TopicPartition
from kalda.broker.process.disk import RealDisk
from kalda.records.builder import build_batch
from kalda.storage.checkpoints import read_epochs, read_offsets
from kalda.storage.config import LogConfig
from kalda.storage.dirs.log_dirs import LogDir
from kalda.storage.dirs.log_manager import LogManager
from kalda.storage.file_names import offset_of
from kalda.storage.log.loader import Unopened
from kalda.storage.log.log import Log
from kalda.storage.log.state import LogHooks

CONFIG = LogConfig(segment_bytes=400, retention_ms=-1)


class Node:
    """Two directories on the real disk."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.failed: list[tuple[str, OSError]] = []
        self.logs = self.start()

    def start(self) -> LogManager:
        def on_dir_failed(directory: LogDir, error: OSError) -> None:
            self.failed.append((directory.path, error))

        self.logs = LogManager(
            {str(self.home / name): RealDisk() for name in ("a", "b")},
            lambda topic: CONFIG,
            unique=lambda: f"{0:032x}",
            now_ms=lambda: 1_000_000,
            on_dir_failed=on_dir_failed,
        )
        for job in self.logs.load_jobs():
            job.complete()
        return self.logs

    def stop(self, *, clean: bool) -> None:
        if clean:
            self.logs.close()


@pytest.fixture(params=[True, False], ids=["clean", "unclean"])
def stopped(request: pytest.FixtureRequest, tmp_path: Path) -> Node:
    """A node with a log in each directory, `t-0` and `t-1`, each of several segments."""
    node = Node(tmp_path)
    for partition in range(2):
        log = node.logs.get_or_create_log(TopicPartition("t", partition), None, CONFIG, None)
        for _ in range(10):
            log.append_as_leader(build_batch([(1_000_000, b"k", bytes(60), ())]), 0, 1_000_000)
        log.update_high_watermark(log.log_end_offset)
    assert len(list((tmp_path / "b" / "t-1").glob("*.log"))) > 2
    node.stop(clean=request.param)
    return node


def _dangling(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(path.parent / "nowhere")


def _directory(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


@pytest.mark.parametrize(
    ("which", "damage"),
    [
        ("first segment", _dangling),
        ("first segment", _directory),
        ("last segment", _dangling),
        ("last segment", _directory),
        ("leader-epoch-checkpoint", _directory),
        ("partition.metadata", _directory),
    ],
)
def test_a_log_that_cannot_be_opened_takes_its_directory_offline_and_nothing_else(
    stopped: Node, which: str, damage: Callable[[Path], None]
) -> None:
    directory = stopped.home / "b" / "t-1"
    segments = sorted(directory.glob("*.log"))
    path = {"first segment": segments[0], "last segment": segments[-1]}.get(which, directory / which)
    damage(path)
    logs = stopped.start()
    log = logs.get(TopicPartition("t", 0))
    assert log is not None
    assert log.log_end_offset == 10
    if which == "first segment" and damage is _directory and not stopped.failed:
        return  # after a clean stop it is not opened before a read
    ((failed, error),) = stopped.failed
    assert failed == str(stopped.home / "b")
    assert str(path) in str(error)
    assert [each.online for each in logs.dirs] == [True, False]


@pytest.mark.parametrize("name", ["t-7", "meta.properties", ".kafka_cleanshutdown"])
def test_a_link_to_nothing_in_a_log_directory_takes_it_offline_and_nothing_else(stopped: Node, name: str) -> None:
    path = stopped.home / "b" / name
    _dangling(path)
    logs = stopped.start()
    ((failed, error),) = stopped.failed
    assert failed == str(stopped.home / "b")
    assert str(path) in str(error)
    assert [each.online for each in logs.dirs] == [True, False]


def test_a_broken_invariant_takes_the_directory_offline_and_names_the_log(
    stopped: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opening = Log.open

    def fail(given: Unopened, hooks: LogHooks) -> Log:
        assert not given.directory.endswith("t-1"), "a bug"
        return opening(given, hooks)

    monkeypatch.setattr(Log, "open", fail)
    stopped.start()
    ((failed, error),) = stopped.failed
    assert failed == str(stopped.home / "b")
    assert error.filename == f"{failed}/t-1"
    assert "a bug" in str(error)
    assert "cannot be opened" in caplog.text


@pytest.mark.parametrize(
    "entry", ["t 1 -1", "t 1 9223372036854775808", "t -1 0", "t 2147483648 0", "t 1 +5", "t 1 1_0"]
)
def test_numbers_that_no_checkpoint_has_make_it_malformed(entry: str, stopped: Node) -> None:
    path = stopped.home / "b" / "replication-offset-checkpoint"
    path.write_text(f"0\n1\n{entry}\n")
    with pytest.raises(ValueError, match=f"{path} has the malformed line"):
        read_offsets(RealDisk(), str(path))
    logs = stopped.start()
    assert stopped.failed == []
    log = logs.get(TopicPartition("t", 1))
    assert log is not None
    assert (log.log_end_offset, log.high_watermark) == (10, 0)


@pytest.mark.parametrize("entry", ["-1 0", "0 -1", "2147483648 0", "0 9223372036854775808"])
def test_epochs_that_no_log_has_are_read_from_the_batches(entry: str, stopped: Node) -> None:
    path = stopped.home / "b" / "t-1" / "leader-epoch-checkpoint"
    path.write_text(f"0\n1\n{entry}\n")
    with pytest.raises(ValueError, match="has the malformed line"):
        read_epochs(RealDisk(), str(path))
    log = stopped.start().get(TopicPartition("t", 1))
    assert log is not None
    assert log.leader_epochs.entries == [(0, 0)]


def test_a_file_name_with_a_number_that_no_offset_has_is_no_segment(stopped: Node) -> None:
    assert offset_of("09223372036854775807.log") == 2**63 - 1
    assert offset_of("09223372036854775808.log") is None
    other = stopped.home / "b" / "t-1" / "99999999999999999999.log"
    other.write_bytes(b"")
    log = stopped.start().get(TopicPartition("t", 1))
    assert log is not None
    assert log.log_end_offset == 10
    assert other.exists()


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[0][1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before[0])
        signal.signal(signal.SIGXFSZ, before[1])


def test_every_error_of_the_real_disk_names_its_file(tmp_path: Path) -> None:
    disk, path = RealDisk(), str(tmp_path / "f")
    file = disk.open(path, create=True)
    errors: list[OSError] = []

    def note(action: Callable[[], object]) -> None:
        with pytest.raises(OSError, match=r".") as failure:
            action()
        errors.append(failure.value)

    with files_of_at_most(1_000):
        note(lambda: file.write(0, bytes(2_000)))
        note(lambda: file.write_many(0, [bytes(600), bytes(600), bytes(600)]))
        note(lambda: file.truncate(2_000))
    note(lambda: file.read(-1, 10))
    assert [error.filename for error in errors] == [path] * len(errors)
    os.mkdir(tmp_path / "d")
    with pytest.raises(IsADirectoryError, match=f"{tmp_path}/d"):
        disk.read_file(str(tmp_path / "d"))
    _dangling(tmp_path / "l")
    with pytest.raises(FileNotFoundError, match=f"a symbolic link to a file that does not exist: '{tmp_path}/l'"):
        disk.stat(str(tmp_path / "l"))
    assert disk.stat(str(tmp_path / "g")) is None
