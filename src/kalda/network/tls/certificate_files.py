"""Certificates of a test cluster as files: an authority, one certificate for nodes, one for each client.

    ca.pem          the authority's certificate, for all trust stores
    ca.key          its key
    node.pem        key and certificate of the nodes, valid for their hosts
    <client>.pem    key and certificate of a client: CN=<client>

Keys have no password, and are readable by their owner only.
"""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from kalda.security.certificates import DAYS, Authority, Issued

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


class CertificateFiles(NamedTuple):
    """Where the files are."""

    authority: Path
    node: Path
    clients: dict[str, Path]
    """By name."""


def make_certificates(
    directory: Path, hosts: Sequence[str], clients: Sequence[str], days: int = DAYS
) -> CertificateFiles:
    """Make all files. Raises `OSError`; `FileExistsError` where the directory has an authority already, whose
    certificates would no longer be trusted; `ValueError` for a name that no certificate can have."""
    names = ["node", *clients]
    if "ca" in names or len(set(names)) != len(names) or not all(map(_NAME.fullmatch, names)):
        raise ValueError(
            f"names of clients: {', '.join(clients)}: each once, of letters, digits, - _ and ., not ca and not node"
        )
    directory.mkdir(parents=True, exist_ok=True)
    authority = Authority("CN=Kalda test CA", datetime.datetime.now(datetime.UTC), days)
    _write(directory / "ca.key", authority.issued.key)
    (directory / "ca.pem").write_text(authority.issued.certificate)
    paths = {}
    for name in names:
        issued = authority.issue(f"CN={name}", hosts if name == "node" else (), days)
        paths[name] = directory / f"{name}.pem"
        _write(paths[name], _store(issued), replace=True)
    node = paths.pop("node")
    return CertificateFiles(directory / "ca.pem", node, paths)


def _store(issued: Issued) -> str:
    return issued.key + issued.certificate


def _write(path: Path, text: str, replace: bool = False) -> None:
    """Write a file that only its owner can read."""
    how = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if replace else os.O_EXCL)
    with open(os.open(path, how, 0o600), "w") as file:
        file.write(text)
