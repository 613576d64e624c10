"""The command line against a node: every command once, as scripts use it, each in a process of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from lone_node import CLUSTER_ID, LoneNode

import kalda
from kalda.cli.commands import cli
from kalda.cli.common.command_admin import CommandAdmin
from kalda.client.admin.topics import NewTopic

pytestmark = pytest.mark.compat


class Shell:
    """Runs `kalda` with the node's address in the environment: in this process, or as one of its own."""

    def __init__(self, address: str) -> None:
        sources = str(Path(kalda.__file__).parents[1])
        self.environment = {**os.environ, "KALDA_BOOTSTRAP_SERVER": address, "PYTHONPATH": sources}

    def run(self, *arguments: object, given: str = "", code: int = 0) -> Result | subprocess.CompletedProcess[str]:
        """Wait for a command's end. Those that read or write records get a process, since they do so by descriptor."""
        words = list(map(str, arguments))
        if words[0] in ("produce", "consume"):
            ended = subprocess.run(
                [sys.executable, "-m", "kalda.cli.main", *words],
                input=given,
                capture_output=True,
                text=True,
                env=self.environment,
                timeout=60,
            )
            assert ended.returncode == code, f"{words}: {ended.returncode}\n{ended.stdout}{ended.stderr}"
            return ended
        result = CliRunner().invoke(cli, words, input=given, env=self.environment, prog_name="kalda")
        assert result.exit_code == code, f"{words}: {result.exit_code}\n{result.output}"
        return result

    def json(self, *arguments: object) -> list[dict[str, object]] | dict[str, object]:
        document: list[dict[str, object]] | dict[str, object] = json.loads(self.run(*arguments, "--json").stdout)
        return document

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "kalda.cli.main", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
        )


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoneNode]:
    with LoneNode(tmp_path_factory.mktemp("cli")) as running:
        running.format()
        running.start()
        yield running
        running.stop()


@pytest.fixture(scope="module")
def shell(node: LoneNode) -> Shell:
    return Shell(node.address)


def test_topic_commands(shell: Shell) -> None:
    assert shell.run("topics", "create", "life", "-p", 2, "-c", "retention.ms=5000").stdout == "Created topic life.\n"
    assert "already exists" in shell.run("topics", "create", "life", code=1).stderr
    shell.run("topics", "create", "life", "--if-not-exists")
    shell.run("topics", "alter", "life", "-p", 3)
    (described,) = shell.json("topics", "describe", "life")
    assert isinstance(described, dict)
    assert (described["partitions"], described["configs"]) == (3, {"retention.ms": "5000"})
    assert "life" in shell.run("topics", "list").stdout.split()
    shell.run("topics", "delete", "--yes", "life")
    assert "topic life" in shell.run("topics", "delete", "--yes", "life", code=1).stderr
    shell.run("topics", "delete", "--yes", "life", "--if-exists")


def test_configs(shell: Shell) -> None:
    shell.run("topics", "create", "settings")
    shell.run("configs", "alter", "--topic", "settings", "--add-config", "segment.ms=60000")
    entries = shell.json("configs", "describe", "--topic", "settings")
    assert isinstance(entries, list)
    assert {"segment.ms": "60000"}.items() <= {entry["name"]: entry["value"] for entry in entries}.items()
    shell.run("configs", "alter", "--topic", "settings", "--delete-config", "segment.ms")
    assert "segment.ms" not in shell.run("configs", "describe", "--topic", "settings").stdout
    assert "bogus" in shell.run("configs", "alter", "--topic", "settings", "--add-config", "bogus=1", code=1).stderr
    assert "log.retention.hours" in shell.run("configs", "describe", "--broker", 1, "--all").stdout


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_produced_records_are_consumed(shell: Shell, codec: str) -> None:
    topic = f"lines-{codec}"
    shell.run("topics", "create", topic, "-p", 3)
    lines = [f"key-{i % 7}:value {i} é" for i in range(1000)]
    options = ["-K", ":", "-z", codec, "--batch-size", 2000, "--idempotent"]
    report = json.loads(shell.run("produce", topic, *options, "--json", given="\n".join(lines)).stdout)
    assert report["records"] == 1000
    consumed = shell.run("consume", topic, "--from", "beginning", "-e", "--print-key", "--separator", ":")
    assert sorted(consumed.stdout.splitlines()) == sorted(lines)
    assert "total of 1000 messages" in consumed.stderr
    rows = [json.loads(line) for line in shell.run("consume", topic, "--from", 0, "-e", "--json").stdout.splitlines()]
    by_key = {row["key"]: row["partition"] for row in rows}
    assert all(by_key[row["key"]] == row["partition"] for row in rows)


def test_starts_and_ends_of_consume(shell: Shell) -> None:
    shell.run("topics", "create", "places", "-p", 1)
    shell.run("produce", "places", "-H", "a=1", "--null-marker", "NULL", given="zero\none\nNULL\nthree\n")

    def lines(*options: object) -> list[str]:
        return shell.run("consume", "places", *options).stdout.splitlines()

    assert lines("--from", "offset:1", "-n", 2) == ["one", "null"]
    assert lines("--from", "2020-01-01T00:00:00Z", "-n", 1, "--print-offset", "--print-headers") == [
        "Offset:0\ta:1\tzero"
    ]
    assert lines("--from", "latest", "--timeout-ms", 300) == []
    assert lines("--from", 3, "-p", 0, "-e", "-f", "raw") == ["three"]
    assert "no partition 4" in shell.run("consume", "places", "-p", 4, code=1).stderr
    assert "no partition 4" in shell.run("produce", "places", "-p", 4, code=1).stderr
    assert "no key separator" in shell.run("produce", "places", "-K", "|", given="x\n", code=1).stderr


def test_what_kcat_can_do(shell: Shell, tmp_path: Path) -> None:
    """Envelopes, files as records, tails, times, filters, topics by pattern, formats."""
    # Their records are of 1970: retention would delete them.
    shell.run("topics", "create", "kcat-a", "kcat-b", "-p", 2, "--config", "retention.ms=-1")
    envelopes = [
        {"key": f"k{n}", "value": None if n == 3 else f"v{n}", "partition": n % 2, "timestamp": 1_000 * n,
         "headers": {"n": str(n)}}
        for n in range(10)
    ]  # fmt: skip
    shell.run("produce", "kcat-a", "--format", "json", given="\n".join(map(json.dumps, envelopes)))

    def offsets(*options: object, topic: str = "kcat-a", form: str = "%p@%o\\n") -> list[str]:
        return sorted(shell.run("consume", topic, "-f", form, *options).stdout.split())

    assert offsets("--last", 2) == ["0@3", "0@4", "1@3", "1@4"]
    assert offsets("--from", "timestamp:2000", "--until", "timestamp:5001") == ["0@1", "0@2", "1@1", "1@2"]
    assert offsets("--from", "beginning", "--until", 1, form="%k:%s") == ["k0:v0k1:v1"]
    assert offsets("--from", "-100", "-e", "--key-filter", "k[12]") == ["0@1", "1@0"]
    assert offsets("--from", "-1h", "-e") == [], "their timestamps are of 1970"
    assert offsets("--from", 0, "-e", "--header-filter", "n=^3$", form="%k=%S") == ["k3=-1"]
    (tmp_path / "one").write_bytes(b"first\nfile")
    (tmp_path / "two").write_bytes(b"second")
    files = [tmp_path / "one", tmp_path / "two"]
    shell.run("produce", "kcat-b", *files, "--format", "file", "-k", "f", "--timestamp", 7, "-z", "zstd")
    shell.run("produce", "kcat-b", "-D", "::", "-K", "=", "-Z", given="f=a::f=::f=b")
    sizes = offsets("--from", "beginning", "-e", topic="kcat-b", form="%S\\n")
    assert sizes == ["-1", "1", "1", "10", "6"]
    assert offsets("--from", 0, "--until", "timestamp:8", topic="kcat-b", form="%T\\n") == ["7", "7"]
    everything = shell.run("consume", "^kcat-.*", "--from", "beginning", "-e", "-f", "%t ").stdout.split()
    assert sorted(everything) == ["kcat-a"] * 10 + ["kcat-b"] * 5
    assert "no topic matches" in shell.run("consume", "^nothing", code=1).stderr
    copied = shell.run("consume", "kcat-a", "--from", 0, "-e", "--json").stdout.replace(
        '"partition": 1', '"partition": 7'
    )
    refused = shell.run("produce", "kcat-b", "--format", "json", given=copied, code=1).stderr
    assert "topic kcat-b has no partition 7; it has 2" in refused


def test_a_share_group_is_consumed_and_what_is_not_printed_is_left_to_others(shell: Shell) -> None:
    shell.run("topics", "create", "jobs", "-p", 1)
    shell.run("produce", "jobs", given="a\nb\nc\n")
    shell.run("configs", "alter", "--group", "pickers", "--add-config", "share.auto.offset.reset=earliest")
    assert shell.run("consume", "jobs", "--share", "pickers", "-n", 2).stdout == "a\nb\n"
    assert shell.run("consume", "jobs", "--share", "pickers", "-n", 1).stdout == "c\n", "it was released"
    for options, why in (
        (("--from", "latest"), "share.auto.offset.reset"),
        (("--isolation-level", "read_committed"), "share.isolation.level"),
        (("--group", "g"), "exclude each other"),
        (("-e",), "--timeout-ms"),
    ):
        refused = CliRunner().invoke(cli, ["consume", "jobs", "--share", "pickers", *options], env=shell.environment)
        assert (refused.exit_code, why in refused.stderr) == (2, True)


def test_offsets_and_deleted_records(shell: Shell) -> None:
    shell.run("topics", "create", "shortened", "-p", 2)
    shell.run("produce", "shortened", "-p", 1, given="a\nb\nc\n")
    rows = shell.json("topics", "offsets", "shortened")
    assert isinstance(rows, list)
    assert [(row["beginning"], row["end"]) for row in rows] == [(0, 0), (0, 3)]
    assert (
        "Nothing was deleted" in shell.run("topics", "delete-records", "shortened", "--before", -1, "--dry-run").stderr
    )
    shell.run("topics", "delete-records", "shortened", "--before", -1, "--yes")
    assert shell.run("consume", "shortened", "--from", 0, "-e").stdout == "c\n"
    assert shell.json("topics", "offsets", "shortened", "--at", "earliest")[1]["offset"] == 2  # type: ignore[index]


def test_perf_prints_what_kafkas_tools_print(shell: Shell) -> None:
    shell.run("topics", "create", "perf", "-p", 1)
    sent = shell.run("perf", "produce", "perf", "-n", 500, "-s", 50, "-X", "linger.ms=0").stdout
    number = r"\d+\.\d+"
    assert re.fullmatch(
        rf"500 records sent, {number} records/sec \({number} MB/sec\), {number} ms avg latency, {number} ms max "
        r"latency, \d+ ms 50th, \d+ ms 95th, \d+ ms 99th, \d+ ms 99.9th.\n",
        sent,
    )
    header, row = shell.run("perf", "consume", "perf", "-n", 500).stdout.splitlines()
    assert len(header.split(", ")) == len(row.split(", ")) == 10
    assert row.split(", ")[4] == "500"
    latency = shell.run("perf", "e2e", "perf", "-n", 20).stdout.splitlines()
    assert latency[0].startswith("0\t")
    assert re.fullmatch(rf"Avg latency: {number} ms", latency[1])
    assert re.fullmatch(r"Percentiles: 50th = \d+, 99th = \d+, 99.9th = \d+", latency[2])


def test_profiles_and_configuration(shell: Shell, node: LoneNode, tmp_path: Path) -> None:
    file = tmp_path / "profiles.toml"
    file.write_text(
        f'[here]\nbootstrap.servers = "{node.address}"\nclient.id = "me"\n[gone]\nbootstrap.servers = "127.0.0.1:1"\n'
    )
    environment = {**shell.environment, "KALDA_PROFILES": str(file)}
    del environment["KALDA_BOOTSTRAP_SERVER"]
    with_profiles = Shell(node.address)
    with_profiles.environment = environment
    assert "here" in with_profiles.run("profiles").stdout
    with_profiles.run("topics", "list", "--profile", "here")
    with_profiles.run("topics", "list", "--profile", "gone", code=3)
    assert "gone, here" in with_profiles.run("topics", "list", "--profile", "none", code=1).stderr
    keys = tmp_path / "client.properties"
    keys.write_text(f"bootstrap.servers={node.address}\nacks=all\n")
    with_profiles.run("topics", "list", "--profile", "gone", "--command-config", keys)
    assert "nearest is acks" in with_profiles.run("topics", "list", "-X", "akcs=1", code=2).stderr


def test_a_group_continues_at_its_committed_offsets(shell: Shell) -> None:
    shell.run("topics", "create", "work", "-p", 2)
    for partition in range(2):
        lines = "\n".join(f"{i}" for i in range(50 * partition, 50 * partition + 50))
        shell.run("produce", "work", "-p", partition, given=lines)
    first = shell.run("consume", "work", "-g", "workers", "--from", "beginning", "-n", 30).stdout.split()
    second = shell.run("consume", "work", "-g", "workers", "--from", "beginning", "--timeout-ms", 2000).stdout.split()
    assert sorted(map(int, first + second)) == list(range(100))
    (group,) = shell.json("groups", "describe", "workers")
    assert isinstance(group, dict)
    assert sum(row["lag"] for row in group["offsets"]) == 0
    assert "workers" in shell.run("groups", "list").stdout.split()
    assert "workers" in shell.run("groups", "describe", "--all-groups", "--state").stdout.split()
    plan = shell.json("groups", "reset-offsets", "workers", "--all-topics", "--to-earliest")
    assert isinstance(plan, dict)
    assert plan["executed"] is False
    shell.run("groups", "reset-offsets", "workers", "--topic", "work:0", "--to-earliest", "--execute")
    explained = shell.json("explain", "lag", "workers", "--for", 1)
    assert isinstance(explained, dict)
    assert [row["lag"] for row in explained["lag"]] == [50, 0]
    assert "has no members" in explained["findings"][0]
    assert "never" in shell.run("explain", "lag", "workers", "--for", 1).stdout
    again = shell.run("consume", "work", "-g", "workers", "--timeout-ms", 1500).stdout.split()
    assert sorted(map(int, again)) == list(range(50))
    shell.run("groups", "delete-offsets", "--yes", "workers", "--topic", "work:1")
    shell.run("groups", "delete", "workers", "--yes")
    assert "GROUP_ID_NOT_FOUND" in shell.run("groups", "describe", "workers", code=1).stderr


def wait_for_members(node: LoneNode, group_id: str, count: int) -> None:
    """Wait until the group is stable with this many members."""
    with CommandAdmin(node.address) as admin:
        until_s = time.monotonic() + 60
        found = "not there"
        while time.monotonic() < until_s:
            if group_id in admin.list_groups():
                group = admin.describe_groups([group_id]).value(group_id)
                found = f"{group.state} with {len(group.members)} members"
                if group.state == "Stable" and len(group.members) == count:
                    return
        raise AssertionError(f"group {group_id} is {found}")


def test_consume_by_pattern_reads_topics_that_are_created_later(shell: Shell) -> None:
    shell.run("topics", "create", "later-a")
    reader = shell.start("consume", "^later-.*", "-p", 0, "-n", 2, "-f", "%t=%s\\n")
    with reader:
        assert reader.stdout is not None
        for topic in ("later-b", "later-c"):
            shell.run("topics", "create", topic, "-p", 2)
            shell.run("produce", topic, "-p", 1, given="not read")
            shell.run("produce", topic, "-p", 0, given="first")
        assert sorted(reader.stdout.readline().strip() for _ in range(2)) == ["later-b=first", "later-c=first"]
        assert reader.wait(60) == 0


@pytest.fixture
def hangups() -> Iterator[None]:
    """SIGHUP is not ignored in the processes that a test starts, also where the tests run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangups")
def test_two_members_share_and_leave_with_a_signal(shell: Shell, node: LoneNode) -> None:
    shell.run("topics", "create", "shared", "-p", 4)
    members = [shell.start("consume", "shared", "-g", "pair", "--from", "beginning") for _ in range(2)]
    found: list[set[str]] = [set(), set()]
    fed = threading.Event()

    def read(index: int) -> None:
        stream = members[index].stdout
        assert stream is not None
        for line in stream:
            found[index].add(line.strip())
            if len(found[0] | found[1]) == 40:
                fed.set()

    readers = [threading.Thread(target=read, args=(index,)) for index in range(2)]
    for reader in readers:
        reader.start()
    try:
        wait_for_members(node, "pair", 2)
        for partition in range(4):
            lines = "\n".join(f"{partition}-{i}" for i in range(10))
            shell.run("produce", "shared", "-p", partition, given=lines)
        assert fed.wait(60)
        (group,) = shell.json("groups", "describe", "pair")
        assert [len(member["partitions"]) for member in group["members"]] == [2, 2]  # type: ignore[attr-defined, index]
    finally:
        for member, number in zip(members, (signal.SIGTERM, signal.SIGHUP), strict=True):
            member.send_signal(number)
        codes = [member.wait(30) for member in members]
        for reader in readers:
            reader.join()
        for member in members:
            assert member.stderr is not None
            member.stderr.close()
    assert codes == [0, 0]
    (group,) = shell.json("groups", "describe", "pair")
    assert group["state"] == "Empty"  # type: ignore[index]
    assert sum(row["lag"] for row in group["offsets"]) == 0  # type: ignore[index]


def test_cluster_quorum_and_features(shell: Shell) -> None:
    assert shell.run("cluster", "id").stdout.strip() == CLUSTER_ID
    described = shell.json("cluster", "describe", "--include-fenced-brokers")
    assert isinstance(described, dict)
    assert [broker["node_id"] for broker in described["nodes"]] == [1]  # type: ignore[attr-defined]
    assert "online" in shell.run("cluster", "log-dirs").stdout
    quorum = shell.json("quorum", "describe")
    assert isinstance(quorum, dict)
    assert (quorum["leader_id"], len(quorum["voters"])) == (1, 1)  # type: ignore[arg-type]
    assert "metadata.version" in shell.run("features", "describe").stdout
    shell.run("features", "upgrade", "-f", "metadata.version=1", code=1)
    lowered = shell.run("features", "downgrade", "-f", "transaction.version=1", "--dry-run").stdout
    assert "transaction.version from 2 to 1" in lowered


@pytest.mark.usefixtures("hangups")
def test_a_node_whose_terminal_is_closed_stops_cleanly_and_logs_the_signal(tmp_path: Path) -> None:
    with LoneNode(tmp_path) as node:
        node.format()
        node.start()
        assert node.process is not None
        node.process.send_signal(signal.SIGHUP)
        assert node.wait_exit() == 0
        assert node.says("Terminating process due to signal SIGHUP")
        assert node.says("node 1 has stopped")


def test_topics_complete(shell: Shell) -> None:
    shell.run("topics", "create", "completed")
    variables = {"_KALDA_COMPLETE": "bash_complete", "COMP_WORDS": "kalda consume compl", "COMP_CWORD": "2"}
    words = subprocess.run(
        [sys.executable, "-c", "from kalda.cli.commands import cli; cli(prog_name='kalda')"],
        capture_output=True,
        text=True,
        env={**shell.environment, **variables},
        check=False,
    )
    assert words.stdout.split() == ["plain,completed"]


def test_consume_ends_when_its_pipe_is_closed(shell: Shell, node: LoneNode) -> None:
    with CommandAdmin(node.address) as admin:
        admin.create_topics([NewTopic("long", 1, 1)]).check()
    with kalda.Producer(bootstrap_servers=node.address) as producer:
        for _ in range(4_000):
            producer.send("long", b"x" * 1000)
    process = shell.start("consume", "long", "--from", "beginning")
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "x" * 1000 + "\n"
    process.stdout.close()
    assert process.wait(30) == 0
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()


def test_dump_log_of_a_running_node(shell: Shell, node: LoneNode) -> None:
    shell.run("topics", "create", "dumped", "-p", 1)
    shell.run("produce", "dumped", given="found me\n")
    data = node.home / "data"
    assert "value: found me" in shell.run("dump-log", data / "dumped-0", "--deep").stdout
    assert '"type": "TopicRecord"' in shell.run("dump-log", data / "__cluster_metadata-0", "--deep").stdout
