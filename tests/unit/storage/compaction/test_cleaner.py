"""Compaction: what is kept, what is removed when, and that a crash at any moment leaves the log whole."""

from __future__ import annotations

import pytest
from compacted_node import DAY, NOW, TP, CompactedNode, batches, clean_all, contents

from kalda.records.builder import build_batch
from kalda.records.compression import Compression
from kalda.storage.compaction.cleaner import Cleaning
from kalda.storage.config import LogConfig
from kalda.storage.log.deletion import delete_segments, truncate_to
from kalda.storage.log.snapshot_jobs import collect_aborted


def test_the_last_value_of_each_key_stays_at_its_offset() -> None:
    node = CompactedNode()
    for round_ in range(5):
        for key in range(6):
            node.put((f"key-{key}", f"value {round_}"), compression=Compression(round_))
    assert node.clean() == 1
    assert contents(node.log) == [(24 + key, f"key-{key}", "value 4") for key in range(6)]
    assert node.disk.read_file("/d/cleaner-offset-checkpoint") == b"0\n1\nt 0 30\n"
    assert clean_all(node.cleaner, node.now_ms) == 0
    node.put(("key-2", "newest"))
    assert node.clean() == 1
    assert contents(node.log)[-1] == (30, "key-2", "newest")
    assert len(contents(node.log)) == 6


def test_figures_of_the_last_cleaning() -> None:
    node = CompactedNode(max_compaction_lag_ms="1000", min_cleanable_dirty_ratio="0")
    assert node.cleaner.last_figures == []
    for _ in range(5):
        node.put(*((f"key-{key}", "x" * 50) for key in range(6)))
    node.now_ms += 1_700
    size = node.log.size_bytes
    node.log.roll(node.now_ms)
    node.log.flush()
    cleaning = node.cleaner.choose(node.now_ms)
    assert cleaning is not None
    assert node.cleaner.max_delay_ms == 700
    node.now_ms += 2_000
    while (job := cleaning.next_job()) is not None:
        job.complete()
    checkpoint = node.cleaner.finished(cleaning, node.now_ms)
    assert checkpoint is not None
    checkpoint.complete()
    (figures,) = node.cleaner.last_figures
    assert 2 * size >= figures.bytes_read > size > 3 * figures.bytes_written > 0, (
        "read for the map, and to be rewritten"
    )
    assert figures.map_use == 6 * 24 / node.cleaner.config.memory_of_one
    assert figures.duration_ms == 2_000
    assert node.cleaner.choose(node.now_ms) is None
    assert node.cleaner.max_delay_ms == 0, "nothing is left that is late"


def test_segments_are_joined() -> None:
    node = CompactedNode()
    for _ in range(40):
        node.put(("key-1", "x" * 50))
    before = len(node.log.segments)
    node.clean()
    # The cleaned segments are small, but the sizes before the cleaning decide which are joined.
    node.put(("key-2", "y"))
    node.clean()
    assert len(node.log.segments) < before / 2
    assert contents(node.log) == [(39, "key-1", "x" * 50), (40, "key-2", "y")]


def test_a_deletion_stays_until_its_horizon() -> None:
    node = CompactedNode(delete_retention_ms=str(DAY))
    node.put(("gone", "value"), ("kept", "value"))
    node.put(("gone", None))
    node.clean()
    assert contents(node.log) == [(1, "kept", "value"), (2, "gone", None)]
    node.now_ms += DAY - 1
    node.put(("other", "value"))
    node.clean()
    assert (2, "gone", None) in contents(node.log)
    node.now_ms += 1
    node.put(("another", "value"))
    node.clean()
    assert [key for _, key, _ in contents(node.log)] == ["kept", "other", "another"]


def test_aborted_records_are_removed_and_their_marker_after_them() -> None:
    node = CompactedNode(delete_retention_ms="1000")
    node.put(("a", "plain"))
    node.transact(1, 0, "a", "b", commit=False)
    node.transact(2, 0, "c", commit=True)
    node.transact(1, 2, "d", commit=True)
    node.transact(2, 1, "c", commit=True)
    node.clean()
    assert contents(node.log) == [(0, "a", "plain"), (6, "d", "in a transaction"), (8, "c", "in a transaction")]
    assert [txn.producer_id for txn in collect_aborted(node.log.segments, 0, 10)] == [1]
    for _ in range(3):  # the marker gets its horizon when nothing is left of the transaction, and goes after it
        node.now_ms += 1001
        node.put(("e", str(node.now_ms)))
        node.clean()
    assert collect_aborted(node.log.segments, 0, 10) == []
    kinds = [record.offset for records in batches(node.log) for record in records]
    assert 3 not in kinds  # the abort marker
    assert {7, 9} <= set(kinds)  # the last commit markers end transactions that still have records


def test_an_active_producers_last_sequence_survives() -> None:
    node = CompactedNode()
    rows = [(NOW, b"key", b"old", ())]
    for sequence in range(3):
        node.log.append_as_leader(build_batch(rows, producer_id=9, producer_epoch=0, base_sequence=sequence), 0, NOW)
    node.put(("key", "new"))
    node.clean()
    assert [len(records) for records in batches(node.log)] == [0, 1]
    node.log.snapshots.remove(4)
    node.disk.sync_dir("/d/t-0")
    node.disk.crash()
    node.start()
    assert [state.last_sequence for state in node.log.producer_states] == [2]
    assert node.log.log_end_offset == 4


def test_records_too_young_or_not_stable_are_not_cleaned() -> None:
    node = CompactedNode(min_compaction_lag_ms="1000")
    for _ in range(20):
        node.put(("key", "x" * 60))
    assert node.clean() == 0
    node.now_ms += 1001
    guard = node.log.start_verification(5, 0, 0, node.now_ms)
    batch = build_batch(
        [(NOW, b"t", b"t", ())], producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    node.log.append_as_leader(batch, 0, node.now_ms, verification=guard)
    for _ in range(20):
        node.put(("key", "y" * 60))
    node.now_ms += 2000
    node.clean()
    values = [value for _, key, value in contents(node.log) if key == "key"]
    assert values.count("x" * 60) == 1
    assert values.count("y" * 60) == 20


def test_records_dirty_for_too_long_are_compacted_whatever_the_ratio() -> None:
    node = CompactedNode(max_compaction_lag_ms="1000", min_cleanable_dirty_ratio="1", internal_segment_bytes="100000")
    for n in range(5):
        node.put(("key", f"{n}"))
        node.now_ms += 200
    assert clean_all(node.cleaner, node.now_ms) == 0, "all are in the active segment"
    node.now_ms += 1
    node.put(("key", "5"))
    node.log.flush()
    assert len(list(node.log.segments)) == 2, "which ends when its first record is overdue"
    assert clean_all(node.cleaner, node.now_ms) == 1
    assert [value for _, key, value in contents(node.log) if key == "key"] == ["4", "5"]
    node.log.update_config(LogConfig.from_dict({"max.compaction.lag.ms": "1000", "cleanup.policy": "delete"}))
    node.now_ms += 2000
    node.put(("key", "6"))
    assert len(list(node.log.segments)) == 2, "nothing waits to be compacted in a log that is not"


def test_a_full_map_cleans_in_several_rounds() -> None:
    node = CompactedNode()
    for key in range(60):
        node.put((f"key-{key % 30}", f"{key}"))
    node.cleaner = node.new_cleaner(memory_bytes=24 * 16)
    assert node.clean() > 2
    assert contents(node.log) == [(key, f"key-{key % 30}", f"{key}") for key in range(30, 60)]


def test_a_batch_too_large_for_the_map_makes_the_log_uncleanable() -> None:
    node = CompactedNode()
    node.put(*((f"key-{key}", "v") for key in range(20)))
    node.cleaner = node.new_cleaner(memory_bytes=24 * 4)
    assert node.clean() == 0
    assert node.cleaner.uncleanable.keys() == {TP}


def test_a_damaged_log_is_not_cleaned() -> None:
    node = CompactedNode()
    for _ in range(10):
        node.put(("key", "x" * 60))
    node.disk.flip_bit("/d/t-0/00000000000000000000.log", 70 * 8)
    assert node.clean() == 0
    assert node.cleaner.uncleanable.keys() == {TP}
    assert not node.log.offline


def _a_cleaning(node: CompactedNode) -> Cleaning:
    for _ in range(30):
        node.put(("key", "x" * 60))
    node.log.roll(NOW)
    node.log.flush()
    cleaning = node.cleaner.choose(NOW)
    assert cleaning is not None
    return cleaning


def test_the_cleaning_of_a_log_truncated_during_a_step_is_abandoned() -> None:
    node = CompactedNode()
    cleaning = _a_cleaning(node)
    first = cleaning.next_job()
    assert first is not None
    first.complete()
    second = cleaning.next_job()
    assert second is not None
    second.run()
    truncate_to(node.log, 2)
    second.finish()
    assert cleaning.next_job() is None
    assert not cleaning.done
    assert node.cleaner.finished(cleaning, node.now_ms) is None
    assert not any(name.endswith(".cleaned") for name in node.disk.list_dir("/d/t-0"))
    assert len(contents(node.log)) == 2


def test_the_cleaning_of_a_log_truncated_between_two_steps_is_abandoned() -> None:
    """The limit of bytes a second may delay a step for any time."""
    node = CompactedNode()
    cleaning = _a_cleaning(node)
    first = cleaning.next_job()
    assert first is not None
    first.complete()
    truncate_to(node.log, 2)
    assert cleaning.next_job() is None
    assert not cleaning.done
    assert len(contents(node.log)) == 2


def test_what_is_not_committed_any_more_is_not_cleaned() -> None:
    """The log is cut before the first step, and has grown again: its new records may be taken back."""
    node = CompactedNode()
    cleaning = _a_cleaning(node)
    end = node.log.log_end_offset
    truncate_to(node.log, 2)
    for offset in range(2, end):
        node.log.append_as_follower(build_batch([(NOW, b"key", b"%d" % offset, ())], base_offset=offset), 0)
    node.log.roll(NOW)
    node.log.flush()
    assert node.log.last_stable_offset < end <= node.log.checkpoint_recovery_point
    while (job := cleaning.next_job()) is not None:
        job.complete()
    assert not cleaning.done
    assert len(contents(node.log)) == end


def test_the_recovery_point_is_made_durable_by_jobs_before_a_cleaning(monkeypatch: pytest.MonkeyPatch) -> None:
    """`next_job` is called on the event loop, so only jobs sync.

    Where another checkpoint job is made between the two jobs, both are done again.
    """
    node = CompactedNode()
    _a_cleaning(node)
    synced: list[str] = []
    monkeypatch.setattr(node.disk, "sync_dir", synced.append)
    cleaning = node.new_cleaner().choose(NOW)
    assert cleaning is not None
    assert not synced
    checkpoints = node.logs.dirs[0]._checkpoints["recovery-point-offset-checkpoint"]
    done = []
    while not cleaning.bytes_moved:
        before = len(synced)
        job = cleaning.next_job()
        assert job is not None
        assert len(synced) == before, "`next_job` touches no disk"
        job.complete()
        done.append(job.description.split()[0])
        if len(done) == 1:
            other = checkpoints.job({})
            assert other is not None
            other.complete()
    assert done == ["checkpoint", "sync", "checkpoint", "sync", "map"]
    assert synced, "the checkpoint is durable before a record is read"


def test_the_bytes_that_a_cleaning_moves_are_counted() -> None:
    node = CompactedNode()
    cleaning = _a_cleaning(node)
    size = sum(segment.size for segment in node.log.segments)
    while not cleaning.bytes_moved:
        job = cleaning.next_job()
        assert job is not None
        job.complete()
    assert cleaning.bytes_moved == size, "the dirty part is read for its keys"
    while (job := cleaning.next_job()) is not None:
        job.complete()
    assert cleaning.bytes_moved == size + size + node.log.size_bytes, "read again, and what is left is written"


@pytest.mark.parametrize("seed", range(40))
def test_a_crash_leaves_the_log_before_or_after(seed: int) -> None:
    node = CompactedNode(seed)
    cleaning = _a_cleaning(node)
    for _ in range(seed % 8):
        job = cleaning.next_job()
        if job is None:
            break
        job.run()
        if seed % 4:
            job.finish()
        if seed % 5 == 1:
            for due in node.logs.maintenance.poll(NOW + DAY):  # the old files are deleted
                due.complete()
    node.disk.crash()
    node.start()
    found = contents(node.log)
    assert found[-1] == (29, "key", "x" * 60)
    assert [offset for offset, _, _ in found] == sorted({offset for offset, _, _ in found})
    assert node.log.log_end_offset == 30
    node.clean()
    assert contents(node.log) == [(29, "key", "x" * 60)]


@pytest.mark.parametrize("cleaned", [False, True])
def test_records_lost_from_the_middle_are_not_taken_for_a_gap_of_compaction(cleaned: bool) -> None:
    """A loss of power may take the end of a segment and leave the next one: the log ends with the first."""
    for seed in range(40):
        node = CompactedNode(seed)
        for number in range(12):
            node.put((f"key-{number % 4}", "x" * 60))
        node.log.roll(NOW)
        node.log.flush()
        for due in node.logs.maintenance.poll(NOW + DAY):  # checkpoints
            due.complete()
        if cleaned:
            node.clean()
        for number in range(12):
            node.put((f"other-{number}", "x" * 60))
        node.disk.crash()
        node.start()
        found = [offset for offset, _, _ in contents(node.log)]
        assert [offset for offset in found if 8 <= offset < 12] == [8, 9, 10, 11]
        assert found[-1] + 1 == node.log.log_end_offset
        assert [offset for offset in found if offset >= 12] == list(range(12, node.log.log_end_offset))


def test_a_log_that_was_never_flushed_ends_at_its_first_gap() -> None:
    for seed in range(40):
        node = CompactedNode(seed)
        for due in node.logs.maintenance.poll(NOW + DAY):  # checkpoints
            due.complete()
        node.disk.sync_dir("/d")
        for number in range(20):
            node.put((f"key-{number}", "x" * 60))
        node.disk.crash()
        node.start()
        assert [offset for offset, _, _ in contents(node.log)] == list(range(node.log.log_end_offset))


@pytest.mark.parametrize("seed", range(40))
def test_a_gap_of_compaction_is_not_taken_for_lost_records(seed: int) -> None:
    """The recovery point checkpoint is written before a cleaning, where it is too low."""
    node = CompactedNode(seed)
    for number in range(6):
        node.put((f"key-{number}", "x" * 60))
    node.log.roll(NOW)
    node.log.flush()
    for due in node.logs.maintenance.poll(NOW + DAY):
        due.complete()
    for number in range(24):
        node.put((f"key-{number % 3}", "x" * 60))
    node.log.roll(NOW)
    node.log.flush()
    cleaning = node.cleaner.choose(NOW)
    assert cleaning is not None
    for _ in range(seed % 8):
        if (job := cleaning.next_job()) is not None:
            job.complete()
    node.disk.crash()
    node.start()
    assert node.log.log_end_offset == 30
    assert {key for _, key, _ in contents(node.log)} == {f"key-{number}" for number in range(6)}


def _delete_a_key(node: CompactedNode) -> None:
    """A value of the key and its deletion, in segments before the active one."""
    node.put(("gone", "x" * 60))
    for number in range(6):
        node.put((f"other-{number}", "x" * 60))
    node.put(("gone", None))
    for number in range(6):
        node.put((f"another-{number}", "x" * 60))


def _clean_among_others(node: CompactedNode) -> None:
    for number in range(30):
        node.put((f"other-{number}", "x" * 60))
    node.clean()


def _is_gone_for_good(node: CompactedNode) -> bool:
    """The delete horizon passes, and the deletion itself is removed."""
    for number in range(4):
        node.now_ms += 10_000
        node.put(("more", f"{number}" * 60))
        node.clean()
    return not any(key == "gone" for _, key, value in contents(node.log) if value is not None)


@pytest.mark.parametrize("seed", range(40))
def test_segments_that_a_loss_of_power_brings_back_are_cleaned_again(seed: int) -> None:
    node = CompactedNode(seed, delete_retention_ms="1000")
    _delete_a_key(node)
    node.clean()
    node.disk.crash()
    node.start()
    assert _is_gone_for_good(node)


def test_a_log_inherits_no_clean_part_from_a_former_one_of_its_name() -> None:
    node = CompactedNode(delete_retention_ms="1000")
    _clean_among_others(node)
    node.logs.delete_log(TP)
    node.log = node.logs.get_or_create_log(TP, None, node.config, None)
    _delete_a_key(node)
    _clean_among_others(node)
    assert _is_gone_for_good(node)


def test_records_appended_in_place_of_a_clean_part_are_dirty() -> None:
    node = CompactedNode(delete_retention_ms="1000")
    _clean_among_others(node)
    truncate_to(node.log, 4)
    _delete_a_key(node)
    _clean_among_others(node)
    assert _is_gone_for_good(node)


def test_a_log_truncated_while_the_cleaning_is_synced_does_not_count_as_clean() -> None:
    node = CompactedNode()
    cleaning = _a_cleaning(node)
    while (job := cleaning.next_job()) is not None:
        job.run()
        if job.description.startswith("sync"):
            truncate_to(node.log, 4)
            for _ in range(30):
                node.put(("key", "x" * 60))
        job.finish()
    assert not cleaning.done


@pytest.mark.parametrize("step", ["clean", "sync what was cleaned"])
def test_a_log_truncated_before_its_cleaning_is_noted_does_not_count_as_clean(step: str) -> None:
    """The limit of bytes a second may delay what follows the last steps, too: meanwhile the log has grown again."""
    node = CompactedNode()
    cleaning = _a_cleaning(node)
    while (job := cleaning.next_job()) is not None:
        job.complete()
        if job.description.startswith(step) and not cleaning._groups:
            truncate_to(node.log, 4)
            for _ in range(30):
                node.put(("key", "x" * 60))
    assert not cleaning.done
    assert node.cleaner.finished(cleaning, node.now_ms) is None


def test_a_log_whose_dirty_part_is_deleted_before_it_is_read_stays_cleanable() -> None:
    """Retention ran while the checkpoints were written with which a cleaning begins."""
    node = CompactedNode()
    cleaning = _a_cleaning(node)
    first = cleaning.next_job()
    assert first is not None
    first.complete()
    for _ in range(20):
        node.put(("another", "x" * 60))
    delete_segments(node.log, node.log.segments.between(0, 30))
    while (job := cleaning.next_job()) is not None:
        job.complete()
    assert not cleaning.done
    assert not node.cleaner.uncleanable
