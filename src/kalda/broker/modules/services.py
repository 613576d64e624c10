"""What a broker serves its clients with: the list of its modules, and all that is done to each of them in turn.

The list is below, in `Services.__init__`; `modules/module.py` is the manual for a new module. The modules are made
before the broker registers. Clients are served through `pipeline` when the broker is unfenced.

Not obvious:

- Publishers run in this order: the metadata cache, dynamic configs, the modules'. Logs that the first image opens
  take their defaults from dynamic configs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kalda.broker.modules.client_metrics import ClientMetricsModule
from kalda.broker.modules.configs import ConfigsModule
from kalda.broker.modules.connections import ConnectionsModule
from kalda.broker.modules.coordinators import CoordinatorsModule
from kalda.broker.modules.forwarding import ForwardingModule
from kalda.broker.modules.groups import GroupsModule
from kalda.broker.modules.log_dirs import LogDirsModule
from kalda.broker.modules.log_maintenance import LogMaintenanceModule
from kalda.broker.modules.markers import MarkersModule
from kalda.broker.modules.metadata import MetadataModule
from kalda.broker.modules.module import BrokerContext, Module
from kalda.broker.modules.partitions import PartitionsModule
from kalda.broker.modules.producers import ProducersModule
from kalda.broker.modules.replication import ReplicationModule
from kalda.broker.modules.transactions import TransactionsModule
from kalda.broker.process.dynamic_configs import DynamicConfigPublisher
from kalda.broker.requests.api_versions import Features
from kalda.broker.requests.pipeline import RequestPipeline
from kalda.broker.requests.rows import joined
from kalda.metadata.manifest import Publisher
from kalda.protocol.apis import Listener

log = logging.getLogger("kalda.broker")


class Services:
    """The modules of one broker."""

    def __init__(self, context: BrokerContext, features: Callable[[], Features]) -> None:
        """`features()` is what ApiVersions announces."""
        replication = ReplicationModule(context)
        self.replicas = replicas = replication.replicas
        log_dirs = LogDirsModule(context, replicas)
        shared = CoordinatorsModule(context, replicas)
        coordinators = shared.coordinators
        forwarding = ForwardingModule(context)
        self.markers = MarkersModule(context, replicas, coordinators)
        producers = ProducersModule(context)
        transactions = TransactionsModule(context, coordinators, producers.ids, self.markers.writer)
        replication.verifier.local = transactions.handlers.add_partitions_of_broker
        self.client_metrics = ClientMetricsModule(context, replicas)
        self._partitions = PartitionsModule(context, replicas, coordinators, log_dirs.assignments)
        self.modules: tuple[Module, ...] = (
            ConnectionsModule(context),
            replication,
            log_dirs,
            shared,
            self.markers,
            GroupsModule(context, coordinators, replicas, replication.verifier),
            MetadataModule(context, replicas, coordinators),
            forwarding,
            ConfigsModule(context, forwarding.forwarding),
            producers,
            transactions,
            self.client_metrics,
            self._partitions,
            LogMaintenanceModule(context),
        )
        """Each after all that it rests on; started in this order, closed in reverse.

        `PartitionsModule` comes after all that hold state of partitions, since it hands partitions to them: closed
        before them, it hands over none to one that is closed.
        """
        self.pipeline = RequestPipeline(
            joined(Listener.BROKER, *(module.rows() for module in self.modules)),
            features,
            context.background,
            unstable_versions=context.config["unstable.api.versions.enable"],
            authorizer=context.authorizer,
            throttle=context.quotas.throttle,
            hidden=self.client_metrics.hidden_apis,
        )
        context.quotas.add_pipeline(self.pipeline)
        context.sensors.gauge(
            "kafka.server:type=broker-metadata-metrics",
            "metadata-apply-error-count",
            read=lambda: context.faults.count,
        )
        self._cache = context.cache
        self._config_publisher = DynamicConfigPublisher(
            context.dynamic_configs, [module.on_config for module in self.modules], context.faults
        )

    def applied_offset(self, published: int) -> int:
        """The metadata offset up to which everything is applied, where `published` is that of the newest image."""
        return self._partitions.applied_offset(published)

    def publishers(self) -> list[Publisher]:
        """In the order in which they must run: the image is visible, then configs take effect, then the modules act."""
        return [self._cache, self._config_publisher, *(each for module in self.modules for each in module.publishers())]

    def start(self) -> None:
        """Start the modules: the first image has been applied."""
        for module in self.modules:
            module.start()

    async def close(self) -> None:
        """Close the modules, the last one first, each whatever becomes of the others. The logs are closed by their
        manager."""
        self._config_publisher.close()
        for module in reversed(self.modules):
            try:
                await module.close()
            except Exception:
                log.exception("%s could not be closed", type(module).__name__)
