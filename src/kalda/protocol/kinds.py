"""Kinds that requests have as numbers, and that callers of clients name: importing them imports no messages."""

from __future__ import annotations

from enum import IntEnum


class ElectionType(IntEnum):
    """PREFERRED elects the first replica, if it is in the ISR. UNCLEAN elects any replica on an active broker where no
    replica of the ISR is active; records may be lost."""

    PREFERRED = 0
    UNCLEAN = 1


class UpgradeType(IntEnum):
    """Whether the level of a feature may rise only, or also fall, and whether a fall may lose metadata."""

    UNKNOWN = 0
    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3
