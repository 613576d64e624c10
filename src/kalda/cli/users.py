"""`kalda users`: the SCRAM credentials of users."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kalda.cli.common.nouns import Noun
from kalda.cli.common.output import confirm, print_rows, report_option, say, yes_option
from kalda.cli.common.session import json_option, with_cluster

if TYPE_CHECKING:
    from kalda.cli.common.command_admin import CommandAdmin

_MECHANISMS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
_PASSWORD_HELP = "Asked for where not given: arguments are visible to others."
_mechanism_option = click.option(
    "--mechanism",
    type=click.Choice(list(_MECHANISMS)),
    default="SCRAM-SHA-512",
    show_default=True,
    help="The mechanism that the password is for.",
)


@click.group(cls=Noun)
def users() -> None:
    """Set, remove and list the SCRAM credentials of users.

    \b
    Examples:
      kalda users set alice
      kalda users list
      kalda users remove alice --mechanism SCRAM-SHA-256
    """


@users.command("set")
@click.argument("name")
@_mechanism_option
@click.option(
    "--iterations",
    type=click.IntRange(4096, 16384),
    default=8192,
    show_default=True,
    help="How often the password is hashed.",
)
@click.option("--password", prompt=True, hide_input=True, confirmation_prompt=True, help=_PASSWORD_HELP)
@report_option
@with_cluster
def set_command(admin: CommandAdmin, /, name: str, mechanism: str, iterations: int, password: str) -> None:
    """Set the password of a user. Only its salted hash is sent.

    \b
    Example:
      kalda users set alice --mechanism SCRAM-SHA-512
    """
    import os

    from kalda.client.admin.access import ScramUpsertion
    from kalda.metadata.scram import ScramMechanism, salted_password

    salt = os.urandom(24)
    chosen = ScramMechanism(_MECHANISMS[mechanism])
    salted = salted_password(chosen, password, salt, iterations)
    admin.alter_scram_credentials([ScramUpsertion(name, chosen.value, iterations, salt, salted)]).check()
    say(f"{name} has a credential of {mechanism}.")


@users.command("remove")
@click.argument("name")
@_mechanism_option
@yes_option
@report_option
@with_cluster
def remove_command(admin: CommandAdmin, /, name: str, mechanism: str, yes: bool) -> None:
    """Remove a credential of a user.

    \b
    Example:
      kalda users remove alice --mechanism SCRAM-SHA-256 --yes
    """
    confirm(f"Remove the credential of {name} for {mechanism}?", yes)
    admin.alter_scram_credentials(deletions=[(name, _MECHANISMS[mechanism])]).check()
    say(f"{name} has no credential of {mechanism} any more.")


@users.command("list")
@click.argument("names", nargs=-1)
@json_option
@with_cluster
def list_command(admin: CommandAdmin, /, names: tuple[str, ...]) -> None:
    """List the users that have credentials; never their secrets.

    \b
    Example:
      kalda users list
    """
    words = {number: word for word, number in _MECHANISMS.items()}
    rows = [
        (user, words.get(mechanism, str(mechanism)), iterations)
        for user, credentials in sorted(admin.describe_scram_credentials(names or None).check().succeeded.items())
        for mechanism, iterations in sorted(credentials)
    ]
    print_rows(("user", "mechanism", "iterations"), rows, "No user has a SCRAM credential.")
