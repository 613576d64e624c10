"""`.ci/setup` with a Python that only notes what it is asked for, and what `make` would run."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYTHON = """\
#!/bin/sh
printf '%s\\n' "$*" >> "$CALLS"
case "$*" in *"$FAILS"*) exit 1;; esac
case "$*" in *install*) echo Collecting a; echo '  Downloading a-1.whl (5 MB)'; echo 'Successfully installed a-1';; esac
"""


def set_up(
    tmp_path: Path, *arguments: str, fails: str = "no such call", **environment: str
) -> tuple[int, str, list[str]]:
    """Exit code, output, and the calls of Python."""
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON)
    python.chmod(0o755)
    calls = tmp_path / "calls"
    variables = {**os.environ, "CALLS": str(calls), "FAILS": fails, **environment}
    command = [str(ROOT / ".ci" / "setup"), str(tmp_path / "venv"), *arguments]
    done = subprocess.run(
        command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return done.returncode, done.stdout, calls.read_text().splitlines()


def installed(calls: list[str]) -> list[str]:
    return [call.partition(" install ")[2].replace("--progress-bar off ", "") for call in calls if " install " in call]


def test_the_demo_gets_what_it_needs_in_numbered_steps_with_their_times(tmp_path: Path) -> None:
    code, output, calls = set_up(tmp_path, "demo")
    assert code == 0, output
    assert installed(calls) == ["--upgrade pip>=24 setuptools>=77 cython>=3.1", "--editable .[pipeline]"]
    begun = re.findall(r"^setup (\d)/4  (?!done)\S.+$", output, re.MULTILINE)
    ended = re.findall(r"^setup (\d)/4  done in \d+ s$", output, re.MULTILINE)
    assert begun == ended == ["1", "2", "3", "4"]
    assert "  Downloading a-1.whl (5 MB)\nSuccessfully installed a-1\n" in output
    assert "Collecting" not in output


def test_development_adds_to_that_and_builds_nothing_again(tmp_path: Path) -> None:
    code, output, calls = set_up(tmp_path, "dev", SETUP_STEPS="5")
    assert code == 0, output
    assert installed(calls) == ["kalda[dev]"]
    assert output.startswith("setup 5/5  what development needs")


@pytest.mark.parametrize("fails", ["setuptools", "--editable"])
def test_a_failed_install_ends_it(tmp_path: Path, fails: str) -> None:
    code, _, calls = set_up(tmp_path, "demo", fails=fails)
    assert code == 1
    assert fails in installed(calls)[-1]


def test_make_demo_installs_nothing_for_development(tmp_path: Path) -> None:
    command = ["make", "--dry-run", "--no-print-directory", f"VENV={tmp_path}/new", "demo"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    shown = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    assert f'.ci/setup "{tmp_path}/new" demo' in shown
    assert " dev" not in shown
    assert shown.splitlines()[-1] == f"{tmp_path}/new/bin/kalda demo --dir .demo"
