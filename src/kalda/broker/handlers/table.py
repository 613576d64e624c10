"""The rows of a broker's listener: those of all its handlers. An API without a row is neither served nor announced."""

from __future__ import annotations

from kalda.broker.forwarding import Forwarding
from kalda.broker.handlers.configs import ConfigHandlers
from kalda.broker.handlers.data import DataHandlers
from kalda.broker.handlers.describe import DescribeHandlers
from kalda.broker.handlers.forwarded import forwarded_rows
from kalda.broker.handlers.groups import GroupHandlers
from kalda.broker.handlers.log_dirs import LogDirHandlers
from kalda.broker.handlers.metadata import MetadataHandlers
from kalda.broker.handlers.offsets import OffsetHandlers
from kalda.broker.handlers.producers import ProducerHandlers
from kalda.broker.rows import Row, joined
from kalda.protocol.apis import Listener


def broker_rows(
    data: DataHandlers,
    offsets: OffsetHandlers,
    metadata: MetadataHandlers,
    groups: GroupHandlers,
    configs: ConfigHandlers,
    describe: DescribeHandlers,
    log_dirs: LogDirHandlers,
    producers: ProducerHandlers,
    forwarding: Forwarding,
) -> list[Row]:
    """Every API of the broker's listener but ApiVersions, whose row the pipeline adds."""
    return joined(
        Listener.BROKER,
        data.rows(),
        offsets.rows(),
        metadata.rows(),
        groups.rows(),
        configs.rows(forwarding),
        describe.rows(),
        log_dirs.rows(),
        producers.rows(),
        forwarded_rows(forwarding),
    )
