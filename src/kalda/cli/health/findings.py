"""A finding: what was examined, what was found, and what mends it."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Severity(Enum):
    OK = "ok"
    WARNING = "warning"
    """It works, and will not under load, with time, or for other clients."""
    ERROR = "error"
    """Something does not work now."""


class Finding(NamedTuple):
    check: str
    severity: Severity
    text: str
    """One sentence."""
    mend: str = ""
    """What to do; empty where all is well."""


def ok(check: str, text: str) -> Finding:
    return Finding(check, Severity.OK, text)


def warning(check: str, text: str, mend: str) -> Finding:
    return Finding(check, Severity.WARNING, text, mend)


def error(check: str, text: str, mend: str) -> Finding:
    return Finding(check, Severity.ERROR, text, mend)
