"""The clock by which work ends its turn of the loop: it moves on virtual time too, as a function of the seed."""

from __future__ import annotations

from kalda.base.background import Background, Steps
from kalda.sim.machine import SimHost
from kalda.sim.world import World


def started(seed: str) -> SimHost:
    return World(seed).machine("m").start()[1]


def test_the_clock_moves_at_each_read_by_numbers_of_the_seed() -> None:
    first, again, other = started("1"), started("1"), started("2")
    readings = [first.work_ns() for _ in range(1_000)]
    assert readings == sorted(readings)
    assert readings[-1] > 100_000_000
    assert readings == [again.work_ns() for _ in range(1_000)]
    assert readings != [other.work_ns() for _ in range(1_000)]


def test_reading_it_changes_no_other_random_number() -> None:
    first, again = started("1"), started("1")
    for _ in range(100):
        first.work_ns()
    assert first.rng.random() == again.rng.random()


def test_work_in_the_background_takes_several_turns_at_one_moment() -> None:
    turns = 0

    def steps() -> Steps[int]:
        for _ in range(1_000):
            yield
        return turns

    with World("3") as world:
        boot, host = world.machine("m").start()

        def next_turn(turn: object) -> None:
            nonlocal turns
            turns += 1
            world.loop.call_soon(turn)  # type: ignore[arg-type]

        began_s = world.loop.time()
        done = boot.context().run(Background(next_turn, host.work_ns).run, steps())
        while not done.done:
            world.loop._run_once()
        assert world.loop.time() == began_s
        assert turns > 10
