"""A client's configuration from a properties file."""

from __future__ import annotations

import os
from collections.abc import Mapping

from kalda.base.configs.definition import Definition
from kalda.base.properties import read_properties_file


def read_config(config: Mapping[str, object] | str | os.PathLike[str] | None) -> Mapping[str, object] | None:
    """A mapping as it is; the content of a properties file where a path is given. Raises `OSError`; `ValueError` with
    file and line for a malformed file."""
    if isinstance(config, str | os.PathLike):
        return dict(read_properties_file(config))
    return config


def keys_of(table: Definition, config: Mapping[str, object]) -> dict[str, object]:
    """Of a configuration that several clients share, the keys that one kind of client has."""
    return {name: value for name, value in config.items() if name in table}
