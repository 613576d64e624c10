"""The entry point of `kalda`."""

from __future__ import annotations

import os
import sys


def hold_standard_streams() -> None:
    """Open /dev/null for each of stdin, stdout and stderr that the caller has closed (`<&-`).

    Else the next file or socket would get its descriptor, and output would be written to it.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor, which is `fd`
            os.set_inheritable(fd, True)  # as standard streams are, so that child processes have them too
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def use_utf8() -> None:
    """Where the locale has ASCII only (`LC_ALL=C` with `PYTHONUTF8=0`), begin anew in Python's UTF-8 mode: arguments,
    file names and output are UTF-8 then, as where the mode is not forbidden."""
    if sys.getfilesystemencoding() == "ascii":
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


def main() -> int:
    """Run a command. `server` runs without loading click, for a fast start."""
    hold_standard_streams()
    use_utf8()
    arguments = sys.argv[1:]
    try:
        from kalda.records._uncompiled import say_once

        say_once(lambda advice: sys.stderr.write(f"kalda: {advice}\n"))
        if arguments[:1] == ["server"]:
            from kalda.cli.server import run

            return run(arguments[1:])
        from kalda.cli.commands import cli

        cli(prog_name="kalda")
    except KeyboardInterrupt:  # while modules are loaded, before a command or the node handles it
        sys.stderr.write("Interrupted.\n")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
