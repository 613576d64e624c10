"""An installation without compiled modules says once what is slower, and what to do."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import kalda
from kalda.network.free_ports import free_ports
from kalda.records._uncompiled import ADVICE

SOURCES = Path(kalda.__file__).parent


@pytest.fixture(scope="module")
def pure(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process with an uncompiled copy of Kalda, and without Cython, as a user has it."""
    copy = tmp_path_factory.mktemp("pure")
    shutil.copytree(SOURCES, copy / "kalda", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (copy / "cython.py").write_text("raise ImportError\n")
    return {**os.environ, "PYTHONPATH": str(copy), "PYTHONSAFEPATH": "1"}


def test_a_node_says_it_once(pure: dict[str, str], tmp_path: Path) -> None:
    [port] = free_ports(1)
    command = [sys.executable, "-m", "kalda", "server", "--port", str(port), "--dir", str(tmp_path / "data")]
    with (
        (tmp_path / "errors").open("w+") as errors,
        subprocess.Popen(command, env=pure, cwd=tmp_path, stdout=subprocess.PIPE, stderr=errors, text=True) as node,
    ):
        try:
            assert node.stdout is not None
            assert node.stdout.readline().startswith("Kalda serves at ")
        finally:
            node.send_signal(signal.SIGTERM)
            node.communicate(timeout=60)
        errors.seek(0)
        assert errors.read() == f"kalda: {ADVICE}\n"


def test_the_version_says_it(pure: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kalda", "version"]
    run = subprocess.run(command, env=pure, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert [line for line in run.stdout.splitlines() if line.endswith(f"no: {ADVICE}")]


def test_an_application_is_warned(pure: dict[str, str], tmp_path: Path) -> None:
    program = "import kalda; print(kalda.__file__); kalda.Producer(bootstrap_servers='127.0.0.1:1').close(0)"
    run = subprocess.run([sys.executable, "-c", program], env=pure, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith(pure["PYTHONPATH"])
    assert run.stderr.count("RuntimeWarning: kalda.records.codec runs uncompiled: records are encoded and decoded") == 1
