"""`kalda verify`: run transactions on a cluster, record what its clients see, and judge the history."""

from __future__ import annotations

import secrets
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from kalda.base.errors import ApiError
from kalda.cli.common.completing import BOOTSTRAP_VARIABLE, DEFAULT_BOOTSTRAP
from kalda.cli.common.failures import Failure, interruptible
from kalda.cli.common.nouns import KaldaCommand
from kalda.cli.common.output import ProgressLine, counted, print_json, print_table
from kalda.cli.common.session import MAX_INT16, MAX_INT32
from kalda.cli.common.times import Seconds

if TYPE_CHECKING:
    from kalda.cli.verification.run import VerificationPlan
    from kalda.verify.rules import Verdict

ANOMALY = 1
_MAX_PRINTED_A_RULE = 5


class CannotRun(Failure):
    """No verdict: the workload could not run, or its history cannot be read."""

    exit_code = 2


@click.command(cls=KaldaCommand)
@click.option(
    "--bootstrap-server", metavar="HOST:PORT,...", envvar=BOOTSTRAP_VARIABLE, default=DEFAULT_BOOTSTRAP,
    show_default=True, show_envvar=True, help="Brokers to connect to first.",
)  # fmt: skip
@click.option(
    "--duration", "duration_s", metavar="DURATION", type=Seconds(min=0), default=30.0, show_default=True,
    help="How long the workload and the faults run: 30s, 5m, 1h30m, or a number of seconds.",
)  # fmt: skip
@click.option(
    "--producers", type=click.IntRange(1, 200), default=4, show_default=True,
    help="Producers of transactions; half as many consume-transform-produce loops run beside them.",
)  # fmt: skip
@click.option("--topics", type=click.IntRange(1, 100), default=2, show_default=True, help="Input topics.")
@click.option(
    "--partitions", type=click.IntRange(1, 1_000), default=3, show_default=True, help="Partitions of each input topic."
)
@click.option(
    "--replication-factor", type=click.IntRange(1, MAX_INT16), default=None,
    help="Replicas of each partition; one fewer have to be in sync. [default: 3, or the number of brokers]",
)  # fmt: skip
@click.option(
    "--transaction-timeout-ms", type=click.IntRange(1_000, MAX_INT32), default=10_000, show_default=True,
    help="The transaction timeout of all producers.",
)  # fmt: skip
@click.option(
    "--faults", "faults_command", metavar="COMMAND",
    help="A shell command that causes a fault and heals it, such as a restart of a node. It is run again and again.",
)  # fmt: skip
@click.option(
    "--client-faults/--no-client-faults", default=True, show_default=True,
    help="Kill and pause producers and loops at random, with successors for some that are paused.",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=None, help="Of all random choices. [default: a random one]")
@click.option("--history", "history_path", metavar="FILE", type=click.Path(), help="Keep the history, as JSON lines.")
@click.option(
    "--judge", "judge_path", metavar="FILE", type=click.Path(), help="Judge a history that was kept; run nothing."
)
@click.option("--keep-topics", is_flag=True, help="Keep the topics even where nothing was found.")
@click.option(
    "--format", "layout", type=click.Choice(["table", "json"]), default="table", show_default=True,
    help="How the verdict is printed.",
)  # fmt: skip
@click.option("--json", "layout", flag_value="json", help="The same as --format json.")
def verify(
    bootstrap_server: str,
    duration_s: float,
    producers: int,
    topics: int,
    partitions: int,
    replication_factor: int | None,
    transaction_timeout_ms: int,
    faults_command: str | None,
    client_faults: bool,
    seed: int | None,
    history_path: str | None,
    judge_path: str | None,
    keep_topics: bool,
    layout: str,
) -> None:
    """Check that transactions of a cluster are exactly-once, while faults happen.

    Producers write transactions to several partitions; loops consume, transform and produce with offsets in the
    transaction; read_committed consumers read everything. After the run every partition has to become stable. Then the
    history of all clients is judged: lost, torn, aborted and doubled records, G1a, G1b, G1c, lost updates, outputs of
    inputs, order, and the last stable offset. It works on any cluster that speaks Kafka's protocol.

    Exit codes: 0 sound, 1 an anomaly was found, 2 no verdict, also where no transaction was committed.

    \b
    Examples:
      kalda verify --duration 5m
      kalda verify --faults './kill-and-restart-a-node' --history run.jsonl
      kalda verify --judge run.jsonl --format json
    """
    from kalda.cli.verification.run import VerificationPlan, remove_topics

    if judge_path is not None:
        verdict = _judge_file(judge_path)
        _print(verdict, layout, None)
    else:
        seed = secrets.randbelow(1 << 32) if seed is None else seed
        plan = VerificationPlan(
            bootstrap_server,
            f"verify-{secrets.token_hex(3)}",
            seed,
            duration_s,
            producers,
            topics,
            partitions,
            replication_factor or _replicas(bootstrap_server),
            transaction_timeout_ms,
            faults_command,
            client_faults,
        )
        try:
            with interruptible():
                verdict = _run(plan, history_path)
        except KeyboardInterrupt:  # all clients have ended
            if not keep_topics:
                remove_topics(plan)
            raise
        _print(verdict, layout, seed)
        if verdict.is_sound and not keep_topics:
            remove_topics(plan)
    if not verdict.is_sound:
        sys.exit(ANOMALY)
    if not _is_proof(verdict):
        raise CannotRun("no transaction was committed, so nothing is proven")


def _is_proof(verdict: Verdict) -> bool:
    """Whether a sound verdict says anything: a cluster that refuses every transaction violates no rule."""
    from kalda.verify.history import Outcome

    return verdict.outcomes[Outcome.COMMITTED] > 0


def _replicas(bootstrap_server: str) -> int:
    """Three, or as many as there are brokers."""
    from kalda.cli.common.command_admin import CommandAdmin

    try:
        with CommandAdmin(bootstrap_server, client_id="kalda-verify") as admin:
            return max(1, min(3, len(admin.live_brokers())))
    except ValueError as error:
        raise click.UsageError(f"--bootstrap-server: {error}") from error
    except ApiError as error:
        raise CannotRun(error.message or str(error)) from error


def _run(plan: VerificationPlan, history_path: str | None) -> Verdict:
    from kalda.cli.verification.run import run
    from kalda.verify.history import read_history
    from kalda.verify.rules import judge

    if history_path is not None:
        _write(history_path, [], "a")  # a path that cannot be written must not cost the run
    doing = "starting"
    progress = ProgressLine(lambda seconds: f"{seconds:5.0f} s  {doing}")

    def report(what: str) -> None:
        nonlocal doing
        doing = what
        progress.step()

    with tempfile.TemporaryDirectory(prefix="kalda-verify-") as directory:
        try:
            lines = run(plan, Path(directory), report)
        except ApiError as error:
            raise CannotRun(f"the run has no verdict: {error.message or error} [{error.code.name}]") from error
        finally:
            progress.clear()
    if history_path is not None:
        _write(history_path, lines)
    doing = f"judging {counted(len(lines), 'event')}"
    with progress.ticking():
        return judge(read_history(lines))


def _write(path: str, lines: list[str], mode: Literal["w", "a"] = "w") -> None:
    try:
        with Path(path).open(mode, encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
    except OSError as error:
        raise CannotRun(f"the history cannot be written to {path}: {error.strerror}") from error


def _judge_file(path: str) -> Verdict:
    from kalda.verify.history import MalformedHistory, read_history
    from kalda.verify.rules import judge

    try:
        line = ProgressLine(lambda seconds: f"{seconds:5.0f} s  judging {path}")
        with Path(path).open(encoding="utf-8") as file, line.ticking():
            return judge(read_history(file))
    except OSError as error:
        raise CannotRun(f"{path}: {error.strerror}") from error
    except (MalformedHistory, UnicodeDecodeError) as error:
        raise CannotRun(f"{path}: {error}") from error


def _print(verdict: Verdict, layout: str, seed: int | None) -> None:
    counts = {
        **{outcome.value: count for outcome, count in verdict.outcomes.items()},
        "records_sent": verdict.records_sent,
        "records_visible": verdict.records_visible,
        "records_read": verdict.records_read,
        "faults": verdict.faults,
    }
    if layout == "json":
        print_json(
            {
                "sound": verdict.is_sound,
                "seed": seed,
                **counts,
                "violations": {rule.value: count for rule, count in verdict.violations.items()},
                "findings": [
                    {
                        "rule": each.rule.value,
                        "transaction": each.transaction,
                        "record": each.record,
                        "place": None if each.place is None else str(each.place),
                        "text": each.text,
                    }
                    for each in verdict.findings
                ],
            }
        )
        return
    columns = ("COMMITTED", "ABORTED", "UNANSWERED", "SENT", "VISIBLE", "READ", "FAULTS")
    print_table(columns, [tuple(counts.values())], title="Transactions, records, faults")
    if verdict.is_sound:
        if _is_proof(verdict):
            click.echo("Sound: no rule was violated.")
        return
    click.echo()
    rows = [(rule.value, count, rule.meaning) for rule, count in verdict.violations.items()]
    print_table(("VIOLATED", "TIMES", "THE RULE"), rows)
    for rule, count in verdict.violations.items():
        click.echo()
        shown = [each for each in verdict.findings if each.rule is rule][:_MAX_PRINTED_A_RULE]
        for each in shown:
            click.echo(str(each))
        if count > len(shown):
            click.echo(f"… and {count - len(shown)} more of {rule.value}; --format json shows more of them")
    if seed is not None:
        click.echo(f"\nThe seed was {seed}.")
