"""`kalda sim`: run clusters in the simulator, and replay a seed with a trace."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from multiprocessing import Pipe, Process
from multiprocessing.connection import Connection, wait
from typing import TypeVar

import click

from kalda.cli.common.failures import Failure
from kalda.cli.common.nouns import Noun
from kalda.cli.common.output import ProgressLine, counted, is_json, print_json
from kalda.cli.common.session import json_option
from kalda.cli.common.times import Seconds
from kalda.client.transport.held_signals import held_signals
from kalda.sim import controllers, faults
from kalda.sim.large_group import LargeGroupPlan, simulate_large_group
from kalda.sim.quorum import recover, stale_leaders, storm
from kalda.sim.scenario import GROUP_LOADS, LOADS, RECREATED_LOAD, SimPlan, SimVerdict, simulate
from kalda.sim.transaction_storm import PLANS as TRANSACTION_PLANS
from kalda.sim.transaction_storm import simulate_transactions

# One function applied to many arguments in several processes, which end with this one.

Result = TypeVar("Result")


@contextmanager
def each(function: Callable[[int], Result], numbers: Sequence[int], jobs: int) -> Iterator[Iterator[Result]]:
    """The results of `function` for all numbers, in their order, from `jobs` processes.

    Leaving the context early, as by Ctrl-C, terminates the workers and does not wait for calls in progress. Where this
    process is killed, a worker ends after its current call, when it cannot send the result. (Workers of an executor
    would continue, and then wait for ever.)
    """
    if jobs == 1:
        yield map(function, numbers)
        return
    workers: dict[Connection, Process] = {}
    try:
        for _ in range(min(jobs, len(numbers))):
            ours, theirs = Pipe()
            worker = Process(target=_work, args=(function, theirs, [*workers, ours]), daemon=True)
            workers[ours] = worker
            with held_signals():
                worker.start()
            theirs.close()
        yield _in_order(list(workers), numbers)
    finally:
        for ours, worker in workers.items():
            ours.close()
            if worker.pid is not None:
                worker.terminate()
                worker.join()


def _in_order(workers: list[Connection], numbers: Sequence[int]) -> Iterator[Result]:
    busy: dict[Connection, int] = {}
    results: dict[int, Result] = {}
    next_index = 0
    for index in range(len(numbers)):
        while index not in results:
            for worker in workers:
                if worker not in busy and next_index < len(numbers):
                    busy[worker] = next_index
                    with suppress(OSError):  # the worker has died; `recv` below raises
                        worker.send(numbers[next_index])
                    next_index += 1
            ready = wait(list(busy))
            for worker in [worker for worker in busy if worker in ready]:
                done = busy.pop(worker)
                try:
                    results[done] = worker.recv()
                except (EOFError, OSError):
                    raise Failure(f"the process that computed {numbers[done]} has died") from None
        yield results.pop(index)


def _work(function: Callable[[int], object], parent: Connection, others: list[Connection]) -> None:
    """The loop of a worker, until the parent closes the connection. Ctrl-C is ignored, as the parent handles it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for other in others:
        other.close()  # as long as a worker holds the parent's end of a pipe, the parent's death does not close it
    with suppress(EOFError, OSError):
        while True:
            number: int = parent.recv()
            parent.send(function(number))


_NONE = "none"
_ALL_LOADS = (*LOADS, *GROUP_LOADS, RECREATED_LOAD)


def _kinds(text: str) -> tuple[str, ...]:
    """Faults by name. Raises `click.UsageError`."""
    if text == _NONE:
        return ()
    kinds = tuple(part.strip() for part in text.split(",") if part.strip())
    for kind in kinds:
        if kind not in faults.ALL:
            raise click.UsageError(f"no such fault: {kind}; give some of {','.join(faults.ALL)}, or {_NONE}")
    return kinds


def _loads(text: str) -> tuple[str, ...]:
    """Loads by name. Raises `click.UsageError`."""
    loads = () if text == _NONE else tuple(part.strip() for part in text.split(",") if part.strip())
    for load in loads:
        if load not in _ALL_LOADS:
            raise click.UsageError(f"no such load: {load}; give some of {','.join(_ALL_LOADS)}, or {_NONE}")
    return loads


_nodes = click.option("--nodes", type=click.IntRange(1, 9), default=3, show_default=True, help="Nodes of the cluster.")
_faults = click.option(
    "--faults",
    "kinds",
    default=",".join(faults.ALL),
    metavar="LIST",
    help=f"Kinds of faults; or {_NONE}. [default: all]",
)
_works = click.option(
    "--loads", default=",".join(LOADS), metavar="LIST", help=f"Kinds of additional load; or {_NONE}. [default: all]"
)
_duration = click.option(
    "--duration",
    "duration_s",
    type=Seconds(min=0),
    default=20.0,
    show_default=True,
    help="Virtual time of faults: 20s, 5m, or a number of seconds.",
)
_jobs = click.option(
    "--jobs",
    type=click.IntRange(1),
    default=lambda: len(os.sched_getaffinity(0)),
    show_default="one for each core",
    help="Number of processes that run the seeds.",
)


@click.group(cls=Noun)
def sim() -> None:
    """Simulate whole clusters in virtual time; the faults follow from a seed.

    \b
    Examples:
      kalda sim run --seeds 100 --nodes 3
      kalda sim run --seeds 500 --nodes 1 --faults power,fuse,kill
      kalda sim replay 42 --nodes 3
      kalda sim quorum --seeds 1000
      kalda sim controllers --seeds 1000
      kalda sim group --members 5000 --partitions 15000
    """


@sim.command("run")
@click.option("--seeds", type=click.IntRange(1), default=20, show_default=True, help="Number of seeds.")
@click.option("--from", "first", type=click.IntRange(0), default=0, show_default=True, help="The first seed.")
@_nodes
@_faults
@_works
@_duration
@_jobs
@json_option
def run_command(seeds: int, first: int, nodes: int, kinds: str, loads: str, duration_s: float, jobs: int) -> None:
    """Run seeds, and print those that violate an invariant. Exits with 1 if any does.

    \b
    Example:
      kalda sim run --seeds 20 --nodes 3
    """
    run = partial(_run, nodes, _kinds(kinds), _loads(loads), duration_s)
    if _run_seeds(run, seeds, first, jobs):
        click.echo("kalda sim replay SEED, with the same options, prints what happened.", err=is_json())
        sys.exit(1)


def _run(nodes: int, kinds: tuple[str, ...], loads: tuple[str, ...], duration_s: float, seed: int) -> tuple[str, int]:
    verdict = simulate(SimPlan(seed, nodes, kinds, duration_s, loads))
    return verdict.violation, verdict.acked


def _run_seeds(run: Callable[[int], tuple[str, int | None]], seeds: int, first: int, jobs: int) -> bool:
    """Print the seeds that fail, and a line of all. `run` returns the violated invariant, empty for none, and how many
    records were acknowledged, None where that is not counted. Whether a seed has failed."""
    began, plans = time.monotonic(), range(first, first + seeds)
    failed: list[dict[str, int | str]] = []
    counts: list[int] = []
    done = 0
    line = ProgressLine(lambda seconds: _so_far(done, seeds, len(failed), seconds))
    with each(run, plans, jobs) as results, line.ticking():  # a fork copies no other thread
        for seed, (violation, acked) in zip(plans, results, strict=True):
            done += 1
            if acked is not None:
                counts.append(acked)
            if violation:
                failed.append({"seed": seed, "violation": violation})
                line.clear()
                if not is_json():
                    click.echo(f"seed {seed}: {violation}")
    if is_json():
        acknowledged = {"acknowledged": sum(counts)} if counts else {}
        print_json({"first": first, "seeds": seeds, "failed": failed, **acknowledged})
    else:
        acknowledged_text = f", {counted(sum(counts), 'record')} acknowledged" if counts else ""
        click.echo(f"{counted(seeds, 'seed')}, {len(failed)} failed{acknowledged_text}, {_rate(seeds, began)}")
    return bool(failed)


def _so_far(done: int, seeds: int, failed: int, seconds: float) -> str:
    left = f", {seconds / done * (seeds - done):.0f} s to go" if done else ""
    return f"{seconds:5.0f} s  {done} of {counted(seeds, 'seed')}, {failed} failed{left}"


def _rate(seeds: int, began: float) -> str:
    return f"{seeds / (time.monotonic() - began) * 60:.0f} seeds/min"


@sim.command("quorum")
@click.option("--seeds", type=click.IntRange(1), default=200, show_default=True, help="Number of seeds.")
@click.option("--from", "first", type=click.IntRange(0), default=0, show_default=True, help="The first seed.")
@_jobs
@json_option
def quorum_command(seeds: int, first: int, jobs: int) -> None:
    """Simulate only the quorum's machines, which runs many more seeds a minute. Exits with 1 if an invariant fails.

    \b
    Example:
      kalda sim quorum --seeds 1000
    """
    _run_small(_storm, seeds, first, jobs)


def _run_small(weather: Callable[[int], str], seeds: int, first: int, jobs: int) -> None:
    """Run a small simulation, which returns the violated invariant, of each seed."""
    if _run_seeds(partial(_uncounted, weather), seeds, first, jobs):
        sys.exit(1)


def _uncounted(weather: Callable[[int], str], seed: int) -> tuple[str, None]:
    return weather(seed), None


def _storm(seed: int) -> str:
    """The invariant that was violated by a storm of faults, or by one of leaders that get no message from their
    successors; empty where none was."""
    try:
        recover(storm(seed))
        stale_leaders(seed)
    except AssertionError as error:
        return str(error) or repr(error)
    return ""


@sim.command("controllers")
@click.option("--seeds", type=click.IntRange(1), default=200, show_default=True, help="How many.")
@click.option("--from", "first", type=click.IntRange(0), default=0, show_default=True, help="The first of them.")
@_jobs
@json_option
def controllers_command(seeds: int, first: int, jobs: int) -> None:
    """Storms and stalls around controllers alone, without brokers' logs. Exits with 1 if an invariant fails.

    \b
    Example:
      kalda sim controllers --seeds 100
    """
    _run_small(_controller_storm, seeds, first, jobs)


def _controller_storm(seed: int) -> str:
    """The invariant that faults around controllers have violated; empty for none."""
    logger = logging.getLogger("kalda")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)  # the faults that they log are brought about
    try:
        controllers.recover(controllers.storm(seed))
        controllers.recover(controllers.stalls(seed))
    except AssertionError as error:
        return str(error) or repr(error)
    finally:
        logger.setLevel(level)
    return ""


@sim.command("transactions")
@click.option("--seeds", type=click.IntRange(1), default=20, show_default=True, help="How many.")
@click.option("--from", "first", type=click.IntRange(0), default=0, show_default=True, help="The first of them.")
@click.option(
    "--plan",
    "plan",
    type=click.Choice(tuple(TRANSACTION_PLANS)),
    default="storm",
    show_default=True,
    help="Faults of all kinds, upgrades of transaction.version, kills of coordinators between records, late markers.",
)
@click.option("--trace", is_flag=True, help="Print what happens in the first of the seeds.")
@_jobs
@json_option
def transactions_command(seeds: int, first: int, plan: str, trace: bool, jobs: int) -> None:
    """Transactions, zombies and consume-transform-produce loops under faults, judged as by `kalda verify`. Exits with 1
    if a rule is violated.

    \b
    Example:
      kalda sim transactions --seeds 20
    """
    if trace:
        verdict = simulate_transactions(replace(TRANSACTION_PLANS[plan], seed=first), _print_line, verbose=True)
        click.echo(verdict.violation or "all rules held")
        sys.exit(0 if verdict.passed else 1)
    _run_small(partial(_transactions, plan), seeds, first, jobs)


def _transactions(plan: str, seed: int) -> str:
    """The rules that a seed violates; empty for none."""
    return simulate_transactions(replace(TRANSACTION_PLANS[plan], seed=seed)).violation


@sim.command("group")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Which seed.")
@_nodes
@click.option("--members", type=click.IntRange(2), default=500, show_default=True, help="Members of the group.")
@click.option(
    "--partitions", type=click.IntRange(1), default=1_500, show_default=True, help="Partitions of its topics."
)
@json_option
def group_command(seed: int, nodes: int, members: int, partitions: int) -> None:
    """A large consumer group (KIP-848): its members join, one leaves, and its coordinator is killed. Exits with 1 if a
    promise is not kept. With 5,000 members over 15,000 partitions it takes about a minute.

    \b
    Example:
      kalda sim group --members 5000 --partitions 15000
    """
    verdict = simulate_large_group(LargeGroupPlan(seed, members, partitions, nodes))
    if is_json():
        print_json({"seed": seed, **asdict(verdict)})
    else:
        click.echo(
            f"stable {verdict.joined_s:.1f} virtual seconds after the first join, {verdict.left_s:.1f} after a member "
            f"left, {verdict.moved_s:.1f} after one left the next coordinator; "
            f"{counted(verdict.heartbeats, 'heartbeat')}"
        )
        click.echo(f"violated: {verdict.violation}" if verdict.violation else "all promises were kept")
    sys.exit(0 if verdict.passed else 1)


@sim.command("replay")
@click.argument("seed", type=click.IntRange(0))
@_nodes
@_faults
@_works
@_duration
@click.option("--quiet", is_flag=True, help="Leave out the nodes' log lines.")
def replay_command(seed: int, nodes: int, kinds: str, loads: str, duration_s: float, quiet: bool) -> None:
    """Print what happens in a seed, one event a line: virtual seconds, node, event. Exits with 1 if an invariant is
    violated.

    \b
    Example:
      kalda sim replay 7 --nodes 3
    """
    plan = SimPlan(seed, nodes, _kinds(kinds), duration_s, _loads(loads))
    verdict = simulate(plan, _print_line, verbose=not quiet)
    click.echo(_summary(verdict))
    if not verdict.passed:
        sys.exit(1)


def _print_line(line: str) -> None:
    """Print a line of the trace. Where stdout is closed, exit at once: an exception would be raised in the simulated
    node that logs the line."""
    try:
        click.echo(line)
    except BrokenPipeError:
        os._exit(1)


def _summary(verdict: SimVerdict) -> str:
    counts = (
        f"{verdict.virtual_s:.1f} virtual seconds, {counted(verdict.acked, 'record')} acknowledged, {verdict.seen} read"
    )
    return f"{counts}; all invariants held" if verdict.passed else f"{counts}\nviolated: {verdict.violation}"
