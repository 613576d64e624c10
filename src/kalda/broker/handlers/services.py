"""What a broker serves its clients with: the list of its modules, and all that is done to each of them in turn.

The list is below, in `Services.__init__`; `kalda.broker.module` is the manual for a new module. The modules are made
before the broker registers, but those of groups of all kinds and of share groups: they are imported and made at their
first use, by the functions at the end of this file. Clients are served through `pipeline` when the broker is unfenced.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kalda.broker.channels.auto_topics import AutoTopics, plan_of_others
from kalda.broker.handlers.configs import ConfigsModule
from kalda.broker.handlers.connections import ConnectionsModule
from kalda.broker.handlers.data import ReplicationModule
from kalda.broker.handlers.describe import AclHandlers, DescribeHandlers
from kalda.broker.handlers.forwarded import ForwardingModule
from kalda.broker.handlers.group_kinds import GROUP_APIS, SHARE_MEMBER_APIS, SHARE_STATE_APIS, GroupKinds
from kalda.broker.handlers.log_dirs import LogDirsModule
from kalda.broker.handlers.markers import MarkerHandlers
from kalda.broker.handlers.metadata import MetadataHandlers
from kalda.broker.handlers.offsets import OffsetHandlers
from kalda.broker.handlers.share_coordinators import ShareCoordinators
from kalda.broker.handlers.telemetry import ClientMetricsModule
from kalda.broker.handlers.tokens import TokenHandlers
from kalda.broker.handlers.transactions import TransactionsModule
from kalda.broker.module import AtFirstUse, BrokerContext, Module
from kalda.broker.process.dynamic_configs import DynamicConfigPublisher
from kalda.broker.replicas.coordinators import Coordinators
from kalda.broker.replicas.log_maintenance import LogMaintenanceModule
from kalda.broker.replicas.publisher import BrokerPublisher
from kalda.broker.requests.api_versions import Features, NodeIdentity
from kalda.broker.requests.pipeline import RequestPipeline
from kalda.broker.requests.rows import joined
from kalda.coordinator.internal_topics import GROUPS, SHARE_STATE
from kalda.metadata.image import MetadataDelta, MetadataImage
from kalda.metadata.publisher import Manifest
from kalda.protocol.apis import Listener
from kalda.replication.markers import MarkerWriter
from kalda.replication.replica_manager import ReplicaManager

if TYPE_CHECKING:
    from kalda.broker.handlers.groups import GroupsModule
    from kalda.broker.handlers.share import ShareModule
    from kalda.broker.handlers.share_state import ShareStateModule

log = logging.getLogger("kalda.broker")

_OWN_ASSIGNORS: Final = frozenset({"uniform", "range", "sticky"})


class Services:
    """The modules of one broker."""

    def __init__(self, context: BrokerContext, features: Callable[[], Features]) -> None:
        """`features()` is what ApiVersions announces."""
        config, cache = context.config, context.cache
        self.cache = cache
        self.replication = replication = ReplicationModule(context)
        self.replicas = replicas = replication.replicas
        log_dirs = LogDirsModule(context, replicas)
        coordinators = Coordinators(
            config, cache, replicas, context.host.clock, context.timers, context.jobs, context.background
        )
        forwarding = ForwardingModule(context)
        writer = MarkerWriter(
            replicas, context.host.clock.wall_ms, config["request.timeout.ms"], coordinators.end_transaction
        )
        self.transactions = transactions = TransactionsModule(context, coordinators, writer)
        replication.verifier.local = transactions.handlers.add_partitions_of_broker
        sensors = context.sensors
        share_state = AtFirstUse(SHARE_STATE_APIS, lambda: _share_state(context, coordinators, replicas), sensors)
        coordinators.add_late(SHARE_STATE, share_state)
        auto_topics = _auto_topics(context, coordinators)
        self.share_coordinators = shares = ShareCoordinators(
            context, lambda request: share_state().handle(request), auto_topics
        )
        self.share = AtFirstUse(SHARE_MEMBER_APIS, lambda: _share(context, replicas, shares, auto_topics), sensors)
        self.client_metrics = ClientMetricsModule(context, replicas)
        kinds = GroupKinds(config, cache)
        self.groups = AtFirstUse(
            GROUP_APIS, lambda: _groups(context, coordinators, replication, shares, forwarding, kinds), sensors
        )
        coordinators.add_late(GROUPS, self.groups)
        self.topics_of_groups = TopicsOfGroups(self.groups)
        if not _OWN_ASSIGNORS.issuperset((*config["group.consumer.assignors"], *config["group.streams.assignors"])):
            self.groups()  # classes of the user's: where they cannot be imported, the node must not start
        self.partitions = BrokerPublisher(context, replicas, coordinators, log_dirs.assignments.placed)
        self.modules: tuple[Module, ...] = (
            ConnectionsModule(context),
            replication,
            OffsetHandlers(replicas, context.opening),
            log_dirs,
            coordinators,
            MarkerHandlers(replicas, writer, context.opening),
            self.groups,
            _metadata_handlers(context, coordinators, auto_topics),
            DescribeHandlers(cache),
            AclHandlers(lambda: cache.image.acls.acls.values()),
            forwarding,
            _token_handlers(context, forwarding),
            ConfigsModule(context, forwarding.forwarding),
            transactions,
            shares,
            share_state,
            self.share,
            self.client_metrics,
            self.partitions,
            LogMaintenanceModule(context),
        )
        """Each after all that it rests on; started in this order, closed in reverse.

        `BrokerPublisher` comes after all that hold state of partitions, since it hands partitions to them: closed
        before them, it hands over none to one that is closed.
        """
        self.pipeline = self._pipeline(context, features, kinds)
        context.sensors.gauge(
            "kafka.server:type=broker-metadata-metrics",
            "metadata-apply-error-count",
            read=lambda: context.faults.count,
        )
        self.dynamic_configs = DynamicConfigPublisher(
            context.dynamic_configs, [module.on_config for module in self.modules], context.faults
        )

    def _pipeline(self, context: BrokerContext, features: Callable[[], Features], kinds: GroupKinds) -> RequestPipeline:
        pipeline = RequestPipeline(
            joined(Listener.BROKER, *(module.rows() for module in self.modules)),
            features,
            context.background,
            unstable_versions=context.config["unstable.api.versions.enable"],
            authorizer=context.authorizer,
            throttle=context.quotas.throttle,
            hidden=lambda: self.client_metrics.hidden_apis() | kinds.hidden_apis(),
            node=NodeIdentity(context.cluster_id, context.config.node_id),
        )
        context.quotas.add_pipeline(pipeline)
        return pipeline

    def start(self) -> None:
        """Start the modules: the first image has been applied."""
        for module in self.modules:
            module.start()

    async def close(self) -> None:
        """Close the modules, the last one first, each whatever becomes of the others. The logs are closed by their
        manager."""
        self.dynamic_configs.close()
        for module in reversed(self.modules):
            try:
                closing = module.close()
                if closing is not None:
                    await closing
            except Exception:
                log.exception("%s could not be closed", type(module).__name__)


def _token_handlers(context: BrokerContext, forwarding: ForwardingModule) -> TokenHandlers:
    return TokenHandlers(
        forwarding.forwarding,
        context.config["delegation.token.secret.key"],
        lambda: context.cache.image.delegation_tokens.tokens.values(),
    )


def _auto_topics(context: BrokerContext, coordinators: Coordinators) -> AutoTopics:
    """Creates topics that are missing."""
    config = context.config
    return AutoTopics(
        context.channel,
        config["auto.create.topics.enable"],
        coordinators.plan,
        config["request.timeout.ms"],
        timers=context.timers,
        ordinary=plan_of_others(config),
    )


def _metadata_handlers(context: BrokerContext, coordinators: Coordinators, auto_topics: AutoTopics) -> MetadataHandlers:
    """They name the coordinators' topics, and have missing topics created."""
    return MetadataHandlers(
        context.cache,
        context.cluster_id,
        auto_topics,
        coordinators.topic_of,
        context.config["max.request.partition.size.limit"],
    )


class TopicsOfGroups:
    """A publisher: topics that groups subscribe to change."""

    name = "TopicsOfGroups"

    def __init__(self, groups: AtFirstUse[GroupsModule]) -> None:
        self._groups = groups

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage, manifest: Manifest) -> None:
        """Report it, unless there were no groups yet."""
        if self._groups.made is not None:
            self._groups.made.on_topics_changed(delta, image)

    def on_controller_change(self, leader_id: int | None, epoch: int) -> None:
        """No effect."""


# The modules that are imported at their first use.


def _groups(
    context: BrokerContext,
    coordinators: Coordinators,
    replication: ReplicationModule,
    shares: ShareCoordinators,
    forwarding: ForwardingModule,
    kinds: GroupKinds,
) -> GroupsModule:
    from kalda.broker.handlers.groups import GroupsModule

    return GroupsModule(
        context,
        coordinators,
        replication.replicas,
        replication.verifier,
        shares,
        forwarding.forwarding.send_for,
        kinds,
    )


def _share_state(context: BrokerContext, coordinators: Coordinators, replicas: ReplicaManager) -> ShareStateModule:
    from kalda.broker.handlers.share_state import ShareStateModule

    return ShareStateModule(context, coordinators, replicas)


def _share(
    context: BrokerContext, replicas: ReplicaManager, shares: ShareCoordinators, auto_topics: AutoTopics
) -> ShareModule:
    from kalda.broker.handlers.share import ShareModule

    return ShareModule(context, replicas, shares, auto_topics)
