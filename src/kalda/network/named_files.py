"""Files that values of configs name: key stores, tokens, JAAS files, files of config providers.

A dynamic config may name any path of the machine. So only regular files of at most a mebibyte are opened: a device is
without end, and a FIFO is opened when another process writes to it. Both the path and what was opened are looked at,
since another file may have taken the path in between, and to open a device may have effects of its own.
"""

from __future__ import annotations

import errno
import os
import shlex
import stat
from collections.abc import Sequence

from kalda.base.texts import decode_text
from kalda.security.jaas import BadJaas, JaasEntry, entry_of, parse_file

MAX_BYTES = 1 << 20


def read_named_file(path: str | os.PathLike[str]) -> bytes:
    """The whole content. Never waits for another process. Raises `OSError`, also for a file that is not regular or too
    large; `ValueError` for a path that no system has."""
    _require_regular(path, os.stat(path))
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        _require_regular(path, os.fstat(descriptor))
        content = file.read(MAX_BYTES + 1)  # the size of some files is 0 whatever they hold, and others grow
    if content is None or len(content) > MAX_BYTES:
        raise _too_large(path)
    return content


def read_named_text(path: str | os.PathLike[str]) -> str:
    """The content as a text. Raises as `read_named_file`."""
    return decode_text(read_named_file(path))


def refusal(path: str) -> str | None:
    """Why a file of this machine is never read; None where it is regular, or is not here: a config of a broker names a
    file of that broker's machine."""
    try:
        _require_regular(path, os.stat(path))
    except ValueError as error:
        return str(error)
    except OSError as error:
        return error.strerror if error.errno in (errno.EINVAL, errno.EFBIG) else None
    return None


def _require_regular(path: str | os.PathLike[str], found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    if found.st_size > MAX_BYTES:
        raise _too_large(path)


def _too_large(path: str | os.PathLike[str]) -> OSError:
    return OSError(errno.EFBIG, f"it has more than {MAX_BYTES} bytes", str(path))


# The JAAS file that `java.security.auth.login.config` names: where a configuration without `sasl.jaas.config` has its
# login lines, as scripts that start Apache Kafka set it:
#
#     export KAFKA_OPTS=-Djava.security.auth.login.config=/etc/kafka/kafka_server_jaas.conf
#
# A node reads the section `<listener>.KafkaServer`, else `KafkaServer`; a client `KafkaClient`. A login line in the
# configuration takes the place of the file's. The file is read when a node starts, or a client is made.

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
