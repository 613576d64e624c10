"""Addresses in the controller quorum's keys: `id@host:port` of static voters, `host:port` of bootstrap servers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from kalda.base.configs.definition import InvalidConfig, Value

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
