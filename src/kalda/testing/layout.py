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
from kalda.network.tls.contexts import CertificateFiles, make_certificates
from kalda.raft.voters import VoterEndpoint
from kalda.security.jaas import OAUTHBEARER_MODULE, PLAIN_MODULE, SCRAM_MODULE

if TYPE_CHECKING:
    pass

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


PROTOCOLS = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
ADMIN = "admin"
DEFAULT_USERS = {ADMIN: "admin-secret", "alice": "alice-secret"}
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_NODE_PASSWORD = "node-secret"


class ClusterSecurity:
    """The security of a test cluster: its certificates, its users, and the configuration of nodes and clients.

    Every listener, the controllers' too, is of the cluster's security protocol. There is one user for each entry of
    `users`, with PLAIN and both kinds of SCRAM, and the nodes log in as `node`, by PLAIN. OAUTHBEARER accepts tokens
    that have no signature. With SSL a client's certificate is required, and its common name is the user.

    What `Cluster(security=...)` adds to the properties of its nodes.
    """

    def __init__(self, protocol: str, users: Mapping[str, str] | None = None) -> None:
        """`users`: passwords by name; None for `DEFAULT_USERS`. Raises `ValueError`."""
        if protocol not in PROTOCOLS:
            raise ValueError(f"security={protocol!r} is not one of {', '.join(PROTOCOLS)}")
        self.protocol = protocol
        self.users = dict(DEFAULT_USERS if users is None else users)
        self.certificates: CertificateFiles | None = None
        """Made by `prepare`; None without TLS."""

    @property
    def has_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.protocol.endswith("SSL")

    @property
    def has_sasl(self) -> bool:
        """Whether clients log in by SASL."""
        return self.protocol.startswith("SASL")

    def prepare(self, directory: Path, hosts: tuple[str, ...]) -> None:
        """Make the certificates, once."""
        if self.has_tls and self.certificates is None:
            self.certificates = make_certificates(directory, hosts, list(self.users))

    @property
    def scram_arguments(self) -> list[str]:
        """What formats the users' SCRAM credentials into the metadata, as `--add-scram` does."""
        return [
            f"{mechanism}=[name={user},password={password}]"
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
            for user, password in self.users.items()
            if self.has_sasl
        ]

    def node_properties(self, listener: str) -> dict[str, str]:
        """The properties of a node whose clients use that listener."""
        names = (listener.lower(), CONTROLLER.lower())
        properties = {"super.users": f"User:node;User:CN=node;User:{ADMIN}"}
        properties["listener.security.protocol.map"] = f"{listener}:{self.protocol},{CONTROLLER}:{self.protocol}"
        if self.has_tls:
            files = self.certificates
            assert files is not None, "prepared before the nodes are made"
            properties |= _stores(files.node, files.authority)
            properties["ssl.client.auth"] = "none" if self.has_sasl else "required"
            properties["ssl.principal.mapping.rules"] = "RULE:^CN=([^,]*).*$/$1/,DEFAULT"
        if self.has_sasl:
            users = {"node": _NODE_PASSWORD, **self.users}
            known = " ".join(f'user_{user}="{password}"' for user, password in users.items())
            own = f'{PLAIN_MODULE} required username="node" password="{_NODE_PASSWORD}" {known};'
            for name in names:
                properties[f"listener.name.{name}.plain.sasl.jaas.config"] = own
                properties[f"listener.name.{name}.oauthbearer.sasl.jaas.config"] = f"{OAUTHBEARER_MODULE} required;"
            properties["sasl.enabled.mechanisms"] = ",".join(MECHANISMS)
            properties["sasl.mechanism.inter.broker.protocol"] = "PLAIN"
            properties["sasl.mechanism.controller.protocol"] = "PLAIN"
        return properties

    def client_properties(
        self, user: str = ADMIN, mechanism: str = "PLAIN", password: str | None = None
    ) -> dict[str, str]:
        """The keys of a client that is that user."""
        properties = {"security.protocol": self.protocol}
        if self.has_tls:
            assert self.certificates is not None, "prepared before the nodes are made"
            properties |= _stores(
                None if self.has_sasl else self.certificates.clients[user], self.certificates.authority
            )
        if self.has_sasl:
            secret = self.users.get(user, "") if password is None else password
            lines = {
                "PLAIN": f'{PLAIN_MODULE} required username="{user}" password="{secret}";',
                "OAUTHBEARER": f'{OAUTHBEARER_MODULE} required unsecuredLoginStringClaim_sub="{user}";',
            }
            scram = f'{SCRAM_MODULE} required username="{user}" password="{secret}";'
            properties["sasl.mechanism"] = mechanism
            properties["sasl.jaas.config"] = lines.get(mechanism, scram)
        return properties


def _stores(own: Path | None, authority: Path) -> dict[str, str]:
    properties = {"ssl.truststore.location": str(authority), "ssl.truststore.type": "PEM"}
    if own is not None:
        properties |= {"ssl.keystore.location": str(own), "ssl.keystore.type": "PEM"}
    return properties
