"""Replaces attributes of the product, for a safeguard that is switched off; the product has no code for it."""

from __future__ import annotations

from typing import Any


class Switch:
    """Replaces attributes, and restores them."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Set `owner.name` to `value` until `restore`. Raises `KeyError` where there is no such attribute."""
        self._undo.append((owner, name, vars(owner)[name]))
        setattr(owner, name, value)

    def restore(self) -> None:
        while self._undo:
            setattr(*self._undo.pop())
