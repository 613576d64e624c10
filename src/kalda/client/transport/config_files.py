"""A client's configuration: from a properties file or a mapping, with the values that it refers to."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from kalda.base.configs.client import counterpart
from kalda.base.configs.definition import Definition, InvalidConfig
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


# Configurations of clients by name, which belong to a machine: no program or pipeline needs an address or a secret.
#
# A profile is a table of `~/.config/kalda/profiles.toml` (`KALDA_PROFILES` names another file):
#
#     [production]
#     bootstrap.servers = "broker-1:9092,broker-2:9092"
#     security.protocol = "SSL"
#     ssl.truststore.location = "/etc/kafka/ca.pem"
#
# Values may refer to secrets by `"config.providers"` of the same table (KIP-297), in quotes: TOML has no value at a
# key that has others below it.

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
