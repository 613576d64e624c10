"""A job that pauses its thread takes virtual time, and none of the machine's that runs the simulation."""

from __future__ import annotations

import asyncio

from kalda.base.background import Background
from kalda.sim.world import World


def test_a_job_that_pauses_finishes_so_much_later() -> None:
    with World("test") as world:
        boot, host = world.machine("m").start()
        jobs = host.jobs(world.loop, Background(world.loop.call_soon, host.work_ns), 1)
        finished: dict[int, int] = {}

        def start(pauses: int) -> None:
            def job() -> None:
                for _ in range(pauses):
                    host.pause_thread(60_000)

            jobs.run(job, lambda *_: finished.__setitem__(pauses, host.clock.mono_ms()))

        for pauses in (3, 0):
            boot.context().run(start, pauses)
        world.loop.run_until_complete(asyncio.sleep(600))
        assert 180_000 <= finished[3] < 181_000
        assert finished[0] < 1_000, "each job has its own pauses"
