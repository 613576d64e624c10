"""What a file or a disk refuses: a sentence with the path and what to do, in commands and at a node's start."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kalda.cli.commands import cli
from kalda.cli.common.os_errors import sentence
from kalda.cli.local import ports
from kalda.cli.local.single_node import prepare


@pytest.mark.parametrize(
    ("number", "mend"),
    [
        (errno.EACCES, f"user {os.geteuid()} has no right to it; run this as its owner, or give another path"),
        (errno.ENOSPC, "free some space, or give a path on another disk"),
        (errno.EROFS, "give a path on another file system"),
        (errno.EMFILE, "allow more open files, with `ulimit -n`"),
    ],
)
def test_the_sentence_has_the_path_what_is_wrong_and_what_to_do(number: int, mend: str) -> None:
    assert sentence(OSError(number, os.strerror(number), "/data/x")) == f"/data/x: {os.strerror(number)}: {mend}"


def test_what_is_not_known_is_left_out() -> None:
    assert sentence(OSError(errno.EBADF, "Bad file descriptor")) == "Bad file descriptor"
    assert sentence(OSError("of a library")) == "of a library"
    assert sentence(OSError(errno.ENOENT, "No such file", "x"), named="x") == "No such file"


def test_certificates_that_cannot_be_written_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    done = CliRunner().invoke(cli, ["tls", "make", "certificates"])
    assert done.exit_code == 1
    assert done.stderr.startswith("kalda: certificates: Permission denied: user ")


def test_a_port_of_root_is_not_said_to_be_in_use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ports, "is_free", lambda port, host="": port > 1023)
    monkeypatch.setattr(ports, "_listening_inodes", lambda _: set())
    with pytest.raises(
        ValueError, match=rf"port 80 of listener PLAINTEXT is not for user {os.geteuid()}: .*--port \d+"
    ):
        prepare(str(tmp_path / "node"), {}, 80)
    assert not (tmp_path / "node").exists()


def test_a_directory_whose_name_is_not_utf8_is_refused_before_it_is_made(tmp_path: Path) -> None:
    directory = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    with pytest.raises(ValueError, match=r"is not UTF-8, as server\.properties is"):
        prepare(directory, {}, 15_000)
    assert not os.path.exists(directory)


def test_a_line_that_cannot_be_logged_prints_no_traceback() -> None:
    script = (
        "import logging\n"
        "from kalda.broker.process import loggers as logs\n"
        "logs.set_up('INFO', False)\n"
        "logging.getLogger('kalda.node').info('node 1 has stopped')\n"
    )
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-u", "-c", script], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert "Logging error" not in done.stderr
    assert "Traceback" not in done.stderr
