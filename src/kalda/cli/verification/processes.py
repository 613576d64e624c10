"""The processes of a run: their incarnations, kills and pauses, and the command that causes faults.

A paused process whose successor runs is a zombie: when it continues, its transactional id belongs to the successor, and
nothing that it still sends may take effect. A process is killed or paused only after its InitProducerId, so that
incarnations are numbered in the order in which the coordinator has seen them.

Each process appends its operations to a file of its own: it may be killed at any moment, and only the last line of a
file can be cut off.

Phases are one shared integer without a lock, since a process may be killed while it holds one.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from multiprocessing import get_context
from multiprocessing.context import ForkProcess
from multiprocessing.sharedctypes import RawValue
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any

from kalda.client.transport.held_signals import held_signals
from kalda.verify.history import Fault, Operation, write_operation

_FORK = get_context("fork")
_TICK_S = 0.05
_RESTART_S = 0.3
_FAULT_PAUSE_S = (1.0, 5.0)
_CLIENT_FAULT_PAUSE_S = (0.5, 3.0)
_KILLS = 0.5
"""The share of kills among the faults of clients; the others are pauses."""
_PR_SET_PDEATHSIG = 1
_STOP_S = 10
"""How long an ended phase waits for a process before it is killed."""


class Phase(IntEnum):
    """What runs: in FINISH no more transactions of writers, in DRAIN loops until no input is left, in STOP nothing."""

    RUN = 0
    FINISH = 1
    DRAIN = 2
    STOP = 3


class Shared:
    """The phase, for all processes."""

    def __init__(self) -> None:
        self._phase: Any = RawValue(ctypes.c_int, Phase.RUN)
        self._parent = os.getpid()

    @property
    def phase(self) -> Phase:
        """STOP in a process whose parent has died."""
        if os.getpid() != self._parent and os.getppid() != self._parent:
            return Phase.STOP
        return Phase(self._phase.value)

    @phase.setter
    def phase(self, phase: Phase) -> None:
        self._phase.value = phase


class ProcessReady:
    """Set by a process when it may be killed and paused."""

    def __init__(self) -> None:
        self._value: Any = RawValue(ctypes.c_int, 0)

    def set(self) -> None:
        self._value.value = 1

    @property
    def is_set(self) -> bool:
        return bool(self._value.value)


Main = Callable[[str, int, ProcessReady], None]
"""What a process runs: its name, its incarnation, and what to set when it is ready."""


@dataclass
class Role:
    """One client. `last_phase`: the last one in which it is started again when it has ended."""

    name: str
    main: Main
    last_phase: Phase
    takes_faults: bool
    incarnation: int = -1
    process: ForkProcess | None = None
    ready: ProcessReady = field(default_factory=ProcessReady)
    restart_at_s: float = 0.0

    def start(self) -> None:
        self.incarnation += 1
        self.ready = ProcessReady()
        self.process = _FORK.Process(target=_run, args=(self.main, self.name, self.incarnation, self.ready))
        with held_signals():
            self.process.start()

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.is_alive()


@dataclass
class _Paused:
    process: ForkProcess
    until_s: float


def _run(main: Main, name: str, incarnation: int, ready: ProcessReady) -> None:
    """The body of a process. Failures end it; the parent starts the next incarnation."""
    from kalda.base.errors import ApiError

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    _end_with_parent()
    with contextlib.suppress(ApiError):
        main(name, incarnation, ready)
    os._exit(0)  # no handlers of the parent


def _end_with_parent() -> None:
    """Be killed when the parent dies, by SIGKILL too: a process that is paused then would stay so for ever."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Processes:
    """Runs roles through the phases."""

    def __init__(
        self,
        roles: list[Role],
        shared: Shared,
        rng: Random,
        record: Callable[[Fault], None],
        *,
        faults_command: str | None,
        client_faults: bool,
        longest_pause_s: float,
    ) -> None:
        """`longest_pause_s` should be longer than the transaction timeout, so that some transactions time out."""
        self._roles = roles
        self._shared = shared
        self._rng = rng
        self._record = record
        self._command = faults_command
        self._client_faults = client_faults
        self._longest_pause_s = longest_pause_s
        self._paused: list[_Paused] = []
        self._zombies: list[ForkProcess] = []
        """Processes whose successor was started."""
        self._command_running: tuple[subprocess.Popen[bytes], int] | None = None
        """The faults command and when it was started."""
        self._command_at_s = time.monotonic() + rng.uniform(*_FAULT_PAUSE_S)
        self._client_fault_at_s = time.monotonic() + rng.uniform(*_CLIENT_FAULT_PAUSE_S)
        self.kills = 0
        self.pauses = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """All roles are started; at the end every process of theirs has ended."""
        try:
            for role in self._roles:
                role.start()
            yield
        finally:
            self._kill([role.process for role in self._roles if role.process] + self._zombies)
            if self._command_running is not None:
                self._command_running[0].kill()

    def run(self, duration_s: float, tick: Callable[[], None]) -> None:
        """The phase RUN, with faults. `tick` is called several times a second."""
        until_s = time.monotonic() + duration_s
        while time.monotonic() < until_s:
            self._cause_faults()
            self._keep_running()
            tick()
            time.sleep(_TICK_S)
        self._heal()

    def end_phase(self, following: Phase, timeout_s: float, tick: Callable[[], None]) -> None:
        """Go to the next phase, and wait for the roles that do not run in it; kill those that do not end."""
        self._shared.phase = following
        until_s = time.monotonic() + timeout_s
        ending = [role for role in self._roles if role.last_phase < following]
        while any(role.is_running for role in ending) and time.monotonic() < until_s:
            self._keep_running()
            tick()
            time.sleep(_TICK_S)
        self._kill([role.process for role in ending if role.process])

    def drain(self, prefix: str, timeout_s: float, tick: Callable[[], None]) -> None:
        """Wait until the roles with this prefix have finished, or the time has passed."""
        until_s = time.monotonic() + timeout_s
        roles = [role for role in self._roles if role.name.startswith(prefix)]
        while not all(self._has_finished(role) for role in roles) and time.monotonic() < until_s:
            self._keep_running()
            tick()
            time.sleep(_TICK_S)

    def _keep_running(self) -> None:
        now_s = time.monotonic()
        for paused in [each for each in self._paused if each.until_s <= now_s]:
            self._paused.remove(paused)
            _signal(paused.process, signal.SIGCONT)
        for role in self._roles:
            if role.is_running or role.last_phase < self._shared.phase or self._has_finished(role):
                continue
            if not role.restart_at_s:
                role.restart_at_s = now_s + _RESTART_S
            elif role.restart_at_s <= now_s:
                role.restart_at_s = 0.0
                role.start()

    def _has_finished(self, role: Role) -> bool:
        """A role that has reached the end of its last phase ends with this exit code."""
        return role.process is not None and role.process.exitcode == FINISHED

    def _cause_faults(self) -> None:
        now_s = time.monotonic()
        if self._command is not None:
            self._cause_by_command(self._command, now_s)
        if self._client_faults and now_s >= self._client_fault_at_s:
            self._client_fault_at_s = now_s + self._rng.uniform(*_CLIENT_FAULT_PAUSE_S)
            victims = [role for role in self._roles if role.takes_faults and role.is_running and role.ready.is_set]
            if victims:
                self._cause_at(self._rng.choice(victims), now_s)

    def _cause_at(self, role: Role, now_s: float) -> None:
        assert role.process is not None
        if self._rng.random() < _KILLS:
            self.kills += 1
            _signal(role.process, signal.SIGKILL)
            return
        self.pauses += 1
        _signal(role.process, signal.SIGSTOP)
        self._paused.append(_Paused(role.process, now_s + self._rng.uniform(0.1, self._longest_pause_s)))
        if self._rng.random() < 0.7:
            self._zombies.append(role.process)
            role.start()

    def _cause_by_command(self, command: str, now_s: float) -> None:
        if self._command_running is not None:
            self._collect_command(command, now_s)
        elif now_s >= self._command_at_s:
            process = subprocess.Popen(command, shell=True, stdin=subprocess.DEVNULL, start_new_session=True)
            self._command_running = process, now_us()

    def _collect_command(self, command: str, now_s: float) -> None:
        assert self._command_running is not None
        process, begun_us = self._command_running
        if process.poll() is not None:
            self._record(Fault(command, begun_us, now_us()))
            self._command_running = None
            self._command_at_s = now_s + self._rng.uniform(*_FAULT_PAUSE_S)

    def _heal(self) -> None:
        """Wait for the faults command, and continue what is paused."""
        if self._command_running is not None:
            assert self._command is not None
            self._command_running[0].wait()
            self._collect_command(self._command, time.monotonic())
        for paused in self._paused:
            _signal(paused.process, signal.SIGCONT)
        self._paused.clear()
        until_s = time.monotonic() + _STOP_S
        while any(zombie.is_alive() for zombie in self._zombies) and time.monotonic() < until_s:
            time.sleep(_TICK_S)  # each ends when its next request is refused
        self._kill(self._zombies)
        self._zombies.clear()

    def _kill(self, processes: list[ForkProcess]) -> None:
        for process in processes:
            _signal(process, signal.SIGKILL)
        for process in processes:
            process.join()


FINISHED = 9
"""The exit code of a process that has nothing more to do."""


def finish() -> None:
    """End this process: it has nothing more to do."""
    os._exit(FINISHED)


def _signal(process: ForkProcess, number: signal.Signals) -> None:
    if process.pid is not None and process.is_alive():
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


_SUFFIX = ".jsonl"


def now_us() -> int:
    """Microseconds of the host's monotonic clock, which all processes share."""
    return time.monotonic_ns() // 1_000


class Recorder:
    """Appends operations to one file; each is in the file when `add` returns. A context manager."""

    def __init__(self, directory: Path, name: str) -> None:
        self._file = (directory / f"{name}{_SUFFIX}").open("ab", buffering=0)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, operation: Operation) -> None:
        self._file.write(write_operation(operation).encode() + b"\n")


def recorded_lines(directory: Path) -> Iterator[str]:
    """The complete lines of all files, without newlines."""
    for path in sorted(directory.glob(f"*{_SUFFIX}")):
        with path.open(encoding="utf-8") as file:
            for line in file:
                if line.endswith("\n"):
                    yield line[:-1]
