"""Messages to systemd, and the tags of wheels."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from kalda.cli.server import _notify, notify

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("is_abstract", [False, True])
def test_systemd_receives_the_state(is_abstract: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = f"@kalda-test-{os.getpid()}" if is_abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + path[1:] if is_abstract else path)
        monkeypatch.setenv("NOTIFY_SOCKET", path)
        _notify("READY=1")
        notify("STOPPING=1", "STATUS=ends")
        assert manager.recv(100) == b"READY=1"
        assert manager.recv(100) == b"STOPPING=1\nSTATUS=ends"


def test_a_manager_that_does_not_listen_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    _notify("READY=1")
    assert "systemd could not be notified of READY=1" in caplog.text
    monkeypatch.delenv("NOTIFY_SOCKET")
    _notify("READY=1")
    assert len(caplog.records) == 1


def test_a_wheel_without_a_compiler_is_tagged_as_pure(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    made = subprocess.run(
        [
            sys.executable, "setup.py", "-q", "build", "-b", tmp_path / "build", "egg_info", "-e", tmp_path,
            "bdist_wheel", "-b", tmp_path / "wheel", "-d", tmp_path / "dist",
        ],
        cwd=ROOT, env={**os.environ, "CC": "/nowhere/cc"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "kalda/py.typed" in names
    assert "kalda/records/codec.py" in names
    assert not [name for name in names if name.endswith(".so")]
