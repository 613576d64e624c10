"""Clients that are made while the interpreter ends."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import kalda
from kalda import Producer

class Last:
    def __del__(self):
        try:
            Producer({"bootstrap.servers": "127.0.0.1:1"})
        except RuntimeError as error:
            print(type(error).__name__, error)

kalda.last = Last()
"""


def test_a_client_that_is_made_when_no_thread_can_start_is_refused() -> None:
    """Its thread would be waited for without end: the process would stay."""
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.startswith("WrongState the interpreter ends"), ended.stdout + ended.stderr
    assert ended.stderr == ""
