"""From committed batches and snapshots to images, and from images to publishers.

Batches that were committed together are replayed into one delta, so that publishers are called once for them. Metadata
transactions (KIP-868) may span several commits: their records stay in the delta until the end record, and are dropped
at an abort record. So two conditions are checked at the end of every commit. While a transaction is open no image is
made. While the node has not caught up, images are made but not published.

The node has caught up when the high watermark is known, everything below it is loaded, and some record was loaded; it
stays so for good. Before that a broker would act on outdated metadata. A publisher is installed when the node has
caught up: it gets the whole image as one delta from nothing, then every image in order. Publishers are called in the
order of their installation. While the node is far behind the high watermark, no reader needs the next image, and one is
made only after as many records as the image has topics.

There are no timers here. `poll` installs publishers that wait, for the case that the high watermark became known
without a commit of any record. The shell calls it after every commit and change of leader while `is_waiting`.

Not obvious:

- While a metadata transaction is open, the loader's delta holds its records only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto

from kalda.base.background import ITEMS_A_STEP
from kalda.metadata.image import EMPTY, MetadataDelta, MetadataImage, Provenance
from kalda.metadata.publisher import CommittedSnapshot, Manifest, Publisher, ReplayedBatch
from kalda.protocol.messages.metadata_records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
)
from kalda.protocol.notation import Struct

log = logging.getLogger(__name__)

_FAR_BEHIND = 10_000
"""Records below the high watermark from which on a node is far behind: it loads them in some 0.1 s."""

FaultHandler = Callable[[str, Exception], None]
"""Called with an error after which the node is not safe to run. Where it returns, the loader goes on."""
ImageCallback = Callable[[MetadataDelta, MetadataImage, Manifest], None]


def raise_fault(message: str, error: Exception) -> None:
    """The default: a node that cannot load committed metadata stops."""
    raise RuntimeError(message) from error


class LoadedTransaction(Enum):
    """The state after the last loaded record. ENDED and ABORTED last until the next record."""

    NONE = auto()
    STARTED = auto()
    CONTINUED = auto()
    ENDED = auto()
    ABORTED = auto()

    @property
    def is_open(self) -> bool:
        return self in (LoadedTransaction.STARTED, LoadedTransaction.CONTINUED)


_TRANSACTION_RECORDS: frozenset[type[Struct]] = frozenset(
    (BeginTransactionRecord, EndTransactionRecord, AbortTransactionRecord)
)


class BatchLoader:
    """Replays batches into one delta over `image`, and calls back with (delta, image, manifest) for each new image.

    Invariant: while a transaction is open, the delta has the records of the transaction and no others, because at the
    begin record an image with all earlier records is made. So an abort replaces the delta by an empty one.
    """

    def __init__(self, callback: ImageCallback, on_fault: FaultHandler = raise_fault) -> None:
        self._callback = callback
        self._on_fault = on_fault
        self.reset_to(EMPTY)

    def reset_to(self, image: MetadataImage) -> None:
        """Start anew from `image`: after a snapshot, or when a new image was made. Drops an open transaction."""
        self.image = image
        self.delta = MetadataDelta(image)
        self.num_records = 0
        """records loaded since `image`; those of aborted transactions count too"""
        self.transaction = LoadedTransaction.NONE
        self.has_loaded_record = not image.is_empty
        """whether any record, control records aside, was ever loaded"""
        self._end = image.provenance
        """where the last loaded batch ends"""
        self._num_batches = 0
        """batches since `image`"""
        self._num_bytes = 0
        """bytes of these batches"""

    def load(self, batch: ReplayedBatch) -> None:
        replay, none = self.delta.replay, LoadedTransaction.NONE
        self.num_records += len(batch.records)
        for index, (record, _) in enumerate(batch.records):
            if self.transaction is none and type(record) not in _TRANSACTION_RECORDS:
                # The path of nearly every record. A node that starts may have a million to replay.
                try:
                    replay(record)
                except (ValueError, AssertionError) as error:
                    self._on_fault(f"Error loading metadata log record from offset {batch.base_offset + index}", error)
                self.has_loaded_record = True
                continue
            begins = isinstance(record, BeginTransactionRecord) and not self.transaction.is_open
            if begins and (index > 0 or self._num_batches > 0):
                # An image with the records before the transaction is made now, not at the end of the transaction.
                if index > 0:
                    self._mark_end(batch, batch.base_offset + index - 1, aligned=False)
                self._make_image(self.delta)
            try:
                self._replay(record)
            except (ValueError, AssertionError) as error:
                self._on_fault(f"Error loading metadata log record from offset {batch.base_offset + index}", error)
            self.has_loaded_record = True
            replay = self.delta.replay
        self._mark_end(batch, batch.last_offset, aligned=True)
        self._num_batches += 1
        self._num_bytes += batch.size_bytes

    def flush(self) -> None:
        """After the last batch of a commit: make an image of all loaded records, unless a transaction is open."""
        if self._num_batches == 0 or self.transaction.is_open:
            return
        if self.transaction is LoadedTransaction.ABORTED:
            log.debug("publishing an empty delta up to %s: a metadata transaction was aborted", self._end)
        self._make_image(self.delta)

    def _replay(self, record: Struct) -> None:
        state = self.transaction
        if isinstance(record, BeginTransactionRecord):
            if state.is_open:
                raise ValueError("a metadata transaction begins inside another")
            self.transaction = LoadedTransaction.STARTED
        elif isinstance(record, EndTransactionRecord):
            if not state.is_open:
                raise ValueError("a metadata transaction ends, but none has begun")
            self.transaction = LoadedTransaction.ENDED
        elif isinstance(record, AbortTransactionRecord):
            if not state.is_open:
                raise ValueError("a metadata transaction is aborted, but none has begun")
            self.transaction = LoadedTransaction.ABORTED
            self.delta = MetadataDelta(self.image)
        else:
            self.transaction = LoadedTransaction.CONTINUED if state.is_open else LoadedTransaction.NONE
            self.delta.replay(record)

    def _mark_end(self, batch: ReplayedBatch, offset: int, *, aligned: bool) -> None:
        self._end = Provenance(offset, batch.epoch, batch.append_timestamp_ms, aligned)

    def _make_image(self, delta: MetadataDelta) -> None:
        manifest = Manifest(self._end, num_bytes=self._num_bytes)
        image = delta.apply(self._end)
        has_loaded_record = self.has_loaded_record
        self.reset_to(image)
        self.has_loaded_record = self.has_loaded_record or has_loaded_record
        self._callback(delta, image, manifest)


class MetadataLoader:
    """Loads what the quorum commits, keeps the newest image, calls the publishers.

    `high_watermark` returns that of the quorum, None while it is unknown.
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
        """the last offset of the newest published image: brokers report it to the controller in their heartbeats"""
        self._unpublished_bytes = 0
        """bytes of the batches since the last snapshot that were loaded while catching up"""
        self._high_watermark = high_watermark
        self._on_fault = on_fault
        self._batches = BatchLoader(self._publish, on_fault)
        self._publishers: list[Publisher] = []
        """installed, in the order in which they are called"""
        self._waiting: list[Publisher] = []
        """to be installed when the node has caught up"""
        self.snapshots_loaded = 0

    @property
    def is_waiting(self) -> bool:
        """Whether a publisher waits to be installed."""
        return bool(self._waiting)

    def on_commit(self, batches: Sequence[ReplayedBatch]) -> None:
        """Batches below the high watermark, in order, each once."""
        for batch in batches:
            self._batches.load(batch)
            if self.catching_up:
                self._unpublished_bytes += batch.size_bytes
        if not batches or self._is_image_due(batches[-1].last_offset):
            self._batches.flush()
            self.poll()

    def _is_image_due(self, offset: int) -> bool:
        high_watermark = self._high_watermark()
        is_far = self.catching_up and high_watermark is not None and high_watermark - offset > _FAR_BEHIND
        return not is_far or self._batches.num_records >= len(self.image.topics.by_id)

    def on_load_snapshot(self, snapshot: CommittedSnapshot) -> None:
        """The log no longer has the next records: the snapshot replaces all that was loaded."""
        for _ in self.load_snapshot(snapshot):
            pass

    def load_snapshot(self, snapshot: CommittedSnapshot) -> Iterator[None]:
        """`on_load_snapshot` in steps. The last step publishes the image; `on_commit` must not be called before it."""
        delta = MetadataDelta(self.image)
        for index, (record, _) in enumerate(snapshot.records):
            if index and index % ITEMS_A_STEP == 0:
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
        self._unpublished_bytes = 0
        self.snapshots_loaded += 1
        log.info("[MetadataLoader id=%d] loaded snapshot %s", self.node_id, provenance)
        self._batches.reset_to(image)
        self._publish(delta, image, Manifest(provenance, is_snapshot=True))
        self.poll()

    def on_leader_change(self, leader_id: int | None, epoch: int) -> None:
        self.leader_id = leader_id
        self.leader_epoch = epoch
        for publisher in self._publishers:
            self._call(publisher, "on_controller_change", lambda p: p.on_controller_change(leader_id, epoch))

    def install_publishers(self, publishers: Sequence[Publisher]) -> None:
        """Install publishers as soon as the node has caught up: at once, if it has. Each is called with the image."""
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
        """Install waiting publishers, if the node has caught up."""
        if not self._waiting or self._is_behind(self.image.offset):
            return
        delta = MetadataDelta.of_whole(self.image)
        manifest = Manifest(self.image.provenance, is_snapshot=True, num_bytes=self._unpublished_bytes)
        while self._waiting:
            publisher = self._waiting.pop(0)
            log.info(
                "[MetadataLoader id=%d] initializing publisher %s at %d",
                self.node_id,
                publisher.name,
                self.image.offset,
            )
            self._call(publisher, "the first image", lambda p: p.on_metadata_update(delta, self.image, manifest))
            self._call(
                publisher, "on_controller_change", lambda p: p.on_controller_change(self.leader_id, self.leader_epoch)
            )
            self._publishers.append(publisher)
        self.last_applied_offset = self.image.offset

    def _publish(self, delta: MetadataDelta, image: MetadataImage, manifest: Manifest) -> None:
        self.image = image
        if self._is_behind(image.offset):
            return
        for publisher in tuple(self._publishers):
            self._call(
                publisher, f"the image at {image.provenance}", lambda p: p.on_metadata_update(delta, image, manifest)
            )
        self.last_applied_offset = image.offset

    def _call(self, publisher: Publisher, event: str, call: Callable[[Publisher], None]) -> None:
        try:
            call(publisher)
        except Exception as error:
            self._on_fault(f"Unhandled error in publisher {publisher.name} at {event}", error)

    def _is_behind(self, offset: int) -> bool:
        """Whether the node has not caught up. False for good once the high watermark is known, an image ends right
        below it or higher, and a record was loaded."""
        if not self.catching_up:
            return False
        high_watermark = self._high_watermark()
        if high_watermark is None or offset < high_watermark - 1 or not self._batches.has_loaded_record:
            return True
        log.info(
            "[MetadataLoader id=%d] finished catching up to the high watermark of %d", self.node_id, high_watermark
        )
        self.catching_up = False
        return False
