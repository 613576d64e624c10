"""What a broker serves its clients with: the list of its modules, and all that is done to each of them in turn.

The list is below, in `Services.__init__`; `kalda.broker.module` is the manual for a new module. The modules are made
before the broker registers. Clients are served through `pipeline` when the broker is unfenced.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kalda.broker.channels.auto_topics import AutoTopics, plan_of_others
from kalda.broker.handlers.acls import AclHandlers
from kalda.broker.handlers.configs import ConfigsModule
from kalda.broker.handlers.connections import ConnectionsModule
from kalda.broker.handlers.data import ReplicationModule
from kalda.broker.handlers.describe import DescribeHandlers
from kalda.broker.handlers.forwarded import ForwardingModule
from kalda.broker.handlers.groups import GroupsModule
from kalda.broker.handlers.log_dirs import LogDirsModule
from kalda.broker.handlers.markers import MarkerHandlers
from kalda.broker.handlers.metadata import MetadataHandlers
from kalda.broker.handlers.offsets import OffsetHandlers
from kalda.broker.handlers.share import ShareModule
from kalda.broker.handlers.share_state import ShareStateModule
from kalda.broker.handlers.telemetry import ClientMetricsModule
from kalda.broker.handlers.tokens import TokenHandlers
from kalda.broker.handlers.transactions import TransactionsModule
from kalda.broker.module import BrokerContext, Module
from kalda.broker.process.dynamic_configs import DynamicConfigPublisher
from kalda.broker.replicas.coordinators import Coordinators
from kalda.broker.replicas.log_maintenance import LogMaintenanceModule
from kalda.broker.replicas.publisher import BrokerPublisher
from kalda.broker.requests.api_versions import Features, NodeIdentity
from kalda.broker.requests.pipeline import RequestPipeline
from kalda.broker.requests.rows import joined
from kalda.protocol.apis import Listener
from kalda.replication.markers import MarkerWriter

log = logging.getLogger("kalda.broker")


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
        share_state = ShareStateModule(context, coordinators, replicas)
        auto_topics = _auto_topics(context, coordinators)
        self.share = ShareModule(context, replicas, share_state, auto_topics)
        self.client_metrics = ClientMetricsModule(context, replicas)
        send_for = forwarding.forwarding.send_for
        self.groups = groups = GroupsModule(
            context, coordinators, replicas, replication.verifier, self.share.persister, self.share.latest, send_for
        )
        self.partitions = BrokerPublisher(context, replicas, coordinators, log_dirs.assignments.placed)
        self.modules: tuple[Module, ...] = (
            ConnectionsModule(context),
            replication,
            OffsetHandlers(replicas, context.opening),
            log_dirs,
            coordinators,
            MarkerHandlers(replicas, writer, context.opening),
            groups,
            _metadata_handlers(context, coordinators, auto_topics),
            DescribeHandlers(cache),
            AclHandlers(lambda: cache.image.acls.acls.values()),
            forwarding,
            _token_handlers(context, forwarding),
            ConfigsModule(context, forwarding.forwarding),
            transactions,
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
        self.pipeline = RequestPipeline(
            joined(Listener.BROKER, *(module.rows() for module in self.modules)),
            features,
            context.background,
            unstable_versions=context.config["unstable.api.versions.enable"],
            authorizer=context.authorizer,
            throttle=context.quotas.throttle,
            hidden=lambda: self.client_metrics.hidden_apis() | groups.hidden_apis(),
            node=NodeIdentity(context.cluster_id, config.node_id),
        )
        context.quotas.add_pipeline(self.pipeline)
        context.sensors.gauge(
            "kafka.server:type=broker-metadata-metrics",
            "metadata-apply-error-count",
            read=lambda: context.faults.count,
        )
        self.dynamic_configs = DynamicConfigPublisher(
            context.dynamic_configs, [module.on_config for module in self.modules], context.faults
        )

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
