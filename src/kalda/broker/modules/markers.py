"""Transactions as the partitions of this broker see them: their markers, and their producers.

Serves WriteTxnMarkers and DescribeProducers.
"""

from __future__ import annotations

from kalda.broker.handlers.markers import MarkerHandlers
from kalda.broker.modules.coordinator_table import Coordinators
from kalda.broker.modules.module import BrokerContext, Module
from kalda.broker.requests.rows import Row
from kalda.replication.markers import MarkerWriter
from kalda.replication.replica_manager import ReplicaManager


class MarkersModule(Module):
    """Rests on the replicas, and on the coordinators, which append the markers to their own logs."""

    def __init__(self, context: BrokerContext, replicas: ReplicaManager, coordinators: Coordinators) -> None:
        self.writer = MarkerWriter(
            replicas,
            context.host.clock.wall_ms,
            context.config["request.timeout.ms"],
            coordinators.end_transaction,
        )
        self._handlers = MarkerHandlers(replicas, self.writer, context.opening)

    def rows(self) -> list[Row]:
        """Both APIs."""
        return self._handlers.rows()
