"""Where this user's cache is: links that start Spark sooner, and locks of pipelines in stores."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path


def user_cache(environment: Mapping[str, str] = os.environ) -> Path:
    """The directory `kalda` of the user's cache, which may not exist. The user of a container is often a number that
    has no passwd entry, with a `HOME` that is unset or `/`: a directory among temporary files, readable by that user
    only, is in its place. Raises `PermissionError` where another user has made that one."""
    given = environment.get("XDG_CACHE_HOME")
    if given:
        return Path(given) / "kalda"
    home = environment.get("HOME") or os.path.expanduser("~")
    if os.access(home, os.W_OK):
        return Path(home) / ".cache" / "kalda"
    made = Path(tempfile.gettempdir()) / f"kalda-{os.getuid()}"
    made.mkdir(0o700, exist_ok=True)
    if made.lstat().st_uid != os.getuid():
        raise PermissionError(f"{made} belongs to another user")
    return made
