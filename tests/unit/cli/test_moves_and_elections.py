"""`kalda reassign`, `elect` and `quorum` against nodes in this process."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import kalda
from kalda.base.configs.resources import ConfigResourceType
from kalda.base.ids import TopicPartition
from kalda.cli.commands import cli
from kalda.cli.common.command_admin import CommandAdmin
from kalda.cli.reassign import show_bytes
from kalda.cli.reassignment import plans
from kalda.cli.reassignment.plans import ReassignmentProgress
from kalda.client.admin.configs import ConfigResource
from kalda.client.admin.reassignments import Reassignment
from kalda.testing import Cluster

THROTTLED = (
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3) as running:
        yield running


@pytest.fixture
def client(cluster: Cluster) -> Iterator[CommandAdmin]:
    with CommandAdmin(cluster.bootstrap_servers) as connected:
        yield connected


class Shell:
    """Runs `kalda` in this process, with the cluster's address in the environment. After a command it waits until every
    broker has replayed the command's records."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._environment = {"KALDA_BOOTSTRAP_SERVER": cluster.bootstrap_servers}

    def run(self, *arguments: object, code: int = 0) -> Result:
        result = CliRunner().invoke(cli, list(map(str, arguments)), prog_name="kalda", env=self._environment)
        assert result.exit_code == code, f"{arguments}: {result.exit_code}\n{result.output}"
        nodes = list(self._cluster.nodes.values())
        decided, deadline = max(node.raft.log_end_offset for node in nodes) - 1, time.monotonic() + 60
        while any(node.image.offset < decided for node in nodes):
            assert time.monotonic() < deadline, "a node does not replay the metadata log"
            time.sleep(0.005)
        return result

    def json(self, *arguments: object, code: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", code=code).stdout)


@pytest.fixture
def shell(cluster: Cluster) -> Shell:
    return Shell(cluster)


def replicas_of(client: CommandAdmin, name: str) -> list[tuple[int, ...]]:
    return [partition.replicas for partition in client.topic(name).partitions]


def set_throttles(client: CommandAdmin, topic: str) -> set[str]:
    """The throttle configs that are set on the topic, or on one of two brokers."""
    found = set()
    for resource in (
        ConfigResource(ConfigResourceType.TOPIC, topic),
        *(ConfigResource(ConfigResourceType.BROKER, str(i)) for i in (1, 2)),
    ):
        found |= {
            e.name
            for e in client.describe_configs([resource]).value(resource).values()
            if e.name in THROTTLED and not e.is_default
        }
    return found


def test_a_plan_is_made_run_shown_and_rolled_back(
    cluster: Cluster, shell: Shell, client: CommandAdmin, tmp_path: Path
) -> None:
    cluster.create_topic("orders", assignment=[(1, 2)] * 4)
    with kalda.Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for partition in range(4):
            for _ in range(50):
                producer.send("orders", b"x" * 1000, partition=partition)
    plan, back = tmp_path / "plan.json", tmp_path / "back.json"
    shown = shell.run("reassign", "plan", "--topics", "orders", "--out", plan, "--rollback", back).stdout
    assert "Copied: 2 replicas" in shown
    document = json.loads(plan.read_text())
    assert document == shell.json("reassign", "plan", "--topics", "orders")
    assert 2 <= len(document["partitions"]) <= 3
    ran = shell.run("reassign", "run", plan, "--throttle", 10_000_000).stdout
    assert "Current partition replica assignment" in ran
    assert ran.endswith("Completed.\n")
    assert sum(replicas_of(client, "orders"), ()).count(3) == len(document["partitions"])
    assert set_throttles(client, "orders") == set()
    assert "complete" in shell.run("reassign", "status", plan).stdout
    assert shell.run("reassign", "status", back, code=1).stdout.count("not as planned") == len(document["partitions"])
    done = shell.json("reassign", "run", back)
    assert (done["completed"], len(done["started"]), done["rollback"]) == (True, len(document["partitions"]), document)
    assert replicas_of(client, "orders") == [(1, 2)] * 4


def test_a_reassignment_in_progress_is_listed_throttled_and_cancelled(
    cluster: Cluster, shell: Shell, client: CommandAdmin, tmp_path: Path
) -> None:
    cluster.create_topic("stuck", assignment=[(1, 2)])
    plan = tmp_path / "plan.json"
    entry = {"topic": "stuck", "partition": 0, "replicas": [1, 3], "log_dirs": ["any", "any"]}
    plan.write_text(json.dumps({"version": 1, "partitions": [entry]}))
    cluster.stop_node(3)
    try:
        ran = shell.run("reassign", "run", plan, "--throttle", 1000, "--no-wait").stdout
        assert "The throttle stays" in ran
        assert set_throttles(client, "stuck") == set(THROTTLED)
        (listed,) = shell.json("reassign", "status")
        assert (listed["topic"], listed["replicas"], listed["adding"]) == ("stuck", [1, 3], [3])
        (state,) = shell.json("reassign", "status", plan, code=1)
        assert state["state"] == "in progress"
        assert "--additional" in shell.run("reassign", "run", plan, code=1).stderr
        late = shell.run("reassign", "run", plan, "--additional", "--timeout", 0, code=1)
        assert "Completed" not in late.stdout
        assert "stuck-0" in shell.run("reassign", "cancel", plan).stdout
        assert "None of the specified" in shell.run("reassign", "cancel", plan).stdout
        assert shell.json("reassign", "cancel", "--all") == {"cancelled": [], "failed": []}
        assert replicas_of(client, "stuck") == [(1, 2)]
        assert client.list_reassignments() == {}
    finally:
        cluster.start_node(3)
    shell.run("reassign", "cancel", plan)
    assert set_throttles(client, "stuck") == set()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"topic": "nowhere"}, "nowhere-0"),
        ({"partition": 9}, "refusals-9"),
        ({"replicas": [1, 77]}, "brokers that do not exist: 77"),
    ],
)
def test_plans_that_do_not_fit_the_cluster(
    cluster: Cluster, shell: Shell, client: CommandAdmin, tmp_path: Path, change: dict[str, object], words: str
) -> None:
    if "refusals" not in client.list_topics(internal=True):
        cluster.create_topic("refusals", assignment=[(1, 2)])
    plan = tmp_path / "plan.json"
    entry = {"topic": "refusals", "partition": 0, "replicas": [1, 3], **change}
    plan.write_text(json.dumps({"version": 1, "partitions": [entry]}))
    assert words in shell.run("reassign", "run", plan, code=1).stderr


def test_a_change_of_replication_factor_may_be_refused(
    cluster: Cluster, shell: Shell, client: CommandAdmin, tmp_path: Path
) -> None:
    cluster.create_topic("wider", assignment=[(1, 2)])
    plan = tmp_path / "plan.json"
    shell.run("reassign", "plan", "--topics", "wider", "-r", 3, "--out", plan)
    refused = shell.run("reassign", "run", plan, "--disallow-replication-factor-change", "--throttle", 1000, code=1)
    assert "INVALID_REPLICATION_FACTOR" in refused.stderr
    assert set_throttles(client, "wider") == set()
    shell.run("reassign", "run", plan)
    assert [sorted(replicas) for replicas in replicas_of(client, "wider")] == [[1, 2, 3]]


def test_wrong_options_of_plan(shell: Shell) -> None:
    assert "one of --topics" in shell.run("reassign", "plan", code=2).stderr
    assert "no topic nowhere" in shell.run("reassign", "plan", "--topics", "nowhere", code=1).stderr
    assert "broker 9 is not in service" in shell.run("reassign", "plan", "--all-topics", "--brokers", 9, code=1).stderr
    assert "ids with commas" in shell.run("reassign", "plan", "--all-topics", "--brokers", "x", code=2).stderr
    both = ("--brokers", 1, "--without-brokers", 2)
    assert "give one of them" in shell.run("reassign", "plan", "--all-topics", *both, code=2).stderr
    assert "either FILE or --all" in shell.run("reassign", "cancel", code=2).stderr


def test_preferred_leaders_are_elected(cluster: Cluster, shell: Shell, client: CommandAdmin, tmp_path: Path) -> None:
    cluster.create_topic("led", assignment=[(1, 2), (1, 2)])
    at = [TopicPartition("led", index) for index in range(2)]
    assert client.alter_reassignments(dict.fromkeys(at, (2, 1))) == dict.fromkeys(at)
    (first,) = shell.json("elect", "preferred", "--topic", "led", "--partition", 0)
    assert (first["elected"], first["error"]) == (True, None)
    again = shell.run("elect", "preferred", "--topic", "led", "--partition", 0)
    assert again.stdout == "Valid replica already elected for partitions led-0\n"
    assert "for partitions led-1" in shell.run("elect", "preferred", "--all").stdout
    assert "Nothing to do" in shell.run("elect", "preferred", "--all").stdout
    file = tmp_path / "partitions.json"
    file.write_text('{"partitions": [{"topic": "led", "partition": 0}, {"topic": "led", "partition": 1}]}')
    assert "led-0, led-1" in shell.run("elect", "unclean", "--file", file).stdout
    assert "led-0, led-1" in shell.run("elect", "preferred", "--topic", "led").stdout
    unknown = shell.run("elect", "preferred", "--topic", "led", "--partition", 7, code=1)
    assert "UNKNOWN_TOPIC_OR_PARTITION" in unknown.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["preferred"], "one of --all, --topic, --file"),
        (["preferred", "--all", "--topic", "a"], "one of --all, --topic, --file"),
        (["preferred", "--all", "--partition", "1"], "--partition belongs"),
        (["sloppy", "--all"], "sloppy"),
    ],
)
def test_wrong_options_of_elect(shell: Shell, arguments: list[str], words: str) -> None:
    assert words in shell.run("elect", *arguments, code=2).stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is expected"),
        ('{"partitions": [{"topic": "a"}]}', "is expected"),
        ('{"partitions": []}', "names no partition"),
        ('{"partitions": [{"topic": "a", "partition": 0}, {"topic": "a", "partition": 0}]}', "twice: a-0"),
    ],
)
def test_wrong_files_of_elect(shell: Shell, tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "partitions.json"
    file.write_text(text)
    assert words in shell.run("elect", "preferred", "--file", file, code=1).stderr


def properties(cluster: Cluster, node: int, path: Path, **changes: str) -> Path:
    """A server.properties with the address of a node's controller."""
    directory = cluster.directory(node)
    lines = {
        "process.roles": "broker,controller",
        "node.id": str(node),
        "controller.quorum.bootstrap.servers": "127.0.0.1:1",
        "listeners": "PLAINTEXT://127.0.0.1:21001,CONTROLLER://127.0.0.1:21002",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(directory),
    } | {name.replace("_", "."): value for name, value in changes.items()}
    path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    return path


def test_a_name_that_is_nearly_right_is_answered_with_the_right_one(cluster: Cluster, shell: Shell) -> None:
    cluster.create_topic("invoices")
    for command in (
        ("topics", "describe"), ("topics", "offsets"), ("topics", "delete", "--yes"), ("consume", "-e"),
        ("topics", "alter", "-p", 2), ("configs", "describe", "--topic"),
    ):  # fmt: skip
        assert "Did you mean invoices?" in shell.run(*command, "invoice", code=1).stderr, command
    assert "Did you mean" not in shell.run("topics", "describe", "something-else", code=1).stderr
    alter = ("configs", "alter", "--topic", "invoices", "--add-config")
    for key in ("retention", "retention.msec"):
        assert "did you mean retention.ms?" in shell.run(*alter, f"{key}=1", code=1).stderr
    for command in (("topics", "create", "new", "-c", "cleanup.policies=compact"),):
        assert "did you mean cleanup.policy?" in shell.run(*command, code=1).stderr
    assert (
        "did you mean log.retention.hours?"
        in shell.run("configs", "describe", "--broker", 1, "log.retention.hour", code=1).stderr
    )


def test_the_version_of_a_cluster_is_shown(cluster: Cluster, shell: Shell) -> None:
    shown = shell.json("version", "-b", cluster.bootstrap_servers)
    assert (shown["cluster"], shown["brokers"]) == (cluster.cluster_id, 3)
    assert shown["brokers_support"] == shown["metadata_version"] == shown["cluster_metadata_version"]
    assert "cluster" not in shell.json("version"), "only where a cluster is named: the command works without one"
    assert "brokers support" in shell.run("kafka-broker-api-versions.sh", "-b", cluster.bootstrap_servers).stdout


def test_a_controller_leaves_the_quorum_and_comes_back(cluster: Cluster, shell: Shell, tmp_path: Path) -> None:
    described = shell.json("quorum", "describe")
    leaving = next(voter for voter in described["voters"] if voter["node_id"] != described["leader_id"])
    node_id, directory_id = leaving["node_id"], leaving["directory_id"]
    endpoint = leaving["endpoints"][0].partition("://")[2]
    file = properties(
        cluster, node_id, tmp_path / "p", listeners=f"PLAINTEXT://127.0.0.1:21001,CONTROLLER://{endpoint}"
    )
    chosen = ("--controller-id", node_id)
    dry = shell.json("quorum", "remove-controller", *chosen, "--dry-run")
    assert dry == {"node_id": node_id, "directory_id": directory_id, "executed": False}
    assert "--yes answers it" in shell.run("quorum", "remove-controller", *chosen, code=1).stderr
    removed = shell.run(
        "quorum", "remove-controller", *chosen, "--controller-directory-id", directory_id, "--yes"
    ).stdout
    assert removed == f"Removed controller {node_id} with directory id {directory_id}\n"
    assert f"node {node_id} is not a voter" in shell.run("quorum", "remove-controller", *chosen, code=1).stderr
    assert len(shell.json("quorum", "describe")["voters"]) == 2
    assert "Would add" in shell.run("quorum", "add-controller", "-c", file, "--dry-run").stdout
    assert shell.json("quorum", "add-controller", "-c", file) == {
        "node_id": node_id,
        "directory_id": directory_id,
        "endpoints": [f"CONTROLLER://{endpoint}"],
        "executed": True,
    }
    assert len(shell.json("quorum", "describe")["voters"]) == 3
    assert "DUPLICATE_VOTER" in shell.run("quorum", "add-controller", "-c", file, code=1).stderr


def test_controllers_describe_the_quorum(cluster: Cluster, shell: Shell) -> None:
    described = shell.json("quorum", "describe")
    for voter in described["voters"]:
        address = ("--bootstrap-controller", voter["endpoints"][0].partition("://")[2])
        assert shell.json("quorum", "describe", *address)["leader_id"] == described["leader_id"]
        controllers = shell.json("cluster", "describe", *address)
        assert controllers["controller_id"] == described["leader_id"]
        assert [f"CONTROLLER://{node['host']}:{node['port']}" for node in controllers["nodes"]] == [
            voter["endpoints"][0] for voter in sorted(described["voters"], key=lambda voter: voter["node_id"])
        ]
        by_controller, by_broker = (shell.json("features", "describe", *place) for place in (address, ()))
        assert by_controller["features"] == by_broker["features"], "their epochs follow the metadata log"
    there = described["voters"][0]["endpoints"][0].partition("://")[2]
    assert "controller" in shell.run("quorum", "describe", "--bootstrap-server", there, code=1).stderr
    broker = cluster.address(1)
    assert "endpoint of type BROKER" in shell.run("quorum", "describe", "--bootstrap-controller", broker, code=1).stderr


def test_controllers_that_cannot_be_added(cluster: Cluster, shell: Shell, tmp_path: Path) -> None:
    def refused(**changes: str) -> str:
        file = properties(cluster, 1, tmp_path / "p", **changes)
        return shell.run("quorum", "add-controller", "-c", file, code=1).stderr

    assert "does not have the controller role" in refused(process_roles="broker", listeners="PLAINTEXT://127.0.0.1:1")
    assert "is not formatted" in refused(log_dirs=str(tmp_path / "empty"))
    assert "belongs to node 1" in refused(node_id="9")
    assert "no such file" in shell.run("quorum", "add-controller", "-c", tmp_path / "none", code=1).stderr.lower()
    malformed = ("--controller-id", 1, "--controller-directory-id", "nonsense")
    assert "is not a UUID" in shell.run("quorum", "remove-controller", *malformed, code=2).stderr


def test_a_bar_shows_the_remaining_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    at = TopicPartition("t", 0)
    moving = {at: Reassignment((1, 2), (2,), (1,))}
    polls = [
        ReassignmentProgress(moving, {at: 2_000}),
        ReassignmentProgress(moving, {at: None}),
        ReassignmentProgress(moving, {at: 500}),
        ReassignmentProgress({}, {}),
    ]
    monkeypatch.setattr(plans, "read_progress", lambda cluster, partitions: polls.pop(0))
    monkeypatch.setattr(plans, "_POLL_S", 0.001)
    monkeypatch.setattr(plans, "_FIRST_POLL_S", 0.001)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with CommandAdmin("127.0.0.1:1") as unused:
        assert plans.wait_with_bar(unused, {at: (2,)}, None)
    assert polls == []


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0 B"), (999, "999 B"), (1_500, "1.5 kB"), (2_000_000, "2.0 MB"), (7.1e12, "7.1 TB")]
)
def test_sizes_have_units(count: float, shown: str) -> None:
    assert show_bytes(count) == shown
