"""What the loader is fed, what it says of each image, and who listens.

The batches and snapshots come from the quorum; here only their shape is named, so that this floor needs no more of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from kalda.metadata.delta import MetadataDelta
from kalda.metadata.image import MetadataImage, Provenance
from kalda.protocol.record_framing import VersionedRecord


class CommittedBatch(Protocol):
    """One batch of the log below the high watermark. A control batch has no records."""

    @property
    def base_offset(self) -> int: ...

    @property
    def last_offset(self) -> int: ...

    @property
    def epoch(self) -> int: ...

    @property
    def append_timestamp_ms(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def records(self) -> Sequence[VersionedRecord]: ...


class CommittedSnapshot(Protocol):
    """A snapshot; its records in order, control records left out."""

    @property
    def last_contained_offset(self) -> int: ...

    @property
    def last_contained_epoch(self) -> int: ...

    @property
    def last_contained_log_time_ms(self) -> int: ...

    @property
    def records(self) -> Iterable[VersionedRecord]: ...


class Manifest(NamedTuple):
    """What an image was loaded from: some batches of the log, or a snapshot. The first image counts as one; `num_bytes`
    are of the batches that it holds beyond a stored one."""

    provenance: Provenance
    is_snapshot: bool = False
    num_bytes: int = 0


class Publisher(Protocol):
    """Sees every image in order, once the node has caught up.

    Called by the loader, which everything else waits for: a publisher does not block. The first image comes with a
    delta from an empty one. An exception is a fault of the node, not of the update.
    """

    @property
    def name(self) -> str:
        """Unique in a loader; for messages."""
        ...

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage, manifest: Manifest) -> None:
        """`image` is `delta` applied."""
        ...

    def on_controller_change(self, leader_id: int | None, epoch: int) -> None:
        """The quorum's leader, None while there is none; also right after the first image."""
        ...
