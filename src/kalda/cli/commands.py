"""The `kalda` command: a group that loads a noun's module when it is used, and turns exceptions into exit codes.

`kalda --help` and completion of the nouns import only click and this table.
"""

from __future__ import annotations

import errno
import sys
from importlib import import_module
from typing import Any, NamedTuple

import click

from kalda import __version__
from kalda.base.errors import ApiError, WrongState
from kalda.cli.common.completing import complete_server_property
from kalda.cli.common.failures import INTERRUPTED, Failure, end_by_closed_pipe, failure_of
from kalda.cli.common.nouns import KAFKA_TOOLS, KCAT_MODES, OTHER_NAMES, command_first, kcat_mode, no_such_command
from kalda.cli.common.os_errors import sentence
from kalda.cli.common.output import is_stdout_closed


class _Noun(NamedTuple):
    module: str
    command: str
    help: str


NOUNS = {
    "server": _Noun("server", "", "Run a node."),
    "storage": _Noun("storage", "storage", "Format and describe the log directories of a node."),
    "topics": _Noun("topics", "topics", "List, describe, create, alter and delete topics."),
    "configs": _Noun("configs", "configs", "Describe and alter configs of topics, brokers and groups."),
    "quotas": _Noun("quotas", "quotas", "Quotas of users, clients and addresses, and who uses them."),
    "acls": _Noun("acls", "acls", "Access control entries: who may do what."),
    "users": _Noun("users", "users", "Users that log in with SCRAM."),
    "tokens": _Noun("tokens", "tokens", "Delegation tokens: create, list, renew, expire."),
    "explain": _Noun("explain", "explain", "Explain why a client is throttled, or denied."),
    "metrics": _Noun("metrics", "metrics", "Show what the brokers measure."),
    "client-metrics": _Noun("client_metrics", "client_metrics", "Metrics that clients push to the brokers."),
    "groups": _Noun("groups", "groups", "Consumer groups: their members, offsets and lag."),
    "transactions": _Noun("transactions", "transactions", "Transactions: states, producers, and those that hang."),
    "doctor": _Noun("doctor", "doctor", "What is wrong with a cluster or a node, and what mends it."),
    "profiles": _Noun("common.profiles", "profiles", "List the profiles of clusters."),
    "produce": _Noun("records.produce", "produce", "Write lines as records to a topic."),
    "consume": _Noun("records.consume", "consume", "Read records of topics."),
    "perf": _Noun("records.perf", "perf", "Measure producers and consumers on a cluster."),
    "cluster": _Noun("cluster", "cluster", "Start clusters here; describe brokers, log directories."),
    "features": _Noun("features", "features", "Describe and change feature levels, as metadata.version."),
    "quorum": _Noun("quorum", "quorum", "The metadata quorum: leader, voters, observers."),
    "reassign": _Noun("reassign", "reassign", "Move replicas between brokers: plan, run, status, cancel."),
    "elect": _Noun("elect", "elect", "Elect leaders of partitions: preferred, unclean."),
    "dump-log": _Noun("dump_log", "dump_log", "Show what is in segments, indexes, snapshots, checkpoints."),
    "pipeline": _Noun("pipeline", "pipeline", "Load, derive, snapshot and replay topics with Spark."),
    "tls": _Noun("tls", "tls", "Make certificates for trying out TLS."),
    "verify": _Noun("verify", "verify", "Run transactions and faults on a cluster, and judge them."),
    "sim": _Noun("sim", "sim", "Simulate clusters with faults from a seed; replay a seed."),
    "demo": _Noun("demo.command", "demo", "A story of orders, with kills and a proof."),
    "version": _Noun("common.version", "version", "Show the versions of Kalda, Python and what they use."),
    "completion": _Noun("common.completing", "completion", "Print the script that completes commands in a shell."),
}


class Kalda(click.Group):
    """Exit codes: 0 done, 1 the operation failed, 2 the command line is wrong, 3 the cluster cannot be reached, 130
    interrupted."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(NOUNS)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] in KCAT_MODES:
            raise click.UsageError(kcat_mode(args[0]), ctx)
        return super().parse_args(ctx, command_first(args, lambda word: _noun_of(word) is not None))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = _noun_of(cmd_name)
        if name is None:
            return None
        noun = NOUNS[name]
        if name == "server":
            return _server_command(noun.help)
        command: click.Command = getattr(import_module(f"kalda.cli.{noun.module}"), noun.command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not args[0].startswith("-") and _noun_of(args[0]) is None and not ctx.resilient_parsing:
            raise click.UsageError(no_such_command(args[0], list(NOUNS)), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, noun.help) for name, noun in NOUNS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ApiError as error:
            raise failure_of(error) from error
        except WrongState as error:
            raise Failure(str(error)) from error
        except OSError as error:
            if error.errno == errno.EPIPE and is_stdout_closed():
                end_by_closed_pipe()
            raise Failure(sentence(error)) from error
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            sys.exit(INTERRUPTED)


def _noun_of(word: str) -> str | None:
    """The noun that a word stands for: itself, its singular, the name of a script of Kafka's, another word for it."""
    plain = word.removesuffix(".sh")
    others = (word, f"{word}s", KAFKA_TOOLS.get(f"kafka-{plain.removeprefix('kafka-')}", ""), OTHER_NAMES.get(word, ""))
    return next((name for name in others if name in NOUNS), None)


_SERVER_HELP = """{}

With FILE, a server.properties of Kafka. Without it, a single node at localhost:9092 in the directory of --dir.

\b
Examples:
  kalda server
  kalda server --dir other --port 9192
  kalda server server.properties --override log.retention.hours=24
"""


class _Server(click.Command):
    """The options of `kalda server` for help, completion and the manual: `main` runs a server without click. Passes its
    words on as they are, except to completion."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        ctx.params["arguments"] = tuple(args)
        return []

    def invoke(self, ctx: click.Context) -> None:
        from kalda.cli.server import run

        sys.exit(run(list(ctx.params["arguments"])))


def _server_command(text: str) -> click.Command:
    """`kalda server`, with `text` as the first sentence of its help."""
    return _Server(
        "server",
        help=_SERVER_HELP.format(text),
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


@click.group(cls=Kalda, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, "--version", prog_name="kalda", message="%(prog)s %(version)s")
def cli() -> None:
    """Kalda: a distributed event log with Apache Kafka's protocol.

    \b
    Examples:
      kalda topics create orders --partitions 6
      echo 'alice:42' | kalda produce orders --key-separator :
      kalda consume orders --from beginning --max-messages 10

    \b
    Commands that connect to a cluster take -b, --bootstrap-server HOST:PORT,
    or the environment variable KALDA_BOOTSTRAP_SERVER, or --profile NAME.
    Exit codes: 0 done, 1 the operation failed, 2 the command line is wrong,
    3 the cluster cannot be reached, 130 interrupted (Ctrl-C).
    """
