"""The entry of the container image: a node from environment variables, as the apache/kafka image takes them.

With arguments it is the command: `docker run kalda topics list`. Without, a node is formatted where it is not yet, and
started. The first of these that has a property decides:

1. Variables: `KAFKA_LOG_RETENTION_HOURS` is `log.retention.hours`, `KALDA_METRICS_LISTENER` is
   `kalda.metrics.listener`; in names `_` is a dot, `__` an underscore and `___` a dash.
2. `/mnt/shared/config/server.properties`, where it is mounted.
3. Where there is neither: one node, broker and controller, for clients of this host.

`CLUSTER_ID` is the cluster's id. `KAFKA_LOG4J_ROOT_LOGLEVEL` and `KALDA_LOG_FORMAT` are the node's `--log-level` and
`--log-format`. `KAFKA_SSL_KEYSTORE_FILENAME` and its like name files in `/etc/kafka/secrets`, and the file that
`KAFKA_SSL_KEYSTORE_CREDENTIALS` names there has the password.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from kalda.base.texts import parse_properties

DATA = Path("/var/lib/kalda")
MOUNTED = Path("/mnt/shared/config/server.properties")
SECRETS = Path("/etc/kafka/secrets")
CLUSTER_ID = "5L6g3nShT-eMCtK--X86sw"
"""Of a cluster whose CLUSTER_ID is not set, as in the apache/kafka image."""
NO_PROPERTIES = frozenset(
    (
        "KAFKA_VERSION", "KAFKA_HEAP_OPTS", "KAFKA_LOG4J_OPTS", "KAFKA_OPTS", "KAFKA_JMX_OPTS", "KAFKA_JMX_PORT",
        "KAFKA_JMX_HOSTNAME", "KAFKA_JVM_PERFORMANCE_OPTS", "KAFKA_GC_LOG_OPTS", "KAFKA_LOG4J_ROOT_LOGLEVEL",
        "KAFKA_LOG4J_LOGGERS", "KAFKA_TOOLS_LOG4J_LOGLEVEL", "KALDA_LOG_FORMAT", "KALDA_BOOTSTRAP_SERVER",
        "KALDA_PROFILE", "KALDA_PROFILES", "KALDA_CLUSTER_DIR",
    )
)  # fmt: skip
"""Variables for a JVM, for logs, and of the kalda command."""
SINGLE_NODE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "advertised.listeners": "PLAINTEXT://localhost:9092",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.bootstrap.servers": "localhost:9093",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}


class BadEnvironment(Exception):
    """What is wrong with which variable."""


def from_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The properties that variables set."""
    found = {}
    for name, value in environment.items():
        if name in NO_PROPERTIES or not name.startswith(("KAFKA_", "KALDA_")):
            continue
        key = name.removeprefix("KAFKA_").lower().replace("_", ".").replace("...", "-").replace("..", "_")
        found[key] = value
    return found


def with_stores(properties: Mapping[str, str], secrets: Path = SECRETS) -> dict[str, str]:
    """The properties, with the paths and the passwords of the stores of TLS whose file names they have."""
    found = dict(properties)
    for name in ("keystore", "truststore"):
        if file := found.pop(f"ssl.{name}.filename", ""):
            found[f"ssl.{name}.location"] = str(secrets / file)
    for name in ("keystore", "key", "truststore"):
        if file := found.pop(f"ssl.{name}.credentials", ""):
            try:
                found[f"ssl.{name}.password"] = (secrets / file).read_text().strip()
            except OSError as error:
                variable = f"KAFKA_SSL_{name.upper()}_CREDENTIALS"
                raise BadEnvironment(
                    f"{variable}={file}: {secrets / file}: {error.strerror}. Mount it there"
                ) from error
    return found


def properties_of(environment: Mapping[str, str], mounted: str = "", secrets: Path = SECRETS) -> dict[str, str]:
    """All properties of the node. `mounted` is the text of a server.properties, empty where there is none."""
    given = with_stores(from_variables(environment), secrets)
    if mounted.strip():
        found = parse_properties(mounted) | given
    elif any(not key.startswith("kalda.") for key in given):
        found = given
    else:
        found = SINGLE_NODE | given
    if "listeners" not in found and (advertised := found.get("advertised.listeners")):
        found["listeners"] = re.sub(r"://[^,]*:", "://0.0.0.0:", advertised)
    if found.get("process.roles") == "controller" and not found.get("advertised.listeners"):
        found.pop("advertised.listeners", None)
    found.setdefault("log.dirs", str(DATA / "data"))
    return found


def format_arguments(properties: Mapping[str, str], cluster_id: str, file: Path) -> list[str]:
    """Of `kalda storage format`. A controller without static voters is the first voter of a quorum of its own."""
    arguments = ["storage", "format", "--ignore-formatted", "-t", cluster_id, "-c", str(file)]
    if "controller" in properties.get("process.roles", "") and not properties.get("controller.quorum.voters"):
        arguments.append("--standalone")
    return arguments


def server_arguments(environment: Mapping[str, str], file: Path) -> list[str]:
    arguments = ["server", str(file)]
    if level := environment.get("KAFKA_LOG4J_ROOT_LOGLEVEL", "").split(",")[0].strip():
        arguments += ["--log-level", {"WARN": "WARNING", "TRACE": "DEBUG", "FATAL": "ERROR"}.get(level, level)]
    if form := environment.get("KALDA_LOG_FORMAT", ""):
        arguments += ["--log-format", form]
    return arguments


def main() -> None:
    if sys.argv[1:]:
        os.execvp("kalda", ["kalda", *sys.argv[1:]])
    environment = os.environ
    try:
        properties = properties_of(environment, MOUNTED.read_text() if MOUNTED.exists() else "")
    except BadEnvironment as error:
        sys.exit(f"kalda: {error}")
    file = DATA / "server.properties"
    file.touch(mode=0o600)  # it may have passwords
    file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    cluster_id = environment.get("CLUSTER_ID", CLUSTER_ID)
    formatted = subprocess.run(["kalda", *format_arguments(properties, cluster_id, file)], check=False)
    if formatted.returncode:
        sys.exit(formatted.returncode)
    os.execvp("kalda", ["kalda", *server_arguments(environment, file)])


if __name__ == "__main__":
    main()
