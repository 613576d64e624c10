"""The snapshot generator and the registration tracker."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kalda.base.ids import Uuid
from kalda.metadata.image import EMPTY, MetadataDelta, MetadataImage, Provenance
from kalda.metadata.publisher import BrokerRegistrationTracker, Manifest, SnapshotGenerator
from kalda.protocol.messages.metadata_records import FeatureLevelRecord, RegisterBrokerRecord
from kalda.protocol.notation import RecordBody


class Snapshots:
    def __init__(self, max_bytes: int = 100, max_interval_ms: int = 1000) -> None:
        self.now_ms = 5000
        self.busy = False
        self.taken: list[int] = []
        self.offset = 0
        self.generator = SnapshotGenerator(
            1, self.emit, lambda: self.now_ms, max_bytes=max_bytes, max_interval_ms=max_interval_ms
        )

    def emit(self, image: MetadataImage) -> bool:
        if not self.busy:
            self.taken.append(image.offset)
        return not self.busy

    def load(self, size: int, *, aligned: bool = True, snapshot: bool = False) -> None:
        self.offset += 1
        image = replace(EMPTY, provenance=Provenance(self.offset, 1, 0, aligned))
        manifest = Manifest(image.provenance, is_snapshot=snapshot, num_bytes=size)
        self.generator.on_metadata_update(MetadataDelta(EMPTY), image, manifest)


def test_a_snapshot_is_due_after_so_many_bytes() -> None:
    snapshots = Snapshots()
    for _ in range(7):
        snapshots.load(40)
    assert snapshots.taken == [3, 6]


def test_a_snapshot_is_due_after_so_much_time() -> None:
    snapshots = Snapshots()
    snapshots.load(1)
    snapshots.now_ms += 999
    snapshots.load(1)
    snapshots.now_ms += 1
    snapshots.load(1)
    snapshots.load(1)
    assert snapshots.taken == [3]


def test_no_time_limit() -> None:
    snapshots = Snapshots(max_interval_ms=0)
    snapshots.now_ms += 10**12
    snapshots.load(1)
    assert snapshots.taken == []


def test_a_snapshot_ends_where_a_batch_ends() -> None:
    snapshots = Snapshots()
    snapshots.load(200, aligned=False)
    snapshots.load(1)
    assert snapshots.taken == [2]


def test_a_loaded_snapshot_counts_as_the_last_one() -> None:
    snapshots = Snapshots()
    snapshots.load(99)
    snapshots.load(0, snapshot=True)
    snapshots.load(99)
    assert snapshots.taken == []


def test_while_a_snapshot_is_written_the_next_one_waits() -> None:
    snapshots = Snapshots()
    snapshots.busy = True
    snapshots.load(100)
    snapshots.busy = False
    snapshots.load(0)
    assert snapshots.taken == [2]


def test_disabled(caplog: pytest.LogCaptureFixture) -> None:
    snapshots = Snapshots()
    snapshots.generator.disabled_reason = "a record could not be loaded"
    snapshots.load(100)
    assert snapshots.taken == []
    assert "a record could not be loaded" in caplog.text


def register(version: int, directories: int) -> list[RecordBody]:
    return [
        FeatureLevelRecord(name="metadata.version", feature_level=version),
        RegisterBrokerRecord(broker_id=1, log_dirs=[Uuid(bytes([n]) * 16) for n in range(1, directories + 1)]),
    ]


@pytest.mark.parametrize(
    ("steps", "refreshes"),
    [
        ([register(16, 0)], 0),
        ([register(17, 0)], 1),
        ([register(17, 1)], 0),
        ([register(16, 0), register(17, 0)[:1]], 1),
        ([register(16, 0), register(17, 0)[:1], register(17, 1)[1:], register(18, 1)[:1]], 1),
        ([register(17, 0)[:1], [RegisterBrokerRecord(broker_id=2)]], 0),
    ],
)
def test_a_broker_registers_anew_when_directories_are_required(steps: list[list[RecordBody]], refreshes: int) -> None:
    calls: list[int] = []
    tracker = BrokerRegistrationTracker(1, lambda: calls.append(1))
    image = EMPTY
    for step in steps:
        delta = MetadataDelta(image)
        for record in step:
            delta.replay(record)
        image = delta.apply(Provenance(0, 0, 0))
        tracker.on_metadata_update(delta, image, Manifest(image.provenance))
    assert len(calls) == refreshes
