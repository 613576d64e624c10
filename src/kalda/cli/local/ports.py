"""The ports of a node: moved by one number, and checked before anything is written.

No command-line library is loaded here: `kalda server` uses it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from kalda.base.configs.addresses import ListenerEndpoint
from kalda.base.configs.server import ServerConfig
from kalda.base.texts import printable
from kalda.broker.process.disk import RealDisk
from kalda.network.free_ports import is_free
from kalda.storage.checkpoints import LOCK_FILE

MAX_PORT = 65_535
_LAST_OF_ROOT = 1_023
_LISTENING = "0A"
"""TCP_LISTEN in /proc/net/tcp."""
_STEP = 100
_LONGEST_COMMAND = 120


def moved(config: ServerConfig, port: int) -> dict[str, str]:
    """The properties that move the node to `port`: the first listener of its broker, or of its controller where it has
    no broker, gets it, and each other listener the next one. What named the node by its former ports names it by the
    new ones: `advertised.listeners`, and its own address in the quorum. Raises `ValueError` above port 65535."""
    names = config.controller_listener_names
    ordered = sorted(config.listeners, key=lambda each: each.listener in names)
    if port + len(ordered) - 1 > MAX_PORT:
        raise ValueError(
            f"--port {port}: the node needs {len(ordered)} ports from there on, and {MAX_PORT} is the last"
        )
    new = {endpoint.listener: port + index for index, endpoint in enumerate(ordered)}
    old = {endpoint.listener: endpoint.port for endpoint in config.listeners}

    def move(endpoint: ListenerEndpoint) -> str:
        return str(endpoint._replace(port=new[endpoint.listener]))

    changes = {"listeners": ",".join(map(move, config.listeners))}
    advertised = {
        each.listener: each for each in (*config.advertised_listeners, *config.advertised_controller_listeners)
    }
    if config.properties.get("advertised.listeners"):
        changes["advertised.listeners"] = ",".join(
            move(each) if each.port == old[each.listener] else str(each) for each in advertised.values()
        )
    if config.voters:
        first = new[names[0]] if config.is_controller else None
        changes["controller.quorum.voters"] = ",".join(
            f"{voter.id}@{voter.host}:{first if first and voter.id == config.node_id else voter.port}"
            for voter in config.voters
        )
    elif config.is_controller and config.bootstrap_servers:
        own = {(each.host, old[each.listener]): new[each.listener] for each in config.advertised_controller_listeners}
        changes["controller.quorum.bootstrap.servers"] = ",".join(
            f"{host}:{own.get((host, number), number)}" for host, number in config.bootstrap_servers
        )
    return changes


class PortHolder(NamedTuple):
    """A process that listens on a port."""

    pid: int
    command: str
    """Its command line; empty where it cannot be read."""


def who_listens(port: int) -> PortHolder | None:
    """The process of this host that listens on `port`. None where /proc does not show it: it belongs to another user,
    or to another container."""
    return _who_holds({f"socket:[{inode}]" for inode in _listening_inodes(port)})


def _who_holds(files: set[str]) -> PortHolder | None:
    """The first process that has one of these files open, by its name in /proc."""
    for process in Path("/proc").glob("[0-9]*") if files else ():
        try:
            if not any(os.readlink(fd) in files for fd in (process / "fd").iterdir()):
                continue
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:  # it has ended, or is another user's
            continue
        command = printable(" ".join(word.decode("utf-8", "replace") for word in words)).strip()
        return PortHolder(int(process.name), command[:_LONGEST_COMMAND])
    return None


def _listening_inodes(port: int) -> set[str]:
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(fields[9])
    return found


def check_not_running(config: ServerConfig) -> None:
    """Raises `ValueError` where a node of these log directories is running."""
    for log_dir in config.log_dirs:
        if not os.path.isdir(log_dir):
            continue
        try:
            lock = RealDisk().lock(f"{log_dir}/{LOCK_FILE}")
        except OSError:  # the node says what is wrong with the disk
            continue
        if lock is not None:
            lock.close()
            continue
        holder = _who_holds({f"{os.path.realpath(log_dir)}/{LOCK_FILE}"})
        running = "" if holder is None else f", process {holder.pid} ({holder.command})"
        port = _other_port(config.listeners)
        raise ValueError(
            f"a node of {log_dir} is running already{running}. Clients can use it; stop it with Ctrl-C or SIGTERM, or "
            f"start another node beside it: kalda server --dir kalda-{port} --port {port}"
        )


def check_ports(config: ServerConfig, command: str) -> None:
    """Raises `ValueError` where the node may not have a port, or it is in use: by which process, and how `command`
    takes another."""
    for endpoint in config.listeners:
        try:
            if endpoint.port == 0 or is_free(endpoint.port, endpoint.host or None):
                continue
        except OSError:  # not an address of this host: the node says so
            continue
        moving = f"start this node at other ports: {command} --port {_other_port(config.listeners)}"
        if endpoint.port <= _LAST_OF_ROOT and not _listening_inodes(endpoint.port):
            raise ValueError(
                f"port {endpoint.port} of listener {endpoint.listener} is not for user {os.geteuid()}: those up to "
                f"{_LAST_OF_ROOT} are root's. Give the process CAP_NET_BIND_SERVICE, or {moving}"
            )
        holder = who_listens(endpoint.port)
        by = "another process" if holder is None else f"process {holder.pid} ({holder.command or 'unknown'})"
        raise ValueError(
            f"port {endpoint.port} of listener {endpoint.listener} is in use by {by}. Stop it, or {moving}"
        )


def _other_port(listeners: Sequence[ListenerEndpoint]) -> int:
    """A port that is free with those behind it that the other listeners get."""
    first = min(endpoint.port for endpoint in listeners)
    for port in range(first + _STEP, MAX_PORT - len(listeners), _STEP):
        if all(is_free(port + index) for index in range(len(listeners))):
            return port
    return first + _STEP
