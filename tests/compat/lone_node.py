"""One node as a real process, for tests that kill it, exhaust its resources or send it garbage.

`LoneNode` has a directory, two ports and at most one process at a time; all are removed at the end of its `with` block.
The process's output is read line by line, so a test waits for a line and not for a time.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
from harness.blocking import BlockingConnection

import kalda
from kalda.cli.storage import storage
from kalda.network.free_ports import free_ports
from kalda.protocol.messages.partitions import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
SERVES = r"node \d+ of cluster \S+ serves"
_START_S = 60
_FAILURE = re.compile(r"ERROR|FATAL|Exception|^Caused by")
_SOURCES = str(Path(kalda.__file__).parents[1])


class LoneNode:
    """A combined broker and controller on loopback."""

    def __init__(self, home: Path, settings: Mapping[str, object] | None = None) -> None:
        self.home = home
        self.port, self.controller_port = free_ports(2)
        self.properties: dict[str, object] = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{self.controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self.controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self.controller_port}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": home / "data",
            "offsets.topic.num.partitions": 4,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            "log.retention.ms": -1,  # tests write records of years ago, and a check of retention would delete them
            **(settings or {}),
        }
        self.open_files: int | None = None
        """The limit of open files of the next process; None for that of the tests."""
        self.process: subprocess.Popen[str] | None = None
        self.lines: list[str] = []
        self._heard = threading.Condition()
        self._over = True

    def __enter__(self) -> LoneNode:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def file(self) -> Path:
        """Write the current properties."""
        path = self.home / "server.properties"
        self.home.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{name}={value}\n" for name, value in self.properties.items()))
        return path

    def format(self, cluster_id: str = CLUSTER_ID, *arguments: str, release: str | None = None) -> None:
        """`kalda storage format`, in this process. `release`: whose levels of features the cluster has; None for those
        of this version."""
        command = ["format", "-t", cluster_id, "-c", str(self.file), "--standalone", "--ignore-formatted", *arguments]
        command += ["--release-version", release] if release is not None else []
        storage.main(command, standalone_mode=False)

    # -- the process

    serves = SERVES
    """A regular expression for the log line of a node that serves."""

    def command(self) -> list[str]:
        """The command that runs it."""
        command = [sys.executable, "-m", "kalda.cli.main", "server", str(self.file)]
        if self.open_files is not None:
            return ["sh", "-c", f'ulimit -n {self.open_files} && exec "$@"', "sh", *command]
        return command

    def launch(self, *, env: Mapping[str, str] | None = None) -> None:
        """Start the process, and do not wait for it."""
        assert self.process is None or self.process.poll() is not None, "the node runs already"
        self.lines, self._over = [], False
        self.process = subprocess.Popen(
            self.command(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": _SOURCES, **(env or {})},
        )
        threading.Thread(target=self._listen, args=(self.process,), daemon=True).start()

    def start(self) -> float:
        """Start it and wait until it serves; returns the seconds that this took."""
        began = time.monotonic()
        self.launch()
        self.wait_line(self.serves, _START_S)
        return time.monotonic() - began

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with self._heard:
                self.lines.append(line.rstrip("\n"))
                self._heard.notify_all()
        with self._heard:
            self._over = True
            self._heard.notify_all()

    def wait_line(self, pattern: str, timeout_s: float = 30) -> str:
        """The first line that matches; fails where the process ends, or no line matches in time."""
        wanted = re.compile(pattern)

        def found() -> str | None:
            return next((line for line in self.lines if wanted.search(line)), None)

        with self._heard:
            self._heard.wait_for(lambda: found() is not None or self._over, timeout_s)
            line = found()
        assert line is not None, f"no line like {pattern!r}:\n{self.last_lines()}"
        return line

    def last_lines(self) -> str:
        """The end of its output; before it the lines of failures, which a node that ends itself wrote long before."""
        earlier, last = self.lines[:-40], self.lines[-40:]
        return "\n".join([*(line for line in earlier if _FAILURE.search(line)), *last])

    def says(self, pattern: str) -> bool:
        """Whether a line of its output matches."""
        return any(re.search(pattern, line) for line in list(self.lines))

    def wait_exit(self, timeout_s: float = 30) -> int:
        """Its exit code, when all its output was read."""
        assert self.process is not None
        code = self.process.wait(timeout_s)
        with self._heard:
            self._heard.wait_for(lambda: self._over, timeout_s)
        return code

    def stop(self) -> float:
        """Stop it by SIGTERM, with exit code 0; returns the seconds that this took."""
        assert self.process is not None
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        code = self.wait_exit()
        assert code == 0, f"exit code {code}:\n" + self.last_lines()
        return time.monotonic() - began

    def kill(self) -> None:
        """End it by SIGKILL: data that it has not written to the kernel is lost."""
        assert self.process is not None
        self.process.kill()
        self.wait_exit()

    def rss_mb(self) -> float:
        """Resident memory."""
        assert self.process is not None
        return float(psutil.Process(self.process.pid).memory_info().rss) / 2**20

    def descriptors(self) -> int:
        """Open file descriptors."""
        assert self.process is not None
        return int(psutil.Process(self.process.pid).num_fds())

    # -- connections

    @contextlib.contextmanager
    def raw(self, timeout_s: float = 10) -> Iterator[socket.socket]:
        """A plain socket to the broker's listener."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout_s) as peer:
            yield peer

    def client(self) -> BlockingConnection:
        """A connection for requests."""
        return BlockingConnection("127.0.0.1", self.port)

    def wait_led(self, topic: str, partitions: int = 1, timeout_s: float = 60) -> None:
        """Wait until it leads the partitions of a new topic: the logs are made after the controller has answered."""
        asked = [ListOffsetsPartition(partition_index=index, timestamp=-1) for index in range(partitions)]
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=asked)])
        deadline = time.monotonic() + timeout_s
        with self.client() as client:
            while any(each.error_code for each in client.request(request).topics[0].partitions):
                assert time.monotonic() < deadline, f"not within {timeout_s} s: the partitions of {topic} have leaders"
                time.sleep(0.02)
