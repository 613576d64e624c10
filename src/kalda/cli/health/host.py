"""This host as one for a node: limits of the kernel and of the process, and what a server.properties names."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from kalda.base.configs.broker import BROKER
from kalda.base.configs.definition import InvalidConfig
from kalda.base.configs.server import ServerConfig
from kalda.broker.process.disk import RealDisk
from kalda.cli.health.cluster import space
from kalda.cli.health.findings import Finding, certificate_end, error, is_loopback, ok, warning
from kalda.cli.local.ports import who_listens
from kalda.metadata.meta_properties import MetaPropertiesEnsemble
from kalda.network.config_providers import read_properties
from kalda.network.free_ports import is_free
from kalda.network.tls.contexts import TlsFailed, read_stores, server_context
from kalda.security.keystores import der_of
from kalda.security.tls_settings import TlsSettings

_FILES = 100_000
_MAPS = 262_144
_BACKLOG = 1_024


def examine_limits() -> Iterator[Finding]:
    """Descriptors, memory maps and the queue of connections, as an operator sets them before a node is under load."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < _FILES:
        yield warning(
            "descriptors",
            f"{hard} files and connections can be open in a process of this user",
            f"raise it to {_FILES}: LimitNOFILE= in the unit, or nofile in /etc/security/limits.conf",
        )
    else:
        yield ok("descriptors", "the limit of open files and connections is high enough")
    for name, least, why in (
        ("vm.max_map_count", _MAPS, "Apache Kafka maps two files a segment; Kalda's own nodes need few"),
        ("net.core.somaxconn", _BACKLOG, "of many clients that connect at once, those beyond it wait and try again"),
    ):
        value = _kernel(name)
        if value is not None and value < least:
            yield warning("kernel", f"{name} is {value}: {why}", f"sysctl -w {name}={least}, and in /etc/sysctl.d")
        elif value is not None:
            yield ok("kernel", f"{name} is {value}")


def _kernel(name: str) -> int | None:
    try:
        return int(Path("/proc/sys", *name.split(".")).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def examine_properties(path: str) -> Iterator[Finding]:
    """A server.properties: its keys, ports, names, stores and directories."""
    try:
        config = ServerConfig(read_properties(path))
    except InvalidConfig as failure:
        yield error("config", f"{path}: {failure.message}", "correct the key; docs/operating.md has an example")
        return
    except (OSError, ValueError) as failure:
        yield error("config", f"{path} cannot be read: {failure}", "name the server.properties of the node")
        return
    for name in config.unknown:
        near = BROKER.near(name)
        mend = f"write {near}, if that is meant" if near else "remove it, unless a plug-in of yours reads it"
        yield warning("config", f"{path}: {name} is no key of a node", mend)
    if not config.unknown:
        yield ok("config", f"{path} is that of node {config.node_id}, with the roles {config['process.roles']}")
    yield from _listeners(config)
    yield from _stores(config)
    yield from _directories(config, path)


def _listeners(config: ServerConfig) -> Iterator[Finding]:
    for endpoint in config.listeners:
        try:
            if endpoint.port == 0 or is_free(endpoint.port, endpoint.host or None):
                yield ok(
                    "ports", f"port {endpoint.port} of listener {endpoint.listener} is free: the node does not run"
                )
                continue
        except OSError as failure:
            yield error(
                "ports",
                f"listener {endpoint.listener}: {endpoint.host} is no address of this host: {failure.strerror}",
                "name an address of this host, or none (NAME://:PORT) for all",
            )
            continue
        holder = who_listens(endpoint.port)
        by = "another user's process" if holder is None else f"process {holder.pid} ({holder.command})"
        yield ok("ports", f"port {endpoint.port} of listener {endpoint.listener} is served by {by}")
    for endpoint in config.advertised_listeners:
        try:
            socket.getaddrinfo(endpoint.host or socket.getfqdn(), endpoint.port)
        except OSError:
            yield error(
                "names",
                f"advertised.listeners: {endpoint.host} does not resolve here",
                "enter the name into DNS or /etc/hosts, or advertise another",
            )
            continue
        if is_loopback(endpoint.host):
            yield warning(
                "names",
                f"{endpoint} is advertised: clients of other hosts are sent to themselves",
                "advertise this host's name, unless all clients run here",
            )


def _stores(config: ServerConfig) -> Iterator[Finding]:
    """The stores of keys and certificates of the listeners with TLS; one that several listeners share once."""
    seen = set()
    for name in dict.fromkeys(endpoint.listener for endpoint in config.listeners):
        if not config.protocol_map.get(name, name).endswith("SSL"):
            continue
        try:
            settings = TlsSettings.of(partial(config.for_listener, name))
            contents = read_stores(settings)
            server_context(settings, contents)
            material = settings.key_material(contents)
        except (TlsFailed, ValueError) as failure:
            yield error("tls", f"listener {name}: {failure}", "correct the key, or the file that it names")
            continue
        if settings.stores in seen:
            continue
        seen.add(settings.stores)
        if material is not None:
            yield certificate_end("tls", f"listener {name}", der_of(material.certificates[0]))
        location = settings.keystore_location
        if location is not None and os.path.isfile(location) and os.stat(location).st_mode & stat.S_IROTH:
            yield warning("tls", f"{location} has a private key, and every user can read it", f"chmod o= {location}")


def _directories(config: ServerConfig, path: str) -> Iterator[Finding]:
    ensemble = MetaPropertiesEnsemble.load(RealDisk(), config.log_dirs, config.metadata_log_dir)
    for log_dir in ensemble.empty_dirs:
        yield warning(
            "storage",
            f"{log_dir} is not formatted",
            f"kalda storage format -t CLUSTER_ID -c {path}; kalda server {path} names the whole command",
        )
    for log_dir, failure in ensemble.errors.items():
        yield error("storage", f"{log_dir}: {failure}", "mend the disk, or restore the directory")
    for log_dir in ensemble.properties:
        if not os.access(log_dir, os.W_OK | os.X_OK):
            yield error("storage", f"{log_dir} cannot be written by this user", "chown it to the node's user")
            continue
        usage = shutil.disk_usage(log_dir)
        yield space("disk", log_dir, usage.free, usage.total) or ok("disk", f"{log_dir} is formatted, and has room")
