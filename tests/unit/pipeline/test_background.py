"""The background class: a process and those that it starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kalda.pipeline import background
from kalda.pipeline.background import enter_background

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
