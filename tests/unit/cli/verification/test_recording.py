"""Files of several processes as one history, and processes that are started again."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from random import Random

from kalda.base.ids import TopicPartition
from kalda.cli.verification.processes import (
    Phase,
    Processes,
    ProcessReady,
    Recorder,
    Role,
    Shared,
    finish,
    recorded_lines,
)
from kalda.verify.history import Fault, OffsetSample, Operation, write_operation

A = TopicPartition("t", 0)


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    samples = [OffsetSample(A, number, number, number) for number in range(4)]
    for name, written in (("a", samples[:2]), ("b", samples[2:])):
        with Recorder(tmp_path, name) as recorder:
            for each in written:
                recorder.add(each)
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write('{"op":"sam')
    assert list(recorded_lines(tmp_path)) == [write_operation(each) for each in samples]


def processes(roles: list[Role], shared: Shared, faults: list[Operation], command: str | None = None) -> Processes:
    return Processes(
        roles, shared, Random(1), faults.append, faults_command=command, client_faults=False, longest_pause_s=1.0
    )


def test_a_process_that_ends_is_followed_by_the_next_incarnation(tmp_path: Path) -> None:
    def main(name: str, incarnation: int, ready: ProcessReady) -> None:
        with Recorder(tmp_path, f"{name}.{incarnation}") as recorder:
            recorder.add(OffsetSample(A, incarnation, incarnation, 0))
        if incarnation == 2:
            finish()
        if incarnation == 1:
            os.kill(os.getpid(), 9)

    shared = Shared()
    role = Role("loop-0", main, Phase.DRAIN, True)
    running = processes([role], shared, [])
    with running.running():
        shared.phase = Phase.DRAIN
        running.drain("loop-", 60, lambda: None)
        running.end_phase(Phase.STOP, 60, lambda: None)
    assert role.incarnation == 2
    assert len(list(recorded_lines(tmp_path))) == 3


def test_a_phase_ends_what_does_not_end_itself() -> None:
    def main(name: str, incarnation: int, ready: ProcessReady) -> None:
        signal.pause()

    role = Role("writer-0", main, Phase.RUN, True)
    running = processes([role], Shared(), [])
    with running.running():
        running.end_phase(Phase.FINISH, 0, lambda: None)
        assert not role.is_running
        assert role.incarnation == 0


def test_a_faults_command_is_recorded_with_its_begin_and_end(tmp_path: Path) -> None:
    def main(name: str, incarnation: int, ready: ProcessReady) -> None:
        finish()

    faults: list[Operation] = []
    running = processes([Role("writer-0", main, Phase.RUN, True)], Shared(), faults, f"touch {tmp_path / 'made'}")
    with running.running():
        running._command_at_s = 0.0
        running.run(0.2, lambda: None)
    assert (tmp_path / "made").exists()
    [fault] = faults
    assert isinstance(fault, Fault)
    assert fault.begun_us <= fault.ended_us
