"""The classes of all commands: helps that are not cut, habits of other tools, and what was meant by a wrong word."""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

import click

from kalda.cli.common.habits import (
    KCAT_MODES,
    OF_OTHER_NOUNS,
    SAME_COMMANDS,
    SHARE_CONSUMER,
    as_share_consumer,
    in_kaldas_words,
    names_servers,
)
from kalda.cli.common.output import print_report

_LONG = 1_000
"""More characters than a first sentence has."""


class KaldaCommand(click.Command):
    """A command that takes the options of other tools for its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if (ctx.info_name or "").removesuffix(".sh") == SHARE_CONSUMER:
            args = as_share_consumer(args)
        options = {name for option in self.get_params(ctx) for name in (*option.opts, *option.secondary_opts)}
        arguments = {
            re.sub(r"[^A-Z]", "", argument.make_metavar(ctx))
            for argument in self.params
            if isinstance(argument, click.Argument)
        }
        try:
            return super().parse_args(ctx, in_kaldas_words(args, options, arguments))
        except click.NoSuchOption as error:
            if error.option_name not in KCAT_MODES:
                raise
            raise click.UsageError(kcat_mode(error.option_name), ctx) from None

    def invoke(self, ctx: click.Context) -> Any:
        result = super().invoke(ctx)
        print_report(ctx)
        return result


class Noun(click.Group):
    """The commands of a thing: `kalda topics --list` is `kalda topics list`."""

    command_class = KaldaCommand

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        for index, word in enumerate(args):
            if word.startswith("--") and self._name_of(ctx, word[2:]) is not None:
                args = [word[2:], *args[:index], *args[index + 1 :]]
                break
            if not word.startswith("-") and (self._name_of(ctx, word) is not None or word in OF_OTHER_NOUNS):
                break
        return super().parse_args(ctx, command_first(args, lambda word: self._name_of(ctx, word) is not None))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = self._name_of(ctx, cmd_name)
        return None if name is None else super().get_command(ctx, name)

    def _name_of(self, ctx: click.Context, word: str) -> str | None:
        """The command that a word stands for."""
        names = self.list_commands(ctx)
        return next((name for name in (word, SAME_COMMANDS.get(word)) if name in names), None)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            if args[0] in OF_OTHER_NOUNS:
                raise click.UsageError(OF_OTHER_NOUNS[args[0]], ctx)
            raise click.UsageError(no_such_command(args[0], self.list_commands(ctx)), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [
            (name, command.get_short_help_str(_LONG))
            for name in self.list_commands(ctx)
            if (command := self.get_command(ctx, name)) is not None and not command.hidden
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def kcat_mode(option: str) -> str:
    """What an option that is a mode of kcat is here."""
    return f"{option} is an option of kcat; here it is: {KCAT_MODES[option]}"


def command_first(args: list[str], is_command: Callable[[str], bool]) -> list[str]:
    """The words with the command before the servers, where these stand in front: `-b HOST:PORT topics list`."""
    if not args or not names_servers(args[0]):
        return args
    first = 1 if "=" in args[0] else 2
    at = next((index for index, word in enumerate(args[first:], first) if is_command(word)), None)
    if at is None:
        raise click.UsageError(f"{args[0]} stands behind a command: kalda topics list {args[0]} HOST:PORT")
    return [args[at], *args[:at], *args[at + 1 :]]


def no_such_command(word: str, names: list[str]) -> str:
    """What is wrong with a word in the place of a command."""
    near = get_close_matches(word, names, 2)
    meant = f" Did you mean {' or '.join(near)}?" if near else f" There are {', '.join(names)}."
    return f"No such command {word!r}.{meant}"
