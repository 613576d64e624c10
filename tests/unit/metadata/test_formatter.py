"""Formatted storage against the files and the output of Apache Kafka's tool, and its refusals."""

from __future__ import annotations

import json
import random
import re
from base64 import b64decode
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from metadata_logs import GOLDEN

from kalda.base.ids import Uuid, random_uuid, uuid_from_text, uuid_to_text
from kalda.metadata.features import LATEST_PRODUCTION, MetadataVersion, from_level
from kalda.metadata.formatter import (
    BootstrapMetadata,
    FormatError,
    FormatRequest,
    QuorumChoice,
    format_storage,
    parse_initial_controllers,
    read_bootstrap,
    snapshot_records,
)
from kalda.metadata.meta_properties import MetaPropertiesEnsemble
from kalda.protocol.messages.log_records import SnapshotHeaderRecord
from kalda.protocol.messages.metadata_records import FeatureLevelRecord, UserScramCredentialRecord
from kalda.raft.voters import VoterEndpoint
from kalda.records.batch import iter_batches
from kalda.records.control import read_control_batch
from kalda.sim.disk import SimDisk

KAFKA: dict[str, Any] = json.loads((GOLDEN / "formatted.json").read_text())
NOW_MS = 1795251077000
SALT = bytes([49, 50, 102, 101, 110, 97, 52, 118, 115, 49, 57, 51, 112, 107, 53, 111, 56, 118, 51, 120, 116, 101, 116,
              51, 104, 109])  # fmt: skip
LEVEL = re.compile(r"FeatureLevelRecord\(name='([^']*)', featureLevel=(\d+)\)")
USER = re.compile(r"UserScramCredentialRecord\(name='([^']*)'")


def new_id_source(seed: int = 1) -> Callable[[], Uuid]:
    rng = random.Random(seed)
    return lambda: random_uuid(rng.randbytes)


def new_disk() -> SimDisk:
    return SimDisk(random.Random(0))


def run(disk: SimDisk, request: FormatRequest, seed: int = 1) -> list[str]:
    """Format, and return the lines of output."""
    lines: list[str] = []
    format_storage(disk, request, new_id=new_id_source(seed), entropy=lambda _: SALT, now_ms=NOW_MS, say=lines.append)
    return lines


def request_of(variant: dict[str, Any]) -> FormatRequest:
    properties = {key: value.replace("DIR", "/node") for key, value in variant["properties"].items()}
    listeners = dict(listener.split("://") for listener in properties["listeners"].split(","))
    host, _, port = listeners.get("CONTROLLER", ":0").rpartition(":")
    log_dirs = properties["log.dirs"].split(",")
    request = FormatRequest(
        cluster_id=KAFKA["cluster_id"],
        node_id=int(properties["node.id"]),
        log_dirs=log_dirs,
        metadata_log_dir=properties.get("metadata.log.dir", log_dirs[0]),
        is_controller="controller" in properties["process.roles"],
        controller_endpoint=VoterEndpoint("CONTROLLER", host, int(port)),
        has_static_voters="controller.quorum.voters" in properties,
    )
    if variant in KAFKA["variants"]:  # the default of 4.3.1 is its own release
        request = replace(request, release_version="4.3")
    flags = iter(variant["flags"])
    for flag in flags:
        match flag:
            case "--standalone" | "--no-initial-controllers":
                request = replace(request, quorum=QuorumChoice(flag))
            case "--initial-controllers":
                request = replace(request, quorum=QuorumChoice(flag), initial_controllers=next(flags))
            case "--release-version":
                request = replace(request, release_version=next(flags))
            case "--feature":
                name, level = next(flags).split("=")
                request = replace(request, feature_levels={**request.feature_levels, name: int(level)})
            case "--add-scram":
                request = replace(request, scram_arguments=[*request.scram_arguments, next(flags)])
            case _:
                raise AssertionError(flag)
    return request


def files_under(disk: SimDisk, path: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name in disk.list_dir(path):
        stat = disk.stat(f"{path}/{name}")
        assert stat is not None
        if stat.is_dir:
            found |= files_under(disk, f"{path}/{name}")
        else:
            found[f"{path}/{name}".removeprefix("/node/")] = disk.read_file(f"{path}/{name}")
    return found


def without_ids_and_times(files: dict[str, bytes]) -> dict[str, bytes]:
    """The files with directory ids, dates, batch timestamps and CRCs blanked."""
    ids = {}
    for name, data in files.items():
        if name.endswith("meta.properties"):
            text = re.search(r"directory.id=(.*)", data.decode())
            assert text is not None
            ids[uuid_from_text(text[1])] = name
    blanked = {}
    for name, data in files.items():
        if name.endswith("meta.properties"):
            blanked[name] = re.sub(rb"#\w{3} .*|directory.id=.*", b"", data)
            continue
        out = bytearray(data)
        for position, header in iter_batches(data):
            out[position + 17 : position + 21] = bytes(4)
            out[position + 27 : position + 43] = bytes(16)
            for record in read_control_batch(data, position, header) if header.is_control else ():
                if isinstance(record.message, SnapshotHeaderRecord):
                    time = record.message.last_contained_log_timestamp.to_bytes(8, "big")
                    out = out.replace(b"\x00\x00" + time + b"\x00", bytes(11)) if any(time) else out
        for directory_id, owner in ids.items():
            out = out.replace(directory_id, owner.encode()[:16].ljust(16))
        blanked[name] = bytes(out)
    return blanked


def in_words(line: str) -> str:
    """A line of Kafka's, with the levels and users alone where it prints objects of its own."""
    if not line.startswith("Bootstrap metadata: "):
        return line
    levels = [
        f"{name}={level}" + (f" ({from_level(int(level))})" if name == "metadata.version" else "")
        for name, level in LEVEL.findall(line)
    ]
    users = dict.fromkeys(USER.findall(line))
    credentials = f"; SCRAM credentials of {', '.join(users)}" if users else ""
    return f"Feature levels: {', '.join(levels)}{credentials}."


@pytest.mark.parametrize("variant", KAFKA["variants"], ids=lambda variant: variant["variant"])
def test_files_and_output_are_kafkas(variant: dict[str, Any]) -> None:
    """Byte for byte."""
    disk = new_disk()
    output = run(disk, request_of(variant))
    expected = {name: b64decode(data) for name, data in variant["files"].items()}
    written = files_under(disk, "/node")
    assert without_ids_and_times(written) == without_ids_and_times(expected)
    kafka_output = [in_words(line.replace("DIR", "/node")) for line in variant["said"]]
    assert sorted(output) == sorted(kafka_output)
    for name, data in written.items():
        if name.endswith("bootstrap.checkpoint"):
            assert list(snapshot_records(data)) == list(snapshot_records(expected[name]))


@pytest.mark.parametrize("variant", KAFKA["of_4_4"], ids=lambda variant: variant["variant"])
def test_records_and_output_are_those_of_4_4(variant: dict[str, Any]) -> None:
    """4.4.0 has the records in the first snapshot of the log. Kalda, as earlier releases, has them in a file of their
    own, which 4.4.0 reads too."""
    disk = new_disk()
    output = run(disk, request_of(variant))
    assert sorted(output) == sorted(in_words(line.replace("DIR", "/node")) for line in variant["said"])
    theirs = next(b64decode(data) for name, data in variant["files"].items() if name.endswith(".checkpoint"))
    ours = next(data for name, data in files_under(disk, "/node").items() if name.endswith("bootstrap.checkpoint"))
    assert list(snapshot_records(ours)) == list(snapshot_records(theirs))


BASE = FormatRequest(
    cluster_id="4L6g3nShT-eMCtK--X86sw",
    node_id=1,
    log_dirs=["/node/a", "/node/b"],
    metadata_log_dir="/node/a",
    is_controller=True,
    controller_endpoint=VoterEndpoint("CONTROLLER", "127.0.0.1", 21002),
    quorum=QuorumChoice.STANDALONE,
)
INITIAL = replace(BASE, quorum=QuorumChoice.INITIAL_CONTROLLERS)
DIRECTORY = "JEXY6aqzQY-32P5TStzaFg"
DYNAMIC = "If you want to use dynamic quorum, please remove controller.quorum.voters"


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (
            replace(BASE, quorum=QuorumChoice.UNSPECIFIED),
            "Because controller.quorum.voters is not set on this controller",
        ),
        (replace(BASE, has_static_voters=True), DYNAMIC),
        (replace(INITIAL, has_static_voters=True), DYNAMIC),
        (replace(BASE, is_controller=False), "You can only use --standalone on a controller."),
        (replace(BASE, cluster_id=""), "You must specify the cluster id."),
        (replace(BASE, node_id=-1), "You must specify a valid non-negative node ID."),
        (
            replace(BASE, release_version="3.2"),
            "Unknown metadata.version '3.2'. Supported metadata.version are: 3.3-IV3",
        ),
        (replace(BASE, release_version="4.5-IV0"), "4.4-IV1, 4.4-IV2"),
        (replace(BASE, feature_levels={"metadata.version": 34}), "not ready for production use yet"),
        (replace(BASE, release_version="4.0", feature_levels={"metadata.version": 25}), "to avoid ambiguity"),
        (replace(BASE, feature_levels={"metadata.version": 6}), "Valid feature levels are from 7 to 34."),
        (replace(BASE, feature_levels={"nope": 1}), "Unsupported feature: nope. Supported features are: eligible."),
        (replace(BASE, feature_levels={"group.version": 5}), "No feature:group.version with feature level 5"),
        (replace(BASE, feature_levels={"kraft.version": 0}), "try removing the --feature flag for kraft.version."),
        (replace(BASE, feature_levels={"kraft.version": 2}), "No feature:kraft.version with feature level 2"),
        (
            replace(BASE, quorum=QuorumChoice.UNSPECIFIED, has_static_voters=True, feature_levels={"kraft.version": 1}),
            "Cannot set kraft.version to 1 unless controller.quorum.voters is empty",
        ),
        (
            replace(BASE, release_version="3.9", feature_levels={"eligible.leader.replicas.version": 1}),
            "could not be set to 1 because it depends on metadata.version level 23",
        ),
        (
            replace(BASE, release_version="3.4", scram_arguments=["SCRAM-SHA-256=[name=a,password=b]"]),
            "SCRAM is only supported in metadata.version 3.5-IV2 or later.",
        ),
        (replace(INITIAL, initial_controllers=""), "No voters given."),
        (replace(INITIAL, initial_controllers="foo"), "No @ found in dynamic voter string 'foo'"),
        (replace(INITIAL, initial_controllers="x@h:1:y"), "Failed to parse node id"),
        (replace(INITIAL, initial_controllers="1@h"), "No colon following hostname could be found"),
        (replace(INITIAL, initial_controllers="1@h:1"), "No colon following port could be found"),
        (replace(INITIAL, initial_controllers="1@:1:x"), "No hostname found after node id"),
        (replace(INITIAL, initial_controllers="1@[::1:1:x"), "no right bracket was found"),
        (replace(INITIAL, initial_controllers="1@h:x:y"), "Failed to parse port"),
        (replace(INITIAL, initial_controllers="1@h:1:short"), "Failed to parse directory ID"),
        (replace(INITIAL, initial_controllers="1@h:1:AAAAAAAAAAAAAAAAAAAAAA"), "Reserved directory ID"),
        (
            replace(INITIAL, initial_controllers=f"1@h:1:{DIRECTORY},1@h:2:{DIRECTORY}"),
            "Node id 1 was specified more than once.",
        ),
    ],
)
def test_a_refused_request_writes_nothing(request_: FormatRequest, words: str) -> None:
    disk = new_disk()
    with pytest.raises(FormatError, match=re.escape(words)):
        run(disk, request_)
    assert disk.stat("/node") is None


def test_a_voter_at_an_ipv6_address() -> None:
    voter = parse_initial_controllers(f"1@[::1]:21002:{DIRECTORY}", "CONTROLLER").get(1)
    assert voter is not None
    assert voter.endpoints == (VoterEndpoint("CONTROLLER", "::1", 21002),)
    assert uuid_to_text(voter.key.directory_id) == DIRECTORY


def test_kraft_version_does_not_depend_on_the_release() -> None:
    disk = new_disk()
    run(disk, replace(BASE, release_version="3.3"))
    assert read_bootstrap(disk, "/node/a").metadata_version is MetadataVersion.IBP_3_3_IV3
    assert disk.stat("/node/a/__cluster_metadata-0/00000000000000000000-0000000000.checkpoint") is not None


def test_a_node_that_is_not_among_the_initial_controllers_writes_them_and_keeps_an_id_of_its_own() -> None:
    disk = new_disk()
    output = run(disk, replace(INITIAL, initial_controllers=f"2@h:1:{DIRECTORY}"))
    assert "Formatting dynamic metadata directory /node/a with metadata.version 4.4-IV2." in output
    assert DIRECTORY.encode() not in disk.read_file("/node/a/meta.properties")


def test_formatting_twice_is_refused_unless_formatted_directories_are_ignored() -> None:
    disk = new_disk()
    run(disk, BASE)
    before = files_under(disk, "/node")
    with pytest.raises(FormatError, match="Log directory /node/a is already formatted"):
        run(disk, BASE, seed=2)
    assert run(disk, replace(BASE, ignore_formatted=True), seed=2) == [
        "All of the log directories are already formatted."
    ]
    assert files_under(disk, "/node") == before


def test_a_directory_that_was_added_is_formatted_alone() -> None:
    disk = new_disk()
    run(disk, BASE)
    before = files_under(disk, "/node")
    output = run(disk, replace(BASE, log_dirs=["/node/a", "/node/b", "/node/c"], ignore_formatted=True), seed=2)
    assert output[1:] == ["Formatting data directory /node/c with metadata.version 4.4-IV2."]
    after = files_under(disk, "/node")
    assert after.keys() - before.keys() == {"c/meta.properties", "c/bootstrap.checkpoint"}
    assert before.items() <= after.items()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cluster_id": "other"}, "Invalid cluster.id in: /node/a/meta.properties. Expected other, but read 4L6g3n"),
        ({"node_id": 2}, "Stored node id 1 doesn't match previous node id 2 in /node/a/meta.properties."),
    ],
)
def test_storage_of_another_node_or_cluster_is_refused(change: dict[str, Any], words: str) -> None:
    disk = new_disk()
    run(disk, BASE)
    with pytest.raises(FormatError, match=re.escape(words)):
        run(disk, replace(BASE, ignore_formatted=True, **change))


def test_a_directory_that_cannot_be_read_is_ignored_unless_it_is_the_only_one() -> None:
    disk = new_disk()
    disk.make_dirs("/node")
    disk.open("/node/b", create=True).close()
    output = run(disk, BASE)
    assert output[0] == "I/O error trying to read log directory /node/b. Ignoring..."
    with pytest.raises(FormatError, match=r"No available log directories to format\."):
        run(disk, replace(BASE, log_dirs=["/node/b"], metadata_log_dir="/node/b"))


@pytest.mark.parametrize("seed", range(20))
def test_a_crash_leaves_each_directory_formatted_or_not(seed: int) -> None:
    """After any loss of unsynced data, formatting again with --ignore-formatted completes all directories."""
    disk = SimDisk(random.Random(seed))
    failures = random.Random(seed)
    prefix = failures.choice(["/node", "/node/b"])
    disk.fail(prefix, operations=frozenset({failures.choice(["write", "sync", "name"])}))
    with pytest.raises(OSError):  # noqa: PT011
        run(disk, BASE)
    disk.mend(prefix)
    disk.crash()
    run(disk, replace(BASE, ignore_formatted=True), seed=3)
    assert read_bootstrap(disk, "/node/a").metadata_version is LATEST_PRODUCTION
    for log_dir in BASE.log_dirs:
        assert b"cluster.id=4L6g3nShT" in disk.read_file(f"{log_dir}/meta.properties")
    own_id = MetaPropertiesEnsemble.load(disk, BASE.log_dirs, "/node/a").properties["/node/a"].directory_id
    assert own_id is not None
    assert own_id in disk.read_file("/node/a/__cluster_metadata-0/00000000000000000000-0000000000.checkpoint")


def test_the_bootstrap_of_a_fresh_directory_is_the_default() -> None:
    bootstrap = read_bootstrap(new_disk(), "/node/a")
    assert bootstrap == BootstrapMetadata.default()
    assert bootstrap.source == "the default bootstrap"


def test_the_bootstrap_is_read_from_the_first_snapshot_where_that_has_records() -> None:
    disk = new_disk()
    run(disk, BASE)
    old = BootstrapMetadata.from_levels(MetadataVersion.IBP_4_0_IV0, {}, "test")
    path = "/node/a/__cluster_metadata-0/00000000000000000000-0000000000.checkpoint"
    disk.remove(path)
    disk.open(path, create=True).write(0, old.to_file(NOW_MS))
    assert read_bootstrap(disk, "/node/a").metadata_version is MetadataVersion.IBP_4_0_IV0


def test_a_bootstrap_file_that_is_torn_or_corrupt_is_refused() -> None:
    disk = new_disk()
    run(disk, BASE)
    data = bytearray(disk.read_file("/node/a/bootstrap.checkpoint"))
    disk.open("/node/a/bootstrap.checkpoint").truncate(200)
    with pytest.raises(ValueError, match="/node/a/bootstrap"):
        read_bootstrap(disk, "/node/a")
    data[150] ^= 1
    disk.open("/node/a/bootstrap.checkpoint").write(0, data)
    with pytest.raises(ValueError, match="/node/a/bootstrap"):
        read_bootstrap(disk, "/node/a")


def test_scram_credentials_are_in_the_records_but_not_in_the_output() -> None:
    disk = new_disk()
    output = run(disk, replace(BASE, scram_arguments=["SCRAM-SHA-512=[name=bob,password=secret]"]))
    records = [record for record, _ in read_bootstrap(disk, "/node/a").records]
    assert isinstance(records[0], FeatureLevelRecord)
    assert isinstance(records[-1], UserScramCredentialRecord)
    assert (records[-1].name, records[-1].mechanism, records[-1].iterations) == ("bob", 2, 4096)
    assert output[0].endswith("; SCRAM credentials of bob.")
