"""Processes that tests kill: nodes, and jobs of Spark that are started again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from kalda import TopicPartition
from kalda.cli.local import layout as layouts
from kalda.cli.local import nodes
from kalda.cli.local.process import NodeProcess, wait_until_ended
from kalda.pipeline.engine.query import Checkpoint
from waiting import wait_until

SOURCES = Path(__file__).parents[2] / "src"
Offsets = Mapping[TopicPartition, int]


class Nodes:
    """Nodes in processes of their own, as `kalda cluster up` starts them, each a broker and a controller."""

    def __init__(self, directory: Path, count: int) -> None:
        self._layout = layouts.make(directory, count, count, host="127.0.0.1", rack="one", overrides={})
        self._layout.save()
        self.servers = self._layout.bootstrap_servers
        self.ids = [place.node_id for place in self._layout.nodes]

    def start(self) -> None:
        """Start those that are not running, and wait until all serve."""
        nodes.start_missing(self._layout, [])
        nodes.wait_until_all_serve(self._layout, 120, lambda _: None)

    def kill(self, *node_ids: int) -> None:
        killed: list[NodeProcess] = []
        for node_id in node_ids:
            killed.append(nodes.process_of(self._layout, self._layout.place(node_id)))
            killed[-1].send(signal.SIGKILL)
        assert not wait_until_ended(killed, 30)


class Job:
    """A process with a driver of Spark, which is started again whenever it has ended. It follows topics; where it is in
    them, the checkpoints of its queries say."""

    def __init__(
        self, command: Sequence[str], log: Path, checkpoints: Sequence[Path], environment: Mapping[str, str]
    ) -> None:
        """`checkpoints` of a project have the report of its run beside them."""
        self._command = [sys.executable, *command]
        self._environment = {**os.environ, "PYTHONPATH": str(SOURCES), **environment}
        self._log = log
        self._checkpoints = [Checkpoint(each) for each in checkpoints]
        self.starts = 0
        self.start()

    def start(self) -> None:
        self.starts += 1
        with open(self._log, "a") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, env=self._environment)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def _numbers(self) -> list[int]:
        """Of each query, the last batch that has ended."""
        return [max([-1, *(each.number for each in one.batches() if each.committed_ms)]) for one in self._checkpoints]

    def is_behind(self, ends: Offsets) -> list[bool]:
        """Of each query, whether there is more to read than it has."""
        committed = [each.committed() for each in self._checkpoints]
        return [any(found.get(partition, 0) < end for partition, end in ends.items()) for found in committed]

    def wait_for_batches(self, count: int, ends: Offsets) -> None:
        """Until each query has done so many more batches, or has nothing to read. A process that has ended meanwhile is
        started again."""
        before, starts = self._numbers(), self.starts

        def is_so() -> bool:
            if not self.is_running:
                assert self.starts - starts < 5, self.last_lines()
                self.start()
            done = zip(self._numbers(), before, self.is_behind(ends), strict=True)
            return all(last - first >= count or not behind for last, first, behind in done)

        try:
            wait_until(is_so, f"{count} batches of each query", 400, 0.5)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self._numbers()} behind {before}\n{self.last_lines()}") from None

    def last_lines(self) -> str:
        reports = {each.path.parent.parent / "run.json" for each in self._checkpoints}
        return self._log.read_text()[-4_000:] + "".join(each.read_text() for each in reports if each.exists())

    def _family(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self._process.pid).children(recursive=True)
        return []

    def kill_driver(self) -> None:
        """The driver alone: its Java ends by itself, while the job may run again already."""
        self._process.kill()
        self._process.wait()

    def kill_java(self) -> None:
        """The driver ends then."""
        for each in self._family():
            with suppress(psutil.Error):
                if each.name() == "java":
                    each.kill()
        wait_until(lambda: not self.is_running, f"the driver without Java ends\n{self.last_lines()}", 120)

    def kill_worker(self, randomly: random.Random) -> None:
        """One of the Python processes that run tasks, or the daemon that forks them. None where there is none."""
        found = [each for each in self._family() if any("pyspark.daemon" in part for part in _command(each))]
        with suppress(psutil.NoSuchProcess):
            if found:
                randomly.choice(found).kill()

    def kill(self) -> None:
        """As a machine that is switched off: the driver, its Java and all workers."""
        family = self._family()
        self._process.kill()
        for each in family:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        psutil.wait_procs(family, timeout=30)
        self._process.wait()

    def end(self) -> int:
        """SIGTERM. Returns the exit code."""
        self._process.terminate()
        return self._process.wait(120)


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []
