"""A checkpoint that jobs replace: in whatever order their halves run, the newest contents win."""

from __future__ import annotations

import itertools
import random

import pytest

from kalda.base.ids import TopicPartition
from kalda.sim.disk import SimDisk
from kalda.storage.checkpoints import CheckpointFile, leftovers, read_offsets

TP = TopicPartition("t", 0)
PATH = "/d/recovery-point-offset-checkpoint"


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk(random.Random(3))
    disk.make_dirs("/d")
    disk.sync_dir("/")
    return disk


@pytest.mark.parametrize("order", sorted(set(itertools.permutations(("run 1", "finish 1", "run 2", "finish 2")))))
def test_the_newest_of_jobs_that_overtake_each_other_wins(disk: SimDisk, order: tuple[str, ...]) -> None:
    if order.index("run 1") > order.index("finish 1") or order.index("run 2") > order.index("finish 2"):
        return
    checkpoint = CheckpointFile(disk, PATH)
    jobs = {"1": checkpoint.job({TP: 10}), "2": checkpoint.job({TP: 20})}
    for step in order:
        half, number = step.split()
        job = jobs[number]
        assert job is not None
        job.run() if half == "run" else job.finish()
    assert read_offsets(disk, PATH) == {TP: 20}
    assert leftovers(disk.list_dir("/d")) == []


def test_a_durable_replacement_wins_over_a_job_under_way(disk: SimDisk) -> None:
    checkpoint = CheckpointFile(disk, PATH)
    job = checkpoint.job({TP: 10})
    assert job is not None
    job.run()
    checkpoint.replace_durably({TP: 5})
    job.finish()
    disk.crash()
    assert read_offsets(disk, PATH) == {TP: 5}


def test_unchanged_contents_are_not_written_again(disk: SimDisk) -> None:
    checkpoint = CheckpointFile(disk, PATH)
    checkpoint.replace_durably({TP: 1})
    assert checkpoint.job({TP: 1}) is None
    disk.fail("/d")
    job = checkpoint.job({TP: 2})
    assert job is not None
    with pytest.raises(OSError, match="simulated"):
        job.run()
    disk.mend("/d")
    assert checkpoint.job({TP: 2}) is not None, "a failed write is tried again"
