"""Configurations of clients by name, which belong to a machine: no program or pipeline needs an address or a secret.

A profile is a table of `~/.config/kalda/profiles.toml` (`KALDA_PROFILES` names another file):

    [production]
    bootstrap.servers = "broker-1:9092,broker-2:9092"
    security.protocol = "SSL"
    ssl.truststore.location = "/etc/kafka/ca.pem"

Values may refer to secrets by `"config.providers"` of the same table (KIP-297), in quotes: TOML has no value at a key
that has others below it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from kalda.base.configs.definition import InvalidConfig
from kalda.client.transport.config_files import resolved

_VARIABLE = "KALDA_PROFILES"


def profiles_path() -> Path:
    """The file with the profiles, which may not exist."""
    given = os.environ.get(_VARIABLE)
    if given:
        return Path(given)
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")  # as it is, for a user without a home
    return Path(home) / "kalda" / "profiles.toml"


def read_profiles() -> dict[str, dict[str, str]]:
    """Keys and values of each profile, as they are written, by its name. Raises `InvalidConfig` where the file is
    malformed."""
    import tomllib

    path = profiles_path()
    try:
        with path.open("rb") as file:
            tables = tomllib.load(file)
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"{path} is not TOML: {error}") from error
    except OSError as error:
        raise InvalidConfig(f"{path} cannot be read: {error.strerror}") from error
    stray = [name for name, table in tables.items() if not isinstance(table, dict)]
    if stray:
        raise InvalidConfig(f"{path}: {stray[0]} is outside of any profile; write [NAME] above it")
    return {name: dict(_flat(table, "", path)) for name, table in tables.items()}


def read_profile(name: str) -> dict[str, str]:
    """One profile, with the values that it refers to. Raises `InvalidConfig` where there is none, too."""
    found = read_profiles()
    if name not in found:
        known = ", ".join(sorted(found)) or "it has none"
        raise InvalidConfig(f"there is no profile {name} in {profiles_path()}: {known}")
    try:
        return {key: str(value) for key, value in resolved(found[name]).items()}
    except InvalidConfig as error:
        raise InvalidConfig(f"profile {name} of {profiles_path()}: {error.message}") from error


def _flat(table: Mapping[str, object], prefix: str, path: Path) -> list[tuple[str, str]]:
    """TOML reads `a.b = 1` as a table within a table."""
    found = []
    for name, value in table.items():
        if isinstance(value, dict):
            found += _flat(value, f"{prefix}{name}.", path)
        elif isinstance(value, bool):
            found.append((prefix + name, str(value).lower()))
        elif isinstance(value, str | int | float):
            found.append((prefix + name, str(value)))
        elif isinstance(value, list) and all(isinstance(each, str) for each in value):
            found.append((prefix + name, ",".join(value)))
        else:
            raise InvalidConfig(
                f"{path}: the value of {prefix}{name} is neither text, number, boolean nor a list of texts"
            )
    return found
