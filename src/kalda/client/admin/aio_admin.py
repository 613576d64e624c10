"""The asyncio admin client: the calls of the blocking one, as coroutines, on the loop of its user."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

from kalda.base.configs.admin import ADMIN, admin_config
from kalda.client.admin.admin_driven import AdminDriven
from kalda.client.admin.operations import Operations, present, what_of
from kalda.client.transport.aio_face import AioFace
from kalda.client.transport.config_files import read_config
from kalda.clientcore.administration import Plan
from kalda.clientcore.consuming.consumer_errors import Operation

if TYPE_CHECKING:
    from typing import Unpack

    from kalda.client.keywords import AdminKeywords

T = TypeVar("T")
P = ParamSpec("P")


def of_asyncio(
    plan_of: Callable[Concatenate[Operations, P], Plan[T]],
) -> Callable[Concatenate[Admin, P], Coroutine[Any, Any, T]]:
    """The method of `Admin` that runs the plan of an operation, and awaits its result."""

    async def call(self: Admin, /, *args: P.args, **keywords: P.kwargs) -> T:
        plan = plan_of(self._operations, *args, **keywords)
        return await self._call(what_of(plan_of), plan, cast("float | None", keywords.get("timeout")))

    present(call, plan_of)
    return call


class Admin(AioFace):
    """Administration of a cluster; an asynchronous context manager that closes it."""

    _driven: AdminDriven
    _what = "admin client"

    def __init__(
        self,
        config: Mapping[str, object] | str | os.PathLike[str] | None = None,
        **keywords: Unpack[AdminKeywords],
    ) -> None:
        """`config` has Kafka's keys, or names a properties file; keywords are the keys in snake_case. Raises
        `InvalidConfig`. Connections are made in the loop of the first call."""
        self._config = settings = admin_config(read_config(ADMIN, config), keywords)
        self._operations = Operations(settings)
        self._driven = AdminDriven(settings, self._host.random, self._now_ms())
        self._driven.core.push_metrics(self._host.wall_ms)

    async def __aenter__(self) -> Admin:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; calls that run fail. May be called more than once."""
        self._driven.is_ending = True
        if self._io is not None:
            self._io.wake()
            await asyncio.shield(self._io.ended)

    @property
    def _default_timeout_ms(self) -> int:
        return self._config.default_api_timeout_ms

    async def _call(self, what: str, plan: Plan[T], timeout: float | None) -> T:
        io, loop = self._started(), asyncio.get_running_loop()
        operation = Operation(what, self._now_ms() + self._operations.total_ms(timeout))
        done: asyncio.Future[None] = loop.create_future()
        operation.on_done = lambda _operation: None if done.done() else done.set_result(None)
        self._driven.submit(plan, operation)
        io.wake()
        await done
        if operation.error is not None:
            raise operation.error
        result: T = operation.result
        return result

    create_topics = of_asyncio(Operations.create_topics)
    delete_topics = of_asyncio(Operations.delete_topics)
    create_partitions = of_asyncio(Operations.create_partitions)
    list_topics = of_asyncio(Operations.list_topics)
    describe_topics = of_asyncio(Operations.describe_topics)
    list_offsets = of_asyncio(Operations.list_offsets)
    delete_records = of_asyncio(Operations.delete_records)
    elect_leaders = of_asyncio(Operations.elect_leaders)
    alter_reassignments = of_asyncio(Operations.alter_reassignments)
    list_reassignments = of_asyncio(Operations.list_reassignments)
    describe_configs = of_asyncio(Operations.describe_configs)
    alter_configs = of_asyncio(Operations.alter_configs)
    list_config_resources = of_asyncio(Operations.list_config_resources)
    describe_cluster = of_asyncio(Operations.describe_cluster)
    unregister_broker = of_asyncio(Operations.unregister_broker)
    unregister_controller = of_asyncio(Operations.unregister_controller)
    describe_log_dirs = of_asyncio(Operations.describe_log_dirs)
    alter_replica_log_dirs = of_asyncio(Operations.alter_replica_log_dirs)
    describe_quorum = of_asyncio(Operations.describe_quorum)
    add_voter = of_asyncio(Operations.add_voter)
    remove_voter = of_asyncio(Operations.remove_voter)
    describe_features = of_asyncio(Operations.describe_features)
    update_features = of_asyncio(Operations.update_features)
    list_groups = of_asyncio(Operations.list_groups)
    describe_groups = of_asyncio(Operations.describe_groups)
    delete_groups = of_asyncio(Operations.delete_groups)
    list_group_offsets = of_asyncio(Operations.list_group_offsets)
    alter_group_offsets = of_asyncio(Operations.alter_group_offsets)
    delete_group_offsets = of_asyncio(Operations.delete_group_offsets)
    list_share_group_offsets = of_asyncio(Operations.list_share_group_offsets)
    alter_share_group_offsets = of_asyncio(Operations.alter_share_group_offsets)
    delete_share_group_offsets = of_asyncio(Operations.delete_share_group_offsets)
    remove_members = of_asyncio(Operations.remove_members)
    list_transactions = of_asyncio(Operations.list_transactions)
    describe_transactions = of_asyncio(Operations.describe_transactions)
    describe_producers = of_asyncio(Operations.describe_producers)
    abort_transaction = of_asyncio(Operations.abort_transaction)
    fence_producers = of_asyncio(Operations.fence_producers)
    describe_client_quotas = of_asyncio(Operations.describe_client_quotas)
    alter_client_quotas = of_asyncio(Operations.alter_client_quotas)
    describe_acls = of_asyncio(Operations.describe_acls)
    create_acls = of_asyncio(Operations.create_acls)
    delete_acls = of_asyncio(Operations.delete_acls)
    describe_scram_credentials = of_asyncio(Operations.describe_scram_credentials)
    alter_scram_credentials = of_asyncio(Operations.alter_scram_credentials)
    create_delegation_token = of_asyncio(Operations.create_delegation_token)
    describe_delegation_tokens = of_asyncio(Operations.describe_delegation_tokens)
    renew_delegation_token = of_asyncio(Operations.renew_delegation_token)
    expire_delegation_token = of_asyncio(Operations.expire_delegation_token)
