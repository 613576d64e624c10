"""Opens, leads, follows, reconfigures and deletes partitions, as each image of the metadata demands.

Serves no API: it is the publisher between the image and the replicas, their logs, and the coordinators.
"""

from __future__ import annotations

from collections.abc import Sequence

from kalda.broker.modules.coordinator_table import Coordinators
from kalda.broker.modules.module import BrokerContext, Module
from kalda.broker.replicas.assignments import DirectoryAssignments
from kalda.broker.replicas.publisher import BrokerPublisher
from kalda.metadata.manifest import Publisher
from kalda.replication.replica_manager import ReplicaManager


class PartitionsModule(Module):
    """Rests on the replicas; on the coordinators, to which it hands their partitions; on the directory assignments, to
    which it reports where logs are."""

    def __init__(
        self,
        context: BrokerContext,
        replicas: ReplicaManager,
        coordinators: Coordinators,
        assignments: DirectoryAssignments,
    ) -> None:
        self._publisher = BrokerPublisher(
            context.config.node_id,
            replicas,
            context.logs,
            context.dynamic_configs.log_config,
            coordinators,
            assignments.placed,
            context.timers,
            context.jobs,
            context.background,
            context.opening,
            context.faults,
            context.on_fatal,
        )

    def applied_offset(self, published: int) -> int:
        """The offset of the newest image of which all partitions are open; see `BrokerPublisher.applied_offset`."""
        return self._publisher.applied_offset(published)

    def publishers(self) -> Sequence[Publisher]:
        """Runs after dynamic configs have taken effect: they are the defaults of the logs that it opens."""
        return (self._publisher,)

    async def close(self) -> None:
        """Apply no further images: the logs are about to be closed."""
        self._publisher.close()
