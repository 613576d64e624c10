"""One function applied to many arguments in several processes, which end with this one."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import Pipe, Process
from multiprocessing.connection import Connection, wait
from typing import TypeVar

from kalda.cli.failures import Failure

Result = TypeVar("Result")


@contextmanager
def each(function: Callable[[int], Result], numbers: Sequence[int], jobs: int) -> Iterator[Iterator[Result]]:
    """The results of `function` for all numbers, in their order, from `jobs` processes.

    Leaving the context early, as by Ctrl-C, terminates the workers and does not wait for calls in progress. Where this
    process is killed, a worker ends after its current call, when it cannot send the result. (Workers of an executor
    would continue, and then wait for ever.)
    """
    if jobs == 1:
        yield map(function, numbers)
        return
    workers: dict[Connection, Process] = {}
    try:
        for _ in range(min(jobs, len(numbers))):
            ours, theirs = Pipe()
            worker = Process(target=_work, args=(function, theirs, [*workers, ours]), daemon=True)
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


def _in_order(workers: list[Connection], numbers: Sequence[int]) -> Iterator[Result]:
    busy: dict[Connection, int] = {}
    results: dict[int, Result] = {}
    next_index = 0
    for index in range(len(numbers)):
        while index not in results:
            for worker in workers:
                if worker not in busy and next_index < len(numbers):
                    busy[worker] = next_index
                    with suppress(OSError):  # the worker has died; `recv` below raises
                        worker.send(numbers[next_index])
                    next_index += 1
            ready = wait(list(busy))
            for worker in [worker for worker in busy if worker in ready]:
                done = busy.pop(worker)
                try:
                    results[done] = worker.recv()
                except (EOFError, OSError):
                    raise Failure(f"the process that computed {numbers[done]} has died") from None
        yield results.pop(index)


def _work(function: Callable[[int], object], parent: Connection, others: list[Connection]) -> None:
    """The loop of a worker, until the parent closes the connection. Ctrl-C is ignored, as the parent handles it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for other in others:
        other.close()  # as long as a worker holds the parent's end of a pipe, the parent's death does not close it
    with suppress(EOFError, OSError):
        while True:
            number: int = parent.recv()
            parent.send(function(number))
