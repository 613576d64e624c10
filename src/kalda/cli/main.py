"""`kalda`: one program, a command a noun."""

from __future__ import annotations

import os
import sys


def hold_standard_streams() -> None:
    """Whatever of stdin, stdout and stderr was closed by the caller (`<&-`) is /dev/null from now on.

    Else the next file or socket would get its number, and what is printed would go there.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
            os.set_inheritable(fd, True)  # as streams are: what this command starts must not find them closed
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def main() -> int:
    """Run a command. `server` goes its own way, without loading a command-line library."""
    hold_standard_streams()
    arguments = sys.argv[1:]
    if arguments[:1] == ["server"]:
        from kalda.cli.server import run

        return run(arguments[1:])
    from kalda.cli.commands import cli

    cli(prog_name="kalda")
    return 0


if __name__ == "__main__":
    sys.exit(main())
