"""Addresses inside config values: of listeners and of the controller quorum.

Listeners inside config values: `NAME://host:port`, and the security protocol of each listener name (KIP-103).

Addresses in the controller quorum's keys: `id@host:port` of static voters, `host:port` of bootstrap servers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kalda.base.configs.definition import InvalidConfig, Value

SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
CLIENTS = "PLAINTEXT"
CONTROLLER = "CONTROLLER"
PLAIN_LISTENERS = {
    "controller.listener.names": CONTROLLER,
    "inter.broker.listener.name": CLIENTS,
    "listener.security.protocol.map": f"{CLIENTS}:PLAINTEXT,{CONTROLLER}:PLAINTEXT",
}
"""Properties of a node that has one listener for clients and brokers, one for controllers, and no security."""

_LISTENER = re.compile(r"(.*)://\[?([0-9a-zA-Z\-%._:]*)\]?:(-?[0-9]{1,9})", re.ASCII | re.DOTALL)
_IPV4 = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}", re.ASCII)


class ListenerEndpoint(NamedTuple):
    """A listener's name, protocol and address. An empty host stands for every interface where one listens, and for an
    unknown address where one is advertised."""

    listener: str
    security_protocol: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.listener}://{host}:{self.port}"


def parse_protocol_map(text: str) -> dict[str, str]:
    """`listener.security.protocol.map`: protocols by listener name, in upper case. Raises `InvalidConfig`."""
    protocols: dict[str, str] = {}
    for entry in text.split(","):
        if not entry.strip():
            continue
        name, colon, protocol = entry.rpartition(":")
        if not colon:
            raise InvalidConfig(
                "Error parsing configuration property 'listener.security.protocol.map': "
                f"{entry.strip()} is not of the form name:protocol"
            )
        protocol = protocol.strip()
        if protocol not in SECURITY_PROTOCOLS:
            raise InvalidConfig(f"Invalid security protocol `{protocol}` defined in listener.security.protocol.map")
        protocols[name.strip().upper()] = protocol
    return protocols


def listener_name(text: str) -> str:
    """The name in front of `://`, in upper case."""
    return text.partition("://")[0].strip().upper()


def parse_endpoints(entries: Sequence[str], protocols: dict[str, str], *, own_ports: bool) -> list[ListenerEndpoint]:
    """Endpoints of `listeners` or `advertised.listeners`. With `own_ports` no two may have the same port, except an
    IPv4 address and an IPv6 address. Raises `InvalidConfig`.
    """
    shown = f"[{', '.join(entries)}]"
    try:
        endpoints = [_parse_endpoint(entry, protocols) for entry in entries]
        if len({endpoint.listener for endpoint in endpoints}) < len(endpoints):
            raise InvalidConfig(f"Each listener must have a different name, listeners: {shown}")
        if own_ports:
            _check_ports(endpoints, shown)
    except InvalidConfig as error:
        raise InvalidConfig(f"Error creating broker listeners from '{shown}': {error.message}") from None
    return endpoints


def _parse_endpoint(entry: str, protocols: dict[str, str]) -> ListenerEndpoint:
    found = _LISTENER.fullmatch(entry)
    if found is None:
        raise InvalidConfig(f"Unable to parse {entry} to a broker endpoint")
    name, host, port = found.groups()
    name = name.upper()
    protocol = protocols.get(name)
    if protocol is None:
        raise InvalidConfig(f"No security protocol defined for listener {name}")
    return ListenerEndpoint(name, protocol, host, int(port))


def _check_ports(endpoints: Iterable[ListenerEndpoint], shown: str) -> None:
    by_port: dict[int, list[str]] = {}
    for endpoint in endpoints:
        if endpoint.port:
            by_port.setdefault(endpoint.port, []).append(endpoint.host)
    for hosts in by_port.values():
        if len(hosts) > 1 and not (len(hosts) == 2 and sorted(map(_family, hosts)) == [4, 6]):
            raise InvalidConfig(f"Each listener must have a different port, listeners: {shown}")


def _family(host: str) -> int:
    """4 or 6 for an IP address, 0 for a host name."""
    if ":" in host:
        return 6
    return 4 if _IPV4.fullmatch(host) else 0


_HOST_PORT = re.compile(r"(?:.*?://)?(\[[0-9A-Za-z:.%_-]*\]|[0-9A-Za-z._%-]*):([0-9]{1,6})", re.ASCII)
_MAX_PORT = 65_535
_META_ADDRESS = "0.0.0.0"


class Voter(NamedTuple):
    """A static voter."""

    id: int
    host: str
    port: int


def parse_host_port(text: str) -> tuple[str, int] | None:
    """Host and port of an address, without the brackets of IPv6; None where the text is not an address."""
    found = _HOST_PORT.fullmatch(text)
    if found is None or not found.group(1) or int(found.group(2)) > _MAX_PORT:
        return None
    return found.group(1).strip("[]"), int(found.group(2))


def parse_voters(entries: Sequence[str]) -> list[Voter]:
    """`controller.quorum.voters` as voters. Raises `InvalidConfig`."""
    key = "controller.quorum.voters"
    form = "Each entry should be in the form `{id}@{host}:{port}`."
    voters: dict[int, Voter] = {}
    for entry in entries:
        parts = entry.split("@")
        if len(parts) != 2:
            raise InvalidConfig(f"Invalid configuration value for {key}. {form}")
        try:
            voter_id = int(parts[0])
        except ValueError:
            raise InvalidConfig(f"Failed to parse voter ID as an integer from {parts[0]}") from None
        address = parse_host_port(parts[1])
        if address is None:
            raise InvalidConfig(f"Failed to parse host name from entry {entry} for the configuration {key}. {form}")
        if address == (_META_ADDRESS, 0):
            raise InvalidConfig(f"Host string ({_META_ADDRESS}) is not routeable")
        voters[voter_id] = Voter(voter_id, *address)
    return list(voters.values())


def parse_bootstrap_servers(entries: Sequence[str]) -> list[tuple[str, int]]:
    """`controller.quorum.bootstrap.servers` as hosts and ports. Raises `InvalidConfig`."""
    servers = []
    for entry in entries:
        address = parse_host_port(entry)
        if address is None:
            raise InvalidConfig(
                f"Failed to parse host name from {entry} for the configuration "
                'controller.quorum.bootstrap.servers. Each entry should be in the form "{host}:{port}"'
            )
        servers.append(address)
    return servers


class Voters:
    """Valid where `parse_voters` can read it."""

    def __call__(self, name: str, value: Value) -> None:
        """Raise `InvalidConfig` for anything else."""
        assert isinstance(value, tuple)
        parse_voters(value)


class BootstrapServers:
    """Valid where `parse_bootstrap_servers` can read it."""

    def __call__(self, name: str, value: Value) -> None:
        """Raise `InvalidConfig` for anything else."""
        assert isinstance(value, tuple)
        parse_bootstrap_servers(value)
