"""The blocking admin client: thread-safe, with one I/O thread.

    with Admin({"bootstrap.servers": "localhost:9092"}) as admin:
        admin.create_topics([NewTopic("orders", partitions=12, replication_factor=3)]).check()

Each call takes all items at once and returns an `Outcomes`: a dictionary with a value or an `ApiError` for each item;
`check` raises the first error, `value(item)` that of one item. Calls that are about one thing return it, or raise. What
passes (a controller or a coordinator that moves, a broker that restarts) is repeated until `timeout` seconds have
passed (`default.api.timeout.ms`).
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar, cast

from kalda.base.configs.admin import ADMIN, admin_config
from kalda.base.errors import WrongState
from kalda.client.admin.admin_driven import AdminDriven
from kalda.client.admin.operations import Operations, present, what_of
from kalda.client.transport.config_files import read_config
from kalda.client.transport.faces import BlockingFace
from kalda.client.transport.io_thread import IoThread
from kalda.clientcore.administration import Plan
from kalda.clientcore.consuming.consumer_errors import Operation

if TYPE_CHECKING:
    from typing import Unpack

    from kalda.client.keywords import AdminKeywords

T = TypeVar("T")
P = ParamSpec("P")


def blocking(plan_of: Callable[Concatenate[Operations, P], Plan[T]]) -> Callable[Concatenate[Admin, P], T]:
    """The method of `Admin` that runs the plan of an operation, and waits for its result."""

    def call(self: Admin, /, *args: P.args, **keywords: P.kwargs) -> T:
        plan = plan_of(self._operations, *args, **keywords)
        return self._call(what_of(plan_of), plan, cast("float | None", keywords.get("timeout")))

    present(call, plan_of)
    return call


class Admin(BlockingFace):
    """Administration of a cluster; a context manager that closes it."""

    _driven: AdminDriven
    _first_contact_ms: int | None = None
    """For how long calls wait for the first connection of all; None: as long as for anything else."""

    def __init__(
        self,
        config: Mapping[str, object] | str | os.PathLike[str] | None = None,
        **keywords: Unpack[AdminKeywords],
    ) -> None:
        """`config` has Kafka's keys, or names a properties file; keywords are the keys in snake_case. Raises
        `InvalidConfig`."""
        self._config = settings = admin_config(read_config(ADMIN, config), keywords)
        self._operations = Operations(settings)
        self._driven = AdminDriven(settings, self._host.random, self._now_ms(), self._first_contact_ms)
        self._driven.core.push_metrics(self._host.wall_ms)
        self._io = IoThread(f"kafka-admin-client-thread | {self._driven.client_id}", self._driven)
        self._starting = threading.Lock()
        self._finalizer = weakref.finalize(self, _end, self._driven, self._io)

    def __enter__(self) -> Admin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; calls that run fail. May be called more than once."""
        self._finalizer()
        if self._io.ident is not None and not self._io.was_forked:
            self._io.join()

    @property
    def _default_timeout_ms(self) -> int:
        return self._config.default_api_timeout_ms

    def _changed(self) -> None:
        self._started().wake()

    def _started(self) -> IoThread:
        """The thread. It is started by the first call: a client without calls connects to nothing."""
        with self._starting:
            if self._io.ident is None and not self._driven.is_ending:
                self._io.start()
        return self._io

    def _call(self, what: str, plan: Plan[T], timeout: float | None) -> T:
        if self._io.was_forked:
            raise WrongState("the admin client belongs to the parent process: make one after the fork")
        operation = Operation(what, self._now_ms() + self._operations.total_ms(timeout))
        done = threading.Event()
        operation.on_done = lambda _operation: done.set()
        self._driven.submit(plan, operation)
        self._changed()
        done.wait()
        if operation.error is not None:
            raise operation.error
        result: T = operation.result
        return result

    create_topics = blocking(Operations.create_topics)
    delete_topics = blocking(Operations.delete_topics)
    create_partitions = blocking(Operations.create_partitions)
    list_topics = blocking(Operations.list_topics)
    describe_topics = blocking(Operations.describe_topics)
    list_offsets = blocking(Operations.list_offsets)
    delete_records = blocking(Operations.delete_records)
    elect_leaders = blocking(Operations.elect_leaders)
    alter_reassignments = blocking(Operations.alter_reassignments)
    list_reassignments = blocking(Operations.list_reassignments)
    describe_configs = blocking(Operations.describe_configs)
    alter_configs = blocking(Operations.alter_configs)
    list_config_resources = blocking(Operations.list_config_resources)
    describe_cluster = blocking(Operations.describe_cluster)
    unregister_broker = blocking(Operations.unregister_broker)
    unregister_controller = blocking(Operations.unregister_controller)
    describe_log_dirs = blocking(Operations.describe_log_dirs)
    alter_replica_log_dirs = blocking(Operations.alter_replica_log_dirs)
    describe_quorum = blocking(Operations.describe_quorum)
    add_voter = blocking(Operations.add_voter)
    remove_voter = blocking(Operations.remove_voter)
    describe_features = blocking(Operations.describe_features)
    update_features = blocking(Operations.update_features)
    list_groups = blocking(Operations.list_groups)
    describe_groups = blocking(Operations.describe_groups)
    delete_groups = blocking(Operations.delete_groups)
    list_group_offsets = blocking(Operations.list_group_offsets)
    alter_group_offsets = blocking(Operations.alter_group_offsets)
    delete_group_offsets = blocking(Operations.delete_group_offsets)
    list_share_group_offsets = blocking(Operations.list_share_group_offsets)
    alter_share_group_offsets = blocking(Operations.alter_share_group_offsets)
    delete_share_group_offsets = blocking(Operations.delete_share_group_offsets)
    remove_members = blocking(Operations.remove_members)
    list_transactions = blocking(Operations.list_transactions)
    describe_transactions = blocking(Operations.describe_transactions)
    describe_producers = blocking(Operations.describe_producers)
    abort_transaction = blocking(Operations.abort_transaction)
    fence_producers = blocking(Operations.fence_producers)
    describe_client_quotas = blocking(Operations.describe_client_quotas)
    alter_client_quotas = blocking(Operations.alter_client_quotas)
    describe_acls = blocking(Operations.describe_acls)
    create_acls = blocking(Operations.create_acls)
    delete_acls = blocking(Operations.delete_acls)
    describe_scram_credentials = blocking(Operations.describe_scram_credentials)
    alter_scram_credentials = blocking(Operations.alter_scram_credentials)
    create_delegation_token = blocking(Operations.create_delegation_token)
    describe_delegation_tokens = blocking(Operations.describe_delegation_tokens)
    renew_delegation_token = blocking(Operations.renew_delegation_token)
    expire_delegation_token = blocking(Operations.expire_delegation_token)


def _end(driven: AdminDriven, io: IoThread) -> None:
    driven.is_ending = True
    if io.ident is None:
        io.end_unstarted()
    else:
        io.wake()
