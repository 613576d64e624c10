"""Listeners inside config values: `NAME://host:port`, and the security protocol of each listener name (KIP-103)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kalda.base.configs.definition import InvalidConfig

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
