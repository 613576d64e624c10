"""`kalda transactions`: list, describe, describe-producers, find-hanging, abort, force-terminate."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from kalda.base.errors import ErrorCode
from kalda.base.ids import TopicPartition
from kalda.cli.common.completing import complete_topic, complete_transactional_id
from kalda.cli.common.failures import Failure
from kalda.cli.common.nouns import Noun
from kalda.cli.common.output import confirm, is_json, print_json, print_rows, yes_option
from kalda.cli.common.session import MAX_INT16, MAX_INT32, MAX_INT64, json_option, with_cluster
from kalda.cli.common.times import show_time

if TYPE_CHECKING:
    from kalda.cli.common.command_admin import CommandAdmin
    from kalda.client.admin.transactions import ActiveProducer

_DEFAULT_MAX_TIMEOUT_MIN = 15
"""The brokers' default of transaction.max.timeout.ms."""


@click.group(cls=Noun)
def transactions() -> None:
    """Transactions: their states, the producers of partitions, and the end of those that hang."""


_transactional_id_option = click.option(
    "--transactional-id", "transactional_id", metavar="ID", required=True,
    shell_complete=complete_transactional_id, help="The transactional id.",
)  # fmt: skip
_topic_option = click.option(
    "--topic", metavar="TOPIC", required=True, shell_complete=complete_topic, help="The topic's name."
)
_partition_option = click.option(
    "--partition", metavar="N", type=click.IntRange(0, MAX_INT32), required=True, help="The partition's number."
)


@transactions.command("list")
@click.option(
    "--duration-filter", "duration_ms", metavar="MS", type=click.IntRange(max=MAX_INT64), default=-1,
    help="Only transactions that have run for longer than this.",
)  # fmt: skip
@click.option(
    "--transactional-id-pattern",
    "pattern",
    metavar="REGEX",
    help="Only transactional ids that this RE2 pattern matches.",
)
@click.option("--state", "states", metavar="STATE", multiple=True, help="Only this state: Ongoing, … May be repeated.")
@json_option
@with_cluster
def list_command(admin: CommandAdmin, duration_ms: int, pattern: str | None, states: tuple[str, ...]) -> None:
    """List transactional ids with their states, of all coordinators.

    \b
    Examples:
      kalda transactions list
      kalda transactions list --state Ongoing --duration-filter 60000
      kalda transactions list --transactional-id-pattern 'billing-.*'
    """
    found = admin.list_transactions(states=states, duration_ms=max(-1, duration_ms), pattern=pattern or None)
    columns = ("transactional_id", "coordinator", "producer_id", "transaction_state")
    print_rows(columns, [tuple(each) for each in found.values()])


@transactions.command("describe")
@_transactional_id_option
@json_option
@with_cluster
def describe_command(admin: CommandAdmin, transactional_id: str) -> None:
    """Describe the state of a transactional id, with the partitions of its open transaction.

    \b
    Example:
      kalda transactions describe --transactional-id billing-1
    """
    found = admin.describe_transactions([transactional_id]).value(transactional_id)
    is_open = found.start_time_ms >= 0
    row = (
        found.coordinator,
        found.transactional_id,
        found.producer_id,
        found.producer_epoch,
        found.state,
        found.timeout_ms,
        found.start_time_ms if is_open else None,
        max(0, _now_ms() - found.start_time_ms) if is_open else None,
        [str(partition) for partition in found.partitions],
    )
    columns = (
        "coordinator_id", "transactional_id", "producer_id", "producer_epoch", "transaction_state",
        "transaction_timeout_ms", "current_transaction_start_time_ms", "transaction_duration_ms", "topic_partitions",
    )  # fmt: skip
    print_rows(columns, [row])


@transactions.command("describe-producers")
@click.option(
    "--broker", "broker_id", type=click.IntRange(0, MAX_INT32), help="Describe this replica. [default: the leader]"
)
@_topic_option
@_partition_option
@json_option
@with_cluster
def describe_producers_command(admin: CommandAdmin, broker_id: int | None, topic: str, partition: int) -> None:
    """Describe the active producers of a partition, and the offset where an open transaction of each begins.

    \b
    Example:
      kalda transactions describe-producers --topic orders --partition 0
    """
    at = TopicPartition(topic, partition)
    rows = [
        (
            each.producer_id,
            each.producer_epoch,
            each.coordinator_epoch,
            each.last_sequence,
            each.last_timestamp,
            each.start_offset if each.start_offset >= 0 else None,
        )
        for each in admin.describe_producers([at], broker_id=broker_id).value(at)
    ]
    columns = (
        "producer_id", "producer_epoch", "latest_coordinator_epoch", "last_sequence", "last_timestamp",
        "current_transaction_start_offset",
    )  # fmt: skip
    print_rows(columns, rows)


@transactions.command("find-hanging")
@click.option(
    "--broker", "broker_id", type=click.IntRange(0, MAX_INT32), help="Search the partitions with a replica here."
)
@click.option(
    "--max-transaction-timeout", "max_timeout_min", metavar="MINUTES", type=click.IntRange(0, MAX_INT32),
    default=_DEFAULT_MAX_TIMEOUT_MIN, show_default=True,
    help="No transaction may run longer than this: the brokers' transaction.max.timeout.ms.",
)  # fmt: skip
@click.option("--topic", metavar="TOPIC", shell_complete=complete_topic, help="Search this topic.")
@click.option("--partition", metavar="N", type=click.IntRange(0, MAX_INT32), help="Search this partition of --topic.")
@json_option
@with_cluster
def find_hanging_command(
    admin: CommandAdmin,
    broker_id: int | None,
    max_timeout_min: int,
    topic: str | None,
    partition: int | None,
) -> None:
    """Find transactions that no coordinator will end. `abort` ends one.

    \b
    Examples:
      kalda transactions find-hanging --broker 1
      kalda transactions find-hanging --topic orders --partition 0
    """
    if partition is not None and topic is None:
        raise click.UsageError("--partition belongs to a --topic; give both")
    if broker_id is None and topic is None:
        raise click.UsageError("choose where to search with --broker or --topic")
    partitions = _partitions(admin, broker_id, topic, partition)
    started_before_ms = _now_ms() - max_timeout_min * 60_000
    rows = [
        (
            *at,
            producer.producer_id,
            producer.producer_epoch,
            producer.coordinator_epoch,
            producer.start_offset,
            show_time(producer.last_timestamp),
            (_now_ms() - producer.last_timestamp) // 60_000,
        )
        for at, producer in _find_hanging(admin, partitions, started_before_ms, broker_id)
    ]
    columns = (
        "topic", "partition", "producer_id", "producer_epoch", "coordinator_epoch", "start_offset", "last_timestamp",
        "duration_min",
    )  # fmt: skip
    print_rows(columns, rows)


def _find_hanging(
    admin: CommandAdmin, partitions: list[TopicPartition], started_before_ms: int, broker_id: int | None
) -> list[tuple[TopicPartition, ActiveProducer]]:
    """The transactions of these partitions that hang, and whose last record is older than `started_before_ms` (wall
    clock), which has to be longer ago than any transaction timeout. Raises `ApiError`.

    A transaction hangs where a partition holds its records, but no coordinator holds it as ongoing with this partition:
    no one will ever write its marker, and the partition's last stable offset does not move."""
    described = admin.describe_producers(partitions, broker_id=broker_id).check().succeeded
    candidates = [
        (partition, producer)
        for partition, producers in described.items()
        for producer in producers
        if producer.start_offset >= 0 and producer.last_timestamp < started_before_ms
    ]
    if not candidates:
        return []
    listed = admin.list_transactions(producer_ids=sorted({producer.producer_id for _, producer in candidates}))
    found = admin.describe_transactions(list(listed))
    for error in found.errors.values():
        if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise error
    ongoing = {listed[name].producer_id: each.partitions for name, each in found.succeeded.items()}
    return sorted(each for each in candidates if each[0] not in ongoing.get(each[1].producer_id, ()))


def _partitions(
    admin: CommandAdmin, broker_id: int | None, topic: str | None, partition: int | None
) -> list[TopicPartition]:
    """The partitions to search: of the topic, and with `broker_id` those that have a replica there."""
    topics = admin.list_topics(internal=True).values() if topic is None else [admin.topics([topic]).value(topic)]
    found = [
        TopicPartition(each.name, p.partition)
        for each in topics
        for p in each.partitions
        if (partition is None or p.partition == partition) and (broker_id is None or broker_id in p.replicas)
    ]
    if topic is not None and not found:
        where = f"topic {topic}" if partition is None else f"partition {topic}-{partition}"
        raise Failure(f"{where} is not there" + ("" if broker_id is None else f", or has no replica on {broker_id}"))
    return found


@transactions.command("abort")
@_topic_option
@_partition_option
@click.option(
    "--start-offset", type=click.IntRange(0, MAX_INT64), help="Where the transaction begins in the partition."
)
@click.option("--producer-id", type=click.IntRange(0, MAX_INT64), help="For brokers older than 3.0.")
@click.option("--producer-epoch", type=click.IntRange(0, MAX_INT16), help="For brokers older than 3.0.")
@click.option("--coordinator-epoch", type=click.IntRange(-1, MAX_INT32), help="For brokers older than 3.0.")
@yes_option
@json_option
@with_cluster
def abort_command(
    admin: CommandAdmin,
    topic: str,
    partition: int,
    start_offset: int | None,
    producer_id: int | None,
    producer_epoch: int | None,
    coordinator_epoch: int | None,
    yes: bool,
) -> None:
    """Abort a transaction that hangs, by an abort marker in one partition, past the coordinator.

    The transaction is the one that begins at --start-offset, as find-hanging shows it; or, for brokers older than 3.0,
    the one of --producer-id, --producer-epoch and --coordinator-epoch.

    \b
    Example:
      kalda transactions abort --topic orders --partition 0 --start-offset 1502 --yes
    """
    at = TopicPartition(topic, partition)
    if start_offset is not None:
        if (producer_id, producer_epoch, coordinator_epoch) != (None, None, None):
            raise click.UsageError("--start-offset names the transaction; give no producer and no epoch with it")
        found = _open_at(admin, at, start_offset)
        producer_id, producer_epoch, coordinator_epoch = (
            found.producer_id, found.producer_epoch, found.coordinator_epoch
        )  # fmt: skip
    elif producer_id is None or producer_epoch is None or coordinator_epoch is None:
        raise click.UsageError(
            "the transaction must be identified either with --start-offset (for brokers on 3.0 or above) or with "
            "--producer-id, --producer-epoch, and --coordinator-epoch (for older brokers)"
        )
    confirm(f"Abort the transaction of producer {producer_id} with epoch {producer_epoch} in {at}?", yes)
    admin.abort_transaction(at, producer_id, producer_epoch, coordinator_epoch)
    if is_json():
        print_json({**at._asdict(), "producer_id": producer_id, "producer_epoch": producer_epoch})
    else:
        click.echo(f"Aborted the transaction of producer {producer_id} with epoch {producer_epoch} in {at}.")


def _open_at(admin: CommandAdmin, at: TopicPartition, start_offset: int) -> ActiveProducer:
    """The producer whose open transaction begins there. Raises `Failure`."""
    for each in admin.describe_producers([at]).value(at):
        if each.start_offset == start_offset:
            return each
    raise Failure(f"Could not find any open transactions starting at offset {start_offset} on partition {at}")


@transactions.command("force-terminate")
@_transactional_id_option
@yes_option
@json_option
@with_cluster
def force_terminate_command(admin: CommandAdmin, transactional_id: str, yes: bool) -> None:
    """Abort the ongoing transaction of a transactional id, and fence its producer.

    \b
    Example:
      kalda transactions force-terminate --transactional-id billing-1 --yes
    """
    confirm(f"Abort the transaction of {transactional_id}, and fence its producer?", yes)
    admin.fence_producers([transactional_id]).check()
    if is_json():
        print_json({"transactional_id": transactional_id})
    else:
        click.echo(f"Terminated the transaction of {transactional_id}, and fenced its producer.")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
