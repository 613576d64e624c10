"""Where commands get the configuration of their clients: a profile, a properties file, single keys.

A profile is a table of `~/.config/kalda/profiles.toml` (`KALDA_PROFILES` names another file):

    [production]
    bootstrap.servers = "broker-1:9092,broker-2:9092"
    security.protocol = "SSL"
    ssl.truststore.location = "/etc/kafka/ca.pem"

What comes later in this list wins: the profile (`--profile`, or `KALDA_PROFILE`), `--command-config FILE`,
`-X KEY=VALUE`, and for the address `--bootstrap-server`. A key that no client has is an error; in a file, which other
programs may share, it is a warning, as with Kafka's tools.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import click

from kalda.base.printable import printable
from kalda.cli.common.failures import Failure

PROFILES_VARIABLE = "KALDA_PROFILES"
_OF_PROGRAMS = {"key.serializer", "value.serializer", "key.deserializer", "value.deserializer"}
"""Keys that say what a program writes and reads. Commands have bytes, and options of their own."""


def profiles_path() -> Path:
    """The file with the profiles, which may not exist."""
    given = os.environ.get(PROFILES_VARIABLE)
    if given:
        return Path(given)
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "kalda" / "profiles.toml"


def read_profiles() -> dict[str, dict[str, str]]:
    """Keys and values of each profile, by its name. Raises `Failure`."""
    import tomllib

    path = profiles_path()
    try:
        with path.open("rb") as file:
            tables = tomllib.load(file)
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Failure(f"{path} is not TOML: {error}") from error
    stray = [name for name, table in tables.items() if not isinstance(table, dict)]
    if stray:
        raise Failure(f"{path}: {stray[0]} is outside of any profile; write [NAME] above it")
    return {name: dict(_flat(table, "", path)) for name, table in tables.items()}


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
            raise Failure(f"{path}: the value of {prefix}{name} is neither text, number, boolean nor a list of texts")
    return found


def client_config(profile: str | None, path: str | None, pairs: Mapping[str, str]) -> dict[str, object]:
    """The keys of all three sources. Raises `Failure`, and `click.UsageError` for a key that no client has."""
    config: dict[str, object] = {}
    if profile is not None:
        profiles = read_profiles()
        if profile not in profiles:
            known = ", ".join(sorted(profiles)) or "it has none"
            raise Failure(f"--profile {profile}: there is no such profile in {profiles_path()}: {known}")
        config |= profiles[profile]
    _check_names({**config, **pairs})
    if path is not None:
        config |= _of_file(path)
    return {**config, **pairs}


def _of_file(path: str) -> dict[str, object]:
    """The keys of clients in a properties file. Raises `Failure`."""
    from kalda.base.configs.definition import InvalidConfig
    from kalda.base.properties import read_properties_file
    from kalda.client.transport.config_files import resolved

    try:
        found = resolved(read_properties_file(path))
    except ValueError as error:
        raise Failure(f"--command-config {error}") from error
    except InvalidConfig as error:
        raise Failure(f"--command-config {path}: {error.message}") from error
    known = _names() - _OF_PROGRAMS
    unused = [name for name in found if name not in known | _OF_PROGRAMS]
    if unused:
        names = ", ".join(map(printable, unused))
        click.echo(f"kalda: warning: --command-config {path}: no client uses {names}", err=True)
    return {name: value for name, value in found.items() if name in known}


def _names() -> set[str]:
    """The keys of all kinds of clients."""
    from kalda.base.configs.admin import ADMIN
    from kalda.base.configs.consumer import CONSUMER
    from kalda.base.configs.producer import PRODUCER

    return {*ADMIN.names(), *CONSUMER.names(), *PRODUCER.names()}


def _check_names(config: Mapping[str, object]) -> None:
    from difflib import get_close_matches

    known = _names() if config else set()
    for name in config:
        if name not in known:
            (near,) = get_close_matches(name, known, 1, 0.0)
            raise click.UsageError(f"no client has the configuration {name}; the nearest is {near}")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def profiles(as_json: bool) -> None:
    """List the profiles of clusters, with their addresses; --profile NAME, or KALDA_PROFILE, chooses one.

    \b
    Examples:
      kalda profiles
      kalda topics list --profile production
    """
    from kalda.cli.common.output import print_json, print_table

    found = read_profiles()
    rows = [
        (name, keys.get("bootstrap.servers"), keys.get("security.protocol", "PLAINTEXT"))
        for name, keys in sorted(found.items())
    ]
    if as_json:
        print_json([dict(zip(("name", "bootstrap_servers", "security_protocol"), row, strict=True)) for row in rows])
    elif rows:
        print_table(("PROFILE", "BOOTSTRAP-SERVERS", "SECURITY-PROTOCOL"), rows)
    else:
        click.echo(f"There is no profile in {profiles_path()}.", err=True)
