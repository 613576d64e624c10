"""One cleaning of one log, as steps that the shell carries out one after the other.

The dirty part is read for the last offset of each key (as far as memory allows), then the log is rewritten from its
start up to where that map ends, a group of segments at a time; the cleaned segment takes the place of its group. Both
passes are done in slices, a job each. What is read are snapshots of the segments, so appends and reads go on.

A log that is truncated, deleted or loses segments meanwhile is left as it is: the cleaning is abandoned, whatever its
passes may have raised over files that were cut or removed under them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from kalda.base.errors import Portable
from kalda.base.ids import TopicPartition
from kalda.records.key_offsets import ENTRY_BYTES, LOAD_FACTOR, KeyOffsets
from kalda.storage.compaction.passes import KeyMapping, Pass, ReadAborted, Rewriting, group_segments
from kalda.storage.compaction.rules import CleanedTransactions, CleanRules, LastRecord
from kalda.storage.dirs.log_dir import LogDir
from kalda.storage.file_names import SWAP_SUFFIX
from kalda.storage.job import Job
from kalda.storage.log.log import Log
from kalda.storage.log.retention import delete_segments
from kalda.storage.log.segment import Segment
from kalda.storage.log.snapshot_jobs import collect_from, snapshots_of_indexes

SLICE_BYTES = 16 * 1024 * 1024
"""What a slice reads, decompresses and writes: some 50 ms of work, where a disk does not slow it."""
_MAPPED_AT_ONCE = 16
"""Segments in one pass for the map; each is an open file meanwhile."""


class Cleanable(NamedTuple):
    """A log with something to clean: offsets [first_dirty, first_uncleanable)."""

    log: Log
    first_dirty: int
    first_uncleanable: int
    clean_bytes: int
    dirty_bytes: int
    delay_ms: int
    """for how long the oldest dirty record has been dirty beyond `max.compaction.lag.ms`; 0 where it has not"""

    @property
    def dirty_ratio(self) -> float:
        return self.dirty_bytes / max(1, self.clean_bytes + self.dirty_bytes)


class CleaningFigures(NamedTuple):
    """Of a cleaning that has ended."""

    bytes_read: int
    bytes_written: int
    map_use: float
    """How much of its memory the map of keys used."""
    duration_ms: int


class MapTooSmall(Portable, Exception):
    """One batch has more keys than the map has room for."""

    def __init__(self, topic_partition: TopicPartition, offset: int, memory_bytes: int) -> None:
        super().__init__(
            f"the batch at offset {offset} of {topic_partition} has more keys than a map of {memory_bytes} bytes holds"
        )


class Cleaning:
    """`next_job`, its `run` and its `finish`, until there is none; after a step that raised, `abandon` and its job."""

    def __init__(self, work: Cleanable, directory: LogDir, now_ms: int, memory_bytes: int, secret: bytes) -> None:
        self.log = work.log
        self.end_offset = work.first_dirty
        """Up to where the log is clean once this cleaning is done: where the map of keys ends."""
        self.memory_bytes = memory_bytes
        """How large the map of keys may be."""
        self.bytes_read = self.bytes_written = 0
        """By the passes that are complete."""
        self._work = work
        self._directory = directory
        self._checkpointing: list[Job[None]] = []
        """Jobs still to be done that make the recovery point durable."""
        self.map_use = 0.0
        """How much of `memory_bytes` the map of keys uses, once it is complete."""
        self.began_ms = now_ms
        """Deletions are judged by it."""
        self._secret = secret
        """16 bytes that key the hashes of this cleaning's map."""
        self._offsets: KeyOffsets | None = None
        """None before the recovery point is durable, and once it is not needed any more."""
        self._unmapped: list[Segment] = []
        """Segments whose keys are still to be mapped."""
        self._mapped: dict[int, tuple[Segment, int]] = {}
        """By base offset: the segments as the cleaning found them, with their sizes."""
        self._changes_seen = 0
        """The log's count of removals and cuts when the segments were last found to be those."""
        self._map_transactions = CleanedTransactions()
        self._aborted_in_map: ReadAborted | None = None
        """Of the dirty part, for the first pass for the map."""
        self._pass: Pass | None = None
        """What is under way."""
        self._groups: list[list[Segment]] = []
        """What is still to be rewritten: each group becomes one segment."""
        self._rules: CleanRules | None = None
        """None before the map is complete."""
        self._transactions = CleanedTransactions()
        """Those that are open where the rewriting is."""
        self._abandoned = False
        """The log has changed under the cleaning: no step follows, and the log does not count as cleaned."""
        self._synced = False
        """The last step is done."""

    @property
    def is_preparing(self) -> bool:
        """Whether it still writes checkpoints. Of those that do so at once each would make the others begin anew."""
        return not self._mapped and not self._abandoned

    @property
    def bytes_moved(self) -> int:
        """Bytes read and written so far, including those read for the map."""
        moved = self.bytes_read + self.bytes_written
        return moved if self._pass is None else moved + self._pass.bytes_read + self._pass.bytes_written

    @property
    def done(self) -> bool:
        """Whether everything up to `end_offset` has been cleaned, durably."""
        return self._synced and not self._abandoned

    def is_outdated(self) -> bool:
        """Whether the log has been closed, cut or has lost segments since the cleaning read it; which ends it."""
        if not self._abandoned and (self.log.offline or not self._is_as_mapped()):
            self._abandoned = True
        return self._abandoned

    def next_job(self, most_bytes: int = SLICE_BYTES) -> Job[None] | None:
        """The next step, which moves about `most_bytes` at most; None when the cleaning is over."""
        if self.is_outdated():
            return self.abandon()
        if not self._mapped:
            if min(self.log.checkpoint_recovery_point, self.log.last_stable_offset) < self._work.first_uncleanable:
                return self.abandon()  # the log was truncated since
            job = self._recovery_point_job()
            if job is not None:
                return job
            self._begin()
            if not self._unmapped:
                return self.abandon()  # retention has removed all of the dirty part since
        if self._pass is None:
            if self._rules is None:
                self._pass = self._key_mapping()
            elif self._groups:
                self._pass = self._rewriting()
            elif not self._synced:
                return self._sync_job()
            else:
                return None
        return self._slice_job(self._pass, most_bytes)

    def abandon(self) -> Job[None] | None:
        """End the cleaning: no step follows. A job that closes and removes what it holds; None where that is nothing.
        Not called while a job runs."""
        self._abandoned = True
        begun, offsets = self._pass, self._offsets
        self._pass = self._offsets = None
        if begun is None and offsets is None:
            return None
        has_directory = not self.log.offline

        def work() -> None:
            if begun is not None:
                begun.discard(removes=has_directory)
            if offsets is not None:
                offsets.release()

        return Job(f"discard what was compacted of {self.log.topic_partition}", work, lambda _: None)

    # -- the steps

    def _recovery_point_job(self) -> Job[None] | None:
        """Before anything is cleaned: compaction leaves gaps between segments. Above the recovery point of the
        checkpoint, a start after a crash would take such a gap for lost records."""
        if not self._checkpointing:
            self._checkpointing = self._directory.durable_recovery_point_jobs(
                self.log.topic_partition, self._work.first_uncleanable
            )
        return self._checkpointing.pop(0) if self._checkpointing else None

    def _begin(self) -> None:
        """Note what the log consists of, and make the map: of at most an entry for each offset, as records are fewer
        than offsets."""
        log, start, upto = self.log, self._work.first_dirty, self._work.first_uncleanable
        whole = log.segments.between(log.segments.first.base_offset, upto)
        self._mapped = {segment.base_offset: (segment, segment.size) for segment in whole}
        self._unmapped = log.segments.between(start, upto)
        wanted = (int((upto - start) / LOAD_FACTOR) + 2) * ENTRY_BYTES
        self._offsets = KeyOffsets(min(self.memory_bytes, wanted), self._secret)
        self._aborted_in_map = partial(collect_from, snapshots_of_indexes(log.segments, start), start, upto)

    def _slice_job(self, begun: Pass, most_bytes: int) -> Job[None]:
        verb = "map the keys of" if self._rules is None else "clean"

        def finish(complete: bool) -> None:
            if self.is_outdated():
                return  # the next step discards the pass
            if complete:
                self._complete(begun)

        return Job(f"{verb} {self.log.topic_partition}", lambda: begun.run(most_bytes), finish)

    def _complete(self, ended: Pass) -> None:
        """A pass has read all of its segments."""
        self.bytes_read += ended.bytes_read
        self.bytes_written += ended.bytes_written
        if isinstance(ended, Rewriting):
            replace_segments(self.log, ended.take(), self._groups.pop(0))
            self._changes_seen = self.log.unsynced.truncations
        elif isinstance(ended, KeyMapping) and (ended.is_full or not self._unmapped):
            self._take_map()
        self._pass = None

    def _key_mapping(self) -> KeyMapping:
        assert self._offsets is not None
        segments, self._unmapped = self._unmapped[:_MAPPED_AT_ONCE], self._unmapped[_MAPPED_AT_ONCE:]
        upto = self._unmapped[0].base_offset if self._unmapped else self._work.first_uncleanable
        snapshots = [segment.snapshot() for segment in segments]
        aborted, self._aborted_in_map = self._aborted_in_map, None
        return KeyMapping(self._offsets, snapshots, self._work.first_dirty, upto, self._map_transactions, aborted)

    def _take_map(self) -> None:
        assert self._offsets is not None
        log, work = self.log, self._work
        self.end_offset = max(work.first_dirty, self._offsets.latest_offset + 1)
        self.map_use = self._offsets.size * ENTRY_BYTES / self.memory_bytes
        if self.end_offset == work.first_dirty:
            raise MapTooSmall(log.topic_partition, work.first_dirty, self.memory_bytes)
        assert self.end_offset <= work.first_uncleanable, f"{log.topic_partition} is mapped up to {self.end_offset}"
        segments = log.segments.between(log.segments.first.base_offset, self.end_offset)
        self._groups = group_segments(segments, log.config, work.first_uncleanable)
        clean = [segment for segment in segments if segment.base_offset < work.first_dirty]
        self._rules = CleanRules(
            offsets=self._offsets,
            last_records={s.producer_id: LastRecord(s.last_data_offset, s.epoch) for s in log.producer_states},
            delete_retention_ms=log.config.delete_retention_ms,
            now_ms=self.began_ms,
            round_end=work.first_uncleanable,
            legacy_horizon_ms=clean[-1].modified_ms() - log.config.delete_retention_ms if clean else 0,
        )

    def _rewriting(self) -> Rewriting:
        assert self._rules is not None
        log, group = self.log, self._groups[0]
        following = log.segments.after(group[-1])
        end = self.end_offset if following is None else following.base_offset
        start = group[0].base_offset
        aborted = partial(collect_from, snapshots_of_indexes(log.segments, start), start, end)
        snapshots = [segment.snapshot() for segment in group]
        return Rewriting(log.disk, log.directory, log.config, snapshots, self._rules, self._transactions, aborted)

    def _is_as_mapped(self) -> bool:
        """Whether the segments still to be read are those that the cleaning found. Of a log that was truncated the map
        may hold records that were cut off, and no older record of their keys may be dropped. Where none is left to be
        read, the log must be as the cleaning left it: otherwise it may have been cut, and have grown beyond the cleaned
        part again by records that are not clean."""
        changes = self.log.unsynced.truncations
        if changes == self._changes_seen:
            return True
        segments, mapped = self.log.segments, self._mapped
        left = [segment for group in self._groups for segment in group]
        if self._rules is None:
            left = [segment for segment, _ in mapped.values()]
        elif not left:
            return False
        self._changes_seen = changes
        return all(
            segments.floor(segment.base_offset) is segment
            and mapped.get(segment.base_offset) == (segment, segment.size)
            for segment in left
        )

    def _sync_job(self) -> Job[None]:
        """The last step: sync the names, before the checkpoint calls the segments clean. Otherwise a loss of power
        could bring back old segments that count as clean. The next cleaning would remove a deletion from its segment,
        while the records that it deletes stayed in another."""
        log, offsets = self.log, self._offsets
        job = log.flush_job(log.recovery_point).on_failure(log.on_io_error)
        self._offsets = None

        def work() -> None:
            if offsets is not None:
                offsets.release()
            job.run()

        def finish(_: None) -> None:
            job.finish()
            self._synced = not log.offline

        return Job(f"sync what was cleaned of {log.topic_partition}", work, finish)


def replace_segments(log: Log, new: Segment, old: Sequence[Segment]) -> None:
    """A cleaned segment, synced, takes the place of those that it was made from.

    Its files go from `.cleaned` to `.swap`, which the next start after a crash finishes, before those of the old ones
    are renamed.
    """
    assert new.base_offset == old[0].base_offset, f"segment {new.base_offset} in place of {old[0].base_offset}"
    assert log.segments.active not in old, f"{log.topic_partition}: the active segment is compacted"
    try:
        new.change_suffix(SWAP_SUFFIX)
        delete_segments(log, old, kept_snapshot=new.base_offset)
        new.change_suffix("")
    except OSError as error:
        new.close()
        raise log.failed(error) from error
    log.segments.add(new)
