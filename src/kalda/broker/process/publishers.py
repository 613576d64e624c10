"""The publishers that receive each image of the metadata, in their order.

The loader calls publishers in the order of their installation: those of every node, which are installed before the
metadata log is read, then those of a broker, which wait until its logs are recovered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kalda.metadata.publisher import Publisher

if TYPE_CHECKING:
    from kalda.broker.channels.lifecycle import ControllerRegistrationManager
    from kalda.broker.handlers.services import Services
    from kalda.broker.requests.node_authorizer import NodeAuthorizer
    from kalda.broker.requests.quotas import NodeQuotas
    from kalda.metadata.publisher import BrokerRegistrationTracker, SnapshotGenerator


def publishers_of_node(
    authorizer: NodeAuthorizer | None,
    snapshots: SnapshotGenerator,
    quotas: NodeQuotas,
    registration: ControllerRegistrationManager | None,
) -> list[Publisher]:
    """The authorizer is the first: no part of the node acts on an image while decisions use older entries."""
    every: tuple[Publisher | None, ...] = (authorizer, snapshots, quotas, registration)
    return [each for each in every if each is not None]


def publishers_of_broker(services: Services, tracker: BrokerRegistrationTracker) -> list[Publisher]:
    """The image is visible to readers, then dynamic configs take effect, which are the defaults of the logs that
    `partitions` opens. Channels close their connections to brokers that were fenced."""
    return [
        services.cache,
        services.dynamic_configs,
        services.replication.channels,
        services.replication.throttles,
        services.transactions.channels,
        services.share_coordinators.channels,
        services.client_metrics,
        services.client_metrics.channels,
        services.topics_of_groups,
        services.partitions,
        tracker,
    ]
