"""`kalda demo`: its options, and what it prints around the live screen."""

from __future__ import annotations

import shutil
import signal
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from kalda.cli.common.failures import Failure

if TYPE_CHECKING:
    from rich.console import Console

    from kalda.cli.demo.proof import Found
    from kalda.cli.demo.scene import Scene

DIRECTORY = "kalda-demo"
_MARKER = ".kalda-demo"
_OWN = ("chart.html", "chart.png", "orders", "orders.toml", "python", "nodes", "checkpoints", "lake", "spark-warehouse")
"""What a run leaves in its directory, besides logs; the next run replaces it."""
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@click.command("demo")
@click.option(
    "--dir",
    "directory",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    default=DIRECTORY,
    show_default=True,
    help="Where the nodes' data, the lake and the picture are written; what an earlier run left there is replaced.",
)
@click.option(
    "--rate",
    metavar="N",
    type=click.IntRange(10, 100_000),
    default=1_000,
    show_default=True,
    help="How many orders a second are made.",
)
@click.option(
    "--look",
    metavar="SECONDS",
    type=click.FloatRange(0, 60),
    default=3.0,
    show_default=True,
    help="How long the result of each step is shown.",
)
@click.option("--no-spark", is_flag=True, help="Leave out the windows and the lake, which need Spark and Java.")
def demo(directory: Path, rate: int, look: float, no_spark: bool) -> None:
    """Show what Kalda does, in a minute: a story of orders, with kills.

    Three nodes on free ports of this machine, a group of two that shares the partitions, a member and a node that are
    killed with kill -9, a table of windows and a lake by Spark, a proof that every order is everywhere exactly once,
    and a picture of it all. Exit code 0 only where the proof holds and every process has stopped cleanly.

    \b
    Examples:
      kalda demo
      kalda demo --no-spark --dir /tmp/demo
    """
    from kalda.cli.demo.scene import DemoError
    from kalda.cli.local.layout import LayoutError
    from kalda.cli.local.nodes import StartFailure

    try:
        is_proven = _run(_emptied(directory), rate, look, not no_spark)
    except (DemoError, LayoutError, TimeoutError) as error:
        raise Failure(str(error)) from error
    except StartFailure as error:
        raise Failure(str(error)).also(error.lines[-1] if error.lines else "its log is empty") from error
    if not is_proven:
        raise Failure(f"the proof does not hold, or a process did not stop cleanly; the logs are in {directory}")


def _emptied(directory: Path) -> Path:
    """The directory without what an earlier run left. Another directory that has files is refused: nothing is deleted
    that was not made by a run."""
    directory.mkdir(parents=True, exist_ok=True)
    found = sorted(directory.iterdir())
    if found and not (directory / _MARKER).exists():
        raise Failure(f"{directory} has {found[0].name}, and is not of a demo: name a new directory with --dir")
    for each in found:
        if each.name in _OWN or each.suffix == ".log":
            if each.is_dir():
                shutil.rmtree(each)
            else:
                each.unlink()
    (directory / _MARKER).write_text(
        "A run of `kalda demo` was here; the next one replaces its files.\n", encoding="utf-8"
    )
    return directory


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _run(directory: Path, rate: int, look_s: float, with_spark: bool) -> bool:
    """Whether all was proven and has stopped cleanly."""
    from rich.console import Console

    from kalda.cli.demo.scene import Scene
    from kalda.cli.demo.screen import WIDTH, Screen
    from kalda.cli.demo.story import Story
    from kalda.cli.demo.windows import missing

    console = Console(highlight=False)
    console.width = min(console.width, WIDTH) if console.is_terminal else WIDTH
    for number in _STOPPING:
        signal.signal(number, _interrupt)
    began = time.monotonic()
    lacking = missing() if with_spark else None
    scene = Scene(directory, rate)
    found: list[Found] = []
    with Screen(console, scene) as screen:
        try:
            if lacking is not None:
                console.print(f"Without Spark, so without its table of windows and the lake: {lacking}", markup=False)
            elif with_spark:
                scene.start_spark()  # it takes longest, so it begins first
            found = Story(scene, screen, look_s, began).tell()
        finally:
            for number in _STOPPING:
                signal.signal(number, signal.SIG_IGN)  # the processes that were started are ended, whatever comes
            screen.refresh(scene.now, "all processes are stopped")
            unclean = scene.close(is_told=bool(found))
    return _show(console, scene, found, unclean, time.monotonic() - began)


def _show(console: Console, scene: Scene, found: list[Found], unclean: list[str], seconds: float) -> bool:
    """Print what happened, the proof, and where the pictures are; whether all is as it should be."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from kalda.cli.demo.proof import holds
    from kalda.cli.demo.scene import amount

    if console.is_terminal:
        for mark in scene.recording.marks:
            console.print(f"[dim]{mark.at:5.1f} s[/]  {mark.text}")
    table = Table("every order exactly once", box=SIMPLE_HEAD, padding=(0, 1))
    for name in ("orders", "turnover", "lost", "twice"):
        table.add_column(name, justify="right")
    for each in found:
        checks = ["" if count is None else f"{count:,}" for count in (each.lost, each.twice)]
        table.add_row(each.place, f"{each.orders:,}", amount(each.cents), *checks)
    console.print(table)
    is_proven = holds(found)
    console.print("The proof holds: all are the same." if is_proven else "[red]The proof does not hold.[/]")
    if unclean:
        console.print(f"[red]Not stopped cleanly: {', '.join(unclean)}.[/]")
    else:
        console.print("All processes have stopped cleanly.")
    for path in _draw(scene, found):
        console.print(f"The picture: {path}", soft_wrap=True, markup=False)
    console.print(f"{seconds:.0f} s in all.")
    return is_proven and not unclean


def _draw(scene: Scene, found: list[Found]) -> list[Path]:
    """Write the picture; where it is."""
    from kalda.cli.demo.picture import PROVEN, UNPROVEN, chart_of, save_page, save_png
    from kalda.cli.demo.proof import holds

    chart = chart_of(scene.recording)
    page, png = scene.directory / "chart.html", scene.directory / "chart.png"
    title = PROVEN if holds(found) else UNPROVEN
    save_page(page, title, chart, found)
    return [page, png] if save_png(png, title, chart) else [page]
