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
import random
import threading
import time
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TypeVar

from kalda.base.configs.admin import ADMIN, admin_config
from kalda.base.configs.resources import ConfigResourceType
from kalda.base.ids import TopicPartition, Uuid
from kalda.client.admin import cluster_plans, group_plans, token_plans, topic_plans
from kalda.client.admin.cluster_plans import ANY_ACL, Acl, AclFilter, QuotaEntity, ScramCredential, ScramUpsertion
from kalda.client.admin.configs import Alteration, ConfigEntry, Resource
from kalda.client.admin.features import Features
from kalda.client.admin.groups import Group, ListedGroup
from kalda.client.admin.nodes import ClusterDescription, LogDir
from kalda.client.admin.offsets import FoundOffset
from kalda.client.admin.quorum import Quorum, VoterListener
from kalda.client.admin.reassignments import Reassignment
from kalda.client.admin.token_plans import Token
from kalda.client.admin.topics import CreatedTopic, NewTopic
from kalda.client.admin.transactions import ActiveProducer, FencedProducer, ListedTransaction, Transaction
from kalda.client.admin_driven import AdminCalls, AdminDriven, partitions_by, positions_by
from kalda.client.channels import monotonic_ms, security_of
from kalda.client.config_files import read_config
from kalda.client.core.administration import Outcomes, Plan
from kalda.client.core.cluster_values import Topic
from kalda.client.core.consumer_errors import Operation
from kalda.client.core.subscription import OffsetAndEpoch
from kalda.client.io_thread import IoThread
from kalda.protocol.messages.admin import UpgradeType
from kalda.protocol.messages.topics import ElectionType

T = TypeVar("T")
Partition = TopicPartition | tuple[str, int]


class Admin(AdminCalls):
    """Administration of a cluster; a context manager that closes it."""

    def __init__(self, config: Mapping[str, object] | str | os.PathLike[str] | None = None, **keywords: object) -> None:
        """`config` has Kafka's keys, or names a properties file; keywords are the keys in snake_case. Raises
        `InvalidConfig`."""
        self._config = settings = admin_config(read_config(ADMIN, config), keywords)
        self._driven = AdminDriven(settings, random.random, monotonic_ms())
        self._driven.push_metrics(lambda: int(time.time() * 1000))
        self._io = IoThread(
            f"kafka-admin-client-thread | {self._driven.client_id}",
            self._driven,
            security_of(settings.values),
            settings.send_buffer_bytes,
            settings.receive_buffer_bytes,
        )
        self._pid = os.getpid()
        self._finalizer = weakref.finalize(self, _end, self._driven, self._io)
        self._io.start()

    def __enter__(self) -> Admin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; calls that run fail. May be called more than once."""
        self._finalizer()
        if self._pid == os.getpid():
            self._io.join()

    def client_instance_id(self, timeout: float | None = None) -> Uuid | None:
        """The id that the cluster has given to this client for its telemetry (KIP-714). Waits for it, and returns None
        where it is not known after `timeout` seconds (default: `default.api.timeout.ms`). Raises `RuntimeError` where
        `enable.metrics.push` is false."""
        from kalda.client.instance_ids import wait_for_id

        limit_s = self._config.default_api_timeout_ms / 1000 if timeout is None else timeout
        return wait_for_id(self._driven.own_metrics, self._io.wake, limit_s)

    def _now_ms(self) -> int:
        return monotonic_ms()

    def _ms(self, timeout: float | None) -> int:
        return self._config.default_api_timeout_ms if timeout is None else int(timeout * 1000)

    def _request_ms(self, timeout: float | None) -> int:
        """For how long a broker may work on one request: no longer than its response is waited for."""
        return min(self._ms(timeout), self._config.request_timeout_ms)

    def _call(self, what: str, plan: Plan[T], timeout: float | None) -> T:
        if self._pid != os.getpid():
            raise RuntimeError("the admin client belongs to the parent process: make one after the fork")
        operation = Operation(what, monotonic_ms() + self._ms(timeout))
        done = threading.Event()
        operation.on_done = lambda _operation: done.set()
        self._driven.submit(plan, operation)
        self._io.wake()
        done.wait()
        if operation.error is not None:
            raise operation.error
        result: T = operation.result
        return result

    def create_topics(
        self, topics: Collection[NewTopic], *, validate_only: bool = False, timeout: float | None = None
    ) -> Outcomes[str, CreatedTopic]:
        """Create topics, or only check whether they could be."""
        return self._call(
            "creating topics",
            topic_plans.create_topics(topics, timeout_ms=self._request_ms(timeout), validate_only=validate_only),
            timeout,
        )

    def delete_topics(self, names: Collection[str], *, timeout: float | None = None) -> Outcomes[str, None]:
        """Delete topics."""
        return self._call(
            "deleting topics", topic_plans.delete_topics(names, timeout_ms=self._request_ms(timeout)), timeout
        )

    def create_partitions(
        self,
        counts: Mapping[str, int],
        *,
        assignments: Mapping[str, Sequence[Sequence[int]]] | None = None,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> Outcomes[str, None]:
        """Add partitions until each topic has its count; `assignments` places the new ones."""
        return self._call(
            "creating partitions",
            topic_plans.create_partitions(
                counts, assignments=assignments or {}, timeout_ms=self._request_ms(timeout), validate_only=validate_only
            ),
            timeout,
        )

    def list_topics(self, *, internal: bool = False, timeout: float | None = None) -> dict[str, Topic]:
        """All topics that this user may see, sorted by name."""
        return self._call("listing topics", topic_plans.list_topics(internal=internal), timeout)

    def describe_topics(self, names: Collection[str], *, timeout: float | None = None) -> Outcomes[str, Topic]:
        """Topics with their partitions, leaders and replicas."""
        return self._call("describing topics", topic_plans.describe_topics(names), timeout)

    def list_offsets(
        self, times: Mapping[Partition, int], *, read_committed: bool = False, timeout: float | None = None
    ) -> Outcomes[TopicPartition, FoundOffset]:
        """For each partition, the first offset at or after a timestamp in ms, or one of `OffsetSpec`."""
        return self._call(
            "listing offsets",
            topic_plans.list_offsets(
                partitions_by(times), read_committed=read_committed, timeout_ms=self._request_ms(timeout)
            ),
            timeout,
        )

    def delete_records(
        self, before: Mapping[Partition, int], *, timeout: float | None = None
    ) -> Outcomes[TopicPartition, int]:
        """Delete the records below an offset, or with -1 below the high watermark; the new log start offsets."""
        return self._call(
            "deleting records",
            topic_plans.delete_records(partitions_by(before), timeout_ms=self._request_ms(timeout)),
            timeout,
        )

    def elect_leaders(
        self,
        partitions: Iterable[Partition] | None = None,
        election: ElectionType = ElectionType.PREFERRED,
        *,
        timeout: float | None = None,
    ) -> Outcomes[TopicPartition, None]:
        """Elect leaders of these partitions; None: of all that need it."""
        return self._call(
            "electing leaders",
            topic_plans.elect_leaders(_partitions(partitions), election, timeout_ms=self._request_ms(timeout)),
            timeout,
        )

    def alter_reassignments(
        self, targets: Mapping[Partition, Sequence[int] | None], *, timeout: float | None = None
    ) -> Outcomes[TopicPartition, None]:
        """Move partitions to these replicas; None cancels a reassignment."""
        return self._call(
            "reassigning partitions",
            topic_plans.alter_reassignments(partitions_by(targets), timeout_ms=self._request_ms(timeout)),
            timeout,
        )

    def list_reassignments(
        self, partitions: Iterable[Partition] | None = None, *, timeout: float | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """The reassignments in progress; None: of all partitions."""
        return self._call(
            "listing reassignments",
            topic_plans.list_reassignments(_partitions(partitions), timeout_ms=self._request_ms(timeout)),
            timeout,
        )

    def describe_configs(
        self, resources: Collection[Resource], *, documentation: bool = False, timeout: float | None = None
    ) -> Outcomes[Resource, dict[str, ConfigEntry]]:
        """The effective configs of topics, brokers, groups and the like, by name."""
        return self._call(
            "describing configs", cluster_plans.describe_configs(resources, documentation=documentation), timeout
        )

    def alter_configs(
        self,
        alterations: Mapping[Resource, Collection[Alteration]],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> Outcomes[Resource, None]:
        """Change these configs and no others."""
        return self._call(
            "altering configs", cluster_plans.alter_configs(alterations, validate_only=validate_only), timeout
        )

    def list_config_resources(
        self, types: Collection[ConfigResourceType] = (), *, timeout: float | None = None
    ) -> list[Resource]:
        """The resources that have configs."""
        return self._call("listing config resources", cluster_plans.list_config_resources(types), timeout)

    def describe_cluster(self, *, fenced: bool = False, timeout: float | None = None) -> ClusterDescription:
        """The cluster's brokers, with `fenced` those that are not in service too."""
        return self._call(
            "describing the cluster",
            cluster_plans.describe_cluster(fenced=fenced, of_controllers=bool(self._config.bootstrap_controllers)),
            timeout,
        )

    def unregister_broker(self, broker_id: int, *, timeout: float | None = None) -> None:
        """Unregister a broker that was removed from the cluster for good."""
        return self._call("unregistering a broker", cluster_plans.unregister_broker(broker_id), timeout)

    def describe_log_dirs(
        self, broker_ids: Collection[int], *, timeout: float | None = None
    ) -> Outcomes[int, list[LogDir]]:
        """The log directories of brokers, with the sizes of their partitions."""
        return self._call("describing log directories", cluster_plans.describe_log_dirs(broker_ids), timeout)

    def alter_replica_log_dirs(
        self, broker_id: int, paths: Mapping[Partition, str], *, timeout: float | None = None
    ) -> Outcomes[TopicPartition, None]:
        """Move replicas of a broker to other directories of it."""
        return self._call(
            "moving replicas", cluster_plans.alter_replica_log_dirs(broker_id, partitions_by(paths)), timeout
        )

    def describe_quorum(self, *, timeout: float | None = None) -> Quorum:
        """The metadata quorum: its leader, voters and observers."""
        return self._call("describing the quorum", cluster_plans.describe_quorum(), timeout)

    def add_voter(
        self, node_id: int, directory_id: Uuid, listeners: Collection[VoterListener], *, timeout: float | None = None
    ) -> None:
        """Make a controller a voter."""
        return self._call(
            "adding a voter",
            cluster_plans.add_voter(node_id, directory_id, listeners, timeout_ms=self._request_ms(timeout)),
            timeout,
        )

    def remove_voter(self, node_id: int, directory_id: Uuid, *, timeout: float | None = None) -> None:
        """Remove a controller from the voters."""
        return self._call("removing a voter", cluster_plans.remove_voter(node_id, directory_id), timeout)

    def describe_features(self, *, timeout: float | None = None) -> Features:
        """The features that the brokers support and the cluster has finalized."""
        return self._call("describing features", cluster_plans.describe_features(), timeout)

    def update_features(
        self,
        levels: Mapping[str, int],
        upgrade_type: UpgradeType = UpgradeType.UPGRADE,
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Finalize these levels, all or none; level 0 turns a feature off."""
        return self._call(
            "updating features",
            cluster_plans.update_features(
                levels, upgrade_type, timeout_ms=self._request_ms(timeout), validate_only=validate_only
            ),
            timeout,
        )

    def list_groups(
        self, *, states: Collection[str] = (), types: Collection[str] = (), timeout: float | None = None
    ) -> dict[str, ListedGroup]:
        """All groups of all coordinators, sorted by name."""
        return self._call("listing groups", group_plans.list_groups(states=states, types=types), timeout)

    def describe_groups(self, group_ids: Collection[str], *, timeout: float | None = None) -> Outcomes[str, Group]:
        """Groups of either protocol, with their members."""
        return self._call("describing groups", group_plans.describe_groups(group_ids), timeout)

    def delete_groups(self, group_ids: Collection[str], *, timeout: float | None = None) -> Outcomes[str, None]:
        """Delete groups without members, with their offsets."""
        return self._call("deleting groups", group_plans.delete_groups(group_ids), timeout)

    def list_group_offsets(
        self,
        group_id: str,
        partitions: Iterable[Partition] | None = None,
        *,
        require_stable: bool = False,
        timeout: float | None = None,
    ) -> Outcomes[TopicPartition, OffsetAndEpoch]:
        """A group's committed offsets; partitions without one are left out. None: of all partitions."""
        return self._call(
            "listing a group's offsets",
            group_plans.list_group_offsets(group_id, _partitions(partitions), require_stable=require_stable),
            timeout,
        )

    def alter_group_offsets(
        self, group_id: str, offsets: Mapping[Partition, OffsetAndEpoch | int], *, timeout: float | None = None
    ) -> Outcomes[TopicPartition, None]:
        """Set the offsets of a group without members."""
        return self._call(
            "altering a group's offsets", group_plans.alter_group_offsets(group_id, positions_by(offsets)), timeout
        )

    def delete_group_offsets(
        self, group_id: str, partitions: Iterable[Partition], *, timeout: float | None = None
    ) -> Outcomes[TopicPartition, None]:
        """Delete a group's offsets of partitions that its members do not read."""
        return self._call(
            "deleting a group's offsets",
            group_plans.delete_group_offsets(group_id, _partitions(partitions) or []),
            timeout,
        )

    def remove_members(
        self,
        group_id: str,
        instance_ids: Collection[str],
        *,
        reason: str = "removed by an administrator",
        timeout: float | None = None,
    ) -> Outcomes[str, None]:
        """Remove static members from a group, by their instance ids."""
        return self._call("removing members", group_plans.remove_members(group_id, instance_ids, reason), timeout)

    def list_transactions(
        self, *, states: Collection[str] = (), producer_ids: Collection[int] = (), timeout: float | None = None
    ) -> dict[str, ListedTransaction]:
        """The transactional ids of all coordinators, sorted."""
        return self._call(
            "listing transactions", group_plans.list_transactions(states=states, producer_ids=producer_ids), timeout
        )

    def describe_transactions(
        self, transactional_ids: Collection[str], *, timeout: float | None = None
    ) -> Outcomes[str, Transaction]:
        """The state of transactional ids; `coordinator` is -1."""
        return self._call("describing transactions", group_plans.describe_transactions(transactional_ids), timeout)

    def describe_producers(
        self, partitions: Iterable[Partition], *, timeout: float | None = None
    ) -> Outcomes[TopicPartition, tuple[ActiveProducer, ...]]:
        """The active producers of partitions, at their leaders."""
        return self._call(
            "describing producers", group_plans.describe_producers(_partitions(partitions) or []), timeout
        )

    def abort_transaction(
        self,
        partition: Partition,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int = -1,
        *,
        timeout: float | None = None,
    ) -> None:
        """End a transaction that hangs in one partition: write an abort marker, past the coordinator."""
        plan = group_plans.abort_transaction(TopicPartition(*partition), producer_id, producer_epoch, coordinator_epoch)
        self._call("aborting a transaction", plan, timeout)

    def fence_producers(
        self, transactional_ids: Collection[str], *, timeout: float | None = None
    ) -> Outcomes[str, FencedProducer]:
        """Abort the ongoing transactions of transactional ids, and fence their producers."""
        return self._call("fencing producers", group_plans.fence_producers(transactional_ids), timeout)

    def describe_client_quotas(
        self, components: Mapping[str, str | bool | None], *, strict: bool = False, timeout: float | None = None
    ) -> dict[QuotaEntity, dict[str, float]]:
        """Quotas by entity. A component matches a name, None the default, True any name."""
        return self._call("describing quotas", cluster_plans.describe_client_quotas(components, strict=strict), timeout)

    def alter_client_quotas(
        self,
        quotas: Mapping[QuotaEntity, Mapping[str, float | None]],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> Outcomes[QuotaEntity, None]:
        """Set quotas of entities; None removes one."""
        return self._call(
            "altering quotas", cluster_plans.alter_client_quotas(quotas, validate_only=validate_only), timeout
        )

    def describe_acls(self, acl_filter: AclFilter = ANY_ACL, *, timeout: float | None = None) -> list[Acl]:
        """The access rules that the filter matches."""
        return self._call("describing ACLs", cluster_plans.describe_acls(acl_filter), timeout)

    def create_acls(self, acls: Collection[Acl], *, timeout: float | None = None) -> Outcomes[Acl, None]:
        """Create access rules."""
        return self._call("creating ACLs", cluster_plans.create_acls(acls), timeout)

    def delete_acls(
        self, filters: Collection[AclFilter], *, timeout: float | None = None
    ) -> Outcomes[AclFilter, list[Acl]]:
        """Delete access rules; those that were deleted, by filter."""
        return self._call("deleting ACLs", cluster_plans.delete_acls(filters), timeout)

    def describe_scram_credentials(
        self, users: Collection[str] | None = None, *, timeout: float | None = None
    ) -> Outcomes[str, list[ScramCredential]]:
        """SCRAM credentials of users; None: of all."""
        return self._call("describing SCRAM credentials", cluster_plans.describe_scram_credentials(users), timeout)

    def alter_scram_credentials(
        self,
        upsertions: Collection[ScramUpsertion] = (),
        deletions: Collection[tuple[str, int]] = (),
        *,
        timeout: float | None = None,
    ) -> Outcomes[str, None]:
        """Set SCRAM credentials, and delete some by user and mechanism."""
        return self._call(
            "altering SCRAM credentials", cluster_plans.alter_scram_credentials(upsertions, deletions), timeout
        )

    def create_delegation_token(
        self,
        *,
        owner: str | None = None,
        renewers: Collection[str] = (),
        max_lifetime_ms: int = -1,
        timeout: float | None = None,
    ) -> Token:
        """A token of the caller, or of `owner`; principals are written `User:alice`. Its `hmac` is a secret."""
        plan = token_plans.create_token(owner=owner, renewers=renewers, max_lifetime_ms=max_lifetime_ms)
        return self._call("creating a delegation token", plan, timeout)

    def describe_delegation_tokens(self, owners: Collection[str] = (), *, timeout: float | None = None) -> list[Token]:
        """The tokens of some owners, or without any, all that the caller may see."""
        return self._call("describing delegation tokens", token_plans.describe_tokens(owners), timeout)

    def renew_delegation_token(self, hmac: bytes, period_ms: int = -1, *, timeout: float | None = None) -> int:
        """When the token expires now, in ms since 1970. A negative period stands for the brokers' own."""
        return self._call("renewing a delegation token", token_plans.renew_token(hmac, period_ms), timeout)

    def expire_delegation_token(self, hmac: bytes, period_ms: int = -1, *, timeout: float | None = None) -> int:
        """When the token expires now, in ms since 1970. With a negative period it is removed at once."""
        return self._call("expiring a delegation token", token_plans.expire_token(hmac, period_ms), timeout)


def _partitions(partitions: Iterable[Partition] | None) -> list[TopicPartition] | None:
    return None if partitions is None else [TopicPartition(*partition) for partition in partitions]


def _end(driven: AdminDriven, io: IoThread) -> None:
    driven.is_ending = True
    io.wake()
