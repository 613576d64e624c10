"""What `interceptor.classes` of producers and consumers name: objects, or classes of such, with calls of their own.

They may have `configure(configs)`, called with the client's keys as they were given, and `close()`, called once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from kalda.base.configs.definition import InvalidConfig

log = logging.getLogger(__name__)


def interceptors_of(given: Mapping[str, object], calls: str) -> tuple[Any, ...]:
    """The configured objects; `calls` are what they need to have. Raises `InvalidConfig`."""
    found = given.get("interceptor.classes") or ()
    if not isinstance(found, list | tuple) or any(isinstance(each, str) for each in found):
        raise InvalidConfig(f"interceptor.classes: a list of objects or classes with {calls} is expected")
    made = tuple(each() if isinstance(each, type) else each for each in found)
    for each in made:
        getattr(each, "configure", _nothing)(given)
    return made


def close_all(objects: Iterable[object]) -> None:
    """Close those that have a `close`. What it raises is logged."""
    for each in objects:
        try:
            getattr(each, "close", _nothing)()
        except Exception:
            log.exception("%r could not be closed", each)


def _nothing(*_arguments: object) -> None:
    return None
