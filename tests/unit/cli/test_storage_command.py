"""`kalda storage` on a real directory. The messages are those of Apache Kafka's tool."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kalda.base.ids import uuid_from_text
from kalda.broker.process.disk import RealDisk
from kalda.cli.storage import storage
from kalda.metadata.formatter import read_bootstrap

CLUSTER = "4L6g3nShT-eMCtK--X86sw"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(storage, arguments)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_config(tmp_path)


def write_config(folder: Path, **changes: str) -> Path:
    properties = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.bootstrap.servers": "127.0.0.1:21002",
        "listeners": "PLAINTEXT://127.0.0.1:21001,CONTROLLER://127.0.0.1:21002",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": f"{folder}/x,{folder}/y",
    } | {key.replace("_", "."): value for key, value in changes.items()}
    path = folder / "server.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    return path


def format_(config: Path, *arguments: str) -> Result:
    return run("format", "-t", CLUSTER, "-c", str(config), *arguments)


def test_a_random_uuid_is_valid() -> None:
    first, second = run("random-uuid").output, run("random-uuid").output
    assert first != second
    assert len(uuid_from_text(first.strip())) == 16


def test_the_error_for_a_missing_file_names_it_once() -> None:
    assert run("info", "-c", "nofile").output == "Cannot read nofile: No such file or directory\n"


def test_format_then_info(config: Path, tmp_path: Path) -> None:
    formatted = format_(
        config, "-s", "-r", "4.0", "-f", "transaction.version=1", "-S", "SCRAM-SHA-256=[name=a,password=b]"
    )
    assert formatted.exit_code == 0
    assert (
        f"Formatting dynamic metadata voter directory {tmp_path}/x with metadata.version 4.0-IV3." in formatted.output
    )
    assert f"Formatting data directory {tmp_path}/y with metadata.version 4.0-IV3." in formatted.output
    bootstrap = read_bootstrap(RealDisk(), f"{tmp_path}/x")
    assert (bootstrap.metadata_version.value, bootstrap.level("transaction.version")) == (25, 1)
    info = run("info", "-c", str(config))
    assert info.exit_code == 0
    assert info.output.startswith(
        f"Found log directories:\n  {tmp_path}/x\n  {tmp_path}/y\n\n"
        f"Found metadata: {{cluster.id={CLUSTER}, directory.id="
    )
    again = format_(config, "-s")
    assert (again.exit_code, again.output) == (
        1,
        f"Log directory {tmp_path}/x is already formatted, as one of cluster {CLUSTER}: a node can be started with "
        f"it. Use --ignore-formatted to leave it as it is and format the others.\n",
    )
    assert format_(config, "-s", "-g").output == "All of the log directories are already formatted.\n"


def test_info_of_incomplete_storage(config: Path, tmp_path: Path) -> None:
    nothing = run("info", "-c", str(config))
    assert (nothing.exit_code, nothing.output) == (
        1,
        f"Found problems:\n  {tmp_path}/x does not exist\n  {tmp_path}/y does not exist\n\n",
    )
    assert format_(config, "-s").exit_code == 0
    y = tmp_path / "y" / "meta.properties"
    text = y.read_text()
    for change, problem in (
        (text.replace("node.id=1", "node.id=2"), "Mismatched node IDs between storage directories."),
        (text.replace(CLUSTER, "other"), "Mismatched cluster IDs between storage directories."),
        (text.replace("node.id=1", ""), f"Error loading {y}: Failed to find node.id"),
    ):
        y.write_text(change)
        info = run("info", "-c", str(config))
        assert info.exit_code == 1
        assert info.output.endswith(f"Found problem:\n  {problem}\n\n")
    y.unlink()
    assert run("info", "-c", str(config)).output.endswith(f"Found problem:\n  {tmp_path}/y is not formatted.\n\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            [],
            "you must specify one of the following: --standalone, --initial-controllers, or --no-initial-controllers.",
        ),
        (["-s", "-N"], "--no-initial-controllers is not allowed with --standalone"),
        (["-s", "-f", "group.version"], "Can't parse feature=level string group.version: equals sign not found."),
        (
            ["-s", "-f", "group.version=x"],
            "Can't parse feature=level string group.version=x: unable to parse x as a short.",
        ),
        (["-I", "foo"], "No @ found in dynamic voter string"),
        (["-I", ""], "No voters given."),
    ],
)
def test_refusals(config: Path, tmp_path: Path, arguments: list[str], words: str) -> None:
    refused = format_(config, *arguments)
    assert refused.exit_code != 0
    assert words in refused.output
    assert not (tmp_path / "x").exists()


def test_the_voter_has_the_controllers_advertised_address(tmp_path: Path) -> None:
    for listeners, advertised, host in (
        ("CONTROLLER://:21002", None, b"localhost"),
        ("CONTROLLER://0.0.0.0:21002", None, b"localhost"),
        ("CONTROLLER://127.0.0.1:21002", None, b"127.0.0.1"),
        ("CONTROLLER://:21002", "CONTROLLER://adv.example:31002", b"adv.example"),
    ):
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        more = {} if advertised is None else {"advertised.listeners": advertised}
        config = write_config(folder, process_roles="controller", listeners=listeners, **more)
        assert format_(config, "-s").exit_code == 0
        snapshot = folder / "x" / "__cluster_metadata-0" / "00000000000000000000-0000000000.checkpoint"
        assert host in snapshot.read_bytes()


def test_unusable_configs(tmp_path: Path) -> None:
    missing = format_(tmp_path / "none.properties", "-s")
    assert missing.exit_code == 1
    assert "none.properties" in missing.output
    config = write_config(tmp_path, listeners="PLAINTEXT//x")
    assert "Unable to parse PLAINTEXT//x" in format_(config, "-s").output


def test_version_mapping() -> None:
    assert run("version-mapping").output == (
        "metadata.version=33 (4.4-IV2)\nkraft.version=1\ntransaction.version=2\ngroup.version=1\n"
        "eligible.leader.replicas.version=1\nshare.version=2\nstreams.version=1\n"
    )
    assert run("version-mapping", "-r", "3.8").output.startswith("metadata.version=20 (3.8)\nkraft.version=0\n")
    unknown = run("version-mapping", "-r", "9.9")
    assert unknown.exit_code == 1
    assert unknown.output.startswith("Unknown metadata.version '9.9'. Supported metadata.version are: 3.3-IV3, ")
    assert unknown.output.endswith("4.4-IV2, 4.5-IV0\n")


@pytest.mark.parametrize(
    ("features", "code", "output"),
    [
        (
            ["eligible.leader.replicas.version=1", "metadata.version=20", "transaction.version=2"],
            0,
            "eligible.leader.replicas.version=1 requires:\n    metadata.version=23 (4.0-IV1)\n"
            "metadata.version=20 (3.8-IV0) has no dependencies.\ntransaction.version=2 has no dependencies.\n",
        ),
        (["nope.version=1"], 1, "Unknown feature: nope.version\n"),
        (["group.version=7"], 1, "Feature level 7 is not supported for feature group.version\n"),
        (["metadata.version=99"], 1, "Unknown metadata.version 99\n"),
        (
            ["bad"],
            1,
            "Invalid feature format: bad. Expected format: 'feature=version' (e.g. 'group.version=1')\n",
        ),
    ],
)
def test_feature_dependencies(features: list[str], code: int, output: str) -> None:
    found = run("feature-dependencies", *(part for feature in features for part in ("-f", feature)))
    assert (found.exit_code, found.output) == (code, output)
