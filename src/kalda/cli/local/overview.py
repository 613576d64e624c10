"""What each node of this host is doing: its process by the system's word, its part in the cluster by the cluster's."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from kalda.base.errors import ApiError
from kalda.cli.local.layout import Layout, Place
from kalda.cli.local.process import Usage, process_state
from kalda.cli.local.starting import process_of
from kalda.client.admin.nodes import describe_cluster
from kalda.client.admin.quorum import Quorum, describe_quorum
from kalda.client.cluster_client import ClusterClient

SERVES = "serves"
STARTING = "starting"
STOPPED = "stopped"
DIED = "died"
PAUSED = "paused"
_ASK_MS = 2_500


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node. What only the cluster can tell is None while no node answers."""

    place: Place
    state: str
    pid: int | None
    usage: Usage
    quorum: str | None
    """`leader` for the active controller, `voter`, or `observer` of the metadata log."""
    lag: int | None
    """Records of the metadata log that it has not fetched."""
    leads: int | None
    """Partitions that it leads."""
    out_of_sync: int | None
    """Replicas it has that are not in the ISR."""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """All nodes of this host; `problem` says why the cluster told nothing."""

    nodes: tuple[NodeView, ...]
    brokers: int | None
    problem: str | None

    @property
    def all_serve(self) -> bool:
        return all(node.state == SERVES for node in self.nodes)


@dataclass(frozen=True, slots=True)
class _Told:
    """What the cluster says."""

    unfenced: frozenset[int]
    quorum: Quorum | None
    leads: Counter[int]
    out_of_sync: Counter[int]


def look(layout: Layout) -> ClusterView:
    """Ask the system and the cluster. Never waits long, and fails at nothing that a node does."""
    pids = {place.node_id: process_of(layout, place).pid() for place in layout.nodes}
    told: _Told | None = None
    problem = None
    if any(pid is not None for pid in pids.values()):
        servers = [
            server
            for server, place in zip(layout.local_servers, layout.nodes, strict=True)
            if pids[place.node_id] is not None
        ]
        try:
            with ClusterClient(servers, timeout_ms=_ASK_MS, connect_timeout_ms=_ASK_MS) as cluster:
                told = _ask(cluster)
        except ApiError as error:
            problem = error.message or error.code.name
    nodes = tuple(_view(layout, place, pids[place.node_id], told) for place in layout.nodes)
    return ClusterView(nodes, len(told.unfenced) if told is not None else None, problem)


def _ask(cluster: ClusterClient) -> _Told:
    """Metadata of all partitions, and the quorum where it has a leader. Raises `ApiError`."""
    unfenced = frozenset(node.node_id for node in describe_cluster(cluster, fenced=True).nodes if not node.is_fenced)
    leads: Counter[int] = Counter()
    out_of_sync: Counter[int] = Counter()
    for topic in cluster.metadata().topics.values():
        for partition in topic.partitions:
            leads[partition.leader] += 1
            out_of_sync.update(set(partition.replicas) - set(partition.isr))
    try:
        quorum = describe_quorum(cluster)
    except ApiError:
        quorum = None
    return _Told(unfenced, quorum, leads, out_of_sync)


def _view(layout: Layout, place: Place, pid: int | None, told: _Told | None) -> NodeView:
    process = process_of(layout, place)
    role, lag = _in_quorum(place, told)
    return NodeView(
        place,
        _state(process.noted_pid, pid, place, told),
        pid,
        process.usage(),
        role if pid is not None else None,
        lag if pid is not None else None,
        told.leads[place.node_id] if told is not None else None,
        told.out_of_sync[place.node_id] if told is not None else None,
    )


def _state(noted: int | None, pid: int | None, place: Place, told: _Told | None) -> str:
    if pid is None:
        return STOPPED if noted is None else DIED
    if process_state(pid) == "T":
        return PAUSED
    return SERVES if told is not None and place.node_id in told.unfenced else STARTING


def _in_quorum(place: Place, told: _Told | None) -> tuple[str | None, int | None]:
    if told is None or told.quorum is None:
        return None, None
    quorum = told.quorum
    for role, replicas in (("voter", quorum.voters), ("observer", quorum.observers)):
        for replica in replicas:
            if replica.node_id == place.node_id:
                return ("leader" if replica.node_id == quorum.leader_id else role), replica.lag
    return None, None
