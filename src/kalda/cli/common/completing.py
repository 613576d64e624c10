"""What completes an option: keys, profiles, and the names of topics and groups, which are requested from the cluster;
and `kalda completion`, the script for a shell.

The shell waits for the result, so the cluster has to answer within `_TIMEOUT_MS`; else nothing is suggested.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

from kalda.base.errors import ApiError
from kalda.cli.common.nouns import KaldaCommand

if TYPE_CHECKING:
    from kalda.cli.common.command_admin import CommandAdmin

DEFAULT_BOOTSTRAP = "localhost:9092"
BOOTSTRAP_VARIABLE = "KALDA_BOOTSTRAP_SERVER"
_TIMEOUT_MS = 700


def _complete(ctx: click.Context, incomplete: str, names: Callable[[CommandAdmin], Iterable[str]]) -> list[str]:
    from kalda.cli.common.command_admin import CommandAdmin

    servers = ctx.params.get("bootstrap_server") or os.environ.get(BOOTSTRAP_VARIABLE) or DEFAULT_BOOTSTRAP
    try:
        with CommandAdmin(servers, timeout_ms=_TIMEOUT_MS, connect_timeout_ms=_TIMEOUT_MS) as admin:
            return [name for name in names(admin) if name.startswith(incomplete)]
    except (ApiError, ValueError):
        return []


def complete_topic(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Topics of the cluster that the command line or the environment names."""
    del parameter
    return _complete(ctx, incomplete, lambda admin: admin.list_topics(internal=True))


def complete_group(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Groups of that cluster."""
    del parameter
    return _complete(ctx, incomplete, _groups)


def _groups(admin: CommandAdmin) -> list[str]:
    return list(admin.list_groups())


def complete_transactional_id(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Transactional ids of that cluster."""
    del parameter
    return _complete(ctx, incomplete, _transactional_ids)


def _transactional_ids(admin: CommandAdmin) -> list[str]:
    return list(admin.list_transactions())


def complete_config(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Keys of the configs of the resource that the command line names: topics, brokers, groups; `KEY=` where a value is
    to follow."""
    from kalda.base.configs.broker import BROKER
    from kalda.base.configs.group import GROUP
    from kalda.base.configs.topic import TOPIC

    if ctx.params.get("broker") or ctx.params.get("broker_defaults"):
        names = BROKER.names()
    elif ctx.params.get("group"):
        names = GROUP.names()
    else:
        names = TOPIC.names()
    end = "" if isinstance(parameter, click.Argument) or parameter.name == "delete" else "="
    return [name + end for name in sorted(names) if name.startswith(incomplete)]


def complete_server_property(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """`KEY=` of the keys of server.properties."""
    del ctx, parameter
    from kalda.base.configs.broker import BROKER

    return [f"{name}=" for name in sorted(BROKER.names()) if name.startswith(incomplete)]


def complete_client_key(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """`KEY=` of the keys of clients."""
    del ctx, parameter
    from kalda.cli.common.profiles import client_keys

    return [f"{name}=" for name in sorted(client_keys()) if name.startswith(incomplete)]


def complete_profile(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """The names of profiles; none where their file cannot be read."""
    del ctx, parameter
    from kalda.base.configs.definition import InvalidConfig
    from kalda.client.transport.config_files import read_profiles

    try:
        return [name for name in sorted(read_profiles()) if name.startswith(incomplete)]
    except InvalidConfig:
        return []


@click.command(cls=KaldaCommand)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that completes commands, options, topics and groups in SHELL.

    \b
    Examples:
      kalda completion bash > ~/.local/share/bash-completion/completions/kalda
      eval "$(kalda completion zsh)"
      kalda completion fish > ~/.config/fish/completions/kalda.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, f"click does not support {shell}"
    # Not `source()`: for bash it would run bash to check its version.
    script = kind(click.get_current_context().find_root().command, {}, "kalda", "_KALDA_COMPLETE")
    click.echo(script.source_template % script.source_vars())
