"""Jobs on threads."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from itertools import pairwise

import pytest

from kalda.base.background import Background
from kalda.broker.process.shell import ThreadJobs


class Large:
    """What a job has read."""


def test_a_job_that_fails_leaves_nothing_in_memory() -> None:
    """Full collections are rare in a node: what only they find stays."""
    kept: list[weakref.ref[Large]] = []

    def fail() -> None:
        large = Large()
        kept.append(weakref.ref(large))
        raise ValueError("bad")

    async def run() -> None:
        loop = asyncio.get_running_loop()
        jobs = ThreadJobs(loop, Background(loop.call_soon, time.perf_counter_ns), 1)
        failed = asyncio.Event()
        failures: list[str] = []

        def finish(_: None, error: BaseException | None) -> None:
            failures.append(repr(error))
            failed.set()

        jobs.run(fail, finish)
        async with asyncio.timeout(60):
            await failed.wait()
        jobs.close()
        assert failures == ["ValueError('bad')"]
        assert [each() for each in kept] == [None]

    gc.disable()
    try:
        asyncio.run(run())
    finally:
        gc.enable()


def test_second_halves_that_are_due_at_once_take_turns_with_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    """One that raises ends none of the others."""
    events: list[str] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        jobs = ThreadJobs(loop, Background(loop.call_soon, time.perf_counter_ns), 1)
        ran, all_done = threading.Event(), asyncio.Event()

        def finish(number: int) -> None:
            events.append(f"job {number}")
            end_s = time.perf_counter() + 0.006
            while time.perf_counter() < end_s:
                pass
            loop.call_soon(events.append, "another")
            if number == 1:
                raise ValueError("bad")
            if number == 4:
                all_done.set()

        for number in range(5):
            jobs.run(lambda: None, lambda _, __, number=number: finish(number))  # type: ignore[misc]
        jobs.run(ran.set, lambda _, __: None)
        ran.wait()  # the loop is held until all second halves are due
        async with asyncio.timeout(60):
            await all_done.wait()
        jobs.close()

    asyncio.run(run())
    assert "ValueError: bad" in caplog.text
    jobs_only = [event for event in events if event != "another"]
    assert jobs_only == [f"job {number}" for number in range(5)]
    for before, after in pairwise(jobs_only[1:]):  # the second turn begins before what the first job has scheduled
        assert "another" in events[events.index(before) : events.index(after)]


def test_a_job_is_run_where_no_further_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a container whose limit of processes is reached while a node runs: its jobs wait for each other."""
    done: list[int] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        jobs = ThreadJobs(loop, Background(loop.call_soon, time.perf_counter_ns), 4)
        monkeypatch.setattr(threading.Thread, "start", refuse)
        all_done, may_go_on = asyncio.Event(), threading.Event()

        def finish(value: int | None, error: BaseException | None) -> None:
            assert value is not None, error
            done.append(value)
            if len(done) == 3:
                all_done.set()

        def last() -> int:
            may_go_on.wait()
            return 0

        for job in (last, lambda: 1, lambda: 2):
            jobs.run(job, finish)
        may_go_on.set()
        async with asyncio.timeout(60):
            await all_done.wait()
        jobs.close()
        with pytest.raises(RuntimeError, match="after shutdown"):
            jobs.run(last, finish)

    asyncio.run(run())
    assert done == [0, 1, 2]
    assert [line for line in caplog.messages if "pids.max" in line] == caplog.messages
    assert len(caplog.messages) == 1


def test_a_pool_without_a_thread_says_what_mends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", refuse)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(OSError, match=r"can't start new thread; raise the limit of threads"):
            ThreadJobs(loop, Background(loop.call_soon, time.perf_counter_ns), 4)

    asyncio.run(run())


def refuse(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
