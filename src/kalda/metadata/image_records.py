"""Turning images back into records, for snapshots.

Records are written at the versions of one metadata.version. Data that this version cannot express is a loss. The
writer's `on_loss` is called with each, and by default raises an error: a snapshot that lacks data is a corrupt one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from kalda.metadata.features import MetadataVersion
from kalda.protocol.notation import RecordBody
from kalda.protocol.record_framing import VersionedRecord


class UnwritableMetadata(Exception):
    """The image has data that the records of this metadata.version cannot express."""


LossHandler = Callable[[MetadataVersion, str], None]


def refuse(metadata_version: MetadataVersion, loss: str) -> None:
    raise UnwritableMetadata(
        f"Metadata has been lost because the following could not be represented in metadata.version "
        f"{metadata_version}: {loss}"
    )


@dataclass(slots=True)
class ImageWriter:
    """Collects records. `elr_enabled`: the feature eligible.leader.replicas.version is on."""

    metadata_version: MetadataVersion
    elr_enabled: bool = False
    on_loss: LossHandler = refuse
    records: list[VersionedRecord] = field(default_factory=list)

    def write(self, record: RecordBody, version: int = 0) -> None:
        self.records.append(VersionedRecord(record, version))

    def lose(self, loss: str) -> None:
        """Report that data is left out. `loss` describes it, as the end of a sentence."""
        self.on_loss(self.metadata_version, loss)


class Writable(Protocol):
    """An image, or a part of one, that can be written as records."""

    def write(self, writer: ImageWriter) -> None: ...
