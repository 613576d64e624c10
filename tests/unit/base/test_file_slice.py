"""Slices of files: pieces, page cache misses, files that end early, disks that fail."""

from __future__ import annotations

import errno

import pytest
from by_hand import HandJobs
from paper_files import PaperFile

from kalda.base.disk import FileSlice


def unexpected() -> None:
    raise AssertionError("`ready` is called only after a page cache miss")


def test_it_is_read_in_pieces() -> None:
    whole = FileSlice(PaperFile(bytes(range(100)), 100), 10, 25, HandJobs(hold_jobs=True), lambda _: None)
    assert len(whole) == 25
    assert [bytes(whole.read(10, unexpected) or b"") for _ in range(4)] == [
        bytes(range(10, 20)),
        bytes(range(20, 30)),
        bytes(range(30, 35)),
        b"",
    ]
    assert len(whole) == 25, "the length does not shrink as pieces are read"


def test_what_is_not_in_the_page_cache_is_read_by_a_job() -> None:
    jobs, ready = HandJobs(hold_jobs=True), []
    whole = FileSlice(PaperFile(bytes(range(40)), 20), 10, 30, jobs, lambda _: None)
    assert whole.read(10, unexpected) == bytes(range(10, 20))
    assert whole.read(20, lambda: ready.append(True)) is None
    jobs.waiting.pop()()
    assert ready == [True]
    assert whole.read(20, unexpected) == bytes(range(20, 40))
    assert whole.read(20, unexpected) == b""


def test_a_file_that_ends_before_its_slice() -> None:
    whole = FileSlice(PaperFile(bytes(20), 40), 10, 20, HandJobs(hold_jobs=True), lambda _: None)
    with pytest.raises(OSError, match="the file ends at 20, the slice of it at 30"):
        whole.read(20, unexpected)


@pytest.mark.parametrize("cached", [0, 40])
def test_a_failing_disk_is_reported(cached: int) -> None:
    jobs, failures = HandJobs(hold_jobs=True), list[BaseException]()
    file = PaperFile(bytes(40), cached)
    file.error = OSError(errno.EIO, "broken")
    whole = FileSlice(file, 0, 40, jobs, failures.append)
    if not cached:
        assert whole.read(40, lambda: None) is None
        jobs.waiting.pop()()
    with pytest.raises(OSError, match="broken"):
        whole.read(40, unexpected)
    assert failures == [file.error]
