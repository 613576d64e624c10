"""Where commands get the configuration of their clients: a profile (`client/transport/config_files.py`), a properties
file, single keys.

What comes later in this list wins: the profile (`--profile`, or `KALDA_PROFILE`), `--command-config FILE`,
`-X KEY=VALUE`, and for the address `--bootstrap-server`. A key that no client has is an error; in a file, which other
programs may share, it is a warning, as with Kafka's tools.
"""

from __future__ import annotations

from collections.abc import Mapping

import click

from kalda.base.texts import printable
from kalda.cli.common.failures import Failure
from kalda.cli.common.nouns import KaldaCommand
from kalda.cli.common.output import is_json, json_option_of, print_json, print_table

_OF_PROGRAMS = {"key.serializer", "value.serializer", "key.deserializer", "value.deserializer"}
"""Keys that say what a program writes and reads. Commands have bytes, and options of their own."""


def client_config(profile: str | None, path: str | None, pairs: Mapping[str, str]) -> dict[str, object]:
    """The keys of all three sources. Raises `Failure`, and `click.UsageError` for a key that no client has."""
    config: dict[str, object] = {}
    if profile is not None:
        from kalda.base.configs.definition import InvalidConfig
        from kalda.client.transport.config_files import read_profile

        try:
            config |= read_profile(profile)
        except InvalidConfig as error:
            raise Failure(f"--profile {profile}: {error.message}") from error
    _check_names({**config, **pairs})
    if path is not None:
        config |= _of_file(path)
    return {**config, **pairs}


def _of_file(path: str) -> dict[str, object]:
    """The keys of clients in a properties file. Raises `Failure`."""
    from kalda.base.configs.definition import InvalidConfig
    from kalda.base.texts import read_properties_file
    from kalda.client.transport.config_files import resolved

    try:
        found = resolved(read_properties_file(path))
    except ValueError as error:
        raise Failure(f"--command-config {error}") from error
    except InvalidConfig as error:
        raise Failure(f"--command-config {path}: {error.message}") from error
    known = client_keys() - _OF_PROGRAMS
    unused = [name for name in found if name not in known | _OF_PROGRAMS]
    if unused:
        names = ", ".join(map(printable, unused))
        click.echo(f"kalda: warning: --command-config {path}: no client uses {names}", err=True)
    return {name: value for name, value in found.items() if name in known}


def client_keys() -> set[str]:
    """The keys of all kinds of clients."""
    from kalda.base.configs.admin import ADMIN
    from kalda.base.configs.consumer import CONSUMER
    from kalda.base.configs.producer import PRODUCER

    return {*ADMIN.names(), *CONSUMER.names(), *PRODUCER.names()}


def _check_names(config: Mapping[str, object]) -> None:
    from difflib import get_close_matches

    known = client_keys() if config else set()
    for name in config:
        if name not in known:
            (near,) = get_close_matches(name, known, 1, 0.0)
            raise click.UsageError(f"no client has the configuration {name}; the nearest is {near}")


@click.command(cls=KaldaCommand)
@json_option_of()
def profiles() -> None:
    """List the profiles of clusters, with their addresses; --profile NAME, or KALDA_PROFILE, chooses one.

    \b
    Examples:
      kalda profiles
      kalda topics list --profile production
    """
    from kalda.base.configs.definition import InvalidConfig
    from kalda.client.transport.config_files import profiles_path, read_profiles

    try:
        found = read_profiles()
    except InvalidConfig as error:
        raise Failure(error.message) from error
    rows = [
        (name, keys.get("bootstrap.servers"), keys.get("security.protocol", "PLAINTEXT"))
        for name, keys in sorted(found.items())
    ]
    if is_json():
        print_json([dict(zip(("name", "bootstrap_servers", "security_protocol"), row, strict=True)) for row in rows])
    elif rows:
        print_table(("PROFILE", "BOOTSTRAP-SERVERS", "SECURITY-PROTOCOL"), rows)
    else:
        click.echo(f"There is no profile in {profiles_path()}.", err=True)
