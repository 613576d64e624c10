"""The JAAS file that `java.security.auth.login.config` names: where a configuration without `sasl.jaas.config` has its
login lines, as scripts that start Apache Kafka set it:

    export KAFKA_OPTS=-Djava.security.auth.login.config=/etc/kafka/kafka_server_jaas.conf

A node reads the section `<listener>.KafkaServer`, else `KafkaServer`; a client `KafkaClient`. A login line in the
configuration takes the place of the file's. The file is read when a node starts, or a client is made.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from kalda.network.named_files import read_named_text
from kalda.security.jaas import BadJaas, JaasEntry, entry_of, parse_file

CLIENT_SECTION = "KafkaClient"
_SERVER_SECTION = "KafkaServer"
_OPTION = "-Djava.security.auth.login.config="


def server_sections(listener: str) -> tuple[str, str]:
    """The sections of a listener, the first that the file has counts."""
    return f"{listener.lower()}.{_SERVER_SECTION}", _SERVER_SECTION


def path_of_file() -> str | None:
    """The file that the environment names; None without one."""
    for variable in ("KAFKA_OPTS", "JAVA_TOOL_OPTIONS"):
        try:
            options = shlex.split(os.environ.get(variable, ""))
        except ValueError:  # a quotation mark without its other one
            continue
        for option in reversed(options):
            if option.startswith(_OPTION):
                return option.removeprefix(_OPTION).removeprefix("=") or None
    return None


def find_entry(sections: Sequence[str], mechanism: str) -> JaasEntry | None:
    """The login module of a mechanism in the first of these sections; None where the file, the section or the module is
    missing. Raises `BadJaas`."""
    path = path_of_file()
    if path is None:
        return None
    try:
        text = read_named_text(path)
    except (OSError, ValueError) as error:
        raise BadJaas(f"java.security.auth.login.config={path} cannot be read: {error}") from error
    return entry_of(parse_file(text, path), sections, mechanism, path)
