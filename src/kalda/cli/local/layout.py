"""The nodes of a cluster on this host: ids, roles, ports, and the properties that follow.

`cluster.json` is written before anything else, and has all choices, random ones included, so that a start that was
interrupted at any point is completed by the next one. The nodes' properties are derived from it and written at each
start. The first nodes are controllers and brokers, and are the quorum's initial voters (KIP-853); the others are
brokers only. Nodes that join a cluster of other hosts are brokers only, unless --controllers is given.
"""

from __future__ import annotations

import ipaddress
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from kalda.base.configs.addresses import CLIENTS, CONTROLLER, PLAIN_LISTENERS
from kalda.base.configs.server import ServerConfig
from kalda.base.ids import random_uuid, uuid_from_text, uuid_to_text
from kalda.base.texts import format_properties
from kalda.broker.process.disk import RealDisk
from kalda.metadata.formatter import FormatRequest, QuorumChoice, format_storage
from kalda.network.free_ports import free_ports, is_free
from kalda.raft.voters import VoterEndpoint
from kalda.storage.checkpoints import replace_file

FILE = "cluster.json"
MAX_NODES = 512
_REPLICAS = 3
_METRICS = "kalda.metrics.listener"
_VOTERS = 3
_FORMAT_VERSION = 1
_MAX_FILE_BYTES = 1 << 20
FIXED = frozenset(
    (
        "process.roles",
        "node.id",
        "broker.id",
        "listeners",
        "advertised.listeners",
        "log.dir",
        "log.dirs",
        "controller.listener.names",
        "controller.quorum.voters",
        "controller.quorum.bootstrap.servers",
        "inter.broker.listener.name",
        "listener.security.protocol.map",
    )
)
"""Properties that follow from the layout, and cannot be overridden."""


class LayoutError(Exception):
    """The directory is unusable, or does not fit the request; the message is for the user."""


@dataclass(frozen=True, slots=True)
class NodePlace:
    """One node. Without a controller port it is a broker only. `directory_id` is that of its metadata directory."""

    node_id: int
    port: int
    controller_port: int | None
    directory_id: str

    @property
    def roles(self) -> str:
        return "broker" if self.controller_port is None else "broker,controller"


@dataclass(frozen=True, slots=True)
class ClusterLayout:
    """A cluster's nodes on this host. `joined` are the controllers of the cluster that these nodes joined, if any."""

    directory: Path
    cluster_id: str
    host: str
    rack: str
    nodes: tuple[NodePlace, ...]
    joined: tuple[str, ...] = ()
    elsewhere: int = 0
    """The number of nodes that the cluster had on other hosts when these joined it."""
    overrides: Mapping[str, str] = field(default_factory=dict)

    # -- addresses

    @property
    def bind_host(self) -> str:
        """The address to listen on: the loopback address where `host` is one, else all interfaces."""
        if is_loopback(self.host):
            return self.host
        return "::" if ":" in self.host else "0.0.0.0"

    @property
    def local_host(self) -> str:
        """The address of the nodes from this host; `host` may not resolve to it here."""
        if is_loopback(self.host):
            return self.host
        return "::1" if ":" in self.host else "127.0.0.1"

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(join_host_port(self.host, place.port) for place in self.nodes)

    @property
    def local_servers(self) -> tuple[str, ...]:
        return tuple(join_host_port(self.local_host, place.port) for place in self.nodes)

    @property
    def bootstrap_controllers(self) -> str:
        """The addresses of the quorum's controllers, for nodes of other hosts too."""
        own = [join_host_port(self.host, p.controller_port) for p in self.nodes if p.controller_port is not None]
        return ",".join(self.joined or own)

    def home(self, place: NodePlace) -> Path:
        return self.directory / f"node-{place.node_id}"

    def place(self, node_id: int) -> NodePlace:
        """Raises `LayoutError` where there is no such node."""
        for place in self.nodes:
            if place.node_id == node_id:
                return place
        ids = ", ".join(str(place.node_id) for place in self.nodes)
        raise LayoutError(f"there is no node {node_id} in {self.directory}; there are {ids}")

    # -- changes

    def with_place(self, changed: NodePlace) -> ClusterLayout:
        """The layout with one node replaced."""
        nodes = tuple(changed if place.node_id == changed.node_id else place for place in self.nodes)
        return replace(self, nodes=nodes)

    def grown(self, count: int) -> ClusterLayout:
        """The layout with brokers added until it has `count` nodes. Raises `LayoutError` where it has more."""
        more = count - len(self.nodes)
        if more < 0:
            raise LayoutError(
                f"{self.directory} has {len(self.nodes)} nodes with data and cannot be reduced to {count}; move their "
                f"replicas to other nodes, then stop single nodes with: kalda cluster down --node N"
            )
        if more == 0:
            return self
        first = max(place.node_id for place in self.nodes) + 1
        ports = free_ports(more, self.bind_host)
        added = tuple(NodePlace(first + i, ports[i], None, new_id()) for i in range(more))
        return replace(self, nodes=self.nodes + added)

    # -- files of a node

    def properties(self, place: NodePlace) -> dict[str, str]:
        """The `server.properties` of a node."""
        replicas = min(_REPLICAS, len(self.nodes) + self.elsewhere)
        bind, advertised = ([f"{CLIENTS}://{join_host_port(h, place.port)}"] for h in (self.bind_host, self.host))
        if place.controller_port is not None:
            bind.append(f"{CONTROLLER}://{join_host_port(self.bind_host, place.controller_port)}")
            advertised.append(f"{CONTROLLER}://{join_host_port(self.host, place.controller_port)}")
        properties: dict[str, object] = {
            "process.roles": place.roles,
            "node.id": place.node_id,
            "controller.quorum.bootstrap.servers": self.bootstrap_controllers,
            "listeners": ",".join(bind),
            "advertised.listeners": ",".join(advertised),
            **PLAIN_LISTENERS,
            "log.dirs": self.home(place) / "data",
            "broker.rack": self.rack,
            "default.replication.factor": replicas,
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": max(1, replicas - 1),
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": max(1, replicas - 1),
            **self.overrides,
        }
        if _METRICS in self.overrides:
            properties[_METRICS] = self._own_metrics_listener(place)
        return {name: str(value) for name, value in properties.items()}

    def _own_metrics_listener(self, place: NodePlace) -> str:
        """All nodes have an override alike, but cannot listen at one port: the first has it, the next the next one."""
        host, colon, port = self.overrides[_METRICS].rpartition(":")
        if not port.isascii() or not port.isdigit() or int(port) == 0:
            return self.overrides[_METRICS]  # malformed, which the node names, or any free one
        return f"{host}{colon}{int(port) + self.nodes.index(place)}"

    def config(self, place: NodePlace) -> ServerConfig:
        """Raises `InvalidConfig`."""
        return ServerConfig(self.properties(place))

    def write_properties(self, place: NodePlace, now_ms: int) -> Path:
        """Write the node's `server.properties`; returns its path."""
        path = self.home(place) / "server.properties"
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "# Written at each start by `kalda cluster up`; --override changes a property.\n"
        text += format_properties(self.properties(place), now_ms)
        replace_file(RealDisk(), str(path), text.encode("latin-1"), durable=False)
        return path

    def format(self, place: NodePlace, now_ms: int) -> None:
        """Format the log directories that are not formatted. Raises `FormatError`, `OSError`."""
        config = self.config(place)
        first = QuorumChoice.NO_INITIAL_CONTROLLERS if self.joined else QuorumChoice.INITIAL_CONTROLLERS
        port = place.controller_port
        request = FormatRequest(
            cluster_id=self.cluster_id,
            node_id=place.node_id,
            log_dirs=config.log_dirs,
            metadata_log_dir=config.metadata_log_dir,
            is_controller=port is not None,
            controller_endpoint=VoterEndpoint(CONTROLLER, self.host, port or 0),
            quorum=first if port is not None else QuorumChoice.UNSPECIFIED,
            initial_controllers=",".join(
                f"{other.node_id}@{join_host_port(self.host, other.controller_port)}:{other.directory_id}"
                for other in self.nodes
                if other.controller_port is not None
            ),
            ignore_formatted=True,
        )
        disk = RealDisk()
        given = [uuid_from_text(place.directory_id)]
        format_storage(
            disk,
            request,
            new_id=lambda: given.pop() if given else random_uuid(os.urandom),
            entropy=os.urandom,
            now_ms=now_ms,
            say=lambda _: None,
        )

    # -- saving

    def save(self) -> None:
        """Write `cluster.json` atomically."""
        document = {"version": _FORMAT_VERSION, **asdict(self)}
        del document["directory"]
        self.directory.mkdir(parents=True, exist_ok=True)
        data = json.dumps(document, indent=2).encode() + b"\n"
        replace_file(RealDisk(), str(self.directory / FILE), data)


def new_id() -> str:
    return uuid_to_text(random_uuid(os.urandom))


def join_host_port(host: str, port: int | None) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_directory(directory: Path) -> Path:
    """The directory, absolute. Raises `LayoutError` for one that `log.dirs` cannot name."""
    absolute = Path(os.path.abspath(directory))
    if "," in str(absolute) or str(absolute) != str(absolute).strip():
        raise LayoutError(
            f"{absolute}: log.dirs is a list separated by commas; choose a path without a comma, and without blanks at "
            f"its ends"
        )
    return absolute


def default_voters(nodes: int) -> int:
    """Three, which tolerate the loss of one. Two tolerate no loss, as one does, so with two nodes it is one."""
    return _VOTERS if nodes >= _VOTERS else 1


def make(
    directory: Path,
    nodes: int,
    voters: int,
    *,
    host: str,
    rack: str,
    overrides: Mapping[str, str],
    cluster_id: str | None = None,
    first_port: int | None = None,
    first_id: int = 1,
    joined: Sequence[str] = (),
    elsewhere: int = 0,
) -> ClusterLayout:
    """A layout of a new cluster, or of nodes that join one; `voters` of the nodes are controllers. Nothing is written.
    Raises `LayoutError`, and `OSError` where there are no free ports."""
    for found in sorted(directory.glob("node-*")) if directory.is_dir() else ():
        raise LayoutError(f"{found} exists, but {directory / FILE} does not: choose another directory")
    layout = ClusterLayout(
        directory, cluster_id or new_id(), host, rack, (), tuple(joined), elsewhere=elsewhere, overrides=dict(overrides)
    )
    ports = _choose_ports(layout.bind_host, nodes, voters, first_port)
    places = tuple(
        NodePlace(first_id + i, ports[i], ports[nodes + i] if i < voters else None, new_id()) for i in range(nodes)
    )
    return replace(layout, nodes=places)


def _choose_ports(host: str, nodes: int, voters: int, first: int | None) -> list[int]:
    if first is None:
        return free_ports(nodes + voters, host)
    ports = list(range(first, first + nodes + voters))
    if ports[-1] > 65_535:
        raise LayoutError(f"{len(ports)} ports from {first} on go beyond 65535; choose a smaller --port")
    taken = [port for port in ports if not is_free(port, host)]
    if taken:
        raise LayoutError(
            f"{nodes} nodes with {voters} controllers need the ports {first} to {ports[-1]}, of which other processes "
            f"have taken {', '.join(map(str, taken))}; choose another --port"
        )
    return ports


def load(directory: Path) -> ClusterLayout | None:
    """The layout in the directory's `cluster.json`; None where there is no such file. Raises `LayoutError`,
    `OSError`."""
    path = directory / FILE
    try:
        data = RealDisk().read_file(str(path), _MAX_FILE_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return _parse(directory, json.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LayoutError(f"{path} cannot be read: {error!r}; repair it, or choose another directory") from error


def _parse(directory: Path, document: Any) -> ClusterLayout:
    if document["version"] != _FORMAT_VERSION:
        raise ValueError(f"version {document['version']} is not supported")
    nodes = tuple(
        NodePlace(
            _integer(each["node_id"]),
            _integer(each["port"]),
            None if each["controller_port"] is None else _integer(each["controller_port"]),
            uuid_to_text(uuid_from_text(each["directory_id"])),
        )
        for each in document["nodes"]
    )
    if not 0 < len(nodes) <= MAX_NODES or len({place.node_id for place in nodes}) < len(nodes):
        raise ValueError(f"1 to {MAX_NODES} nodes with different ids are expected")
    return ClusterLayout(
        directory,
        str(document["cluster_id"]),
        str(document["host"]),
        str(document["rack"]),
        nodes,
        tuple(map(str, document["joined"])),
        _integer(document["elsewhere"]),
        {str(name): str(value) for name, value in document["overrides"].items()},
    )


def _integer(value: Any) -> int:
    if not isinstance(value, int) or not 0 <= value < 1 << 31:
        raise ValueError(f"{value!r} where a number from 0 to {(1 << 31) - 1} is expected")
    return value
