"""The nodes of a test cluster: ports on loopback, properties, formatted log directories."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kalda.base.configs.addresses import CLIENTS, CONTROLLER, PLAIN_LISTENERS
from kalda.base.configs.server import ServerConfig
from kalda.base.disk import Disk
from kalda.base.ids import Uuid, random_uuid, uuid_to_text
from kalda.metadata.formatter import FormatRequest, QuorumChoice, format_storage
from kalda.network.free_ports import LOOPBACK, free_ports
from kalda.raft.voters import VoterEndpoint

if TYPE_CHECKING:
    from kalda.testing.security import ClusterSecurity

HOST = LOOPBACK
_REPLICAS = 3


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """One node's ports and log directory."""

    node_id: int
    port: int
    controller_port: int
    directory: str
    directory_id: Uuid
    advertised_port: int
    """The port that clients use: `port`, or that of a proxy in front of it."""
    is_controller: bool = True
    """Of the nodes that a cluster begins with, all are voters of the quorum; later ones are brokers alone."""

    def behind(self, proxy_port: int) -> ServerPlace:
        """This place, whose clients use a proxy."""
        return replace(self, advertised_port=proxy_port)


def new_id() -> Uuid:
    """A random id."""
    return random_uuid(os.urandom)


def lay_out(node_ids: Sequence[int], directory: Path, *, is_controller: bool = True) -> list[ServerPlace]:
    """Ports and directories for nodes."""
    ports = free_ports(2 * len(node_ids))
    pairs = zip(ports[::2], ports[1::2], strict=True)
    return [
        ServerPlace(node_id, port, controller_port, str(directory / f"node-{node_id}"), new_id(), port, is_controller)
        for node_id, (port, controller_port) in zip(node_ids, pairs, strict=True)
    ]


def config_of(
    place: ServerPlace,
    places: list[ServerPlace],
    overrides: Mapping[str, object],
    security: ClusterSecurity | None = None,
) -> ServerConfig:
    """A node that starts fast: internal topics of one partition, short timeouts."""
    replicas = min(_REPLICAS, len(places))
    clients = CLIENTS if security is None else security.protocol
    control = f",{CONTROLLER}://{HOST}:{place.controller_port}" if place.is_controller else ""
    properties: dict[str, object] = {
        "process.roles": "broker,controller" if place.is_controller else "broker",
        "node.id": place.node_id,
        "controller.quorum.bootstrap.servers": ",".join(
            f"{HOST}:{other.controller_port}" for other in places if other.is_controller
        ),
        "listeners": f"{clients}://{HOST}:{place.port}{control}",
        "advertised.listeners": f"{clients}://{HOST}:{place.advertised_port}{control}",
        **PLAIN_LISTENERS,
        **({} if security is None else security.node_properties(clients)),
        "inter.broker.listener.name": clients,
        "log.dirs": place.directory,
        "default.replication.factor": replicas,
        "offsets.topic.num.partitions": 1,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.num.partitions": 1,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": 1,
        "share.coordinator.state.topic.num.partitions": 1,
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
        "controller.quorum.election.timeout.ms": 150,
        "controller.quorum.election.backoff.max.ms": 50,
        "broker.heartbeat.interval.ms": 200,
        "broker.session.timeout.ms": 1_500,
        "background.threads": 2,
        **overrides,
    }
    return ServerConfig({name: str(value) for name, value in properties.items()})


def format_place(
    place: ServerPlace,
    places: list[ServerPlace],
    config: ServerConfig,
    cluster_id: str,
    disk: Disk,
    scram_arguments: Sequence[str] = (),
) -> None:
    """Format the log directory of one node; the controllers are voters of the quorum."""
    voters = ",".join(
        f"{other.node_id}@{HOST}:{other.controller_port}:{uuid_to_text(other.directory_id)}"
        for other in places
        if other.is_controller
    )
    request = FormatRequest(
        cluster_id=cluster_id,
        node_id=place.node_id,
        log_dirs=config.log_dirs,
        metadata_log_dir=config.metadata_log_dir,
        is_controller=place.is_controller,
        controller_endpoint=VoterEndpoint(CONTROLLER, HOST, place.controller_port),
        quorum=QuorumChoice.INITIAL_CONTROLLERS if place.is_controller else QuorumChoice.UNSPECIFIED,
        initial_controllers=voters,
        ignore_formatted=True,
        scram_arguments=scram_arguments if place.is_controller else (),
    )
    now_ms = 1
    format_storage(disk, request, new_id=new_id, entropy=os.urandom, now_ms=now_ms, say=lambda _: None)
