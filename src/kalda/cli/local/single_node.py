"""`kalda server` without a file: one node, broker and controller, in a directory of its own.

The directory gets a `server.properties`, which may be edited, and the log directory `data`, formatted. A later start
continues with both. No command-line library is loaded here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from kalda.base.configs.server import ServerConfig
from kalda.base.ids import Uuid, random_uuid, uuid_to_text
from kalda.broker.process.config_providers import read_properties
from kalda.broker.process.disk import RealDisk
from kalda.metadata.formatter import FormatError, FormatRequest, QuorumChoice, format_storage
from kalda.metadata.meta_properties import MetaPropertiesEnsemble
from kalda.raft.values import VoterEndpoint
from kalda.storage.checkpoints import replace_file

DEFAULT_DIRECTORY = "kalda-data"
PROPERTIES_FILE = "server.properties"
_PROPERTIES = """\
# One node, broker and controller, for clients of this host. The keys are Apache Kafka's.
process.roles=broker,controller
node.id=1

# Where the node listens, and the addresses that it gives to clients. For clients of other hosts, put the name of this
# host instead of localhost.
listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers=localhost:9093

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


def properties_text(log_dirs: str) -> str:
    """The `server.properties` of a single node."""
    return _PROPERTIES.format(log_dirs=log_dirs)


def prepare(directory: str, overrides: Mapping[str, str]) -> ServerConfig:
    """The configuration of the directory's node, whose log directories are formatted. Makes what is missing.

    Raises `ValueError`, `InvalidConfig`, `OSError`.
    """
    directory = os.path.abspath(directory)
    path = os.path.join(directory, PROPERTIES_FILE)
    if not os.path.exists(path):
        _make(directory, path)
    config = ServerConfig(read_properties(path, dict(overrides)))
    ensemble = MetaPropertiesEnsemble.load(RealDisk(), config.log_dirs, config.metadata_log_dir)
    if not ensemble.properties and not ensemble.errors:
        _format(config)
    return config


def _make(directory: str, path: str) -> None:
    if os.path.isdir(directory) and os.listdir(directory):
        raise ValueError(
            f"{directory} has files, but no {PROPERTIES_FILE}: name an empty directory with --dir, or a properties FILE"
        )
    if "," in directory or directory != directory.strip() or "\\" in directory:
        raise ValueError(
            f"{directory}: log.dirs is a list separated by commas; choose a path without a comma, a backslash, and "
            "blanks at its ends"
        )
    os.makedirs(directory, exist_ok=True)
    text = properties_text(os.path.join(directory, "data"))
    replace_file(RealDisk(), path, text.encode("utf-8"))


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
    return (
        f"Kalda serves at {address}. Data and {PROPERTIES_FILE} are in {os.path.abspath(directory)}.\n"
        f"  kalda topics create orders --bootstrap-server {address}\n"
        f"  echo hello | kalda produce orders --bootstrap-server {address}\n"
        f"  kalda consume orders --from beginning --bootstrap-server {address}\n"
        "Ctrl-C, or SIGTERM, stops it. The next start continues with the data.\n"
    )
