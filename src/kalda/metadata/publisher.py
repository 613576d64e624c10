"""The interfaces around the loader: publishers, the manifest of an image, committed batches and snapshots.

Batches and snapshots come from the quorum. This floor has their interfaces only, so it does not depend on the quorum.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from kalda.metadata.delta import MetadataDelta
from kalda.metadata.image import MetadataImage, Provenance
from kalda.protocol.record_framing import VersionedRecord


class ReplayedBatch(Protocol):
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
    """What an image was loaded from: batches of the log, `num_bytes` in all, or a snapshot. The first image of a
    publisher counts as a snapshot; `num_bytes` are then those of the batches since the last stored snapshot."""

    provenance: Provenance
    is_snapshot: bool = False
    num_bytes: int = 0


class Publisher(Protocol):
    """Is called with every image in order, once the node has caught up.

    The loader calls publishers one after another, and loads nothing meanwhile: a publisher must not block. The delta of
    its first image starts from an empty image. An exception is passed to the loader's fault handler.
    """

    @property
    def name(self) -> str:
        """Unique in a loader; used in log and error messages."""
        ...

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage, manifest: Manifest) -> None:
        """`image` is `delta` applied."""
        ...

    def on_controller_change(self, leader_id: int | None, epoch: int) -> None:
        """Called with the quorum's leader, None while there is none; also right after the first image."""
        ...
