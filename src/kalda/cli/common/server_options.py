"""The options of `kalda server` for help, completion and the manual: `main` runs a server without click."""

from __future__ import annotations

import sys

import click

from kalda.cli.common.completing import complete_server_property

_HELP = """{}

With FILE, a server.properties of Kafka. Without it, a single node at localhost:9092 in the directory of --dir.

\b
Examples:
  kalda server
  kalda server --dir other --port 9192
  kalda server server.properties --override log.retention.hours=24
"""


class _Server(click.Command):
    """Passes its words on as they are, except to completion."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        ctx.params["arguments"] = tuple(args)
        return []

    def invoke(self, ctx: click.Context) -> None:
        from kalda.cli.server import run

        sys.exit(run(list(ctx.params["arguments"])))


def server_command(text: str) -> click.Command:
    """`kalda server`, with `text` as the first sentence of its help."""
    return _Server(
        "server",
        help=_HELP.format(text),
        params=[
            click.Argument(["file"], metavar="[FILE]", required=False, type=click.Path(exists=True, dir_okay=False)),
            click.Option(["--dir"], type=click.Path(file_okay=False), help="The directory of a single node."),
            click.Option(["--port"], type=click.IntRange(1, 65_534), help="Move the node to this port."),
            click.Option(
                ["--override"], metavar="KEY=VALUE", multiple=True, shell_complete=complete_server_property,
                help="Set a property. May be repeated.",
            ),
            click.Option(
                ["--log-level"], type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"]), help="What is printed."
            ),
            click.Option(["--log-format"], type=click.Choice(["text", "json"]), help="How it is printed."),
        ],
    )  # fmt: skip
