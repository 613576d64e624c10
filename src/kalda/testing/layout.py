"""The nodes of a test cluster: ports on loopback, properties, formatted log directories."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kalda.base.configs.listeners import CLIENTS, CONTROLLER, PLAIN_LISTENERS
from kalda.base.configs.server import ServerConfig
from kalda.base.disk import Disk
from kalda.base.ids import Uuid, random_uuid, uuid_to_text
from kalda.metadata.formatter import FormatRequest, QuorumChoice, format_storage
from kalda.network.free_ports import LOOPBACK, free_ports
from kalda.raft.values import VoterEndpoint

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


def new_id() -> Uuid:
    """A random id."""
    return random_uuid(os.urandom)


def lay_out(brokers: int, directory: Path) -> list[ServerPlace]:
    """Ports and directories for `brokers` nodes, which are numbered from 1."""
    ports = free_ports(2 * brokers)
    return [
        ServerPlace(index + 1, ports[2 * index], ports[2 * index + 1], str(directory / f"node-{index + 1}"), new_id())
        for index in range(brokers)
    ]


def config_of(
    place: ServerPlace,
    places: list[ServerPlace],
    overrides: Mapping[str, object],
    security: ClusterSecurity | None = None,
) -> ServerConfig:
    """A combined broker and controller that starts fast: internal topics of one partition, short timeouts."""
    replicas = min(_REPLICAS, len(places))
    clients = CLIENTS if security is None else security.protocol
    listeners = f"{clients}://{HOST}:{place.port},{CONTROLLER}://{HOST}:{place.controller_port}"
    properties: dict[str, object] = {
        "process.roles": "broker,controller",
        "node.id": place.node_id,
        "controller.quorum.bootstrap.servers": ",".join(f"{HOST}:{other.controller_port}" for other in places),
        "listeners": listeners,
        "advertised.listeners": listeners,
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
    """Format the log directory of one node; all nodes are voters of the quorum."""
    request = FormatRequest(
        cluster_id=cluster_id,
        node_id=place.node_id,
        log_dirs=config.log_dirs,
        metadata_log_dir=config.metadata_log_dir,
        is_controller=True,
        controller_endpoint=VoterEndpoint(CONTROLLER, HOST, place.controller_port),
        quorum=QuorumChoice.INITIAL_CONTROLLERS,
        initial_controllers=",".join(
            f"{other.node_id}@{HOST}:{other.controller_port}:{uuid_to_text(other.directory_id)}" for other in places
        ),
        ignore_formatted=True,
        scram_arguments=scram_arguments,
    )
    now_ms = 1
    format_storage(disk, request, new_id=new_id, entropy=os.urandom, now_ms=now_ms, say=lambda _: None)
