"""The identity of log directories."""

from __future__ import annotations

import random

import pytest

from kalda.base.ids import Uuid, uuid_to_text
from kalda.metadata.meta_properties import (
    MetaProperties,
    MetaPropertiesEnsemble,
    MetaPropertiesError,
    make_dirs_durably,
    write,
)
from kalda.sim.disk import SimDisk

IDS = [Uuid(bytes([n]) * 16) for n in range(1, 9)]


def disk_with(**dirs: str | None) -> SimDisk:
    disk = SimDisk(random.Random(0))
    for name, text in dirs.items():
        disk.make_dirs(f"/{name}")
        if text is not None:
            disk.open(f"/{name}/meta.properties", create=True).write(0, text.encode())
    return disk


def v1(node_id: int = 1, directory: Uuid | None = None, cluster: str = "c") -> str:
    text = f"version=1\ncluster.id={cluster}\nnode.id={node_id}\n"
    return text if directory is None else f"{text}directory.id={uuid_to_text(directory)}\n"


def load(disk: SimDisk, *dirs: str, metadata: str = "/a") -> MetaPropertiesEnsemble:
    return MetaPropertiesEnsemble.load(disk, dirs, metadata)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version=1\nnode.id=1\n", "cluster.id was not found."),
        ("version=1\ncluster.id=c\n", "Failed to find node.id"),
        ("version=7\n", "Unknown meta.properties version number 7"),
        ("version=x\n", "Unable to read version as a base-10 number."),
        ("version=1\ncluster.id=c\nnode.id=x\n", "Unable to read node.id as a base-10 number."),
        ("version=1\ncluster.id=c\nnode.id=1\ndirectory.id=zzz\n", "Unable to read directory.id as a Uuid"),
    ],
)
def test_a_directory_with_a_malformed_file_counts_as_failed(text: str, words: str) -> None:
    ensemble = load(disk_with(a=text, b=v1()), "/a", "/b")
    assert words in ensemble.errors["/a"]
    assert list(ensemble.properties) == ["/b"]
    with pytest.raises(MetaPropertiesError, match="The metadata log directory /a cannot be used"):
        ensemble.verify_for_start(1)


def test_a_node_starts_without_a_directory_that_failed_but_not_without_its_metadata() -> None:
    disk = disk_with(a=v1(directory=IDS[0]), b=v1(directory=IDS[1]))
    disk.fail("/b")
    ensemble = load(disk, "/a", "/b")
    ensemble.verify_for_start(1)
    assert list(ensemble.errors) == ["/b"]
    with pytest.raises(MetaPropertiesError, match="/b cannot be used"):
        load(disk, "/a", "/b", metadata="/b").verify_for_start(1)


def test_the_error_for_unformatted_storage_names_the_command_to_run() -> None:
    with pytest.raises(MetaPropertiesError, match=r"/a, /b is not formatted; format it with: kalda storage format"):
        load(disk_with(a=None, b=None), "/a", "/b").verify_for_start(1)
    with pytest.raises(MetaPropertiesError, match=r"No `meta.properties` found in the metadata log directory /a"):
        load(disk_with(a=None, b=v1()), "/a", "/b").verify_for_start(1)


@pytest.mark.parametrize(
    ("dirs", "words"),
    [
        ({"a": v1(), "b": v1(cluster="d")}, "Invalid cluster.id in: /b/meta.properties. Expected c, but read d"),
        ({"a": v1(2), "b": v1(2)}, "Stored node id 2 doesn't match previous node id 1 in /a/meta.properties"),
        ({"a": v1(), "b": v1(2)}, "Stored node id 2 doesn't match previous node id 1 in /b/meta.properties"),
        ({"a": v1(directory=IDS[0]), "b": v1(directory=IDS[0])}, "It was the ID of /a, but also of /b"),
        (
            {"a": v1(directory=Uuid(bytes(15) + b"\x02"))},
            "Invalid reserved directory ID AAAAAAAAAAAAAAAAAAAAAg found in /a",
        ),
        ({"a": "broker.id=1\n"}, "/a is formatted for a broker on ZooKeeper"),
        ({"a": "\0\0garbage\n"}, "/a/meta.properties is empty or damaged"),
    ],
)
def test_directories_that_do_not_belong_together_are_refused(dirs: dict[str, str], words: str) -> None:
    disk = disk_with(**dirs)
    with pytest.raises(MetaPropertiesError) as caught:
        load(disk, *(f"/{name}" for name in dirs)).verify_for_start(1)
    assert words in str(caught.value)


def test_a_new_directory_gets_an_identity_and_one_without_an_id_gets_an_id() -> None:
    disk = disk_with(a=v1(directory=IDS[0]), b=v1(), c=None)
    ids = iter(IDS[1:])
    ensemble = load(disk, "/a", "/b", "/c")
    ensemble.verify_for_start(1)
    completed = ensemble.complete(disk, 1, lambda: next(ids), now_ms=0)
    assert [completed.properties[name].directory_id for name in ("/a", "/b", "/c")] == IDS[:3]
    assert load(disk, "/a", "/b", "/c").properties == completed.properties
    assert completed.complete(disk, 1, lambda: next(ids), now_ms=0) == completed


def test_a_new_directory_that_cannot_be_written_counts_as_failed() -> None:
    disk = disk_with(a=v1(directory=IDS[0]), b=None)
    disk.fail("/b", operations=frozenset({"write"}))
    completed = load(disk, "/a", "/b").complete(disk, 1, lambda: IDS[1], now_ms=0)
    assert list(completed.properties) == ["/a"]
    assert list(completed.errors) == ["/b"]


def test_an_identity_survives_a_crash_and_is_shown() -> None:
    disk = SimDisk(random.Random(0))
    properties = MetaProperties(1, "4L6g3nShT-eMCtK--X86sw", 7, IDS[0])
    write(disk, "/deep/down/dir", properties, now_ms=0)
    disk.crash()
    assert load(disk, "/deep/down/dir", metadata="/deep/down/dir").properties == {"/deep/down/dir": properties}
    assert str(properties) == (
        f"{{cluster.id=4L6g3nShT-eMCtK--X86sw, directory.id={uuid_to_text(IDS[0])}, node.id=7, version=1}}"
    )


def test_directories_of_a_format_that_was_killed_are_made_durable_by_the_next() -> None:
    disk = SimDisk(random.Random(3))
    disk.make_dirs("/a/b/c")  # killed before any sync
    make_dirs_durably(disk, "/a/b/c")
    disk.crash()
    assert disk.names("/a/b") == ["c"]


def test_directories_above_that_cannot_be_synced_are_passed_over() -> None:
    disk = SimDisk(random.Random(3))
    disk.make_dirs("/a")
    disk.fail("/", operations=frozenset(("sync",)))
    make_dirs_durably(disk, "/a")
    with pytest.raises(OSError, match="EIO"):
        make_dirs_durably(disk, "/a/b")
