"""What a file or a disk refuses, as a sentence. No command-line library is loaded here: `kalda server` uses it."""

from __future__ import annotations

import errno
import os


def sentence(error: OSError, named: str = "") -> str:
    """`PATH: what is wrong: what to do`, without what is not known of it, and without a path that is already `named`
    before it."""
    said = error.strerror or str(error)
    where = f"{error.filename}: " if error.filename and error.filename != named else ""
    mend = _mend(error.errno)
    return f"{where}{said}{': ' if mend else ''}{mend}"


def _mend(number: int | None) -> str:
    match number:
        case errno.EACCES | errno.EPERM:
            return f"user {os.geteuid()} has no right to it; run this as its owner, or give another path"
        case errno.EROFS:
            return "give a path on another file system"
        case errno.ENOSPC | errno.EDQUOT:
            return "free some space, or give a path on another disk"
        case errno.EMFILE:
            return "allow more open files, with `ulimit -n`"
        case _:
            return ""
