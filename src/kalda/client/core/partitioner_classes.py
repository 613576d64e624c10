"""What `partitioner.class` may be: an object, its class, the name of a Python class, or Kafka's own partitioner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Final

from kalda.base.configs.definition import InvalidConfig
from kalda.client.core.cluster_values import Partition

_KAFKAS: Final = "org.apache.kafka."
_ROUND_ROBIN: Final = (
    "org.apache.kafka.clients.producer.RoundRobinPartitioner", "RoundRobinPartitioner", "roundrobin", "round_robin",
)  # fmt: skip


class RoundRobinPartitioner:
    """Kafka's RoundRobinPartitioner: the records of a topic, whatever their keys, go to its partitions in turn. Those
    without a leader are left out while others have one."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def among(self, topic: str, partitions: Sequence[Partition]) -> int:
        """The next partition of a topic."""
        count = self._counts.get(topic, 0)
        self._counts[topic] = count + 1
        available = [each.partition for each in partitions if each.leader >= 0]
        return available[count % len(available)] if available else count % len(partitions)

    def partition(self, topic: str, _key: Any, _key_bytes: bytes | None, _value: Any, partitions: int) -> int:
        """The next partition, where all have leaders."""
        count = self._counts.get(topic, 0)
        self._counts[topic] = count + 1
        return count % partitions


def partitioner_of(given: object, configs: Mapping[str, object]) -> Any:
    """The partitioner; None: the built-in one. A class is called without arguments, and `configure(configs)` of the
    object, where it has that. Raises `InvalidConfig`."""
    if given is None:
        return None
    if isinstance(given, str):
        given = RoundRobinPartitioner if given in _ROUND_ROBIN else _imported(given)
    if isinstance(given, type):
        try:
            given = given()
            configure = getattr(given, "configure", None)
            if callable(configure):
                configure(configs)
        except Exception as error:
            raise InvalidConfig(f"partitioner.class: the partitioner cannot be made: {error!r}") from error
    if not callable(getattr(given, "partition", None)):
        raise InvalidConfig(f"partitioner.class: an object with partition(...) is expected, not {given!r}")
    return given


def _imported(name: str) -> object:
    """The object of a name `package.module.Class`, or `package.module:Class`."""
    module, _, attribute = name.replace(":", ".").rpartition(".")
    if name.startswith(_KAFKAS) or not module:
        raise InvalidConfig(
            f"partitioner.class: there is no partitioner {name}; {_ROUND_ROBIN[0]}, the name of a Python class, or an "
            "object with partition(...) is expected"
        )
    try:
        found: object = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InvalidConfig(f"partitioner.class: {name} cannot be imported: {error}") from error
    return found
