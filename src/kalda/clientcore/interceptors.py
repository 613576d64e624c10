"""Objects of the application that a client makes, configures and closes.

What `interceptor.classes` names, objects or classes of such, may have `configure(configs)`, called with the client's
keys as they were given. A class that `key.serializer` or one of its like names may have `configure(configs, is_key)`,
which is not called for an object: whoever made that has configured it, as in Kafka. `close()` is called once for each.
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


def codec_of(given: object, method: str, configs: Mapping[str, object], *, is_key: bool) -> object:
    """A class that has the method becomes an object of it that is configured; anything else is as it is."""
    if not isinstance(given, type) or not hasattr(given, method):
        return given
    made = given()
    getattr(made, "configure", _nothing)(configs, is_key)
    return made


def close_all(objects: Iterable[object]) -> None:
    """Close those that have a `close`, each once. What it raises is logged."""
    for each in {id(each): each for each in objects if not isinstance(each, type)}.values():
        try:
            getattr(each, "close", _nothing)()
        except Exception:
            log.exception("%r could not be closed", each)


def _nothing(*_arguments: object) -> None:
    return None
