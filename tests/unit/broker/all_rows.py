"""The rows of both kinds of listener, over handlers whose floors are mocks."""

from __future__ import annotations

from unittest.mock import MagicMock, Mock

from kalda.broker.channels.forwarding import Forwarding
from kalda.broker.handlers.configs import ConfigHandlers
from kalda.broker.handlers.controller import ControllerHandlers
from kalda.broker.handlers.data import DataHandlers
from kalda.broker.handlers.describe import AclHandlers, DescribeHandlers
from kalda.broker.handlers.forwarded import forwarded_rows
from kalda.broker.handlers.groups import GroupHandlers
from kalda.broker.handlers.log_dirs import LogDirHandlers
from kalda.broker.handlers.markers import MarkerHandlers
from kalda.broker.handlers.metadata import MetadataHandlers
from kalda.broker.handlers.offsets import OffsetHandlers
from kalda.broker.handlers.share import ShareHandlers
from kalda.broker.handlers.share_state import ShareStateHandlers
from kalda.broker.handlers.telemetry import TelemetryHandlers
from kalda.broker.handlers.tokens import TokenHandlers
from kalda.broker.handlers.transactions import TransactionHandlers
from kalda.broker.requests.rows import Row, joined
from kalda.protocol.apis import Listener


def rows_of_brokers() -> list[Row]:
    """Every row of a broker's listener but ApiVersions."""
    forwarding = Forwarding(Mock(), lambda: 0)
    return joined(
        Listener.BROKER,
        DataHandlers(Mock(), Mock(), Mock(), Mock(), Mock()).rows(),
        OffsetHandlers(Mock()).rows(),
        MetadataHandlers(Mock(), "cluster", Mock(), Mock(), 100).rows(),
        GroupHandlers(Mock(), Mock(), Mock()).rows(),
        ConfigHandlers(1, Mock(), MagicMock()).rows(forwarding),
        DescribeHandlers(Mock()).rows(),
        AclHandlers(Mock()).rows(),
        MarkerHandlers(Mock(), Mock()).rows(),
        TelemetryHandlers(
            1, Mock(), 1, "json", Mock(), Mock(), Mock(), makes_series=False, now_ns=Mock(), pause_thread=Mock()
        ).rows(),
        LogDirHandlers(Mock(), Mock(), Mock()).rows(),
        TransactionHandlers(Mock(), Mock(), Mock(), Mock(), Mock()).rows(),
        ShareHandlers(Mock(), Mock(), Mock(), Mock(), Mock(), Mock(), Mock()).rows(),
        ShareStateHandlers(Mock(), Mock(), Mock()).rows(),
        forwarded_rows(forwarding),
        TokenHandlers(forwarding, None, Mock()).rows(),
    )


def rows_of_controllers() -> list[Row]:
    """Every row of a controller's listener but ApiVersions and Envelope."""
    configs = ConfigHandlers(1, Mock(), MagicMock())
    return ControllerHandlers(Mock(), Mock(), Mock(), Mock(), "cluster", configs, Mock()).rows()
