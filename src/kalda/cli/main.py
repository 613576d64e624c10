"""`kalda`: one program, a command a noun."""

from __future__ import annotations

import sys


def main() -> int:
    """Run a command. `server` goes its own way, without loading a command-line library."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["server"]:
        from kalda.cli.server import run

        return run(arguments[1:])
    from kalda.cli.commands import cli

    cli(prog_name="kalda")
    return 0


if __name__ == "__main__":
    sys.exit(main())
