"""Retention, checkpoints, flushes, deletions and compaction, in the background. Serves no API."""

from __future__ import annotations

from kalda.base.configs.server import ServerConfig
from kalda.broker.log_keeper import LogKeeper, cleaner_config, make_cleaner
from kalda.broker.modules.module import BrokerContext, Module
from kalda.metadata.image import MetadataImage


class LogUpkeepModule(Module):
    """Rests on no other module."""

    def __init__(self, context: BrokerContext) -> None:
        self._logs = context.logs
        self._cleaner = make_cleaner(context.config, context.host, context.logs)
        self._keeper = LogKeeper(context.logs.upkeep, self._cleaner, context.host.clock, context.timers, context.jobs)

    def on_config(self, current: ServerConfig, image: MetadataImage) -> None:
        """Set the limits of the cleaner, and what the logs demand of producers; both hold at once."""
        self._keeper.configure(cleaner_config(current))
        self._logs.configure_producers(
            expiration_ms=current["producer.id.expiration.ms"],
            verify_transactions=current["transaction.partition.verification.enable"],
        )

    def start(self) -> None:
        """Begin with the recovered logs."""
        self._keeper.start()

    async def close(self) -> None:
        """Start no more jobs; those that run are finished by their threads."""
        self._keeper.close()
