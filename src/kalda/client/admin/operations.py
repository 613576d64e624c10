"""The operations of both admin clients: one table, of which the blocking and the asyncio face are made.

    class Admin: create_topics = blocking(Operations.create_topics)     # in the blocking client
    class Admin: create_topics = of_asyncio(Operations.create_topics)     # in the asyncio client

An operation has the signature and the docstring that users see, and returns the plan that does it. The modules of
plans, with the messages that they need, are imported by the first call: a program that only lists topics pays for no
others.

Not obvious:

- The time that an admin request gives to the broker never exceeds `request.timeout.ms`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from kalda.base.ids import TopicPartition
from kalda.client.admin.acls import ANY_ACL
from kalda.protocol.kinds import ElectionType, UpgradeType

if TYPE_CHECKING:
    from kalda.base.configs.admin import AdminConfig
    from kalda.base.configs.resources import ConfigResourceType
    from kalda.base.ids import Uuid
    from kalda.client.admin.access import ScramCredential, ScramUpsertion, Token
    from kalda.client.admin.acls import Acl, AclFilter
    from kalda.client.admin.configs import Alteration, ConfigEntry, ConfigResource
    from kalda.client.admin.features import Features
    from kalda.client.admin.group_values import Group, ListedGroup
    from kalda.client.admin.groups import ShareGroupOffset
    from kalda.client.admin.nodes import ClusterDescription, LogDir
    from kalda.client.admin.quorum import Quorum, VoterListener
    from kalda.client.admin.quotas import QuotaEntity
    from kalda.client.admin.reassignments import Reassignment
    from kalda.client.admin.topics import CreatedTopic, NewTopic
    from kalda.client.admin.transactions import ActiveProducer, FencedProducer, ListedTransaction, Transaction
    from kalda.clientcore.administration import Outcomes, Plan
    from kalda.clientcore.connections.metadata import FoundOffset, Topic
    from kalda.clientcore.consuming.subscription import OffsetAndEpoch

Partition = TypeVar("Partition", bound=tuple[str, int])
"""A `TopicPartition`, or a pair."""
F = TypeVar("F", bound=Callable[..., Any])


_WHAT: dict[str, str] = {}
"""The words for each operation in errors: "creating topics"."""


def operation(what: str) -> Callable[[F], F]:
    """A row of the table, with its words."""

    def register(plan_of: F) -> F:
        _WHAT[plan_of.__name__] = what
        return plan_of

    return register


def what_of(plan_of: Callable[..., Any]) -> str:
    """The words for an operation in errors."""
    return _WHAT[plan_of.__name__]


def present(call: Callable[..., Any], plan_of: Callable[..., Any]) -> None:
    """Give the method of a face the name, the docstring and the signature of its operation. What the operation returns
    as a `Plan[...]`, the face returns."""
    call.__name__ = plan_of.__name__
    call.__qualname__ = f"Admin.{plan_of.__name__}"
    call.__doc__ = plan_of.__doc__
    signature = inspect.signature(plan_of)
    returned = signature.return_annotation.removeprefix("Plan[").removesuffix("]")
    call.__signature__ = signature.replace(return_annotation=returned)  # type: ignore[attr-defined]


class Operations:
    """Each call returns a plan. `timeout` is in seconds; None stands for `default.api.timeout.ms`."""

    def __init__(self, config: AdminConfig) -> None:
        self._config = config

    def total_ms(self, timeout: float | None) -> int:
        """How long an operation may take with all its attempts."""
        return self._config.default_api_timeout_ms if timeout is None else int(timeout * 1000)

    def request_ms(self, timeout: float | None) -> int:
        """For how long a broker may work on one request: no longer than its response is waited for."""
        return min(self.total_ms(timeout), self._config.request_timeout_ms)

    @operation("creating topics")
    def create_topics(
        self, topics: Collection[NewTopic], *, validate_only: bool = False, timeout: float | None = None
    ) -> Plan[Outcomes[str, CreatedTopic]]:
        """Create topics, or only check whether they could be."""
        from kalda.client.admin.topics import create_topics

        return create_topics(topics, timeout_ms=self.request_ms(timeout), validate_only=validate_only)

    @operation("deleting topics")
    def delete_topics(self, names: Collection[str], *, timeout: float | None = None) -> Plan[Outcomes[str, None]]:
        """Delete topics."""
        from kalda.client.admin.topics import delete_topics

        return delete_topics(names, timeout_ms=self.request_ms(timeout))

    @operation("creating partitions")
    def create_partitions(
        self,
        counts: Mapping[str, int],
        *,
        assignments: Mapping[str, Sequence[Sequence[int]]] | None = None,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> Plan[Outcomes[str, None]]:
        """Add partitions until each topic has its count; `assignments` places the new ones."""
        from kalda.client.admin.topics import create_partitions

        return create_partitions(
            counts, assignments=assignments or {}, timeout_ms=self.request_ms(timeout), validate_only=validate_only
        )

    @operation("listing topics")
    def list_topics(self, *, internal: bool = False, timeout: float | None = None) -> Plan[dict[str, Topic]]:
        """All topics that this user may see, sorted by name."""
        from kalda.client.admin.topics import list_topics

        return list_topics(internal=internal)

    @operation("describing topics")
    def describe_topics(self, names: Collection[str], *, timeout: float | None = None) -> Plan[Outcomes[str, Topic]]:
        """Topics with their partitions, leaders and replicas."""
        from kalda.client.admin.topics import describe_topics

        return describe_topics(names)

    @operation("listing offsets")
    def list_offsets(
        self, times: Mapping[Partition, int], *, read_committed: bool = False, timeout: float | None = None
    ) -> Plan[Outcomes[TopicPartition, FoundOffset]]:
        """For each partition, the first offset at or after a timestamp in ms, or one of `OffsetSpec`."""
        from kalda.client.admin.offsets import list_offsets

        return list_offsets(partitions_by(times), read_committed=read_committed, timeout_ms=self.request_ms(timeout))

    @operation("deleting records")
    def delete_records(
        self, before: Mapping[Partition, int], *, timeout: float | None = None
    ) -> Plan[Outcomes[TopicPartition, int]]:
        """Delete the records below an offset, or with -1 below the high watermark; the new log start offsets."""
        from kalda.client.admin.offsets import delete_records

        return delete_records(partitions_by(before), timeout_ms=self.request_ms(timeout))

    @operation("electing leaders")
    def elect_leaders(
        self,
        partitions: Iterable[Partition] | None = None,
        election: ElectionType = ElectionType.PREFERRED,
        *,
        timeout: float | None = None,
    ) -> Plan[Outcomes[TopicPartition, None]]:
        """Elect leaders of these partitions; None: of all that need it."""
        from kalda.client.admin.reassignments import elect_leaders

        return elect_leaders(partitions_of(partitions), election, timeout_ms=self.request_ms(timeout))

    @operation("reassigning partitions")
    def alter_reassignments(
        self,
        targets: Mapping[Partition, Sequence[int] | None],
        *,
        allow_replication_factor_change: bool = True,
        timeout: float | None = None,
    ) -> Plan[Outcomes[TopicPartition, None]]:
        """Move partitions to these replicas; None cancels a reassignment."""
        from kalda.client.admin.reassignments import alter_reassignments

        return alter_reassignments(
            partitions_by(targets),
            timeout_ms=self.request_ms(timeout),
            allow_replication_factor_change=allow_replication_factor_change,
        )

    @operation("listing reassignments")
    def list_reassignments(
        self, partitions: Iterable[Partition] | None = None, *, timeout: float | None = None
    ) -> Plan[dict[TopicPartition, Reassignment]]:
        """The reassignments in progress; None: of all partitions."""
        from kalda.client.admin.reassignments import list_reassignments

        return list_reassignments(partitions_of(partitions), timeout_ms=self.request_ms(timeout))

    @operation("describing configs")
    def describe_configs(
        self, resources: Collection[ConfigResource], *, documentation: bool = False, timeout: float | None = None
    ) -> Plan[Outcomes[ConfigResource, dict[str, ConfigEntry]]]:
        """The effective configs of topics, brokers, groups and the like, by name."""
        from kalda.client.admin.configs import describe_configs

        return describe_configs(resources, documentation=documentation)

    @operation("altering configs")
    def alter_configs(
        self,
        alterations: Mapping[ConfigResource, Collection[Alteration]],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> Plan[Outcomes[ConfigResource, None]]:
        """Change these configs and no others."""
        from kalda.client.admin.configs import alter_configs

        return alter_configs(alterations, validate_only=validate_only)

    @operation("listing config resources")
    def list_config_resources(
        self, types: Collection[ConfigResourceType] = (), *, timeout: float | None = None
    ) -> Plan[list[ConfigResource]]:
        """The resources that have configs."""
        from kalda.client.admin.configs import list_config_resources

        return list_config_resources(types)

    @operation("describing the cluster")
    def describe_cluster(self, *, fenced: bool = False, timeout: float | None = None) -> Plan[ClusterDescription]:
        """The cluster's brokers, with `fenced` those that are not in service too."""
        from kalda.client.admin.nodes import describe_cluster

        return describe_cluster(fenced=fenced, of_controllers=bool(self._config.bootstrap_controllers))

    @operation("unregistering a broker")
    def unregister_broker(self, broker_id: int, *, timeout: float | None = None) -> Plan[None]:
        """Unregister a broker that was removed from the cluster for good."""
        from kalda.client.admin.nodes import unregister_broker

        return unregister_broker(broker_id)

    @operation("unregistering a controller")
    def unregister_controller(self, controller_id: int, *, timeout: float | None = None) -> Plan[None]:
        """Unregister a controller that was removed from the cluster for good. One that runs registers again. The
        active controller refuses it before metadata.version 4.4-IV2, and for itself."""
        from kalda.client.admin.nodes import unregister_controller

        return unregister_controller(controller_id)

    @operation("describing log directories")
    def describe_log_dirs(
        self,
        broker_ids: Collection[int],
        *,
        partitions: Iterable[Partition] | None = None,
        timeout: float | None = None,
    ) -> Plan[Outcomes[int, list[LogDir]]]:
        """The log directories of brokers, with the sizes of these partitions that are in them; None: of all."""
        from kalda.client.admin.nodes import describe_log_dirs

        return describe_log_dirs(broker_ids, partitions_of(partitions))

    @operation("moving replicas")
    def alter_replica_log_dirs(
        self, broker_id: int, paths: Mapping[Partition, str], *, timeout: float | None = None
    ) -> Plan[Outcomes[TopicPartition, None]]:
        """Move replicas of a broker to other directories of it."""
        from kalda.client.admin.nodes import alter_replica_log_dirs

        return alter_replica_log_dirs(broker_id, partitions_by(paths))

    @operation("describing the quorum")
    def describe_quorum(self, *, timeout: float | None = None) -> Plan[Quorum]:
        """The metadata quorum: its leader, voters and observers."""
        from kalda.client.admin.quorum import describe_quorum

        return describe_quorum()

    @operation("adding a voter")
    def add_voter(
        self, node_id: int, directory_id: Uuid, listeners: Collection[VoterListener], *, timeout: float | None = None
    ) -> Plan[None]:
        """Make a controller a voter."""
        from kalda.client.admin.quorum import add_voter

        return add_voter(node_id, directory_id, listeners, timeout_ms=self.request_ms(timeout))

    @operation("removing a voter")
    def remove_voter(self, node_id: int, directory_id: Uuid, *, timeout: float | None = None) -> Plan[None]:
        """Remove a controller from the voters."""
        from kalda.client.admin.quorum import remove_voter

        return remove_voter(node_id, directory_id)

    @operation("describing features")
    def describe_features(self, *, timeout: float | None = None) -> Plan[Features]:
        """The features that the brokers support and the cluster has finalized."""
        from kalda.client.admin.features import describe_features

        return describe_features()

    @operation("updating features")
    def update_features(
        self,
        levels: Mapping[str, int],
        upgrade_type: UpgradeType = UpgradeType.UPGRADE,
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> Plan[None]:
        """Finalize these levels, all or none; level 0 turns a feature off."""
        from kalda.client.admin.features import update_features

        return update_features(levels, upgrade_type, timeout_ms=self.request_ms(timeout), validate_only=validate_only)

    @operation("listing groups")
    def list_groups(
        self, *, states: Collection[str] = (), types: Collection[str] = (), timeout: float | None = None
    ) -> Plan[dict[str, ListedGroup]]:
        """All groups of all coordinators, sorted by name."""
        from kalda.client.admin.groups import list_groups

        return list_groups(states=states, types=types)

    @operation("describing groups")
    def describe_groups(
        self, group_ids: Collection[str], *, timeout: float | None = None
    ) -> Plan[Outcomes[str, Group]]:
        """Groups of either protocol, with their members."""
        from kalda.client.admin.groups import describe_groups

        return describe_groups(group_ids)

    @operation("deleting groups")
    def delete_groups(self, group_ids: Collection[str], *, timeout: float | None = None) -> Plan[Outcomes[str, None]]:
        """Delete groups without members, with their offsets."""
        from kalda.client.admin.groups import delete_groups

        return delete_groups(group_ids)

    @operation("listing a group's offsets")
    def list_group_offsets(
        self,
        group_id: str,
        partitions: Iterable[Partition] | None = None,
        *,
        require_stable: bool = False,
        timeout: float | None = None,
    ) -> Plan[Outcomes[TopicPartition, OffsetAndEpoch]]:
        """A group's committed offsets; partitions without one are left out. None: of all partitions."""
        from kalda.client.admin.groups import list_group_offsets

        return list_group_offsets(group_id, partitions_of(partitions), require_stable=require_stable)

    @operation("altering a group's offsets")
    def alter_group_offsets(
        self, group_id: str, offsets: Mapping[Partition, OffsetAndEpoch | int], *, timeout: float | None = None
    ) -> Plan[Outcomes[TopicPartition, None]]:
        """Set the offsets of a group without members."""
        from kalda.client.admin.groups import alter_group_offsets

        return alter_group_offsets(group_id, positions_by(offsets))

    @operation("deleting a group's offsets")
    def delete_group_offsets(
        self, group_id: str, partitions: Iterable[Partition], *, timeout: float | None = None
    ) -> Plan[Outcomes[TopicPartition, None]]:
        """Delete a group's offsets of partitions that its members do not read."""
        from kalda.client.admin.groups import delete_group_offsets

        return delete_group_offsets(group_id, partitions_of(partitions) or [])

    @operation("listing a share group's offsets")
    def list_share_group_offsets(
        self, group_id: str, partitions: Iterable[Partition] | None = None, *, timeout: float | None = None
    ) -> Plan[Outcomes[TopicPartition, ShareGroupOffset]]:
        """Where a share group begins in each partition, and its lag; partitions with which it has not begun are left
        out. None: all partitions."""
        from kalda.client.admin.groups import list_share_group_offsets

        return list_share_group_offsets(group_id, partitions_of(partitions))

    @operation("altering a share group's offsets")
    def alter_share_group_offsets(
        self, group_id: str, offsets: Mapping[Partition, int], *, timeout: float | None = None
    ) -> Plan[Outcomes[TopicPartition, None]]:
        """Set where a share group without members begins; what it has acknowledged behind that is forgotten."""
        from kalda.client.admin.groups import alter_share_group_offsets

        positions = positions_by(offsets)
        return alter_share_group_offsets(group_id, {each: at.offset for each, at in positions.items()})

    @operation("deleting a share group's offsets")
    def delete_share_group_offsets(
        self, group_id: str, topics: Collection[str], *, timeout: float | None = None
    ) -> Plan[Outcomes[str, None]]:
        """Delete what a share group without members has of topics."""
        from kalda.client.admin.groups import delete_share_group_offsets

        return delete_share_group_offsets(group_id, topics)

    @operation("removing members")
    def remove_members(
        self,
        group_id: str,
        instance_ids: Collection[str],
        *,
        reason: str = "removed by an administrator",
        timeout: float | None = None,
    ) -> Plan[Outcomes[str, None]]:
        """Remove static members from a group, by their instance ids."""
        from kalda.client.admin.groups import remove_members

        return remove_members(group_id, instance_ids, reason)

    @operation("listing transactions")
    def list_transactions(
        self,
        *,
        states: Collection[str] = (),
        producer_ids: Collection[int] = (),
        duration_ms: int = -1,
        pattern: str | None = None,
        timeout: float | None = None,
    ) -> Plan[dict[str, ListedTransaction]]:
        """The transactional ids of all coordinators, sorted; with `duration_ms` >= 0 those that have run longer, with
        `pattern` those that the regular expression (of RE2) matches."""
        from kalda.client.admin.transactions import list_transactions

        return list_transactions(states=states, producer_ids=producer_ids, duration_ms=duration_ms, pattern=pattern)

    @operation("describing transactions")
    def describe_transactions(
        self, transactional_ids: Collection[str], *, timeout: float | None = None
    ) -> Plan[Outcomes[str, Transaction]]:
        """The state of transactional ids."""
        from kalda.client.admin.transactions import describe_transactions

        return describe_transactions(transactional_ids)

    @operation("describing producers")
    def describe_producers(
        self, partitions: Iterable[Partition], *, broker_id: int | None = None, timeout: float | None = None
    ) -> Plan[Outcomes[TopicPartition, tuple[ActiveProducer, ...]]]:
        """The active producers of partitions, at their leaders, or at a broker that has to have their replicas."""
        from kalda.client.admin.transactions import describe_producers

        return describe_producers(partitions_of(partitions) or [], broker_id=broker_id)

    @operation("aborting a transaction")
    def abort_transaction(
        self,
        partition: Partition,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int = -1,
        *,
        timeout: float | None = None,
    ) -> Plan[None]:
        """End a transaction that hangs in one partition: write an abort marker, past the coordinator."""
        from kalda.client.admin.transactions import abort_transaction

        return abort_transaction(TopicPartition(*partition), producer_id, producer_epoch, coordinator_epoch)

    @operation("fencing producers")
    def fence_producers(
        self, transactional_ids: Collection[str], *, timeout: float | None = None
    ) -> Plan[Outcomes[str, FencedProducer]]:
        """Abort the ongoing transactions of transactional ids, and fence their producers."""
        from kalda.client.admin.transactions import fence_producers

        return fence_producers(transactional_ids)

    @operation("describing quotas")
    def describe_client_quotas(
        self, components: Mapping[str, str | bool | None], *, strict: bool = False, timeout: float | None = None
    ) -> Plan[dict[QuotaEntity, dict[str, float]]]:
        """Quotas by entity. A component matches a name, None the default, True any name."""
        from kalda.client.admin.quotas import describe_client_quotas

        return describe_client_quotas(components, strict=strict)

    @operation("altering quotas")
    def alter_client_quotas(
        self,
        quotas: Mapping[QuotaEntity, Mapping[str, float | None]],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> Plan[Outcomes[QuotaEntity, None]]:
        """Set quotas of entities; None removes one."""
        from kalda.client.admin.quotas import alter_client_quotas

        return alter_client_quotas(quotas, validate_only=validate_only)

    @operation("describing ACLs")
    def describe_acls(self, acl_filter: AclFilter = ANY_ACL, *, timeout: float | None = None) -> Plan[list[Acl]]:
        """The access rules that the filter matches."""
        from kalda.client.admin.access import describe_acls

        return describe_acls(acl_filter)

    @operation("creating ACLs")
    def create_acls(self, acls: Collection[Acl], *, timeout: float | None = None) -> Plan[Outcomes[Acl, None]]:
        """Create access rules."""
        from kalda.client.admin.access import create_acls

        return create_acls(acls)

    @operation("deleting ACLs")
    def delete_acls(
        self, filters: Collection[AclFilter], *, timeout: float | None = None
    ) -> Plan[Outcomes[AclFilter, list[Acl]]]:
        """Delete access rules; those that were deleted, by filter."""
        from kalda.client.admin.access import delete_acls

        return delete_acls(filters)

    @operation("describing SCRAM credentials")
    def describe_scram_credentials(
        self, users: Collection[str] | None = None, *, timeout: float | None = None
    ) -> Plan[Outcomes[str, list[ScramCredential]]]:
        """SCRAM credentials of users; None: of all."""
        from kalda.client.admin.access import describe_scram_credentials

        return describe_scram_credentials(users)

    @operation("altering SCRAM credentials")
    def alter_scram_credentials(
        self,
        upsertions: Collection[ScramUpsertion] = (),
        deletions: Collection[tuple[str, int]] = (),
        *,
        timeout: float | None = None,
    ) -> Plan[Outcomes[str, None]]:
        """Set SCRAM credentials, and delete some by user and mechanism."""
        from kalda.client.admin.access import alter_scram_credentials

        return alter_scram_credentials(upsertions, deletions)

    @operation("creating a delegation token")
    def create_delegation_token(
        self,
        *,
        owner: str | None = None,
        renewers: Collection[str] = (),
        max_lifetime_ms: int = -1,
        timeout: float | None = None,
    ) -> Plan[Token]:
        """A token of the caller, or of `owner`; principals are written `User:alice`. Its `hmac` is a secret."""
        from kalda.client.admin.access import create_token

        return create_token(owner=owner, renewers=renewers, max_lifetime_ms=max_lifetime_ms)

    @operation("describing delegation tokens")
    def describe_delegation_tokens(
        self, owners: Collection[str] = (), *, timeout: float | None = None
    ) -> Plan[list[Token]]:
        """The tokens of some owners, or without any, all that the caller may see."""
        from kalda.client.admin.access import describe_tokens

        return describe_tokens(owners)

    @operation("renewing a delegation token")
    def renew_delegation_token(self, hmac: bytes, period_ms: int = -1, *, timeout: float | None = None) -> Plan[int]:
        """When the token expires now, in ms since 1970. A negative period stands for the brokers' own."""
        from kalda.client.admin.access import renew_token

        return renew_token(hmac, period_ms)

    @operation("expiring a delegation token")
    def expire_delegation_token(self, hmac: bytes, period_ms: int = -1, *, timeout: float | None = None) -> Plan[int]:
        """When the token expires now, in ms since 1970. With a negative period it is removed at once."""
        from kalda.client.admin.access import expire_token

        return expire_token(hmac, period_ms)


def partitions_of(partitions: Iterable[tuple[str, int]] | None) -> list[TopicPartition] | None:
    """The partitions, with pairs as partitions."""
    return None if partitions is None else [TopicPartition(*partition) for partition in partitions]


def partitions_by(offsets: Mapping[Any, Any]) -> dict[TopicPartition, Any]:
    """The mapping with pairs as partitions."""
    return {TopicPartition(*partition): each for partition, each in offsets.items()}


def positions_by(offsets: Mapping[Any, OffsetAndEpoch | int]) -> dict[TopicPartition, OffsetAndEpoch]:
    """The mapping with pairs as partitions, and numbers as offsets without an epoch."""
    from kalda.clientcore.consuming.subscription import OffsetAndEpoch

    return {
        TopicPartition(*partition): OffsetAndEpoch(each) if isinstance(each, int) else each
        for partition, each in offsets.items()
    }
