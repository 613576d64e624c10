"""`kalda completion`: the script that completes commands in a shell."""

from __future__ import annotations

import click

from kalda.cli.common.nouns import KaldaCommand


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

    from kalda.cli.commands import cli

    kind = get_completion_class(shell)
    assert kind is not None, f"click does not support {shell}"
    # Not `source()`: for bash it would run bash to check its version.
    script = kind(cli, {}, "kalda", "_KALDA_COMPLETE")
    click.echo(script.source_template % script.source_vars())
