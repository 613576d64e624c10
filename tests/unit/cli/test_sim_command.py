"""`kalda sim` as a process: its workers end with it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest
from click.testing import CliRunner

from kalda.cli.common.failures import Failure
from kalda.cli.sim import each, sim
from kalda.sim.transaction_storm import PLANS
from waiting import wait_until


def test_results_come_in_order() -> None:
    with each(str, range(100), 3) as results:
        assert list(results) == [str(number) for number in range(100)]


def test_the_failure_of_a_worker_that_died_names_its_argument() -> None:
    with each(os._exit, [7], 2) as results, pytest.raises(Failure, match="computed 7 has died"):
        next(results)


def test_a_trace_ends_silently_when_its_pipe_is_closed() -> None:
    program = "from kalda.cli.main import main; import sys; sys.argv[1:] = 'sim replay 1 --nodes 1'.split(); main()"
    command = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert command.stdout is not None
    assert b"starts, life 1" in command.stdout.readline()
    command.stdout.close()
    assert command.stderr is not None
    with command.stderr:
        assert command.stderr.read() == b""
    assert command.wait(60) == 1


def test_a_worker_that_died_before_its_first_argument_is_a_failure() -> None:
    with each(str, range(9), 2) as results:
        for worker in multiprocessing.active_children():
            worker.kill()
            worker.join()
        with pytest.raises(Failure, match="computed 0 has died"):
            next(results)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_the_command(number: signal.Signals) -> None:
    """Also where only the command gets the signal, and where it is killed and cannot end its workers. The seeds would
    take hours."""
    program = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from kalda.cli.main import main; sys.argv[1:] = 'sim quorum --seeds 1000000 --jobs 2'.split(); main()"
    )
    command = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    process = psutil.Process(command.pid)
    workers: list[psutil.Process] = []
    try:
        wait_until(lambda: len(process.children()) == 2, "two workers run")
        workers += process.children()
        command.send_signal(number)
        _, printed = command.communicate(timeout=60)
        assert b"Traceback" not in printed
        assert command.returncode == (130 if number == signal.SIGINT else -number)
        assert not psutil.wait_procs(workers, timeout=60)[1]
    finally:
        command.kill()
        command.wait()
        for worker in workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()


@pytest.mark.parametrize("command", ["quorum", "controllers"])
def test_small_simulations_report_their_seeds(command: str) -> None:
    result = CliRunner().invoke(sim, [command, "--seeds", "2", "--jobs", "1"])
    assert result.exit_code == 0, result.output
    assert "2 seeds, 0 failed" in result.output


def test_seeds_of_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PLANS, "late-markers", replace(PLANS["late-markers"], duration_s=2))
    result = CliRunner().invoke(sim, ["transactions", "--seeds", "1", "--plan", "late-markers", "--jobs", "1"])
    assert result.exit_code == 0, result.output
    assert "1 seed, 0 failed" in result.output
