"""Requests that only the active controller answers: this broker forwards the request, and returns the response."""

from __future__ import annotations

from kalda.broker.forwarding import Forwarding
from kalda.broker.handlers.forwarded import forwarded_rows
from kalda.broker.modules.module import BrokerContext, Module
from kalda.broker.rows import Row


class ForwardingModule(Module):
    """Rests on no other module."""

    def __init__(self, context: BrokerContext) -> None:
        self.forwarding = Forwarding(context.channel)

    def rows(self) -> list[Row]:
        """The APIs that are forwarded without a check of this broker."""
        return forwarded_rows(self.forwarding)
