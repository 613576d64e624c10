"""Logs that cannot be cleaned: what follows for them, and that nothing follows for others."""

from __future__ import annotations

import errno
import tracemalloc
from collections.abc import Callable, Generator
from typing import Any

import pytest
from compacted_node import NOW, TP, CompactedNode, clean_all, contents

from kalda.base.ids import TopicPartition
from kalda.records.batch import HEADER_SIZE, LOG_OVERHEAD, read_header, stamp, write_header
from kalda.records.builder import build_batch
from kalda.records.compression import Compression
from kalda.storage.compaction.cleaner import Cleaning
from kalda.storage.compaction.passes import Rewriting
from kalda.storage.log.deletion import truncate_to
from kalda.storage.log.log import Log
from kalda.storage.log.segment import Segment

OTHER = TopicPartition("u", 0)


def _with_two_logs(**config: str) -> tuple[CompactedNode, Log]:
    """A node with another compacted log, whose share of dirty bytes is smaller."""
    node = CompactedNode(**config)
    other = node.logs.get_or_create_log(OTHER, None, node.config, None)
    for _ in range(10):
        other.append_as_leader(build_batch([(NOW, b"key", b"x" * 60, ())]), 0, NOW)
    other.update_high_watermark(other.log_end_offset)
    other.roll(NOW)
    other.flush()
    return node, other


def _fill(node: CompactedNode, count: int = 10) -> None:
    for _ in range(count):
        node.put(("key", "x" * 60))
    node.log.roll(node.now_ms)
    node.log.flush()


def _malformed_tombstone() -> bytearray:
    """One record without a value, whose offset delta is -5."""
    batch = build_batch([(NOW, b"k", None, ())])
    batch[HEADER_SIZE + 3] = 9  # zig-zag
    write_header(batch, 0, read_header(batch))
    return batch


def _store(node: CompactedNode, batch: bytearray) -> None:
    """Append a batch whose records nobody checks."""
    stamp(batch, 0, node.log.log_end_offset, 0)
    node.log.append_as_follower(batch, 0, NOW)
    node.log.update_high_watermark(node.log.log_end_offset)


def _errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "kalda.logs"]


def test_a_malformed_record_that_is_stored_ends_the_compaction_of_its_log_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As older software let it be stored (KAFKA-8725)."""
    node, other = _with_two_logs()
    _store(node, _malformed_tombstone())
    _fill(node)
    directory = node.logs.dir_of(TP)
    assert directory is not None
    assert clean_all(node.cleaner, NOW) == 1
    assert len(contents(other)) == 1
    assert node.cleaner.uncleanable.keys() == {TP}
    assert node.cleaner.uncleanable_bytes(directory, NOW) == node.log.size_bytes, "the active segment is empty"
    assert clean_all(node.cleaner, NOW) == 0
    (message,) = _errors(caplog)
    assert message.startswith("t-0 is not compacted any more: CORRUPT_MESSAGE: ")
    assert "record 0 of 1 at offset 0 is malformed" in message
    assert "restart this node" in message
    assert not node.log.offline


@pytest.mark.parametrize("error", [ValueError("a defect"), KeyError("x"), AssertionError("broken"), RecursionError()])
def test_whatever_a_cleaning_raises_ends_the_compaction_of_its_log_alone(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node, other = _with_two_logs()
    _fill(node)
    sound = Rewriting._work

    def work(self: Rewriting) -> Generator[None, None, None]:
        yield from sound(self)
        if "t-0" in self._directory:
            raise error

    monkeypatch.setattr(Rewriting, "_work", work)
    assert clean_all(node.cleaner, NOW) == 1
    assert node.cleaner.uncleanable.keys() == {TP}
    assert len(contents(other)) == 1
    assert caplog.records[-1].exc_info is not None, "with the place of the defect"


def test_a_log_that_cannot_be_judged_is_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The header of its first batch is read to find out whether a record is overdue."""
    node, other = _with_two_logs(max_compaction_lag_ms="1000")
    _fill(node)
    node.disk.flip_bit("/d/t-0/00000000000000000000.log", 16 * 8)  # the magic
    for segment in node.log.segments:
        segment._first_timestamp = None
    assert clean_all(node.cleaner, NOW) == 1
    assert clean_all(node.cleaner, NOW) == 0
    assert len(_errors(caplog)) == 1
    assert "t-0 is not compacted any more" in _errors(caplog)[0]
    assert len(contents(other)) == 1


def test_an_uncleanable_log_is_forgotten_with_its_topic() -> None:
    node = CompactedNode()
    _fill(node)
    node.disk.flip_bit("/d/t-0/00000000000000000000.log", 70 * 8)
    clean_all(node.cleaner, NOW)
    assert node.cleaner.uncleanable.keys() == {TP}
    node.logs.delete_log(TP)
    assert node.cleaner.choose(NOW) is None
    assert not node.cleaner.uncleanable
    node.log = node.logs.get_or_create_log(TP, None, node.config, None)
    _fill(node)
    assert clean_all(node.cleaner, NOW) == 1
    assert len(contents(node.log)) == 1


def test_a_log_whose_keys_had_no_room_is_tried_again_once_there_is_more(caplog: pytest.LogCaptureFixture) -> None:
    node = CompactedNode()
    node.put(*((f"key-{key}", "v") for key in range(20)))
    node.put(*((f"key-{key}", "w") for key in range(20)))
    node.log.roll(NOW)
    node.log.flush()
    node.cleaner = node.new_cleaner(memory_bytes=24 * 30, threads=2)
    assert clean_all(node.cleaner, NOW) == 0
    assert clean_all(node.cleaner, NOW) == 0
    (message,) = _errors(caplog)
    assert "the batch at offset 0 of t-0 has more keys than a map of 360 bytes holds" in message
    assert "log.cleaner.dedupe.buffer.size is raised" in message
    node.cleaner.config = node.new_cleaner(memory_bytes=24 * 30, threads=1).config
    assert clean_all(node.cleaner, NOW) == 1
    assert not node.cleaner.uncleanable
    assert [value for _, _, value in contents(node.log)] == ["w"] * 20


def _cleaned_files(node: CompactedNode) -> list[str]:
    return [name for name in node.disk.list_dir("/d/t-0") if ".cleaned" in name]


def _begun(node: CompactedNode) -> Cleaning:
    """A cleaning whose next step writes."""
    cleaning = node.cleaner.choose(node.now_ms)
    assert cleaning is not None
    while not cleaning.bytes_moved:
        job = cleaning.next_job()
        assert job is not None
        job.complete()
    return cleaning


def _fails(node: CompactedNode, cleaning: Cleaning) -> Exception:
    """What the next step raises. The cleaner is called with it, as the shell does."""
    try:
        job = cleaning.next_job()
        assert job is not None
        job.complete()
    except Exception as error:
        discarding = node.cleaner.failed(cleaning, error, node.now_ms)
        if discarding is not None:
            discarding.complete()
        return error
    raise AssertionError("it does not fail")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Segment]:
    """Segments that are made while the test runs."""
    found: list[Segment] = []
    create = Segment.create

    def recorded(*arguments: Any, **named: Any) -> Segment:
        found.append(create(*arguments, **named))
        return found[-1]

    monkeypatch.setattr(Segment, "create", recorded)
    return found


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE])
@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_full_disk_ends_the_cleaning_and_takes_nothing_offline(
    code: int, operation: str, caplog: pytest.LogCaptureFixture, made: list[Segment]
) -> None:
    """What was written of the cleaned segment is removed, and the log is tried again later."""
    node, other = _with_two_logs()
    _fill(node)
    cleaning = _begun(node)
    assert cleaning.log is node.log
    node.disk.fail("/d/t-0", code, frozenset((operation,)))
    made.clear()
    _fails(node, cleaning)
    assert not any(segment.is_open for segment in made)
    assert _cleaned_files(node) == []
    node.disk.mend("/d/t-0")
    assert not node.log.offline
    assert not node.cleaner.uncleanable
    (message,) = _errors(caplog)
    assert message.startswith("the compaction of t-0 was given up")
    assert "It is tried again in 5 minutes" in message
    assert clean_all(node.cleaner, NOW) == 1, "of the other log"
    assert clean_all(node.cleaner, NOW + 5 * 60_000 - 1) == 0
    assert clean_all(node.cleaner, NOW + 5 * 60_000) == 1
    assert len(contents(node.log)) == len(contents(other)) == 1


def test_the_last_of_the_disk_is_left_to_appends() -> None:
    node = CompactedNode()
    for number in range(10):
        node.put((f"key-{number}", "x" * 60))
    node.log.roll(NOW)
    node.log.flush()
    cleaning = _begun(node)
    node.disk.capacity_bytes = node.disk.used_bytes + 5
    error = _fails(node, cleaning)
    assert isinstance(error, OSError)
    assert error.errno == errno.ENOSPC
    assert not node.log.offline


def test_a_disk_that_fails_takes_the_directory_offline() -> None:
    """As Apache Kafka's cleaner does."""
    node = CompactedNode()
    _fill(node)
    cleaning = _begun(node)
    node.disk.fail("/d/t-0", errno.EIO)
    _fails(node, cleaning)
    assert node.log.offline
    assert not node.logs.dirs[0].online
    assert not node.cleaner.uncleanable


def test_a_disk_that_is_full_when_the_names_are_synced_takes_the_directory_offline() -> None:
    """Renames and removals may have been lost: the cleaned segments are in their places already."""
    node = CompactedNode()
    _fill(node)
    cleaning = _begun(node)
    job = cleaning.next_job()
    while job is not None and not job.description.startswith("sync"):
        job.complete()
        job = cleaning.next_job()
    assert job is not None
    node.disk.fail("/d/t-0", errno.ENOSPC, frozenset(("sync",)))
    job.complete()
    assert node.log.offline
    assert not cleaning.done


def _truncate(node: CompactedNode) -> None:
    truncate_to(node.log, 2)


def _delete(node: CompactedNode) -> None:
    node.logs.delete_log(TP)


@pytest.mark.parametrize("change", [_truncate, _delete])
@pytest.mark.parametrize("steps", [0, 1])
def test_a_log_that_is_cut_under_a_cleaning_is_not_taken_for_damaged(
    change: Callable[[CompactedNode], None], steps: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Its files are cut or removed while a step reads them."""
    node = CompactedNode()
    _fill(node)
    cleaning = node.cleaner.choose(NOW)
    assert cleaning is not None
    wanted = ("map", "clean")[steps]
    job = cleaning.next_job()
    while job is not None and not job.description.startswith(wanted):
        job.complete()
        job = cleaning.next_job()
    assert job is not None
    change(node)
    try:
        job.complete()
        discarding = cleaning.next_job()
    except Exception as error:
        discarding = node.cleaner.failed(cleaning, error, NOW)
    assert discarding is not None
    discarding.complete()
    assert cleaning.next_job() is None
    assert not cleaning.done
    assert node.cleaner.finished(cleaning, node.now_ms) is None
    assert not node.cleaner.uncleanable
    assert _errors(caplog) == []


def test_a_cleaning_in_small_steps_is_the_same(made: list[Segment]) -> None:
    """A step may move one batch only; the log is read and appended to in between."""
    node = CompactedNode()
    for number in range(30):
        node.put((f"key-{number % 3}", "x" * 60))
    node.log.roll(NOW)
    node.log.flush()
    cleaning = node.cleaner.choose(NOW)
    assert cleaning is not None
    steps = 0
    while (job := cleaning.next_job(1)) is not None:
        job.complete()
        steps += 1
        node.put(("other", str(steps)))
    assert cleaning.done
    assert steps > 60
    assert [offset for offset, _, _ in contents(node.log)][:4] == [27, 28, 29, 30]
    assert not any(segment.is_open for segment in made if segment.suffix == ".cleaned")


def test_logs_are_cleaned_at_the_same_time() -> None:
    node, other = _with_two_logs()
    _fill(node)
    first = node.cleaner.choose(NOW)
    assert first is not None
    assert node.cleaner.choose(NOW) is None, "the first one writes the checkpoint that both need"
    while first.is_preparing:
        job = first.next_job()
        assert job is not None
        if first.is_preparing:
            job.complete()
    second = node.cleaner.choose(NOW)
    assert second is not None
    assert (first.log, second.log) == (node.log, other)
    assert node.cleaner.choose(NOW) is None
    job.complete()
    for cleaning in (second, first):
        while (job := cleaning.next_job()) is not None:
            job.complete()
        checkpoint = node.cleaner.finished(cleaning, node.now_ms)
        assert checkpoint is not None
        checkpoint.complete()
    assert sorted(node.disk.read_file("/d/cleaner-offset-checkpoint").split(b"\n")[2:4]) == [b"t 0 10", b"u 0 10"]


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.ZSTD, Compression.SNAPPY])
def test_a_batch_occupies_little_more_than_twice_what_it_unfolds_to(codec: Compression) -> None:
    """One record of 64 MB, and one that is compacted away, so that the batch is written anew."""
    node = CompactedNode(internal_segment_bytes=str(16 << 20))
    rows = [(NOW, b"again", b"", ()), (NOW, b"large", bytes(64 << 20), ()), (NOW, b"again", b"", ())]
    _store(node, build_batch(rows, compression=codec))
    del rows
    node.log.roll(NOW)
    node.log.flush()
    tracemalloc.start()
    try:
        assert clean_all(node.cleaner, NOW) == 1
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2.5 * (64 << 20)
    size = node.log.segments.first.size
    assert read_header(node.disk.read_file("/d/t-0/00000000000000000000.log")).records_count == 2
    assert size < 8 << 20


def test_a_damaged_length_does_not_occupy_as_much_memory() -> None:
    node = CompactedNode(internal_segment_bytes=str(128 << 20))
    for _ in range(2):
        _store(node, build_batch([(NOW, b"key", bytes(20 << 20), ())]))
    node.log.roll(NOW)
    node.log.flush()
    path = "/d/t-0/00000000000000000000.log"
    length = node.log.segments.first.size - LOG_OVERHEAD
    file = node.disk.open(path)
    file.write(8, length.to_bytes(4, "big"))
    file.close()
    tracemalloc.start()
    try:
        assert clean_all(node.cleaner, NOW) == 0
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert node.cleaner.uncleanable.keys() == {TP}
    assert peak < 8 << 20
