"""A client's configuration: from a properties file or a mapping, with the values that it refers to."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from kalda.base.configs.client import counterpart
from kalda.base.configs.definition import Definition
from kalda.base.texts import printable, read_properties_file

_PROVIDERS = "config.providers"
log = logging.getLogger("kalda.client")


def read_config(
    table: Definition, config: Mapping[str, object] | str | os.PathLike[str] | None
) -> Mapping[str, object] | None:
    """A mapping, or the keys of `table` in a properties file where a path is given, `resolved`. Other programs may have
    keys of their own in the file: as with Kafka's clients, a warning names them. Raises `OSError`; `ValueError` with
    file and line for a malformed file; `InvalidConfig` for a provider that does not work."""
    if config is None:
        return None
    if not isinstance(config, str | os.PathLike):
        return resolved(config)
    try:
        found = resolved(read_properties_file(Path(config)))
    except FileNotFoundError as error:
        what = "no such properties file; brokers are given with bootstrap_servers=, topics to subscribe or send"
        raise FileNotFoundError(error.errno, what, os.fspath(config)) from None
    unused = [name for name in found if name not in table]
    if unused:
        log.warning("%s: this client does not use %s", os.fspath(config), ", ".join(map(_described, unused)))
    return keys_of(table, found)


def _described(name: str) -> str:
    why = counterpart(name)
    return printable(name) if why is None else f"{name} ({why})"


def resolved(config: Mapping[str, object]) -> Mapping[str, object]:
    """References such as `${file:/run/secrets.properties:password}` are replaced by what the declared
    `config.providers` have (KIP-297); the keys of these are left out. Raises `InvalidConfig` for a provider that does
    not work."""
    if _PROVIDERS not in config:
        return config
    from kalda.network.config_providers import resolve

    declared = config[_PROVIDERS]
    names = ",".join(map(str, declared)) if isinstance(declared, list | tuple) else str(declared)
    texts = {name: value for name, value in config.items() if isinstance(value, str)}
    found = {**config, **resolve({**texts, _PROVIDERS: names}, os.environ)}
    return {name: value for name, value in found.items() if name.partition(".providers")[0] != "config"}


def keys_of(table: Definition, config: Mapping[str, object]) -> dict[str, object]:
    """Of a configuration that several clients share, the keys that one kind of client has."""
    return {name: value for name, value in config.items() if name in table}
