"""The options of all commands that connect to a cluster: its address, the clients' configuration, the timeout."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

import click

from kalda.base.errors import ApiError, ErrorCode
from kalda.cli.common.completing import (
    BOOTSTRAP_VARIABLE,
    DEFAULT_BOOTSTRAP,
    complete_client_key,
    complete_profile,
)
from kalda.cli.common.output import json_option_of

if TYPE_CHECKING:
    from kalda.cli.common.command_admin import CommandAdmin

P = ParamSpec("P")

MAX_INT16, MAX_INT32, MAX_INT64 = 2**15 - 1, 2**31 - 1, 2**63 - 1
"""The largest values of the numeric fields of requests."""

_NAMES_S = 3.0
"""How long the names of topics may take, for a better message."""

_bootstrap_option = click.option(
    "-b",
    "--bootstrap-server",
    metavar="HOST:PORT,...",
    envvar=BOOTSTRAP_VARIABLE,
    show_envvar=True,
    help=f"Brokers to connect to first. [default: those of the configuration, else {DEFAULT_BOOTSTRAP}]",
)
_config_options = (
    click.option(
        "--profile",
        metavar="NAME",
        envvar="KALDA_PROFILE",
        show_envvar=True,
        shell_complete=complete_profile,
        help="A cluster of `kalda profiles`.",
    ),
    click.option(
        "--command-config",
        metavar="FILE",
        type=click.Path(exists=True, dir_okay=False),
        help="A properties file with keys of clients, such as security.protocol.",
    ),
    click.option(
        "-X",
        "client_keys",
        metavar="KEY=VALUE",
        multiple=True,
        shell_complete=complete_client_key,
        help="One key of the clients.",
    ),
)
_timeout_option = click.option(
    "--request-timeout-ms",
    metavar="MS",
    type=click.IntRange(1, MAX_INT32),
    default=30_000,
    show_default=True,
    help="How long to retry, in all, before the command fails.",
)


json_option = json_option_of()
"""For commands that print JSON where `is_json`."""


def with_cluster(command: Callable[Concatenate[CommandAdmin, P], None]) -> Callable[..., None]:
    """Add the options for the cluster's address and the timeout, and pass a `CommandAdmin` to the command."""

    @_bootstrap_option
    @with_config
    @_timeout_option
    @wraps(command)
    def run(
        bootstrap_server: str | None,
        config: Mapping[str, object],
        request_timeout_ms: int,
        *args: P.args,
        **options: P.kwargs,
    ) -> None:
        with connect(bootstrap_server, request_timeout_ms, config=config) as admin:
            try:
                command(admin, *args, **options)
            except ApiError as error:
                if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
                raise _with_near_topic(error, admin) from error

    return run


_UNKNOWN_TOPIC = re.compile(r"\btopic (\S+?)(?::| does not exist)")


def _with_near_topic(error: ApiError, admin: CommandAdmin) -> ApiError:
    """The error, with the topic that its topic was perhaps meant to be."""
    from difflib import get_close_matches

    named = _UNKNOWN_TOPIC.search(error.message)
    if named is None:
        return error
    try:
        names = list(admin.list_topics(internal=True, timeout=_NAMES_S))
    except ApiError:
        return error
    near = get_close_matches(named[1], names, 1)
    return ApiError(error.code, f"{error.message}. Did you mean {near[0]}?") if near else error


def with_config(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of the clients' configuration, and pass it as `config`."""

    @wraps(command)
    def run(
        profile: str | None, command_config: str | None, client_keys: tuple[str, ...], *args: Any, **options: Any
    ) -> None:

        from kalda.cli.common.profiles import client_config

        config = client_config(profile, command_config, parse_pairs("-X", client_keys))
        command(*args, config=config, **options)

    for option in reversed(_config_options):
        run = option(run)
    return run


def with_cluster_or_controllers(command: Callable[Concatenate[CommandAdmin, P], None]) -> Callable[..., None]:
    """`with_cluster` for requests that controllers answer too, even where no broker is running (KIP-919)."""

    @_bootstrap_option
    @click.option(
        "--bootstrap-controller",
        metavar="HOST:PORT,...",
        help="Controllers to connect to instead of brokers, by the address of their controller listener.",
    )
    @with_config
    @_timeout_option
    @wraps(command)
    def run(
        bootstrap_server: str | None,
        bootstrap_controller: str | None,
        config: Mapping[str, object],
        request_timeout_ms: int,
        *args: P.args,
        **options: P.kwargs,
    ) -> None:
        of_controllers = bootstrap_controller is not None
        address = bootstrap_controller or bootstrap_server
        with connect(address, request_timeout_ms, of_controllers, config=config) as admin:
            command(admin, *args, **options)

    return run


def connect(
    bootstrap: str | None, timeout_ms: int, of_controllers: bool = False, *, config: Mapping[str, object] | None = None
) -> CommandAdmin:
    """A client of the cluster; it connects with the first request. Raises `click.UsageError` for a bad address or
    configuration."""
    from kalda.base.configs.definition import InvalidConfig
    from kalda.cli.common.command_admin import CommandAdmin

    config = dict(config or {})
    address = str(bootstrap or config.pop("bootstrap.servers", None) or DEFAULT_BOOTSTRAP)
    config.pop("bootstrap.servers", None)
    try:
        return CommandAdmin(
            address, config={"client.id": "kalda-cli", **config}, timeout_ms=timeout_ms, of_controllers=of_controllers
        )
    except InvalidConfig as error:
        raise click.UsageError(str(error)) from error
    except ValueError as error:
        option = "--bootstrap-controller" if of_controllers else "--bootstrap-server"
        raise click.UsageError(f"{option}: {error}") from error


def parse_pairs(option: str, texts: tuple[str, ...]) -> dict[str, str]:
    """`KEY=VALUE` texts as a dict; the value may contain any characters, also = and commas."""
    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise click.UsageError(f"{option} {text}: KEY=VALUE is expected")
        pairs[key.strip()] = value
    return pairs


def unescape(option: str, text: str) -> bytes:
    r"""The text of an option with escapes such as `\t` replaced, for characters that are hard to type in a shell."""
    try:
        plain = text.encode("raw_unicode_escape").decode("unicode_escape") if "\\" in text else text
        return plain.encode()
    except UnicodeError as error:
        raise click.UsageError(f"{option} {text}: {error}; a backslash is written \\\\") from None
