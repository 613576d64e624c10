"""What all coordinators share: the table of coordinators by internal topic, and what drives them.

Serves no API. A module of one kind of coordinator (groups, later transactions) adds its own to the table.
"""

from __future__ import annotations

from kalda.broker.modules.coordinator_table import Coordinators
from kalda.broker.modules.module import BrokerContext, Module
from kalda.replication.replica_manager import ReplicaManager


class CoordinatorsModule(Module):
    """Rests on the replicas, in which coordinators keep their state."""

    def __init__(self, context: BrokerContext, replicas: ReplicaManager) -> None:
        self.coordinators = Coordinators(
            context.config,
            context.cache,
            replicas,
            context.host.clock,
            context.timers,
            context.jobs,
            context.background,
        )

    async def close(self) -> None:
        """Stop the timers of all coordinators."""
        self.coordinators.close()
