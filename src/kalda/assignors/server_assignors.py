"""The assignors of consumer groups and of streams groups, by the name that configs have: Kafka's and of users."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Final, Literal, TypeAlias, cast, overload

from kalda.assignors.range_assignor import RangeAssignor
from kalda.assignors.server_assignor import ServerAssignor
from kalda.assignors.sticky_task_assignor import StickyTaskAssignor
from kalda.assignors.task_assignor import TaskAssignor
from kalda.assignors.uniform_assignor import UniformAssignor
from kalda.base.configs.definition import invalid_value

_ConsumerKey: TypeAlias = Literal["group.consumer.assignors"]
_StreamsKey: TypeAlias = Literal["group.streams.assignors"]
_PACKAGE: Final = "org.apache.kafka.coordinator.group."
_KAFKAS: Final[dict[str, dict[str, type[RangeAssignor] | type[UniformAssignor] | type[StickyTaskAssignor]]]] = {
    "group.consumer.assignors": {
        f"{_PACKAGE}assignor.UniformAssignor": UniformAssignor,
        f"{_PACKAGE}assignor.RangeAssignor": RangeAssignor,
    },
    "group.streams.assignors": {f"{_PACKAGE}streams.assignor.StickyTaskAssignor": StickyTaskAssignor},
}
"""By key, then by the name of Kafka's class."""


@overload
def load_assignors(key: _ConsumerKey, names: Sequence[str]) -> dict[str, ServerAssignor]: ...


@overload
def load_assignors(key: _StreamsKey, names: Sequence[str]) -> dict[str, TaskAssignor]: ...


def load_assignors(key: str, names: Sequence[str]) -> dict[str, ServerAssignor] | dict[str, TaskAssignor]:
    """The assignors that `key` has the value `names` for, by their own names, in this order: the first is the default.

    A name is the one of a Kafka assignor, as `uniform`, or of its class, or `module:Class` of a `ServerAssignor`, or
    for streams groups of a `TaskAssignor`, without arguments. Raises `InvalidConfig` for any other, and where two have
    one name.
    """
    found: dict[str, ServerAssignor | TaskAssignor] = {}
    for name in names:
        assignor = _load(key, name)
        if assignor.name in found:
            raise invalid_value(key, ",".join(names), f"Two assignors are named {assignor.name}.")
        found[assignor.name] = assignor
    return cast("dict[str, ServerAssignor] | dict[str, TaskAssignor]", found)  # `key` says which


def _load(key: str, name: str) -> ServerAssignor | TaskAssignor:
    for java_class, made in _KAFKAS[key].items():
        if name in {made.name, java_class}:
            return made()
    module, colon, attribute = name.partition(":")
    if not colon:
        known = ", ".join(each.name for each in _KAFKAS[key].values())
        raise invalid_value(key, name, f"It is {known}, or module:Class of an assignor in Python.")
    try:
        loaded: object = getattr(import_module(module), attribute)()
    except Exception as error:  # whatever a user's module raises
        raise invalid_value(key, name, f"It cannot be loaded: {type(error).__name__}: {error}") from error
    if not (isinstance(getattr(loaded, "name", None), str) and callable(getattr(loaded, "assign", None))):
        raise invalid_value(key, name, "It has no `name` and `assign`, which an assignor has.")
    return cast("ServerAssignor | TaskAssignor", loaded)  # as far as can be seen without calling it
