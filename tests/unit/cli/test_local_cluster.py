"""Clusters of processes on this host: what can be tested without running nodes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kalda.base.configs.server import ServerConfig
from kalda.base.texts import parse_properties
from kalda.broker.process.disk import RealDisk
from kalda.cli import cluster
from kalda.cli.cluster_local import complete_node
from kalda.cli.commands import cli
from kalda.cli.local import layout, nodes
from kalda.cli.local.layout import ClusterLayout, LayoutError, NodePlace
from kalda.cli.local.log_lines import LogFollower, LogLine, merged_tail, tail
from kalda.cli.local.process import NodeProcess, wait_until_ended
from kalda.metadata.meta_properties import MetaPropertiesEnsemble
from kalda.network.free_ports import free_ports, is_free


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, list(map(str, arguments)), prog_name="kalda")


def make(directory: Path, nodes: int = 4, voters: int = 3, **more: Any) -> ClusterLayout:
    given: dict[str, Any] = {"host": "127.0.0.1", "rack": "here", "overrides": {}, **more}
    return layout.make(directory, nodes, voters, **given)


# -- layout


def test_the_first_nodes_vote_and_the_others_are_brokers(tmp_path: Path) -> None:
    made = make(tmp_path)
    assert [place.roles for place in made.nodes] == ["broker,controller"] * 3 + ["broker"]
    ports = [port for place in made.nodes for port in (place.port, place.controller_port) if port is not None]
    assert len(set(ports)) == 7
    for place in made.nodes:
        config = made.config(place)
        assert (config.node_id, config.rack) == (place.node_id, "here")
        assert [port for _, port in config.bootstrap_servers] == [p.controller_port for p in made.nodes[:3]]
        assert (config["default.replication.factor"], config["transaction.state.log.min.isr"]) == (3, 2)


@pytest.mark.parametrize(("nodes", "voters"), [(1, 1), (2, 1), (3, 3), (64, 3)])
def test_two_nodes_have_one_voter(nodes: int, voters: int) -> None:
    assert layout.default_voters(nodes) == voters


@pytest.mark.parametrize(
    ("given", "own"), [("127.0.0.1:9404", "127.0.0.1:9406"), ("[::1]:9404", "[::1]:9406"), (":0", ":0"), ("bad", "bad")]
)
def test_each_node_serves_metrics_at_a_port_of_its_own(tmp_path: Path, given: str, own: str) -> None:
    made = make(tmp_path, overrides={"kalda.metrics.listener": given}, first_id=7)
    assert made.properties(made.nodes[0])["kalda.metrics.listener"] == given
    assert made.properties(made.nodes[2])["kalda.metrics.listener"] == own


def test_a_layout_is_saved_and_loaded(tmp_path: Path) -> None:
    made = make(tmp_path / "c", overrides={"num.partitions": "6"}, joined=["a:1", "b:2"], elsewhere=3, first_id=7)
    made.save()
    assert layout.load(tmp_path / "c") == made
    assert layout.load(tmp_path) is None


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"nodes": []},
        {"nodes": [{"node_id": -1, "port": 1, "controller_port": None, "directory_id": "x"}]},
        {"overrides": []},
        {"cluster_id": ...},
    ],
)
def test_a_damaged_file_is_an_error(tmp_path: Path, change: dict[str, Any]) -> None:
    make(tmp_path).save()
    path = tmp_path / layout.FILE
    document = {**json.loads(path.read_text()), **change}
    path.write_text(json.dumps({key: value for key, value in document.items() if value is not ...}))
    with pytest.raises(LayoutError, match=r"cluster\.json cannot be read"):
        layout.load(tmp_path)
    path.write_text("{")
    assert run("cluster", "status", "--dir", tmp_path).exit_code == 1


def test_more_nodes_are_brokers_and_fewer_are_refused(tmp_path: Path) -> None:
    made = make(tmp_path, 3)
    grown = made.grown(5)
    assert grown.nodes[:3] == made.nodes
    assert [(place.node_id, place.roles) for place in grown.nodes[3:]] == [(4, "broker"), (5, "broker")]
    with pytest.raises(LayoutError, match="has 3 nodes"):
        made.grown(2)


def test_a_host_name_makes_nodes_listen_on_all_interfaces(tmp_path: Path) -> None:
    made = make(tmp_path, 1, 1, host="a.example.org")
    listeners = made.properties(made.nodes[0])
    assert listeners["listeners"].startswith("PLAINTEXT://0.0.0.0:")
    assert listeners["advertised.listeners"].startswith("PLAINTEXT://a.example.org:")
    assert made.local_host == "127.0.0.1"
    assert make(tmp_path, 1, 1).properties(made.nodes[0])["listeners"].startswith("PLAINTEXT://127.0.0.1:")


def test_half_formatted_directories_are_formatted_again(tmp_path: Path) -> None:
    made = make(tmp_path, 1, 1)
    place = made.nodes[0]
    path = made.write_properties(place, 1)
    assert ServerConfig(parse_properties(path.read_text())).node_id == 1
    made.format(place, 1)
    identity = tmp_path / "node-1" / "data" / "meta.properties"
    first = identity.read_bytes()
    made.format(place, 2)
    assert identity.read_bytes() == first
    identity.unlink()
    made.format(place, 3)
    data = str(identity.parent)
    found = MetaPropertiesEnsemble.load(RealDisk(), [data], data).properties[data]
    assert (found.cluster_id, found.node_id) == (made.cluster_id, 1)
    assert place.directory_id in str(found)


def test_joining_nodes_are_formatted_without_initial_voters(tmp_path: Path) -> None:
    made = make(tmp_path, 2, 1, joined=["a:1"], elsewhere=1, first_id=500, cluster_id=layout.new_id())
    for place in made.nodes:
        made.format(place, 1)
        assert not list((tmp_path / f"node-{place.node_id}").rglob("*.checkpoint*0000000000*"))
    assert made.properties(made.nodes[0])["controller.quorum.bootstrap.servers"] == "a:1"
    assert cluster.FoundCluster("x", frozenset((1, 1001))).first_id(3) % 100 == 0


@pytest.fixture
def held() -> Iterator[int]:
    """A port with a listener."""
    port = free_ports(1)[0]
    with socket.create_server(("127.0.0.1", port)):
        yield port


def test_a_taken_client_port_is_replaced_and_a_controllers_is_an_error(tmp_path: Path, held: int) -> None:
    made = make(tmp_path, 2, 1)
    messages: list[str] = []
    taken = made.with_place(replace(made.nodes[1], port=held))
    moved = nodes.move_from_taken_ports(taken, messages.append)
    assert moved.nodes[1].port != held
    assert is_free(moved.nodes[1].port)
    assert str(held) in messages[0]
    with pytest.raises(LayoutError, match=f"port {held}"):
        nodes.move_from_taken_ports(made.with_place(replace(made.nodes[0], controller_port=held)), messages.append)
    with pytest.raises(LayoutError, match=f"have taken {held}"):
        make(tmp_path / "other", 1, 1, first_port=held)


def test_all_nodes_serve_when_each_lists_all_in_one_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker may be fenced again while the metadata of other nodes is awaited."""
    made = make(tmp_path, 3, 1)
    everyone = {place.node_id for place in made.nodes}
    first, second, third = made.nodes
    # Before the third node has all, the first has lost the second.
    answers = {
        first.node_id: [everyone, everyone - {second.node_id}, everyone],
        second.node_id: [everyone, everyone],
        third.node_id: [everyone - {second.node_id}, everyone],
    }
    asked: list[int] = []

    def unfenced(_: ClusterLayout, place: NodePlace) -> set[int]:
        asked.append(place.node_id)
        return answers[place.node_id].pop(0)

    monkeypatch.setattr(nodes, "_unfenced_brokers", unfenced)
    monkeypatch.setattr(nodes, "_check_alive", lambda _: None)
    monkeypatch.setattr(nodes, "_POLL_S", 0)
    shown: list[int] = []
    nodes.wait_until_all_serve(made, 30, shown.append)
    assert asked[-3:] == [first.node_id, second.node_id, third.node_id]
    assert len(asked) == 7
    assert shown == sorted(shown)


# -- processes


def test_another_process_with_the_recorded_pid_is_not_the_nodes(tmp_path: Path) -> None:
    process = NodeProcess(tmp_path)
    assert (process.pid(), process.recorded_pid) == (None, None)
    for pid, started in ((os.getpid(), None), (os.getpid(), 1), (2**22 + 5, 7)):
        (tmp_path / "pid").write_text(f"{pid}\n" if started is None else f"{pid}\n{started}\n")
        assert (process.pid(), process.recorded_pid) == (None, pid)
        assert not process.send(0)
    for malformed in ("", "x", "-1\n7\n", '{"pid": 12, "started": 1}', "[]"):
        (tmp_path / "pid").write_text(malformed)
        assert (process.pid(), process.recorded_pid) == (None, None)


def test_a_process_of_this_node_is_recognized(tmp_path: Path) -> None:
    process = NodeProcess(tmp_path)
    program = "import sys; print(1, flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program, "server", str(process.properties)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        (tmp_path / "pid").write_text(f"{child.pid}\n")
        assert process.pid() == child.pid
        assert process.send(0)
        usage = process.usage()
        assert usage.memory_bytes is None or usage.memory_bytes > 0
        assert usage.uptime_seconds is None or usage.uptime_seconds == round(usage.uptime_seconds, 1)
        child.kill()
    assert process.pid() is None
    process.forget()
    assert process.recorded_pid is None


def test_the_first_line_of_a_pid_file_is_the_pid_alone(tmp_path: Path) -> None:
    """Init systems read the first line, and the second one tells another process with this pid from the node."""
    process = NodeProcess(tmp_path)
    process.properties.write_text("")  # the node ends at once: its properties lack every key
    pid = process.start()
    lines = (tmp_path / "pid").read_text().splitlines()
    wait_until_ended([process], 60)
    assert lines[0] == str(pid)
    assert lines[1:] == [] or lines[1].isdecimal()
    assert process.exit_code() == 1
    process.forget()


def test_the_order_of_stopping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make(tmp_path, 5, 3)
    alive = {1, 2, 3, 4, 5}
    monkeypatch.setattr(NodeProcess, "pid", lambda self: 1 if int(self.home.name[5:]) in alive else None)
    monkeypatch.setattr(nodes, "_active_controller", lambda _: 1)

    def groups(*node_ids: int) -> list[list[int]]:
        chosen = [made.place(node_id) for node_id in node_ids]
        return [[place.node_id for place in group] for group in nodes.in_groups(made, chosen)]

    assert groups(1, 2, 3, 4, 5) == [[4], [5], [2], [3, 1]]
    assert groups(1) == [[1]]
    alive.discard(2)
    assert groups(1, 3, 4, 5) == [[4], [5], [3, 1]]
    alive.discard(3)
    assert groups(1, 4, 5) == [[4, 5, 1]]


def test_a_node_that_waits_long_is_hurried_before_it_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handover may take minutes; a node that is killed has to recover its logs."""
    sent: list[tuple[int, int]] = []
    clock = SimpleNamespace(now=100, monotonic=lambda: clock.now)
    process = SimpleNamespace(send=lambda number: sent.append((clock.now - 100, number)))

    def wait(processes: list[Any], timeout_s: float) -> list[Any]:
        clock.now += 1
        return processes

    monkeypatch.setattr(nodes, "time", clock)
    monkeypatch.setattr(nodes, "wait_until_ended", wait)
    monkeypatch.setattr(nodes, "_spare_voters", lambda _: 1)
    made = make(tmp_path, 3, 3)
    assert nodes._stop_together(made, {1: process}, 30) == [nodes.Stopped(1, True)]  # type: ignore[dict-item]
    assert sent == [(0, signal.SIGTERM), (20, signal.SIGTERM), (30, signal.SIGKILL)]


# -- logs


def test_last_lines_are_merged_by_time(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    first.write_text("[2026-01-01 00:00:01,000] a\n[2026-01-01 00:00:03,000] c\n  more of c\n")
    second.write_text("[2026-01-01 00:00:02,000] b\n[2026-01-01 00:00:04,000] d\n")
    logs = {1: first, 2: second, 3: tmp_path / "none"}
    assert [(line.node_id, line.text[-2:]) for line in merged_tail(logs, 10)] == [
        (1, " a"), (2, " b"), (1, " c"), (1, " c"), (2, " d"),
    ]  # fmt: skip
    assert tail(first, 1) == ["  more of c"]
    assert tail(first, 0) == []
    first.write_text("".join(f"{i:0100}\n" for i in range(5_000)))
    assert [int(text) for text in tail(first, 3)] == [4997, 4998, 4999]


def test_a_log_with_partial_lines_and_a_replaced_log_are_followed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("before\n")
    follower = LogFollower({1: path})
    with path.open("a") as file:
        file.write("one\nhal")
    assert follower.new_lines() == [LogLine(1, "one")]
    with path.open("a") as file:
        file.write("f\n")
    assert follower.new_lines() == [LogLine(1, "half")]
    fresh = tmp_path / "fresh"
    fresh.write_text("anew\n")
    fresh.replace(path)
    assert follower.new_lines() == [LogLine(1, "anew")]
    assert follower.new_lines() == []


# -- commands


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--override", "node.id=4"], "follows from the nodes"),
        (["--override", "x"], "KEY=VALUE"),
        (["--nodes", "2", "--controllers", "3"], "1 to 2 can be controllers"),
        (["--nodes", "2", "--controllers", "0"], "1 to 2 can be controllers"),
        (["--bootstrap-controllers", "nowhere"], "--bootstrap-controllers"),
    ],
)
def test_wrong_options_of_up(tmp_path: Path, arguments: list[str], words: str) -> None:
    if arguments == ["--bootstrap-controllers", "nowhere"]:
        arguments = ["--bootstrap-controllers", "nowhere:x"]
    result = run("cluster", "up", "--dir", tmp_path / "c", *arguments)
    assert result.exit_code == 2, result.output
    assert words in " ".join(result.stderr.split())
    assert not (tmp_path / "c").exists()


def test_failures_of_up(tmp_path: Path) -> None:
    wrong = run("cluster", "up", "--dir", tmp_path / "c", "--nodes", 1, "--override", "log.segment.bytes=x")
    assert (wrong.exit_code, "log.segment.bytes" in wrong.stderr) == (1, True)
    assert not (tmp_path / "c").exists()
    (tmp_path / "d" / "node-1").mkdir(parents=True)
    occupied = run("cluster", "up", "--dir", tmp_path / "d", "--nodes", 1)
    assert (occupied.exit_code, "choose another directory" in occupied.stderr) == (1, True)
    assert [path.name for path in (tmp_path / "d").iterdir()] == ["node-1"]
    assert run("cluster", "up", "--dir", tmp_path / "a,b", "--nodes", 1).exit_code == 1
    port = free_ports(1)[0]
    unreachable = run("cluster", "up", "--dir", tmp_path / "e", "--bootstrap-controllers", f"127.0.0.1:{port}")
    assert (unreachable.exit_code, "no controller answers" in unreachable.stderr) == (1, True)


def test_options_that_an_existing_cluster_cannot_change_are_refused(tmp_path: Path) -> None:
    make(tmp_path, 2, 1).save()
    for option, value in (("--controllers", 2), ("--host", "b"), ("--rack", "r"), ("--first-id", 9), ("--port", 1)):
        result = run("cluster", "up", "--dir", tmp_path, option, value)
        assert (result.exit_code, option in result.stderr) == (2, True)


def test_a_cluster_that_is_not_running(tmp_path: Path) -> None:
    assert "there is no" in run("cluster", "status", "--dir", tmp_path).stderr
    made = make(tmp_path, 2, 1)
    made.save()
    status = run("cluster", "status", "--dir", tmp_path, "--json")
    assert status.exit_code == 1
    assert [node["state"] for node in json.loads(status.stdout)["nodes"]] == ["stopped", "stopped"]
    (tmp_path / "node-1").mkdir()
    (tmp_path / "node-1" / "pid").write_text(f"{os.getpid()}\n1\n")
    assert " died " in run("cluster", "status", "--dir", tmp_path).stdout
    down = run("cluster", "down", "--dir", tmp_path)
    assert (down.exit_code, down.stdout) == (0, "Nothing to stop: none of these nodes runs.\n")
    assert "no node 7" in run("cluster", "down", "--dir", tmp_path, "--node", 7).stderr
    assert run("cluster", "logs", "--dir", tmp_path).stdout == ""


@pytest.fixture
def fake_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Replaces the Python interpreter that starts a node by a shell script."""

    def replace_python(script: str) -> None:
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(path))

    return replace_python


def test_the_failure_of_a_node_that_dies_at_its_start_has_its_last_lines(
    tmp_path: Path, fake_python: Callable[[str], None]
) -> None:
    fake_python("echo this disk is bad; exit 3")
    directory = tmp_path / "c"
    result = run("cluster", "up", "--dir", directory, "--nodes", 1)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "this disk is bad\nkalda: node 1 has ended with 3; these are the last lines of" in result.stderr
    assert " died " in run("cluster", "status", "--dir", directory).stdout
    assert run("cluster", "logs", "--dir", directory).stdout == "this disk is bad\n"


def test_a_node_that_never_serves(tmp_path: Path, fake_python: Callable[[str], None]) -> None:
    fake_python("exec sleep 600")
    directory = tmp_path / "c"
    result = run("cluster", "up", "--dir", directory, "--nodes", 1, "--timeout", 1)
    assert result.exit_code == 1
    assert "kalda: node 1 does not serve after 1 s: cannot connect" in result.stderr
    (node,) = json.loads(run("cluster", "status", "--dir", directory, "--json").stdout)["nodes"]
    assert node["state"] == "starting"
    assert node["pid"] is not None
    again = run("cluster", "up", "--dir", directory, "--override", "num.partitions=2", "--timeout", 1)
    assert "Nodes that are running apply the overrides at their next start: 1." in again.stderr
    down = run("cluster", "down", "--dir", directory)
    assert (down.exit_code, down.stdout) == (0, "Stopped node 1.\n")


def test_a_node_that_does_not_stop_is_killed(tmp_path: Path, fake_python: Callable[[str], None]) -> None:
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    fake_python(f"trap '' TERM; echo ready > {ready}; exec sleep 600")
    directory = tmp_path / "c"
    run("cluster", "up", "--dir", directory, "--nodes", 1, "--timeout", 1)
    assert ready.read_text() == "ready\n"
    down = run("cluster", "down", "--dir", directory, "--timeout", 0.05, "--json")
    assert json.loads(down.stdout) == [{"node_id": 1, "killed": True}]
    assert "did not stop in 0.05 s" in down.stderr


def test_an_interrupted_up_stops_the_nodes_that_it_started(
    tmp_path: Path, fake_python: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_python("exec sleep 600")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(nodes, "wait_until_all_serve", interrupt)
    directory = tmp_path / "c"
    result = run("cluster", "up", "--dir", directory, "--nodes", 2)
    assert result.exit_code == 130
    assert sorted(result.stderr.splitlines()) == ["Interrupted.", "Stopped node 1.", "Stopped node 2."]
    (first, second) = json.loads(run("cluster", "status", "--dir", directory, "--json").stdout)["nodes"]
    assert (first["state"], second["state"]) == ("stopped", "stopped")


def test_nodes_complete(tmp_path: Path) -> None:
    make(tmp_path, 12, 3).save()
    command = cli.get_command(None, "cluster").get_command(None, "logs")  # type: ignore[arg-type, union-attr]
    context = command.make_context("logs", ["--dir", str(tmp_path)], resilient_parsing=True)
    assert complete_node(context, command.params[0], "1") == ["1", "10", "11", "12"]
