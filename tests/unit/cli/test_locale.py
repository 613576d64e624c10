"""Commands where the locale has ASCII only."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SHOWS_ARGUMENTS = "from kalda.cli.main import use_utf8; use_utf8(); import sys; print(sys.argv[1:])"


@pytest.mark.parametrize("mode", [{}, {"PYTHONUTF8": "0"}, {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}])
@pytest.mark.parametrize("locale", ["C", "POSIX"])
def test_arguments_that_are_not_ascii_are_taken_and_shown(locale: str, mode: dict[str, str]) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG", "PYTHON"))}
    done = subprocess.run(
        [sys.executable, "-c", SHOWS_ARGUMENTS, "Größe", "数据"],
        env={**environment, "LC_ALL": locale, **mode},
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.decode() == "['Größe', '数据']\n"
