"""`kalda sim`: run clusters in the simulator, and look closely at one that broke a promise."""

from __future__ import annotations

import sys
import time

import click

from kalda.sim import faults
from kalda.sim.quorum_storm import calm, storm
from kalda.sim.scenario import Plan, Verdict, simulate

_NONE = "none"


def _kinds(text: str) -> tuple[str, ...]:
    """Faults by name. Raises `click.UsageError`."""
    if text == _NONE:
        return ()
    kinds = tuple(part.strip() for part in text.split(",") if part.strip())
    for kind in kinds:
        if kind not in faults.ALL:
            raise click.UsageError(f"no such fault: {kind}. There are: {', '.join(faults.ALL)}, or {_NONE}")
    return kinds


_nodes = click.option("--nodes", type=click.IntRange(1, 9), default=3, show_default=True, help="Nodes of the cluster.")
_faults = click.option(
    "--faults",
    "kinds",
    default=",".join(faults.ALL),
    metavar="LIST",
    help=f"What befalls it; or {_NONE}. Default: all.",
)
_duration = click.option(
    "--duration", "duration_s", type=float, default=20.0, show_default=True, help="Virtual seconds of faults."
)


@click.group()
def sim() -> None:
    """Whole clusters in virtual time, with faults out of a seed.

    \b
    Examples:
      kalda sim run --seeds 100 --nodes 3
      kalda sim run --seeds 500 --nodes 1 --faults power,fuse,kill
      kalda sim replay 42 --nodes 3
      kalda sim quorum --seeds 1000
    """


@sim.command("run")
@click.option("--seeds", type=click.IntRange(1), default=20, show_default=True, help="How many.")
@click.option("--from", "first", type=click.IntRange(0), default=0, show_default=True, help="The first of them.")
@_nodes
@_faults
@_duration
def run_command(seeds: int, first: int, nodes: int, kinds: str, duration_s: float) -> None:
    """Run seeds, print those that break a promise. Exits with 1 if any does."""
    chosen, began = _kinds(kinds), time.monotonic()
    failed = acked = 0
    for seed in range(first, first + seeds):
        verdict = simulate(Plan(seed, nodes, chosen, duration_s))
        acked += verdict.acked
        if not verdict.kept:
            failed += 1
            click.echo(f"seed {seed}: {verdict.why}")
    rate = seeds / (time.monotonic() - began) * 60
    click.echo(f"{seeds} seeds, {failed} failed, {acked} records acknowledged, {rate:.0f} seeds/min")
    if failed:
        click.echo("kalda sim replay SEED, with the same options, tells what happened.")
        sys.exit(1)


@sim.command("quorum")
@click.option("--seeds", type=click.IntRange(1), default=200, show_default=True, help="How many.")
@click.option("--from", "first", type=click.IntRange(0), default=0, show_default=True, help="The first of them.")
def quorum_command(seeds: int, first: int) -> None:
    """Storms over the quorum's machines alone, many more a minute. Exits with 1 if a promise is broken."""
    began, failed = time.monotonic(), 0
    for seed in range(first, first + seeds):
        try:
            calm(storm(seed))
        except AssertionError as error:
            failed += 1
            click.echo(f"seed {seed}: {error}")
    click.echo(f"{seeds} seeds, {failed} failed, {seeds / (time.monotonic() - began) * 60:.0f} seeds/min")
    if failed:
        sys.exit(1)


@sim.command("replay")
@click.argument("seed", type=click.IntRange(0))
@_nodes
@_faults
@_duration
@click.option("--quiet", is_flag=True, help="Without what the nodes log.")
def replay_command(seed: int, nodes: int, kinds: str, duration_s: float, quiet: bool) -> None:
    """Tell what happens in a seed, line by line: virtual seconds, who, what. Exits with 1 if it breaks a promise."""
    verdict = simulate(Plan(seed, nodes, _kinds(kinds), duration_s), click.echo, verbose=not quiet)
    click.echo(_summary(verdict))
    if not verdict.kept:
        sys.exit(1)


def _summary(verdict: Verdict) -> str:
    told = f"{verdict.virtual_s:.1f} virtual seconds, {verdict.acked} records acknowledged, {verdict.seen} read"
    return f"{told}; every promise was kept" if verdict.kept else f"{told}\nbroken: {verdict.why}"
