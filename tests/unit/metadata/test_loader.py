"""The loader: images, transactions, catching up, publishers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from metadata_logs import NODES, LogBatch, log_batches, snapshots

from kalda.base.ids import Uuid
from kalda.metadata import loader as loader_module
from kalda.metadata.image import MetadataDelta, MetadataImage
from kalda.metadata.loader import MetadataLoader
from kalda.metadata.publisher import Manifest
from kalda.protocol.messages.metadata_records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    NoOpRecord,
    PartitionChangeRecord,
    TopicRecord,
)
from kalda.protocol.notation import RecordBody
from kalda.protocol.record_framing import VersionedRecord

BEGIN, END, ABORT = BeginTransactionRecord(), EndTransactionRecord(), AbortTransactionRecord()


def topic(name: str) -> TopicRecord:
    return TopicRecord(name=name, topic_id=Uuid(name.encode().ljust(16, b"-")))


def version() -> FeatureLevelRecord:
    return FeatureLevelRecord(name="metadata.version", feature_level=30)


@dataclass
class Recorder:
    """A publisher that records the topics of each image, and the arguments of all calls."""

    name: str = "recorder"
    seen: list[tuple[int, list[str]]] = field(default_factory=list)
    manifests: list[Manifest] = field(default_factory=list)
    deltas: list[MetadataDelta] = field(default_factory=list)
    leaders: list[tuple[int | None, int]] = field(default_factory=list)
    journal: list[str] = field(default_factory=list)

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage, manifest: Manifest) -> None:
        assert delta.apply(image.provenance) == image
        assert manifest.provenance == image.provenance
        self.seen.append((image.offset, sorted(image.topics.by_name)))
        self.manifests.append(manifest)
        self.deltas.append(delta)
        self.journal.append(self.name)

    def on_controller_change(self, leader_id: int | None, epoch: int) -> None:
        self.leaders.append((leader_id, epoch))


class Log:
    """Commits batches to a loader. The high watermark is the end of the log, unless `hold`."""

    def __init__(self) -> None:
        self.next_offset = 0
        self.high_watermark: int | None = None
        self.hold = False
        self.loader = MetadataLoader(1, lambda: self.high_watermark)

    def batch(self, *records: RecordBody, epoch: int = 1) -> LogBatch:
        base = self.next_offset
        self.next_offset += len(records)
        versioned = [VersionedRecord(record, 0) for record in records]
        return LogBatch(base, self.next_offset - 1, epoch, 1000 + base, 100, False, versioned)

    def commit(self, *batches: Sequence[RecordBody]) -> None:
        committed = [self.batch(*records) for records in batches]
        if not self.hold:
            self.high_watermark = self.next_offset
        self.loader.on_commit(committed)


@pytest.fixture
def log() -> Log:
    return Log()


def installed(log: Log) -> Recorder:
    """A recorder at a loader that has caught up with record 0."""
    recorder = Recorder()
    log.loader.install_publishers([recorder])
    log.commit([version()])
    assert recorder.seen == [(0, [])]
    recorder.seen.clear()
    return recorder


def test_batches_of_one_commit_are_one_image(log: Log) -> None:
    recorder = installed(log)
    log.commit([topic("a")], [topic("b"), topic("c")])
    assert recorder.seen == [(3, ["a", "b", "c"])]
    assert recorder.manifests[-1].num_bytes == 200
    assert log.loader.last_applied_offset == 3


def test_nothing_is_published_until_the_high_watermark_is_reached(log: Log) -> None:
    recorder = Recorder()
    log.loader.install_publishers([recorder])
    log.hold = True
    log.commit([version()])
    log.high_watermark = 4
    log.commit([topic("a")])
    assert recorder.seen == []
    assert log.loader.image.offset == 1
    assert log.loader.last_applied_offset == -1
    assert log.loader.is_waiting
    log.commit([topic("b"), topic("c")])
    assert recorder.seen == [(3, ["a", "b", "c"])]
    assert recorder.manifests[-1].is_snapshot
    assert not log.loader.is_waiting


def test_a_loader_that_has_caught_up_publishes_below_a_higher_high_watermark(log: Log) -> None:
    recorder = installed(log)
    log.hold = True
    log.high_watermark = 1000
    log.commit([topic("a")])
    assert recorder.seen == [(1, ["a"])]


def test_a_loader_with_control_records_alone_has_not_caught_up(log: Log) -> None:
    recorder = Recorder()
    log.loader.install_publishers([recorder])
    log.next_offset = log.high_watermark = 3
    log.loader.on_commit([LogBatch(0, 2, 1, 1000, 100, True, [])])
    log.loader.poll()
    assert recorder.seen == []


def test_poll_installs_when_the_high_watermark_becomes_known_late(log: Log) -> None:
    recorder = Recorder()
    log.loader.install_publishers([recorder])
    log.hold = True
    log.commit([version()])
    assert recorder.seen == []
    log.high_watermark = 1
    log.loader.poll()
    assert recorder.seen == [(0, [])]
    assert recorder.leaders == [(None, 0)]


def test_publishers_are_called_in_the_order_of_their_installation(log: Log) -> None:
    journal: list[str] = []
    first, second, third = (Recorder(name, journal=journal) for name in ("first", "second", "third"))
    log.loader.install_publishers([first])
    log.loader.install_publishers([second, third])
    log.commit([version()])
    log.commit([topic("a")])
    assert journal == ["first", "second", "third"] * 2


def test_a_late_publisher_gets_the_whole_image_as_one_delta(log: Log) -> None:
    installed(log)
    log.commit([topic("a")])
    log.loader.on_leader_change(3, 7)
    late = Recorder("late")
    log.loader.install_publishers([late])
    assert late.seen == [(1, ["a"])]
    assert late.deltas[0].image.is_empty
    assert late.leaders == [(3, 7)]
    log.loader.on_leader_change(None, 8)
    assert late.leaders == [(3, 7), (None, 8)]


def test_two_publishers_of_one_name_are_refused(log: Log) -> None:
    with pytest.raises(ValueError, match="already one"):
        log.loader.install_publishers([Recorder(), Recorder()])


def test_a_transaction_is_published_when_it_ends(log: Log) -> None:
    recorder = installed(log)
    log.commit([BEGIN, topic("a")])
    log.commit([topic("b")])
    assert recorder.seen == []
    assert log.loader.image.offset == 0
    log.commit([topic("c"), END])
    assert recorder.seen == [(5, ["a", "b", "c"])]
    assert recorder.manifests[-1].num_bytes == 300


def test_an_aborted_transaction_is_published_as_an_empty_delta(log: Log) -> None:
    recorder = installed(log)
    log.commit([BEGIN, topic("a")])
    log.commit([topic("b"), ABORT])
    assert recorder.seen == [(4, [])]


def test_records_after_an_abort_do_not_restore_the_aborted_ones(log: Log) -> None:
    recorder = installed(log)
    log.commit([topic("x"), BEGIN, topic("a"), ABORT, topic("y")])
    assert recorder.seen == [(1, ["x"]), (5, ["x", "y"])]


def test_records_before_a_transaction_in_its_batch_are_published_at_once_without_alignment(log: Log) -> None:
    recorder = installed(log)
    log.commit([topic("a"), BEGIN, topic("b")])
    assert recorder.seen == [(1, ["a"])]
    assert not recorder.manifests[-1].provenance.is_batch_aligned
    log.commit([END])
    assert recorder.seen == [(1, ["a"]), (4, ["a", "b"])]
    assert recorder.manifests[-1].provenance.is_batch_aligned


def test_an_image_of_the_batches_before_a_transaction_is_aligned_with_their_end(log: Log) -> None:
    recorder = installed(log)
    log.commit([topic("a")], [BEGIN, topic("b")])
    assert recorder.seen == [(1, ["a"])]
    assert recorder.manifests[-1].provenance == (1, 1, 1001, True)


@pytest.mark.parametrize("records", [[END], [ABORT], [BEGIN, BEGIN], [BEGIN, END, END]])
def test_transactions_out_of_order_are_faults(log: Log, records: list[RecordBody]) -> None:
    installed(log)
    with pytest.raises(RuntimeError, match="from offset"):
        log.commit(records)


def test_a_record_that_contradicts_the_image_is_a_fault_with_its_offset(log: Log) -> None:
    installed(log)
    with pytest.raises(RuntimeError, match="Error loading metadata log record from offset 2"):
        log.commit([NoOpRecord(), PartitionChangeRecord(partition_id=0, topic_id=Uuid(bytes(range(16))))])


def test_a_publisher_that_fails_is_a_fault_with_its_name() -> None:
    faults: list[str] = []
    loader = MetadataLoader(1, lambda: 1, on_fault=lambda message, error: faults.append(f"{message}: {error}"))

    class Broken(Recorder):
        def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage, manifest: Manifest) -> None:
            raise OSError("disk full")

    good = Recorder("good")
    loader.install_publishers([Broken("broken"), good])
    loader.on_commit([LogBatch(0, 0, 1, 1, 1, False, [VersionedRecord(version(), 0)])])
    assert faults == ["Unhandled error in publisher broken at the first image: disk full"]
    assert good.seen == [(0, [])]


@dataclass
class Snapshot:
    last_contained_offset: int
    records: list[VersionedRecord]
    last_contained_epoch: int = 2
    last_contained_log_time_ms: int = 5000


def test_a_snapshot_replaces_the_image_and_drops_an_open_transaction(log: Log) -> None:
    recorder = installed(log)
    log.commit([topic("old")])
    log.commit([BEGIN, topic("half")])
    log.next_offset = 50
    log.loader.on_load_snapshot(Snapshot(49, [VersionedRecord(version(), 0), VersionedRecord(topic("new"), 0)]))
    assert recorder.seen[-1] == (49, ["new"])
    assert recorder.manifests[-1].is_snapshot
    assert recorder.deltas[-1].topics is not None
    assert [image.name for image in recorder.deltas[-1].topics.deleted.values()] == ["old"]
    log.commit([topic("next")])
    assert recorder.seen[-1] == (50, ["new", "next"])


@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("commit_size", [1, 3, 1000])
def test_a_log_of_kafka_gives_the_same_image_with_commits_of_any_size(node: str, commit_size: int) -> None:
    batches = log_batches(node)
    loader = MetadataLoader(1, lambda: batches[-1].last_offset + 1)
    recorder = Recorder()
    loader.install_publishers([recorder])
    for start in range(0, len(batches), commit_size):
        loader.on_commit(batches[start : start + commit_size])
    assert recorder.seen[-1][0] == batches[-1].last_offset
    for end, records in snapshots(node).items():
        if end > 0:
            tail = MetadataLoader(1, lambda: batches[-1].last_offset + 1)
            tail.on_load_snapshot(Snapshot(end - 1, records))
            tail.on_commit([batch for batch in batches if batch.base_offset >= end])
            assert tail.image == loader.image


def test_far_behind_an_image_is_made_only_for_many_records(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_module, "_FAR_BEHIND", 5)
    recorder = Recorder()
    log.loader.install_publishers([recorder])
    log.high_watermark, log.hold = 19, True
    log.commit([version(), topic("a"), topic("b"), topic("c")])
    assert log.loader.image.offset == 3, "more records than the image has topics"
    log.commit([topic("d")])
    log.commit([topic("e")])
    assert log.loader.image.offset == 3
    log.commit([topic("f")])
    assert log.loader.image.offset == 6
    log.commit([NoOpRecord()] * 11)
    assert log.loader.image.offset == 17, "near the high watermark each commit makes an image"
    log.commit([topic("g")])
    assert recorder.seen == [(18, list("abcdefg"))]
    assert recorder.manifests[0].num_bytes == 600, "the bytes of all batches: no snapshot contains them"


def test_a_snapshot_is_published_in_its_last_step(log: Log) -> None:
    recorder = installed(log)
    before = log.loader.image
    records = [VersionedRecord(version(), 0), *(VersionedRecord(topic(f"t{at}"), 0) for at in range(2_500))]
    for _ in log.loader.load_snapshot(Snapshot(49, records)):
        assert log.loader.image is before
    assert len(log.loader.image.topics.by_id) == 2_500
    assert recorder.seen[-1][0] == 49
