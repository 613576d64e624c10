"""Starts that must fail: exit code 1, and a log line with the problem and the remedy."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lone_node import LoneNode

pytestmark = pytest.mark.compat

OTHER_CLUSTER = "5L6g3nShT-eMCtK--X86sw"


@pytest.fixture
def lone(tmp_path: Path) -> Iterator[LoneNode]:
    with LoneNode(tmp_path) as made:
        yield made


def refused(node: LoneNode, *patterns: str) -> None:
    node.launch()
    assert node.wait_exit(20) == 1
    for pattern in patterns:
        assert node.says(pattern), f"no line like {pattern!r}:\n" + "\n".join(node.lines)
    assert not node.says("Traceback"), "\n".join(node.lines)


def test_an_unformatted_directory(lone: LoneNode) -> None:
    (lone.home / "data").mkdir()
    refused(lone, r"ERROR .*data", r"kalda storage format")


def test_a_missing_directory(lone: LoneNode) -> None:
    refused(lone, r"ERROR .*data", r"kalda storage format")


def test_another_nodes_directory(lone: LoneNode) -> None:
    lone.format()
    lone.properties["node.id"] = 2
    refused(lone, r"ERROR .*node.id")


def test_directories_of_two_clusters(lone: LoneNode) -> None:
    lone.properties["log.dirs"] = lone.home / "data"
    lone.format()
    lone.properties["log.dirs"] = lone.home / "other"
    lone.format(OTHER_CLUSTER)
    lone.properties["log.dirs"] = f"{lone.home / 'data'},{lone.home / 'other'}"
    refused(lone, r"ERROR .*cluster.id")


def test_a_directory_that_another_process_has_locked(lone: LoneNode) -> None:
    lone.format()
    with (lone.home / "data" / ".lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        refused(lone, r"ERROR .*another process")


def test_two_nodes_on_one_directory(lone: LoneNode, tmp_path: Path) -> None:
    """The second is refused, and the first continues."""
    lone.format()
    lone.start()
    with LoneNode(tmp_path / "twin", {"log.dirs": lone.home / "data"}) as twin:
        refused(twin, r"ERROR .*another process")
        assert not twin.says("listening"), "it touched the metadata log before it looked"
    with lone.client() as client:
        assert client.versions is not None
    assert lone.stop() < 20


def test_a_port_in_use(lone: LoneNode) -> None:
    lone.format()
    with socket.create_server(("127.0.0.1", lone.port)):
        refused(lone, rf"ERROR .*{lone.port}")


def test_damaged_meta_properties(lone: LoneNode) -> None:
    lone.format()
    (lone.home / "data" / "meta.properties").write_text("version=1\nnode.id=one\n")
    refused(lone, r"ERROR .*meta.properties")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_permission(lone: LoneNode) -> None:
    lone.format()
    (lone.home / "data").chmod(0o500)
    try:
        refused(lone, r"ERROR .*data.*[Pp]ermission")
    finally:
        (lone.home / "data").chmod(0o700)


@pytest.mark.parametrize(
    ("spoil", "pattern"),
    [
        (lambda properties: properties.pop("process.roles"), r"process\.roles"),
        (lambda properties: properties.update({"listeners": "PLAINTEXT://127.0.0.1:notaport"}), r"listeners"),
        (lambda properties: properties.update({"num.partitions": "many"}), r"num\.partitions"),
    ],
    ids=["no role", "listener", "number"],
)
def test_wrong_properties(lone: LoneNode, spoil: Callable[[dict[str, object]], object], pattern: str) -> None:
    lone.format()
    spoil(lone.properties)
    refused(lone, rf"ERROR .*{pattern}")


def test_a_damaged_quorum_state(lone: LoneNode) -> None:
    lone.format()
    lone.start()
    lone.stop()
    (lone.home / "data/__cluster_metadata-0/quorum-state").write_text("{nonsense")
    refused(lone, r"ERROR .*quorum-state")


@pytest.mark.parametrize("left", ["nothing", "an empty segment"])
def test_an_only_controller_whose_metadata_log_is_lost_leaves_the_logs_of_partitions(lone: LoneNode, left: str) -> None:
    """It would begin an empty cluster, and set them aside."""
    lone.format()
    metadata, data = lone.home / "data/__cluster_metadata-0", lone.home / "data/orders-0"
    data.mkdir()
    if left != "nothing":
        metadata.mkdir(exist_ok=True)
        for path in metadata.iterdir():
            path.unlink()
        (metadata / f"{0:020}.log").touch()
    else:
        shutil.rmtree(metadata, ignore_errors=True)
    refused(lone, r"ERROR .*__cluster_metadata-0 is missing or empty.* orders-0 .*backup")
    assert data.is_dir()


def test_a_damaged_snapshot(lone: LoneNode) -> None:
    lone.properties["metadata.log.max.record.bytes.between.snapshots"] = 100
    lone.format()
    lone.start()
    lone.wait_line("is written")
    lone.stop()
    newest = sorted((lone.home / "data/__cluster_metadata-0").glob("*.checkpoint"))[-1]
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 255
    newest.write_bytes(content)
    refused(lone, r"CRITICAL .*checkpoint is damaged")
