"""`server.properties` with the values that it refers to (`network/config_providers.py`)."""

from __future__ import annotations

import os
from collections.abc import Mapping

from kalda.base.properties import read_properties_file
from kalda.network.config_providers import resolve as resolve


def read_properties(path: str, overrides: Mapping[str, str] | None = None) -> dict[str, str]:
    """The properties in a file, replaced by `overrides` where both have a key, with every reference resolved.

    Raises `OSError`, `ValueError` with file and line for a malformed escape, `InvalidConfig` for a provider that does
    not work.
    """
    return resolve({**read_properties_file(path), **(overrides or {})}, os.environ)
