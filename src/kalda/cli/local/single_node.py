"""`kalda server` without a file: one node, broker and controller, in a directory of its own.

The directory gets a `server.properties`, which may be edited, and the log directory `data`, formatted. A later start
continues with both. No command-line library is loaded here.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping

from kalda.base.configs.server import ServerConfig
from kalda.base.ids import Uuid, random_uuid, uuid_to_text
from kalda.base.texts import parse_properties, read_properties_file
from kalda.broker.process.disk import RealDisk
from kalda.cli.local.ports import check_not_running, check_ports, moved
from kalda.metadata.formatter import FormatError, FormatRequest, QuorumChoice, format_storage
from kalda.metadata.meta_properties import MetaPropertiesEnsemble
from kalda.network.config_providers import resolve
from kalda.raft.voters import VoterEndpoint
from kalda.storage.checkpoints import replace_file

DEFAULT_DIRECTORY = "kalda-data"
DEFAULT_PORT = 9092
PROPERTIES_FILE = "server.properties"
LOG_FILE = "server.log"
_PROPERTIES = """\
# One node, broker and controller, for clients of this host. The keys are Apache Kafka's.
process.roles=broker,controller
node.id=1

# Where the node listens, and the addresses that it gives to clients. For clients of other hosts, put the name of this
# host instead of localhost.
listeners=PLAINTEXT://localhost:{port},CONTROLLER://localhost:{next_port}
advertised.listeners=PLAINTEXT://localhost:{port},CONTROLLER://localhost:{next_port}
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers=localhost:{next_port}

# Where records are kept, and for how long.
log.dirs={log_dirs}
log.retention.hours=168

# With one node, the internal topics have one replica.
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
"""


def properties_text(log_dirs: str, port: int = DEFAULT_PORT) -> str:
    """The `server.properties` of a single node."""
    return _PROPERTIES.format(log_dirs=log_dirs, port=port, next_port=port + 1)


def prepare(directory: str, overrides: Mapping[str, str], port: int | None = None) -> ServerConfig:
    """The configuration of the directory's node, whose log directories are formatted. Makes what is missing, and
    nothing where a port is in use. `port` moves the node, as in `ports.moved`; a new one is written with it.

    Raises `ValueError`, `InvalidConfig`, `OSError`.
    """
    command = "kalda server" if directory == DEFAULT_DIRECTORY else f"kalda server --dir {shlex.quote(directory)}"
    directory = os.path.abspath(directory)
    path = os.path.join(directory, PROPERTIES_FILE)
    text = None if os.path.exists(path) else _first_properties(directory, port or DEFAULT_PORT)
    properties = parse_properties(text) if text is not None else read_properties_file(path)
    config = configured(properties, overrides, port)
    check_not_running(config)
    check_ports(config, command)
    if text is not None:
        os.makedirs(directory, exist_ok=True)
        replace_file(RealDisk(), path, text.encode("utf-8"))
    ensemble = MetaPropertiesEnsemble.load(RealDisk(), config.log_dirs, config.metadata_log_dir)
    if not ensemble.properties and not ensemble.errors:
        _format(config)
    return config


def configured(properties: Mapping[str, str], overrides: Mapping[str, str], port: int | None) -> ServerConfig:
    """The configuration of properties, with overrides, at `port`. Raises `ValueError`, `InvalidConfig`."""
    resolved = resolve({**properties, **overrides}, os.environ)
    config = ServerConfig(resolved)
    return config if port is None else ServerConfig({**resolved, **moved(config, port)})


def check_formatted(config: ServerConfig, file: str) -> None:
    """Raises `ValueError` where no log directory of a node with a properties file is formatted, with the command that
    formats them."""
    ensemble = MetaPropertiesEnsemble.load(RealDisk(), config.log_dirs, config.metadata_log_dir)
    if ensemble.properties or ensemble.errors:
        return
    others = set(config.bootstrap_servers) | {(each.host, each.port) for each in config.voters}
    is_alone = config.is_controller and len(others) <= 1
    cluster_id = "$(kalda storage random-uuid)" if is_alone else "CLUSTER_ID"
    quorum = "" if config.voters or not config.is_controller else " --standalone" if is_alone else " -N"
    note = "" if is_alone else " (all nodes have the same CLUSTER_ID: `kalda cluster id` prints that of a running one)"
    raise ValueError(
        f"{', '.join(ensemble.empty_dirs)} is not formatted. Format it with: kalda storage format -t {cluster_id} -c "
        f"{shlex.quote(file)}{quorum}{note}"
    )


def _first_properties(directory: str, port: int) -> str:
    if os.path.isdir(directory) and os.listdir(directory):
        raise ValueError(
            f"{directory} has files, but no {PROPERTIES_FILE}: name an empty directory with --dir, or a properties FILE"
        )
    if not _is_utf8(directory):
        raise ValueError(f"the path is not UTF-8, as {PROPERTIES_FILE} is: choose another")
    if "," in directory or directory != directory.strip() or "\\" in directory:
        raise ValueError(
            f"{directory}: log.dirs is a list separated by commas; choose a path without a comma, a backslash, and "
            "blanks at its ends"
        )
    return properties_text(os.path.join(directory, "data"), port)


def _is_utf8(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:  # bytes of a file's name, as Python keeps them
        return False
    return True


def _format(config: ServerConfig) -> None:
    own = config.advertised_controller_listeners[0] if config.is_controller else None
    request = FormatRequest(
        cluster_id=uuid_to_text(_new_id()),
        node_id=config.node_id,
        log_dirs=config.log_dirs,
        metadata_log_dir=config.metadata_log_dir,
        is_controller=config.is_controller,
        controller_endpoint=VoterEndpoint(own.listener, own.host, own.port) if own else VoterEndpoint("", "", 0),
        has_static_voters=bool(config.voters),
        quorum=QuorumChoice.UNSPECIFIED if config.voters else QuorumChoice.STANDALONE,
    )
    now_ms = time.time_ns() // 1_000_000
    try:
        format_storage(RealDisk(), request, new_id=_new_id, entropy=os.urandom, now_ms=now_ms, say=lambda _: None)
    except FormatError as error:
        raise ValueError(str(error)) from error


def _new_id() -> Uuid:
    return random_uuid(os.urandom)


def greeting(config: ServerConfig, directory: str) -> str:
    """How to connect to the running node, and how to stop it."""
    client = next(iter(config.advertised_listeners))
    address = f"{client.host}:{client.port}"
    option = "" if address == f"localhost:{DEFAULT_PORT}" else f" --bootstrap-server {address}"
    where = os.path.abspath(directory)
    return (
        f"Kalda serves at {address}. Data, {PROPERTIES_FILE} and {LOG_FILE} are in {where}.\n"
        f"  kalda topics create orders{option}\n"
        f"  echo hello | kalda produce orders{option}\n"
        f"  kalda consume orders --from beginning{option}\n"
        "Ctrl-C, or SIGTERM, stops it. The next start continues with the data.\n"
    )
