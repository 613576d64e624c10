"""Completion in a shell: the script, and the names of topics and groups, which are requested from the cluster.

The shell waits for the result, so the cluster has to answer within `_TIMEOUT_MS`; else nothing is suggested.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

from kalda.base.errors import ApiError
from kalda.cli.common.session import BOOTSTRAP_VARIABLE, DEFAULT_BOOTSTRAP

if TYPE_CHECKING:
    from kalda.cli.common.command_admin import CommandAdmin

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


@click.command()
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

    from kalda.cli.commands import cli

    kind = get_completion_class(shell)
    assert kind is not None, f"click does not support {shell}"
    # Not `source()`: for bash it would run bash to check its version.
    script = kind(cli, {}, "kalda", "_KALDA_COMPLETE")
    click.echo(script.source_template % script.source_vars())
