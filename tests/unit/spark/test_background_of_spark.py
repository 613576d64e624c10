"""The background class: a process and those that it starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kalda.spark import background
from kalda.spark.background import enter_background

_SHOWN = """
import os
print(os.sched_getscheduler(0), os.getsid(0) == os.getpid(), open("/proc/self/autogroup").read())
"""


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="needs Linux with autogroups")
@pytest.mark.parametrize("has_autogroups", [True, False])
def test_a_process_in_the_background_gets_what_others_leave(
    monkeypatch: pytest.MonkeyPatch, has_autogroups: bool
) -> None:
    monkeypatch.setattr(background, "_has_autogroups", lambda: has_autogroups)
    shown = subprocess.check_output([sys.executable, "-c", _SHOWN], preexec_fn=enter_background, text=True).split()
    assert shown[:2] == [str(os.SCHED_IDLE), str(has_autogroups)]
    # A process that began no session may be in no autogroup, as in a container: its file is empty.
    assert not has_autogroups or shown[-1] == "19"


def test_without_that_class_it_has_the_lowest_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse, raising=False)
    command = [sys.executable, "-c", "import os; print(os.nice(0))"]
    assert subprocess.check_output(command, preexec_fn=enter_background, text=True).strip() == "19"


def test_processes_that_could_run_and_hardly_do_wait_for_the_cpu(tmp_path: Path) -> None:
    def threads(state: str, *ticks: int) -> None:
        for number, used in enumerate(ticks):
            folder = tmp_path / "7" / "task" / str(number)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "stat").write_text(f"{number} (Executor (1)) {state} 1 1 1 0 -1 0 0 0 0 0 {used} {used} 0 0")

    own = tmp_path / "5" / "task" / "5"
    own.mkdir(parents=True)
    (own / "children").write_text("7 ")
    wait = background.CpuWait(tmp_path, 5)
    threads("R", 100, 100)
    assert not wait.is_long(10.0)  # nothing to compare with
    threads("R", 102, 101)
    assert wait.is_long(11.0)  # 0.06 of a core
    threads("S", 102, 101)
    assert not wait.is_long(12.0)  # they have nothing to do
    threads("R", 110, 110)
    assert not wait.is_long(13.0)
    assert not background.CpuWait(tmp_path, 6).is_long(14.0)  # a process without others
