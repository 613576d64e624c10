"""`kalda tokens`: delegation tokens."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING

import click

from kalda.cli.common.nouns import Noun
from kalda.cli.common.output import confirm, headings, is_json, print_json, print_table, report_option, say, yes_option
from kalda.cli.common.session import json_option, with_cluster

if TYPE_CHECKING:
    from kalda.cli.common.command_admin import CommandAdmin
    from kalda.client.admin.access import Token

_hmac_option = click.option(
    "--hmac",
    metavar="BASE64",
    prompt="HMAC",
    hide_input=True,
    help="The token's HMAC, as `create` prints it. Asked for where not given: arguments are visible to others.",
)


@click.group(cls=Noun)
def tokens() -> None:
    """Create, list, renew and expire delegation tokens.

    \b
    Examples:
      kalda tokens create --renewer User:scheduler --max-life-time-ms 86400000
      kalda tokens list --owner User:alice
      kalda tokens expire --yes
    """


@tokens.command("create")
@click.option("--owner", metavar="PRINCIPAL", help="Whom the token is for; needs CREATE_TOKENS on that user.")
@click.option("--renewer", metavar="PRINCIPAL", multiple=True, help="Who may renew it besides its owner.")
@click.option("--max-life-time-ms", type=int, default=-1, help="At most so long. [default: the brokers' own]")
@json_option
@with_cluster
def create_command(admin: CommandAdmin, /, owner: str | None, renewer: tuple[str, ...], max_life_time_ms: int) -> None:
    """Create a token. Its HMAC is a secret: whoever has it can log in as its owner.

    \b
    Example:
      kalda tokens create --owner User:alice
    """
    token = admin.create_delegation_token(owner=owner, renewers=renewer, max_lifetime_ms=max_life_time_ms)
    _print([token], with_hmac=True)


@tokens.command("list")
@click.option("--owner", metavar="PRINCIPAL", multiple=True, help="Only tokens that concern this principal.")
@json_option
@with_cluster
def list_command(admin: CommandAdmin, /, owner: tuple[str, ...]) -> None:
    """List tokens, without their HMACs.

    \b
    Example:
      kalda tokens list --owner User:alice
    """
    _print(admin.describe_delegation_tokens(owner), with_hmac=False)


@tokens.command("renew")
@_hmac_option
@click.option("--renew-time-period-ms", type=int, default=-1, help="How long from now. [default: the brokers' own]")
@report_option
@with_cluster
def renew_command(admin: CommandAdmin, /, hmac: str, renew_time_period_ms: int) -> None:
    """Move the expiry of a token on.

    \b
    Example:
      kalda tokens renew --renew-time-period-ms 3600000
    """
    expires_ms = admin.renew_delegation_token(_decoded(hmac), renew_time_period_ms)
    say(f"The token expires at {expires_ms} ms since 1970.", expires_ms=expires_ms)


@tokens.command("expire")
@_hmac_option
@click.option("--expiry-time-period-ms", type=int, default=-1, help="How long from now. [default: at once]")
@yes_option
@report_option
@with_cluster
def expire_command(admin: CommandAdmin, /, hmac: str, expiry_time_period_ms: int, yes: bool) -> None:
    """Have a token expire. At once, it is deleted, and no login with it succeeds any more.

    \b
    Examples:
      kalda tokens expire
      kalda tokens expire --expiry-time-period-ms 60000 --yes
    """
    token = _decoded(hmac)
    when = "now" if expiry_time_period_ms < 0 else f"in {expiry_time_period_ms} ms"
    confirm(f"Let the token expire {when}?", yes)
    expires_ms = admin.expire_delegation_token(token, expiry_time_period_ms)
    say(f"The token expires at {expires_ms} ms since 1970.", expires_ms=expires_ms)


def _decoded(hmac: str) -> bytes:
    """Raises `click.UsageError`; the message does not have the secret."""
    try:
        return base64.b64decode(hmac, validate=True)
    except binascii.Error as error:
        raise click.UsageError(f"--hmac is not base64: {error}") from None


def _print(found: list[Token], *, with_hmac: bool) -> None:
    rows = []
    for token in found:
        row = token._asdict()
        del row["hmac"]
        if with_hmac:
            row["hmac"] = base64.b64encode(token.hmac).decode()
        rows.append(row)
    if is_json():
        print_json(rows)
    elif not rows:
        click.echo("There are no tokens.")
    else:
        print_table(
            headings(tuple(rows[0])),
            [tuple(" ".join(each) if isinstance(each, tuple) else each for each in row.values()) for row in rows],
        )
