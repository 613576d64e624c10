"""Turning images back into records, for snapshots and for publishers that come late.

Records are written at the versions of one metadata.version. What that version cannot say is a loss; a writer is told
of each, and by default refuses, because a snapshot that silently forgets is a corrupt one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from kalda.metadata.metadata_version import MetadataVersion
from kalda.protocol.notation import RecordBody
from kalda.protocol.record_framing import VersionedRecord


class UnwritableMetadata(Exception):
    """The image holds something that the records of this metadata.version cannot."""


LossHandler = Callable[[MetadataVersion, str], None]


def refuse(metadata_version: MetadataVersion, loss: str) -> None:
    raise UnwritableMetadata(
        f"Metadata has been lost because the following could not be represented in metadata.version "
        f"{metadata_version}: {loss}"
    )


@dataclass(slots=True)
class ImageWriter:
    """Collects records. `elr_enabled` is the level of eligible.leader.replicas.version, not what the format can say."""

    metadata_version: MetadataVersion
    elr_enabled: bool = False
    on_loss: LossHandler = refuse
    records: list[VersionedRecord] = field(default_factory=list)

    def write(self, record: RecordBody, version: int = 0) -> None:
        self.records.append(VersionedRecord(record, version))

    def lose(self, loss: str) -> None:
        """`loss` names, as the end of a sentence, what is left out."""
        self.on_loss(self.metadata_version, loss)


class Writable(Protocol):
    """An image, or a part of one, that can write itself."""

    def write(self, writer: ImageWriter) -> None: ...
