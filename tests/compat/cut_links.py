"""Nodes in network namespaces of their own, on one bridge, whose links can be cut.

A link is cut one way by a wrong hardware address of the peer: packets leave and do not arrive, as with a broken
switch; there is no error, and no connection is reset. This needs root and `ip` of iproute2. Nothing of it remains on
the host.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from harness.blocking import BlockingConnection
from node_cluster import ClusterNode, NodeCluster

_NOWHERE = "02:00:00:00:00:01"


class SpacedNode(ClusterNode):
    """A node with an address, and a network namespace, of its own."""

    host = ""
    space = ""
    link = ""

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def command(self) -> list[str]:
        return ["ip", "netns", "exec", self.space, *super().command()]

    def client(self) -> BlockingConnection:
        return BlockingConnection(self.host, self.port)


class SpacedCluster(NodeCluster):
    """Three nodes on a bridge; the tests' own clients reach all of them through every cut."""

    node_class = SpacedNode

    def __init__(self, home: Path, name: str, subnet: str, settings: Mapping[str, object]) -> None:
        self.name, self.subnet = name, subnet
        super().__init__(home, settings=settings)

    def place(self, node: ClusterNode) -> None:
        assert isinstance(node, SpacedNode)
        node.host, node.space = f"{self.subnet}.{node.node_id}", f"{self.name}-{node.node_id}"
        node.link = f"{self.name}{node.node_id}"
        node.port, node.controller_port = 9092, 9093

    def cut(self, source: SpacedNode, target: SpacedNode) -> None:
        """From now on, packets from `source` to `target` are lost."""
        _ip("-n", source.space, "neigh", "replace", target.host, "lladdr", _NOWHERE, "dev", "eth0", "nud", "permanent")

    def cut_both_ways(self, one: SpacedNode, other: SpacedNode) -> None:
        self.cut(one, other)
        self.cut(other, one)

    def heal(self) -> None:
        """End all cuts."""
        for node in self.nodes.values():
            assert isinstance(node, SpacedNode)
            for each in json.loads(_ip("-n", node.space, "-j", "neigh", "show", "nud", "permanent") or "[]"):
                _ip("-n", node.space, "neigh", "del", each["dst"], "dev", "eth0")

    @contextmanager
    def spaces(self) -> Iterator[None]:
        """Make the bridge and the namespaces; remove them at the end."""
        try:
            _ip("link", "add", self.name, "type", "bridge")
            _ip("addr", "add", f"{self.subnet}.254/24", "dev", self.name)
            _ip("link", "set", self.name, "up")
            for node in self.nodes.values():
                assert isinstance(node, SpacedNode)
                _ip("netns", "add", node.space)
                _ip("link", "add", node.link, "type", "veth", "peer", "name", "eth0", "netns", node.space)
                _ip("link", "set", node.link, "master", self.name, "up")
                _ip("-n", node.space, "addr", "add", f"{node.host}/24", "dev", "eth0")
                _ip("-n", node.space, "link", "set", "eth0", "up")
                _ip("-n", node.space, "link", "set", "lo", "up")
            yield
        finally:
            for node in self.nodes.values():
                assert isinstance(node, SpacedNode)
                node.__exit__()
                _remove(["link", node.link], ["netns", node.space])
            _remove(["link", self.name])


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], capture_output=True, check=True, text=True, timeout=20).stdout


def _remove(*things: list[str]) -> None:
    """Remove links before namespaces: deleting a namespace removes the links in it too, but some time later."""
    for kind, name in things:
        subprocess.run(["ip", kind, "del", name], capture_output=True, check=False)


def why_not() -> str | None:
    """Why this host cannot have such a cluster; None where it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need `ip` of iproute2"
    probe = f"kalda{os.getpid()}"
    try:
        _ip("netns", "add", probe)
        _ip("link", "add", probe, "type", "bridge")
        _ip("link", "add", f"{probe}v", "type", "veth", "peer", "name", "eth0", "netns", probe)
    except subprocess.CalledProcessError as error:
        return f"this kernel refuses network namespaces, bridges or veth pairs: {error.stderr.strip()}"
    finally:
        _remove(["link", f"{probe}v"], ["netns", probe], ["link", probe])
    return None
