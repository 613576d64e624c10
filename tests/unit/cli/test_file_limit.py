"""The limit of open files of a node."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import resource
from kalda.broker.process import loggers as logs
from kalda.cli.server import _allow_many_files
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 700))
logs.set_up("INFO", False)
_allow_many_files()
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_it_is_raised_to_the_maximum_and_logged() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    logged, limits = done.stdout.splitlines()
    assert limits == "(700, 700)"
    assert "WARNING 700 files and connections can be open at a time" in logged
