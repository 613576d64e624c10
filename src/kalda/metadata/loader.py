"""From committed batches and snapshots to images, and from images to publishers.

Batches that were committed together are folded into one delta, so that a publisher is told once. Metadata
transactions (KIP-868) cut across that: their records are folded aside until the end record, and forgotten at an abort.
So there are two questions at the end of every commit: is a transaction open (then nothing is published, and the next
commit goes on), and has the node caught up (if not, the image moves on unseen).

The catch-up gate opens once and for good: when the high watermark is known, everything below it is loaded, and some
record was seen. Before that a broker would act on a past that the cluster has left. A publisher is installed behind
the gate: it gets the whole image as one delta from nothing, then every image in order; those installed earlier are
always told first. Far from the gate nobody waits for the next image, so one is not made for less than it has topics.

Nothing here waits or knows the time. `poll` tries again to install who could not be installed before, for the case
that the high watermark became known, or passed control records, without a commit of any record; the shell calls it
some ten times a second while `is_waiting`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto

from kalda.metadata.delta import MetadataDelta
from kalda.metadata.image import EMPTY, MetadataImage, Provenance
from kalda.metadata.manifest import CommittedBatch, CommittedSnapshot, Manifest, Publisher
from kalda.protocol.messages.metadata_records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
)
from kalda.protocol.notation import Struct

log = logging.getLogger(__name__)

_RECORDS_A_STEP = 1_000
_FAR = 10_000
"""Records from the high watermark: some 0.1 s."""

FaultHandler = Callable[[str, Exception], None]
"""Told of what the node cannot carry on with; where it returns, the loader carries on."""
ImageCallback = Callable[[MetadataDelta, MetadataImage, Manifest], None]


def raise_fault(message: str, error: Exception) -> None:
    """The default: a node that cannot understand committed metadata stops."""
    raise RuntimeError(message) from error


class TransactionState(Enum):
    """Of the log at the last record that was loaded. ENDED and ABORTED last until the next record."""

    NONE = auto()
    STARTED = auto()
    CONTINUED = auto()
    ENDED = auto()
    ABORTED = auto()

    @property
    def is_open(self) -> bool:
        return self in (TransactionState.STARTED, TransactionState.CONTINUED)


_TRANSACTION_RECORDS: frozenset[type[Struct]] = frozenset(
    (BeginTransactionRecord, EndTransactionRecord, AbortTransactionRecord)
)


class BatchLoader:
    """Folds batches into one delta over `image`, and hands over (delta, image, manifest) when there is one to show.

    Invariant: while a transaction is open, the delta holds its records and no others, because what came before the
    begin record was handed over then. So an abort is a fresh delta.
    """

    def __init__(self, callback: ImageCallback, on_fault: FaultHandler = raise_fault) -> None:
        self._callback = callback
        self._on_fault = on_fault
        self.reset_to(EMPTY)

    def reset_to(self, image: MetadataImage) -> None:
        """Start anew from `image`: after a snapshot, or after handing over. Any transaction is forgotten."""
        self.image = image
        self.delta = MetadataDelta(image)
        self.num_records = 0
        """In the delta, or more."""
        self.transaction = TransactionState.NONE
        self.has_seen_record = not image.is_empty
        self._end = image.provenance
        self._num_batches = 0
        self._num_bytes = 0

    def load(self, batch: CommittedBatch) -> None:
        replay, none = self.delta.replay, TransactionState.NONE
        self.num_records += len(batch.records)
        for index, (record, _) in enumerate(batch.records):
            if self.transaction is none and type(record) not in _TRANSACTION_RECORDS:
                # What nearly every record is. A node that starts may have a million to replay.
                try:
                    replay(record)
                except (ValueError, AssertionError) as error:
                    self._on_fault(f"Error loading metadata log record from offset {batch.base_offset + index}", error)
                self.has_seen_record = True
                continue
            begins = isinstance(record, BeginTransactionRecord) and not self.transaction.is_open
            if begins and (index > 0 or self._num_batches > 0):
                # What came before the transaction is shown without waiting for its end.
                if index > 0:
                    self._mark_end(batch, batch.base_offset + index - 1, aligned=False)
                self._hand_over(self.delta)
            try:
                self._replay(record)
            except (ValueError, AssertionError) as error:
                self._on_fault(f"Error loading metadata log record from offset {batch.base_offset + index}", error)
            self.has_seen_record = True
            replay = self.delta.replay
        self._mark_end(batch, batch.last_offset, aligned=True)
        self._num_batches += 1
        self._num_bytes += batch.size_bytes

    def flush(self) -> None:
        """After the last batch of a commit: hand over what there is, unless a transaction is open."""
        if self._num_batches == 0 or self.transaction.is_open:
            return
        if self.transaction is TransactionState.ABORTED:
            log.debug("publishing an empty delta up to %s: a metadata transaction was aborted", self._end)
        self._hand_over(self.delta)

    def _replay(self, record: Struct) -> None:
        state = self.transaction
        if isinstance(record, BeginTransactionRecord):
            if state.is_open:
                raise ValueError("a metadata transaction begins inside another")
            self.transaction = TransactionState.STARTED
        elif isinstance(record, EndTransactionRecord):
            if not state.is_open:
                raise ValueError("a metadata transaction ends that did not begin")
            self.transaction = TransactionState.ENDED
        elif isinstance(record, AbortTransactionRecord):
            if not state.is_open:
                raise ValueError("a metadata transaction is aborted that did not begin")
            self.transaction = TransactionState.ABORTED
            self.delta = MetadataDelta(self.image)
        else:
            self.transaction = TransactionState.CONTINUED if state.is_open else TransactionState.NONE
            self.delta.replay(record)

    def _mark_end(self, batch: CommittedBatch, offset: int, *, aligned: bool) -> None:
        self._end = Provenance(offset, batch.epoch, batch.append_timestamp_ms, aligned)

    def _hand_over(self, delta: MetadataDelta) -> None:
        manifest = Manifest(self._end, num_bytes=self._num_bytes)
        image = delta.apply(self._end)
        seen = self.has_seen_record
        self.reset_to(image)
        self.has_seen_record = self.has_seen_record or seen
        self._callback(delta, image, manifest)


class MetadataLoader:
    """Listens to the quorum, keeps the newest image, tells the publishers.

    `high_watermark` gives the quorum's, None while it is unknown.
    """

    def __init__(
        self, node_id: int, high_watermark: Callable[[], int | None], on_fault: FaultHandler = raise_fault
    ) -> None:
        self.node_id = node_id
        self.image = EMPTY
        self.catching_up = True
        self.leader_id: int | None = None
        self.leader_epoch = 0
        self.last_applied_offset = -1
        """The end of the image that publishers know: what the broker tells the controller in its heartbeats."""
        self._bytes_unseen = 0
        """Of batches since the last snapshot, before the first image was shown."""
        self._high_watermark = high_watermark
        self._on_fault = on_fault
        self._batches = BatchLoader(self._publish, on_fault)
        self._publishers: list[Publisher] = []
        self._waiting: list[Publisher] = []

    @property
    def is_waiting(self) -> bool:
        """Whether a publisher waits to be installed."""
        return bool(self._waiting)

    def on_commit(self, batches: Sequence[CommittedBatch]) -> None:
        """Batches below the high watermark, in order, each once."""
        for batch in batches:
            self._batches.load(batch)
            if self.catching_up:
                self._bytes_unseen += batch.size_bytes
        if not batches or self._is_worth_an_image(batches[-1].last_offset):
            self._batches.flush()
            self.poll()

    def _is_worth_an_image(self, offset: int) -> bool:
        high_watermark = self._high_watermark()
        far = self.catching_up and high_watermark is not None and high_watermark - offset > _FAR
        return not far or self._batches.num_records >= len(self.image.topics.by_id)

    def on_load_snapshot(self, snapshot: CommittedSnapshot) -> None:
        """The log no longer holds what comes next here: the snapshot replaces whatever is known."""
        for _ in self.load_snapshot(snapshot):
            pass

    def load_snapshot(self, snapshot: CommittedSnapshot) -> Iterator[None]:
        """`on_load_snapshot` in steps, of which the last shows the image. Nothing may be committed in between."""
        delta = MetadataDelta(self.image)
        for index, (record, _) in enumerate(snapshot.records):
            if index and index % _RECORDS_A_STEP == 0:
                yield
            try:
                delta.replay(record)
            except (ValueError, AssertionError) as error:
                self._on_fault(
                    f"Error loading metadata log record {index} in snapshot at offset {snapshot.last_contained_offset}",
                    error,
                )
        delta.finish_snapshot()
        provenance = Provenance(
            snapshot.last_contained_offset, snapshot.last_contained_epoch, snapshot.last_contained_log_time_ms
        )
        image = delta.apply(provenance)
        self._bytes_unseen = 0
        log.info("[MetadataLoader id=%d] loaded snapshot %s", self.node_id, provenance)
        self._batches.reset_to(image)
        self._publish(delta, image, Manifest(provenance, is_snapshot=True))
        self.poll()

    def on_leader_change(self, leader_id: int | None, epoch: int) -> None:
        self.leader_id = leader_id
        self.leader_epoch = epoch
        for publisher in self._publishers:
            self._tell(publisher, "on_controller_change", lambda p: p.on_controller_change(leader_id, epoch))

    def install_publishers(self, publishers: Sequence[Publisher]) -> None:
        """They get the image as soon as the node has caught up: now, if it has."""
        names = {publisher.name for publisher in (*self._publishers, *self._waiting)}
        for publisher in publishers:
            if publisher.name in names:
                raise ValueError(
                    f"Attempted to install a new publisher named {publisher.name}, but there is already one"
                )
            names.add(publisher.name)
        self._waiting.extend(publishers)
        self.poll()

    def poll(self) -> None:
        """Install who waits, if the node has caught up."""
        if not self._waiting or self._still_behind(self.image.offset):
            return
        delta = MetadataDelta.of_whole(self.image)
        manifest = Manifest(self.image.provenance, is_snapshot=True, num_bytes=self._bytes_unseen)
        while self._waiting:
            publisher = self._waiting.pop(0)
            log.info(
                "[MetadataLoader id=%d] initializing publisher %s at %d",
                self.node_id,
                publisher.name,
                self.image.offset,
            )
            self._tell(publisher, "the first image", lambda p: p.on_metadata_update(delta, self.image, manifest))
            self._tell(
                publisher, "on_controller_change", lambda p: p.on_controller_change(self.leader_id, self.leader_epoch)
            )
            self._publishers.append(publisher)
        self.last_applied_offset = self.image.offset

    def _publish(self, delta: MetadataDelta, image: MetadataImage, manifest: Manifest) -> None:
        self.image = image
        if self._still_behind(image.offset):
            return
        for publisher in tuple(self._publishers):
            self._tell(
                publisher, f"the image at {image.provenance}", lambda p: p.on_metadata_update(delta, image, manifest)
            )
        self.last_applied_offset = image.offset

    def _tell(self, publisher: Publisher, what: str, call: Callable[[Publisher], None]) -> None:
        try:
            call(publisher)
        except Exception as error:
            self._on_fault(f"Unhandled error in publisher {publisher.name} at {what}", error)

    def _still_behind(self, offset: int) -> bool:
        """The gate: open for good once the image is within one of a known high watermark and holds any record."""
        if not self.catching_up:
            return False
        high_watermark = self._high_watermark()
        if high_watermark is None or offset < high_watermark - 1 or not self._batches.has_seen_record:
            return True
        log.info(
            "[MetadataLoader id=%d] finished catching up to the high watermark of %d", self.node_id, high_watermark
        )
        self.catching_up = False
        return False
