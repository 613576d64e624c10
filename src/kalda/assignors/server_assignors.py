"""The assignors of consumer groups and of streams groups, by the name that configs have: Kafka's and of users."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any, Final, Literal, TypeAlias, cast, overload

from kalda.assignors.server_assignor import GroupSpec, MemberPartitions, ServerAssignor, TargetAssignment, TaskAssignor
from kalda.assignors.sticky_task_assignor import StickyTaskAssignor
from kalda.assignors.uniform_assignor import UniformAssignor
from kalda.base.background import Steps
from kalda.base.configs.definition import invalid_value
from kalda.base.ids import Uuid


class RangeAssignor:
    """The assignor `range` of KIP-848: of each topic, neighbouring partitions to neighbouring members.

    Members are taken by instance id, static ones first, then by member id. Topics with as many partitions and the same
    subscribers are assigned alike, which is what joins of such topics need. Nothing is sticky but for that order."""

    name = "range"

    def assign(self, spec: GroupSpec) -> Steps[TargetAssignment]:
        """The target of each member; what does not change is the mapping that `spec.current` has."""

        def place(member_id: str) -> tuple[bool, str]:
            instance_id = spec.members[member_id].instance_id
            return (instance_id is None, member_id if instance_id is None else instance_id)

        subscribers: dict[Uuid, int] = {}
        for member in spec.members.values():
            for topic_id in member.topics:
                subscribers[topic_id] = subscribers.get(topic_id, 0) + 1
            yield
        quotas = {topic_id: divmod(spec.topics[topic_id].partitions, count) for topic_id, count in subscribers.items()}
        taken = dict.fromkeys(quotas, 0)
        """Subscribers of each topic that have had theirs."""
        target: TargetAssignment = {}
        for member_id in sorted(spec.members, key=place):
            made: MemberPartitions = {
                topic_id: partitions
                for topic_id in spec.members[member_id].topics
                if (partitions := _range(quotas[topic_id], taken[topic_id]))
            }
            for topic_id in spec.members[member_id].topics:
                taken[topic_id] += 1
            current = spec.current.get(member_id)
            target[member_id] = current if current is not None and current == made else made
            yield
        return target


def _range(quota: tuple[int, int], place: int) -> frozenset[int]:
    """Of the subscriber at `place`: `quota` partitions each, and one more for the first few."""
    least, larger = quota
    start = place * least + min(place, larger)
    return frozenset(range(start, start + least + (place < larger)))


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


Load: TypeAlias = Callable[[str, str], object]
"""Makes the assignor of a class in Python, of a key and `module:Class`."""


def load_class(_: str, path: str) -> object:
    """An assignor of `module:Class`, as it is now. Raises what its module raises, and `ValueError`."""
    module, _, attribute = path.partition(":")
    return made_assignor(getattr(import_module(module), attribute))


def made_assignor(found: Any) -> Any:
    """An object of an assignor's class. Raises `ValueError` where it is none."""
    made = found()
    if not (isinstance(getattr(made, "name", None), str) and callable(getattr(made, "assign", None))):
        raise ValueError("It has no `name` and `assign`, which an assignor has.")
    return made


@overload
def load_assignors(key: _ConsumerKey, names: Sequence[str], load: Load = ...) -> dict[str, ServerAssignor]: ...


@overload
def load_assignors(key: _StreamsKey, names: Sequence[str], load: Load = ...) -> dict[str, TaskAssignor]: ...


def load_assignors(
    key: str, names: Sequence[str], load: Load = load_class
) -> dict[str, ServerAssignor] | dict[str, TaskAssignor]:
    """The assignors that `key` has the value `names` for, by their own names, in this order: the first is the default.

    A name is the one of a Kafka assignor, as `uniform`, or of its class, or `module:Class` of a `ServerAssignor`, or
    for streams groups of a `TaskAssignor`, without arguments. Raises `InvalidConfig` for any other, and where two have
    one name.
    """
    found: dict[str, ServerAssignor | TaskAssignor] = {}
    for name in names:
        assignor = _load(key, name, load)
        if assignor.name in found:
            raise invalid_value(key, ",".join(names), f"Two assignors are named {assignor.name}.")
        found[assignor.name] = assignor
    return cast("dict[str, ServerAssignor] | dict[str, TaskAssignor]", found)  # `key` says which


@cache
def task_assignor_names(value: tuple[str, ...]) -> tuple[str, ...]:
    """By which names groups choose the assignors that `group.streams.assignors` has the value `value` for. Raises
    `InvalidConfig` where a class in Python cannot be loaded."""
    return tuple(load_assignors("group.streams.assignors", value))


def _load(key: str, name: str, load: Load) -> ServerAssignor | TaskAssignor:
    for java_class, made in _KAFKAS[key].items():
        if name in {made.name, java_class}:
            return made()
    if ":" not in name:
        known = ", ".join(each.name for each in _KAFKAS[key].values())
        raise invalid_value(key, name, f"It is {known}, or module:Class of an assignor in Python.")
    try:
        loaded = load(key, name)
    except Exception as error:  # whatever a user's module raises
        raise invalid_value(key, name, f"It cannot be loaded: {type(error).__name__}: {error}") from error
    return cast("ServerAssignor | TaskAssignor", loaded)  # as far as can be seen without calling it
