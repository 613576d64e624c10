"""`kalda demo` as a command: it proves what it says, ends with 0 and leaves no process; Ctrl-C leaves none either."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.compat
QUICK = ("--rate", "100", "--look", "0")


def start(directory: Path, *options: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "kalda", "demo", "--dir", str(directory), *QUICK, *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment},
    )  # fmt: skip


def processes_of(directory: Path) -> list[str]:
    """The command lines of processes that name the directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has ended meanwhile
        if str(directory) in line:
            found.append(line)
    return found


def sums_of(output: str, places: list[str]) -> set[tuple[str, ...]]:
    """Orders, turnover, lost and twice of each place in the table of the proof."""
    lines = {place: line for line in output.splitlines() for place in places if line.strip().startswith(place)}
    assert set(lines) == set(places), output
    found = {tuple(lines[place].split(place)[1].replace(" EUR", "").split()) for place in places}
    assert all(len(row) == 2 or row[2:] == ("0", "0") for row in found), output
    return {row[:2] for row in found}


def check(demo: subprocess.Popen[str], directory: Path, places: list[str]) -> str:
    """Wait for its end, and check what each run shows; returns its output."""
    output, errors = demo.communicate(timeout=600)
    assert demo.returncode == 0, output + errors
    assert not processes_of(directory)
    assert len(sums_of(output, ["made by the shop", *places])) == 1
    for text in ("ada was killed", "ben took over all 6 partitions", "has all records again", "The proof holds"):
        assert text in output
    wide = [line for line in output.splitlines() if len(line.rstrip()) > 80 and str(directory) not in line]
    assert not wide
    assert f"The picture: {directory / 'chart.html'}" in output
    assert (directory / "chart.html").stat().st_size > 10_000
    return output


def test_where_spark_cannot_run_the_story_is_told_and_proven_without_it(tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    demo = start(directory, JAVA_HOME="/nowhere", COLUMNS="200")
    output = check(demo, directory, ["in topic orders", "in topic bills"])
    assert "Without Spark, so without its table of windows and the lake: " in output
    shown = [line.partition("made ")[2] for line in output.splitlines() if " s  made " in line]
    assert shown
    for line in shown:
        made, billed = (int(part.split()[0].replace(",", "")) for part in (line, line.partition("billed ")[2]))
        assert billed <= made


def test_ctrl_c_ends_all_processes(tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    demo = start(directory, "--no-spark")
    assert demo.stdout is not None
    for line in demo.stdout:
        if "the first order was written" in line:
            break
    assert len(processes_of(directory)) >= 4
    demo.send_signal(signal.SIGINT)
    _, errors = demo.communicate(timeout=120)
    assert demo.returncode == 130
    assert errors == "Interrupted.\n"
    assert not processes_of(directory)


def test_a_directory_with_other_files_is_refused(tmp_path: Path) -> None:
    """A lake of the user's too, which has the name of the demo's."""
    (tmp_path / "lake").mkdir()
    demo = start(tmp_path, "--no-spark")
    _, errors = demo.communicate(timeout=60)
    assert demo.returncode == 1
    assert errors == f"kalda: {tmp_path} has lake, and is not of a demo: name a new directory with --dir\n"
    assert [each.name for each in tmp_path.iterdir()] == ["lake"]


@pytest.mark.spark
def test_spark_counts_and_loads_every_order_once(tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    places = ["in topic orders", "in topic bills", "sum of Spark's windows", "in the lake (Parquet)"]
    output = check(start(directory), directory, places)
    assert "Spark's table has" in output
    assert (directory / "chart.png").read_bytes().startswith(b"\x89PNG")
