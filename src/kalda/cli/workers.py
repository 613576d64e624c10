"""One function over many arguments, in several processes that end with this one."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import Pipe, Process
from multiprocessing.connection import Connection, wait
from typing import TypeVar

from kalda.cli.failures import Failure

Told = TypeVar("Told")


@contextmanager
def each(tell: Callable[[int], Told], numbers: Sequence[int], jobs: int) -> Iterator[Iterator[Told]]:
    """What `tell` says of every number, in their order, from `jobs` processes.

    Whoever leaves early, by Ctrl-C above all, waits for nothing that is under way. Where this process is killed, each
    worker finds out when it has said what it is at. (An executor's workers would go on, and then wait forever.)
    """
    if jobs == 1:
        yield map(tell, numbers)
        return
    workers: dict[Connection, Process] = {}
    try:
        for _ in range(min(jobs, len(numbers))):
            ours, theirs = Pipe()
            worker = Process(target=_work, args=(tell, theirs, [*workers, ours]), daemon=True)
            workers[ours] = worker
            worker.start()
            theirs.close()
        yield _in_order(list(workers), numbers)
    finally:
        for ours, worker in workers.items():
            ours.close()
            if worker.pid is not None:
                worker.terminate()
                worker.join()


def _in_order(workers: list[Connection], numbers: Sequence[int]) -> Iterator[Told]:
    under_way: dict[Connection, int] = {}
    told: dict[int, Told] = {}
    next_at = 0
    for at in range(len(numbers)):
        while at not in told:
            for worker in workers:
                if worker not in under_way and next_at < len(numbers):
                    under_way[worker] = next_at
                    with suppress(OSError):  # of one that has died, which is found when its answer is read
                        worker.send(numbers[next_at])
                    next_at += 1
            ready = wait(list(under_way))
            for worker in [worker for worker in under_way if worker in ready]:
                asked = under_way.pop(worker)
                try:
                    told[asked] = worker.recv()
                except (EOFError, OSError):
                    raise Failure(f"the process that was at {numbers[asked]} has died") from None
        yield told.pop(at)


def _work(tell: Callable[[int], object], asked: Connection, others: list[Connection]) -> None:
    """In a worker: tell until nobody asks. Ctrl-C in a terminal reaches workers too, and is the parent's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for other in others:
        other.close()  # Else the parent's death would not close them.
    with suppress(EOFError, OSError):
        while True:
            number: int = asked.recv()
            asked.send(tell(number))
