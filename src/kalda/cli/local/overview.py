"""The state of each node of this host: of its process, from the system; of its roles and replicas, from the cluster."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from kalda.base.errors import ApiError
from kalda.cli.common.command_admin import CommandAdmin
from kalda.cli.local.layout import ClusterLayout, NodePlace
from kalda.cli.local.nodes import process_of
from kalda.cli.local.process import Usage, process_state
from kalda.client.admin.quorum import Quorum

SERVES = "serves"
STARTING = "starting"
STOPPED = "stopped"
DIED = "died"
PAUSED = "paused"
_TIMEOUT_MS = 2_500


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
    """The state of the nodes. Waits for answers of the cluster at most `_TIMEOUT_MS`, and does not raise where no node
    answers."""
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
            with CommandAdmin(servers, timeout_ms=_TIMEOUT_MS, connect_timeout_ms=_TIMEOUT_MS) as admin:
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
