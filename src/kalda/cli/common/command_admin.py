"""The admin client of a command: `Admin` with the configuration of the command, which its other clients share.

A command fails soon where no node answers at the address (exit code 3): a node may be starting, but the address may
also be wrong. It pushes no metrics, and what it asks for is bounded in all by `--request-timeout-ms`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from kalda.base.configs.admin import ADMIN
from kalda.base.errors import ErrorCode
from kalda.base.ids import TopicPartition
from kalda.client.admin.admin_client import Admin
from kalda.clientcore.administration import Outcomes, Plan
from kalda.clientcore.connections.metadata import Topic, parse_bootstrap

if TYPE_CHECKING:
    from kalda.client.admin.configs import ConfigResource

T = TypeVar("T")
_CONNECT_MS = 5_000


class CommandAdmin(Admin):
    """A context manager that closes its connections. Connects with the first call."""

    _first_contact_ms = 1_500

    def __init__(
        self,
        bootstrap: str | Iterable[str],
        *,
        config: Mapping[str, object] | None = None,
        client_id: str = "kalda",
        timeout_ms: int = 30_000,
        connect_timeout_ms: int = _CONNECT_MS,
        of_controllers: bool = False,
    ) -> None:
        """`config` has keys of clients (`security.protocol`); those that an admin client does not have are ignored.
        With `of_controllers` it connects to controllers (KIP-919). Raises `ValueError` for a malformed address, and
        `InvalidConfig`."""
        self.timeout_ms = timeout_ms
        key = "bootstrap.controllers" if of_controllers else "bootstrap.servers"
        servers = ",".join(map(str, parse_bootstrap(bootstrap)))
        self.config: dict[str, object] = {"client.id": client_id, **(config or {}), key: servers}
        """Keys of any client, for producers and consumers of the same cluster."""
        super().__init__(
            {
                "socket.connection.setup.timeout.ms": connect_timeout_ms,
                "socket.connection.setup.timeout.max.ms": connect_timeout_ms,
                **{name: value for name, value in self.config.items() if name in ADMIN},
                "default.api.timeout.ms": timeout_ms,
                "enable.metrics.push": False,
            }
        )

    def __enter__(self) -> CommandAdmin:
        return self

    def run(self, what: str, plan: Plan[T], timeout_ms: int | None = None) -> T:
        """The result of a plan that `Admin` has no call for. Raises `ApiError`."""
        return self._call(what, plan, None if timeout_ms is None else timeout_ms / 1000)

    def live_brokers(self) -> list[int]:
        """The ids of the brokers that are in service, sorted. Raises `ApiError`."""
        return [node.node_id for node in self.describe_cluster().nodes]

    def topics(self, names: Collection[str]) -> Outcomes[str, Topic]:
        """Topics as they are now: an unknown one is not waited for."""
        from kalda.client.admin.topics import describe_topics

        final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,)
        return self.run("describing topics", describe_topics(names, final=final))

    def topic(self, name: str) -> Topic:
        """A topic with its partitions; one that may be new is waited for a moment. Raises `ApiError`."""
        from kalda.client.admin.topics import existing_topics

        return self.run("the topic's metadata", existing_topics([name])).topics[name]

    def partitions(self, name: str) -> list[TopicPartition]:
        """All partitions of a topic. Raises `ApiError` where the topic does not exist."""
        return [TopicPartition(name, partition.partition) for partition in self.topic(name).partitions]

    def set_configs(self, resource: ConfigResource, values: Mapping[str, str], timeout_ms: int | None = None) -> None:
        """Set these configs and no others. Raises `ApiError`."""
        from kalda.base.configs.resources import ConfigOperation
        from kalda.client.admin.configs import Alteration

        changes = [Alteration(name, ConfigOperation.SET, value) for name, value in values.items()]
        self.alter_configs({resource: changes}, timeout=None if timeout_ms is None else timeout_ms / 1000).check()

    def wait_for_leaders(self, partitions: Collection[TopicPartition]) -> None:
        """Wait until each partition has a leader. Raises `ApiError`."""
        from kalda.client.admin.topics import wait_for_leaders

        self.run("the leaders of partitions", wait_for_leaders(partitions))

    def offsets_at(
        self, partitions: Collection[TopicPartition], mark: int, *, read_committed: bool = False
    ) -> dict[TopicPartition, int]:
        """The offset of each partition at `mark`, a timestamp in ms or an `OffsetSpec`; the latest offset where every
        record that a consumer may see is older. Raises `ApiError`."""
        from kalda.client.admin.offsets import offsets_at

        timeout_ms = self._operations.request_ms(None)
        plan = offsets_at(partitions, mark, read_committed=read_committed, timeout_ms=timeout_ms)
        return self.run("listing offsets", plan)
