"""The nodes of this host, started and stopped.

Started are those that are not running: free ports, formatted directories, processes, and waiting until they serve. A
node serves when its metadata has all nodes of this host unfenced: then a topic can be created on all of them, and
clients get all of them from each.

They are stopped one after the other, so that each moves its leaderships to the remaining ones (a controlled shutdown).
A controlled shutdown needs the active controller and a majority of the quorum. So brokers stop first, then voters as
long as a majority remains, the active controller last of these; the remaining voters are stopped together. As soon as
there is no majority, no controlled shutdown can succeed, and the others get a second SIGTERM, which ends their wait for
one. So does a node that has not stopped when most of its time is over, since a handover may take minutes. A node that
has not stopped within the timeout is killed.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from kalda.base.errors import ApiError, Portable
from kalda.cli.common.command_admin import CommandAdmin
from kalda.cli.local.layout import ClusterLayout, LayoutError, NodePlace, join_host_port
from kalda.cli.local.log_lines import tail
from kalda.cli.local.process import NodeProcess, Usage, process_state, wait_until_ended
from kalda.client.admin.nodes import describe_cluster
from kalda.client.admin.quorum import Quorum
from kalda.network.free_ports import free_ports, is_free

_POLL_S = 0.02
_CALL_MS = 2_000
_TIMEOUT_MS = 1_500
"""Until a node says which one is the active controller."""
_KILL_S = 10.0
_PART_FOR_HANDOVER = 2 / 3
"""Of a node's time to stop. The rest is for closing its logs."""
_LAST_LINES = 15
_SOON = dict.fromkeys(
    ("reconnect.backoff.ms", "reconnect.backoff.max.ms", "retry.backoff.ms", "retry.backoff.max.ms"), 30
)
"""How often a node that starts is asked again."""


class StartFailure(Portable, Exception):
    """A node did not start; `lines` are the last lines of its log."""

    def __init__(self, message: str, lines: list[str]) -> None:
        super().__init__(message)
        self.lines = lines


def process_of(layout: ClusterLayout, place: NodePlace) -> NodeProcess:
    return NodeProcess(layout.home(place))


def move_from_taken_ports(layout: ClusterLayout, report: Callable[[str], None]) -> ClusterLayout:
    """The layout with new client ports for nodes whose port another process has taken while they were down. The port
    of a controller cannot change, since the quorum's voters have it. Raises `LayoutError`."""
    for place in layout.nodes:
        if process_of(layout, place).pid() is not None:
            continue
        if place.controller_port is not None and not is_free(place.controller_port, layout.bind_host):
            raise LayoutError(
                f"port {place.controller_port} is taken by another process, but the quorum has it as the address of "
                f"node {place.node_id}'s controller; stop that process, and try again"
            )
        if not is_free(place.port, layout.bind_host):
            port = free_ports(1, layout.bind_host)[0]
            report(f"Port {place.port} of node {place.node_id} is taken by another process; the node now uses {port}.")
            layout = layout.with_place(replace(place, port=port))
    return layout


def start_missing(layout: ClusterLayout, started: list[NodePlace]) -> None:
    """Format and start the nodes that are not running; each is added to `started` when its process was started.
    Raises `FormatError`, `OSError`."""
    missing = [place for place in layout.nodes if process_of(layout, place).pid() is None]
    now_ms = time.time_ns() // 1_000_000
    for place in missing:
        layout.write_properties(place, now_ms)
        layout.format(place, now_ms)
    for place in missing:
        process_of(layout, place).start()
        started.append(place)


def wait_until_all_serve(layout: ClusterLayout, timeout_s: float, on_progress: Callable[[int], object]) -> None:
    """Wait until the metadata of every node has all nodes unfenced, in one round without a pause: a broker may be
    fenced again while others start. `on_progress` is called with the number of nodes for which this holds. Raises
    `StartFailure`."""
    deadline = time.monotonic() + timeout_s
    node_ids = {place.node_id for place in layout.nodes}
    serving = most = 0
    reason = "it does not answer"
    while serving < len(layout.nodes):
        _check_alive(layout)
        place = layout.nodes[serving]
        try:
            unfenced = _unfenced_brokers(layout, place)
            reason = f"its metadata has brokers {', '.join(map(str, sorted(node_ids - unfenced)))} not in service yet"
            if node_ids <= unfenced:
                serving += 1
                most = max(most, serving)
                on_progress(most)
                continue
        except ApiError as error:
            reason = error.message or error.code.name
        if time.monotonic() > deadline:
            raise StartFailure(
                f"node {place.node_id} does not serve after {timeout_s:.0f} s: {reason}; the nodes are still running, "
                f"see kalda cluster status",
                tail(process_of(layout, place).log, _LAST_LINES),
            )
        serving = 0
        on_progress(most)
        time.sleep(_POLL_S)


def _check_alive(layout: ClusterLayout) -> None:
    for place in layout.nodes:
        process = process_of(layout, place)
        if process.pid() is None:
            code = process.exit_code()
            ended = "has ended" if code is None else f"has ended with {code}"
            raise StartFailure(
                f"node {place.node_id} {ended}; these are the last lines of {process.log}",
                tail(process.log, _LAST_LINES),
            )


def _unfenced_brokers(layout: ClusterLayout, place: NodePlace) -> set[int]:
    """The unfenced brokers in this node's metadata. Raises `ApiError`, also where the node is not one of them."""
    server = join_host_port(layout.local_host, place.port)
    with CommandAdmin(server, config=_SOON, timeout_ms=_CALL_MS, connect_timeout_ms=_CALL_MS) as admin:
        found = admin.run("its metadata", describe_cluster(broker_id=place.node_id))
    return {node.node_id for node in found.nodes} if found.cluster_id == layout.cluster_id else set()


class Stopped(NamedTuple):
    """A node that was running and was stopped; `killed` where it did not stop in time."""

    node_id: int
    killed: bool


def stop(
    layout: ClusterLayout, places: Sequence[NodePlace], timeout_s: float, on_stopped: Callable[[Stopped], object]
) -> list[Stopped]:
    """Stop the nodes that are running, each within `timeout_s`."""
    running = [place for place in places if process_of(layout, place).pid() is not None]
    stopped: list[Stopped] = []
    for group in in_groups(layout, running):
        ended = _stop_together(layout, {place.node_id: process_of(layout, place) for place in group}, timeout_s)
        for done in ended:
            stopped.append(done)
            on_stopped(done)
    for place in places:
        process_of(layout, place).forget()
    return stopped


def in_groups(layout: ClusterLayout, running: Sequence[NodePlace]) -> list[list[NodePlace]]:
    """The nodes in the order of stopping; those of one group are stopped together."""
    brokers = [place for place in running if place.controller_port is None]
    voters = [place for place in running if place.controller_port is not None]
    if layout.joined:
        return [[place] for place in running]  # the quorum is on other hosts, and keeps running
    leader = _active_controller(layout) if len(voters) > 1 else None
    voters.sort(key=lambda place: place.node_id == leader)
    spare = _spare_voters(layout)
    if spare < 0:
        return [[*brokers, *voters]]  # without a majority, no controlled shutdown is possible
    groups = [[place] for place in (*brokers, *voters[:spare])]
    last = voters[spare:]
    return [*groups, last] if last else groups


def _spare_voters(layout: ClusterLayout) -> int:
    """How many voters can be stopped while a majority remains; below zero where there is no majority now."""
    voters = [place for place in layout.nodes if place.controller_port is not None]
    alive = sum(process_of(layout, place).pid() is not None for place in voters)
    return alive - (len(voters) // 2 + 1)


def _stop_together(layout: ClusterLayout, processes: dict[int, NodeProcess], timeout_s: float) -> list[Stopped]:
    began = time.monotonic()
    deadline = began + timeout_s
    for process in processes.values():
        process.send(signal.SIGTERM)
    late, is_hurried = list(processes.values()), False
    while late and time.monotonic() < deadline:
        is_late = time.monotonic() >= began + timeout_s * _PART_FOR_HANDOVER
        if not is_hurried and (is_late or (not layout.joined and _spare_voters(layout) < 0)):
            is_hurried = True
            for process in late:
                process.send(signal.SIGTERM)
        late = wait_until_ended(late, _POLL_S)
    for process in late:
        process.send(signal.SIGKILL)
    wait_until_ended(late, _KILL_S)
    return [Stopped(node_id, process in late) for node_id, process in processes.items()]


def _active_controller(layout: ClusterLayout) -> int | None:
    """The active controller's node id; None where no node answers within `_TIMEOUT_MS`."""
    try:
        with CommandAdmin(layout.local_servers, timeout_ms=_TIMEOUT_MS, connect_timeout_ms=_TIMEOUT_MS) as admin:
            return admin.describe_quorum().leader_id
    except ApiError:
        return None


# The state of each node of this host: of its process, from the system; of its roles and replicas, from the cluster.

SERVES = "serves"
STARTING = "starting"
STOPPED = "stopped"
DIED = "died"
PAUSED = "paused"
_OVERVIEW_TIMEOUT_MS = 2_500


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node. `quorum`, `lag`, `leads` and `out_of_sync` are None while no node answers."""

    place: NodePlace
    state: str
    pid: int | None
    usage: Usage
    quorum: str | None
    """`leader` for the active controller, `voter`, or `observer` of the metadata log."""
    lag: int | None
    """The number of records of the metadata log that it has not fetched."""
    leads: int | None
    """The number of partitions that it leads."""
    out_of_sync: int | None
    """The number of its replicas that are not in the ISR."""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """All nodes of this host, and the number of unfenced brokers in the cluster. `problem` is why no node answered."""

    nodes: tuple[NodeView, ...]
    brokers: int | None
    problem: str | None

    @property
    def all_serve(self) -> bool:
        return all(node.state == SERVES for node in self.nodes)


@dataclass(frozen=True, slots=True)
class _ClusterState:
    """What the cluster answered; `leads` and `out_of_sync` are counts by broker."""

    unfenced: frozenset[int]
    quorum: Quorum | None
    leads: Counter[int]
    out_of_sync: Counter[int]


def describe_nodes(layout: ClusterLayout) -> ClusterView:
    """The state of the nodes. Waits for answers of the cluster at most `_OVERVIEW_TIMEOUT_MS`, and does not raise where
    no node answers."""
    pids = {place.node_id: process_of(layout, place).pid() for place in layout.nodes}
    state: _ClusterState | None = None
    problem = None
    if any(pid is not None for pid in pids.values()):
        servers = [
            server
            for server, place in zip(layout.local_servers, layout.nodes, strict=True)
            if pids[place.node_id] is not None
        ]
        try:
            with CommandAdmin(servers, timeout_ms=_OVERVIEW_TIMEOUT_MS, connect_timeout_ms=_TIMEOUT_MS) as admin:
                state = _cluster_state(admin)
        except ApiError as error:
            problem = error.message or error.code.name
    nodes = tuple(_view(layout, place, pids[place.node_id], state) for place in layout.nodes)
    return ClusterView(nodes, len(state.unfenced) if state is not None else None, problem)


def _cluster_state(admin: CommandAdmin) -> _ClusterState:
    """Brokers, partitions, and the quorum where it has a leader. Raises `ApiError`."""
    unfenced = frozenset(node.node_id for node in admin.describe_cluster(fenced=True).nodes if not node.is_fenced)
    leads: Counter[int] = Counter()
    out_of_sync: Counter[int] = Counter()
    for topic in admin.list_topics(internal=True).values():
        for partition in topic.partitions:
            leads[partition.leader] += 1
            out_of_sync.update(set(partition.replicas) - set(partition.isr))
    try:
        quorum = admin.describe_quorum()
    except ApiError:
        quorum = None
    return _ClusterState(unfenced, quorum, leads, out_of_sync)


def _view(layout: ClusterLayout, place: NodePlace, pid: int | None, state: _ClusterState | None) -> NodeView:
    process = process_of(layout, place)
    role, lag = _in_quorum(place, state)
    return NodeView(
        place,
        _node_state(process.recorded_pid, pid, place, state),
        pid,
        process.usage(),
        role if pid is not None else None,
        lag if pid is not None else None,
        state.leads[place.node_id] if state is not None else None,
        state.out_of_sync[place.node_id] if state is not None else None,
    )


def _node_state(recorded_pid: int | None, pid: int | None, place: NodePlace, state: _ClusterState | None) -> str:
    if pid is None:
        return STOPPED if recorded_pid is None else DIED
    if process_state(pid) == "T":
        return PAUSED
    return SERVES if state is not None and place.node_id in state.unfenced else STARTING


def _in_quorum(place: NodePlace, state: _ClusterState | None) -> tuple[str | None, int | None]:
    """The node's role in the quorum and its lag."""
    if state is None or state.quorum is None:
        return None, None
    quorum = state.quorum
    for role, replicas in (("voter", quorum.voters), ("observer", quorum.observers)):
        for replica in replicas:
            if replica.node_id == place.node_id:
                return ("leader" if replica.node_id == quorum.leader_id else role), replica.lag
    return None, None
