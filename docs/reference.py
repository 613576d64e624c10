"""Pages that are made of the sources: one for each kind of configuration, and one of all commands."""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

import click
from mkdocs.structure.files import File, Files

TABLES = {
    "producer": ("producer", "PRODUCER", "Producer keys"),
    "consumer": ("consumer", "CONSUMER", "Consumer keys"),
    "share-consumer": ("share_consumer", "SHARE_CONSUMER", "Share consumer keys"),
    "admin": ("admin", "ADMIN", "Admin keys"),
    "topic": ("topic", "TOPIC", "Topic keys"),
    "broker": ("broker", "BROKER", "Broker keys"),
    "group": ("group", "GROUP", "Group keys"),
}
COMMANDS = """# All commands

Made from the commands themselves; `kalda COMMAND --help` shows the same. [The command line](command-line.md) is the
introduction. Commands that connect to a cluster take `--bootstrap-server HOST:PORT`, `--profile NAME`,
`--command-config FILE` and `-X KEY=VALUE`, and `--json` where a program reads the output. Exit codes: 0 done, 1 the
operation failed, 2 the command line is wrong, 3 the cluster cannot be reached, 130 interrupted.
"""


def on_files(files: Files, config: Any) -> Files:
    """Called by mkdocs when it has collected the pages."""
    for name in TABLES:
        files.append(File.generated(config, f"configs/{name}.md", content=page(name)))
    files.append(File.generated(config, "commands.md", content=commands()))
    return files


def page(name: str) -> str:
    """A table of all keys of a kind."""
    from kalda.base.configs.definition import to_text
    from kalda.base.configs.documentation import CLIENT
    from kalda.base.configs.dynamic import documentation

    module, table, title = TABLES[name]
    definition = getattr(importlib.import_module(f"kalda.base.configs.{module}"), table)
    kind = {"topic": "topic", "broker": "broker", "group": "group"}.get(name)
    lines = [f"# {title}", "", "| key | type | default | what it does |", "| --- | --- | --- | --- |"]
    for key_name in definition.names():
        key = definition[key_name]
        if key.internal:
            continue
        default = key.default
        if default is None:
            shown = ""
        elif isinstance(default, bool | int | float | str | tuple):
            shown = to_text(",".join(default) if isinstance(default, tuple) else default)
        else:
            shown = "(required)"
        text = CLIENT[key_name] if kind is None else documentation(kind, key_name) or ""
        cells = (f"`{key_name}`", key.type.name.lower(), f"`{shown}`" if shown else "", text)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def commands() -> str:
    """The help of all commands."""
    from kalda.cli.commands import cli

    context = click.Context(cli, info_name="kalda", **cli.context_settings)
    parts = [COMMANDS]
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        parts += _command(command, click.Context(command, info_name=name, parent=context))
    return "\n".join(parts)


def _command(command: click.Command, context: click.Context) -> Iterator[str]:
    """One command, and those below it, as Markdown: its text, its examples, its usage and its options."""
    yield f"{'#' * len(context.command_path.split())} {context.command_path}\n"
    if context.command_path == "kalda server":  # which no click runs
        from kalda.cli.server import USAGE

        yield f"```text\n{USAGE}```\n"
        return
    yield from _paragraphs(command.help or "")
    yield f"```text\n{context.command_path} {' '.join(command.collect_usage_pieces(context))}\n```\n"
    shown = [each for each in command.get_params(context) if each.name != "help"]
    options = [record for each in shown if (record := each.get_help_record(context)) and record[1]]
    if options:
        rows = "\n".join(f"| `{_cell(names)}` | {_cell(_text(text))} |" for names, text in options)
        yield f"| option | |\n| --- | --- |\n{rows}\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            each = command.get_command(context, name)
            assert each is not None
            if not each.hidden:
                yield from _command(each, click.Context(each, info_name=name, parent=context))


def _paragraphs(text: str) -> Iterator[str]:
    """The paragraphs of a help text; those that click does not wrap are blocks."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if not paragraph.startswith("\b\n"):
            yield f"{_text(paragraph)}\n"
            continue
        first, _, rest = paragraph.removeprefix("\b\n").partition("\n")
        if first.startswith("Example"):
            yield f"{_text(first)}\n\n```sh\n{textwrap.dedent(rest)}\n```\n"
        else:
            yield f"```text\n{first}\n{rest}\n```\n"


def _text(text: str) -> str:
    """Text of a help page as Markdown: what is between backticks stays, the rest has no markup."""
    pieces = text.split("`")
    pieces[::2] = [
        piece.replace("&", "&amp;").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_").replace("[", "\\[")
        for piece in pieces[::2]
    ]
    return "`".join(pieces)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
