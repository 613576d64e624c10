"""Both disks keep the contract; the simulated one loses in a crash what was not synced."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from kalda.base.disk import Disk
from kalda.broker.process.disk import RealDisk
from kalda.sim.disk import SimDisk


@pytest.fixture(params=["real", "simulated"])
def disk(request: pytest.FixtureRequest) -> Disk:
    return RealDisk() if request.param == "real" else SimDisk(random.Random(1))


def test_files(disk: Disk, tmp_path: Path) -> None:
    root = str(tmp_path)
    disk.make_dirs(f"{root}/a/b")
    assert disk.stat(f"{root}/a/x") is None
    with pytest.raises(FileNotFoundError):
        disk.open(f"{root}/a/x")
    file = disk.open(f"{root}/a/x", create=True)
    file.write(0, b"hello")
    file.write_many(5, [b" ", bytearray(b"world"), memoryview(b"!")])
    file.write(14, b"end")
    assert bytes(file.read(0, 100)) == b"hello world!\0\0end"
    assert bytes(file.read_nowait(6, 5) or b"") == b"world"
    assert bytes(file.read(50, 5)) == b""
    assert file.size() == 17
    twin = file.share()
    file.close()
    file.close()
    disk.rename(f"{root}/a/x", f"{root}/a/y")
    twin.truncate(5)
    twin.sync()
    twin.close()
    assert disk.read_file(f"{root}/a/y") == b"hello"
    with pytest.raises(OSError, match="allowed") as found:
        disk.read_file(f"{root}/a/y", 4)
    assert found.value.errno == errno.EFBIG
    with pytest.raises(FileExistsError):
        disk.open(f"{root}/a/y", create=True, exclusive=True)
    stat = disk.stat(f"{root}/a/y")
    assert stat is not None
    assert (stat.size_bytes, stat.is_dir) == (5, False)
    disk.set_modified(f"{root}/a/y", 12_345)
    stat = disk.stat(f"{root}/a/y")
    assert stat is not None
    assert stat.modified_ms == 12_345
    assert disk.list_dir(f"{root}/a") == ["b", "y"]
    disk.sync_dir(f"{root}/a")
    disk.remove(f"{root}/a/y")
    disk.remove(f"{root}/a/y")
    disk.remove_tree(f"{root}/a")
    disk.remove_tree(f"{root}/a")
    assert disk.stat(f"{root}/a") is None
    assert disk.usable_bytes(root) > 0


def test_a_lock_has_one_holder(tmp_path: Path) -> None:
    disk = SimDisk(random.Random(1))
    first = disk.lock("/lock")
    assert first is not None
    assert disk.lock("/lock") is None
    first.close()
    assert disk.lock("/lock") is not None
    real = RealDisk().lock(str(tmp_path / "lock"))
    assert real is not None
    real.close()


def test_many_buffers_are_written_whole(tmp_path: Path) -> None:
    file = RealDisk().open(str(tmp_path / "f"), create=True)
    file.write_many(0, [bytes([i % 256]) * 3 for i in range(2000)])
    assert bytes(file.read(0, 9000)) == b"".join(bytes([i % 256]) * 3 for i in range(2000))


def test_a_crash_keeps_what_was_synced_and_a_piece_of_the_rest() -> None:
    outcomes = set()
    for seed in range(200):
        disk = SimDisk(random.Random(seed))
        file = disk.open("/f", create=True)
        file.write(0, b"A" * 1000)
        file.sync()
        disk.sync_dir("/")
        file.write(1000, b"B" * 1000)
        file.write(2000, b"C" * 1000)
        disk.crash()
        with pytest.raises(OSError, match="closed"):
            file.read(0, 1)
        data = disk.read_file("/f")
        assert data.startswith(b"A" * 1000)
        assert set(data) <= set(b"ABC\0")
        outcomes.add(data)
    assert b"A" * 1000 in outcomes
    assert len(outcomes) > 20


def test_names_are_lost_unless_their_directory_is_synced() -> None:
    found = set()
    for seed in range(50):
        disk = SimDisk(random.Random(seed))
        disk.open("/old", create=True).sync()
        disk.sync_dir("/")
        disk.rename("/old", "/new")
        disk.open("/other", create=True).sync()
        disk.crash()
        found.add(tuple(disk.list_dir("/")))
    assert found == {("old",), ("new",), ("new", "other")}


def test_a_full_disk_takes_what_fits() -> None:
    disk = SimDisk(random.Random(1), capacity_bytes=10)
    file = disk.open("/f", create=True)
    with pytest.raises(OSError, match="space") as raised:
        file.write(0, bytes(11))
    assert raised.value.errno == errno.ENOSPC
    assert file.size() == 10
    file.write(0, b"x" * 10)


def test_a_failing_directory() -> None:
    disk = SimDisk(random.Random(1))
    disk.make_dirs("/a")
    disk.make_dirs("/ab")
    disk.fail("/a", operations=frozenset({"write"}))
    disk.open("/ab/f", create=True)
    with pytest.raises(OSError, match="EIO"):
        disk.open("/a/f", create=True)
    disk.mend("/a")
    disk.open("/a/f", create=True).write(0, b"\0")
    assert disk.flip_bit("/a/f", 3) == 3
    assert disk.read_file("/a/f") == b"\x08"


def test_a_misdirected_write_damages_two_places() -> None:
    disk = SimDisk(random.Random(1))
    for name, data in (("/a", b"abcdefgh"), ("/b", b"01234567")):
        disk.open(name, create=True).write(0, data)
    disk.misdirect("/a", 2, 3, "/b", 4)
    assert (disk.peek("/a"), disk.peek("/b")) == (b"ab\0\0\0fgh", b"0123cde7")


def test_a_drive_that_ignores_syncs_does_so_for_its_own_files_only() -> None:
    disk = SimDisk(random.Random(1))
    disk.lie_below = "/liar"
    disk.make_dirs("/liar")
    disk.make_dirs("/honest")
    for name in ("/liar/f", "/honest/f"):
        file = disk.open(name, create=True)
        file.write(0, b"x")
        file.sync()
        disk.sync_dir("/" + name.split("/")[1])
    disk.sync_dir("/")
    disk.crash()
    assert disk.peek("/honest/f") == b"x"
    assert disk.lies_about("/liar/f")
    assert not disk.lies_about("/honest/f")
