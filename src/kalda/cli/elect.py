"""`kalda elect`: leader elections on an operator's request."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kalda.base.errors import ErrorCode
from kalda.base.ids import TopicPartition
from kalda.base.texts import decode_text
from kalda.cli.common.completing import complete_topic
from kalda.cli.common.failures import FAILED, Failure
from kalda.cli.common.nouns import KaldaCommand
from kalda.cli.common.output import is_json, print_json
from kalda.cli.common.session import json_option, with_cluster
from kalda.cli.reassignment.plans import partition_of

if TYPE_CHECKING:
    from kalda.base.errors import ApiError
    from kalda.cli.common.command_admin import CommandAdmin


@click.command("elect", cls=KaldaCommand)
@click.argument("kind", metavar="preferred|unclean", type=click.Choice(["preferred", "unclean"]))
@click.option("--all", "of_all", is_flag=True, help="All partitions that need an election.")
@click.option(
    "--topic", "topics", metavar="NAME", multiple=True, shell_complete=complete_topic,
    help="The partitions of this topic. May be repeated.",
)  # fmt: skip
@click.option(
    "--partition", "partition_ids", metavar="N", type=click.IntRange(min=0), multiple=True,
    help="Only this partition of the topic. May be repeated.",
)  # fmt: skip
@click.option(
    "--file", "path", metavar="FILE", type=click.Path(), help='{"partitions": [{"topic": T, "partition": N}]}'
)
@json_option
@with_cluster
def elect(
    admin: CommandAdmin,
    kind: str,
    of_all: bool,
    topics: tuple[str, ...],
    partition_ids: tuple[int, ...],
    path: str | None,
) -> None:
    """Elect leaders of partitions. Exits with 1 if an election failed; one that was not needed is no failure.

    `preferred` makes the first replica of each partition its leader, if it is in sync. `unclean` makes any live replica
    the leader of a partition without one; records that this replica does not have are lost.

    \b
    Examples:
      kalda elect preferred --all
      kalda elect preferred --topic orders --partition 0 --partition 3
      kalda elect unclean --topic orders --partition 0
      kalda elect preferred --file partitions.json
    """
    from kalda.protocol.kinds import ElectionType

    if sum((of_all, bool(topics), path is not None)) != 1:
        raise click.UsageError("choose partitions with exactly one of --all, --topic, --file")
    if partition_ids and len(topics) != 1:
        raise click.UsageError("--partition belongs to one --topic; give --topic exactly once")
    chosen: Collection[TopicPartition] | None = None
    if path is not None:
        chosen = read_partitions(path)
    elif topics:
        chosen = _of_topics(admin, topics, partition_ids)
    results = admin.elect_leaders(chosen, ElectionType[kind.upper()])
    if is_json():
        print_json([_as_json(at, error) for at, error in sorted(results.items())])
    else:
        _print(kind, results)
    if any(error is not None and not _is_needless(error) for error in results.values()):
        sys.exit(FAILED)


def _of_topics(admin: CommandAdmin, topics: tuple[str, ...], partition_ids: tuple[int, ...]) -> list[TopicPartition]:
    if partition_ids:
        return [TopicPartition(topics[0], partition) for partition in dict.fromkeys(partition_ids)]
    return [at for name in dict.fromkeys(topics) for at in admin.partitions(name)]


def read_partitions(path: str) -> list[TopicPartition]:
    """The partitions in a file of the format of Kafka's tools. Raises `Failure`, `OSError`."""
    text = decode_text(Path(path).read_bytes())
    try:
        found = [partition_of(each) for each in json.loads(text)["partitions"]]
    except (ValueError, KeyError, TypeError) as error:
        raise Failure(
            f'{path}: {{"partitions": [{{"topic": "orders", "partition": 0}}]}} is expected ({error!r})'
        ) from error
    if not found:
        raise Failure(f"{path} names no partition")
    twice = sorted({at for at in found if found.count(at) > 1}) if len(set(found)) < len(found) else []
    if twice:
        raise Failure(f"{path} names partitions twice: {', '.join(map(str, twice))}")
    return found


def _is_needless(error: ApiError) -> bool:
    return error.code is ErrorCode.ELECTION_NOT_NEEDED


def _as_json(at: TopicPartition, error: ApiError | None) -> dict[str, object]:
    return {
        **at._asdict(),
        "elected": error is None,
        "error": None if error is None else error.code.name,
        "message": None if error is None else error.message,
    }


def _print(kind: str, results: dict[TopicPartition, ApiError | None]) -> None:
    """Print the results in the words of Kafka's tool."""
    elected = [str(at) for at, error in sorted(results.items()) if error is None]
    needless = [str(at) for at, error in sorted(results.items()) if error is not None and _is_needless(error)]
    if elected:
        click.echo(f"Successfully completed leader election ({kind.upper()}) for partitions {', '.join(elected)}")
    if needless:
        click.echo(f"Valid replica already elected for partitions {', '.join(needless)}")
    for _, error in sorted(results.items()):
        if error is not None and not _is_needless(error):
            click.echo(f"kalda: {error.message} [{error.code.name}]", err=True)
    if not results:
        click.echo("Nothing to do: no partition needs an election.")
