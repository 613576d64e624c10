"""Pages of the manual, and a reader who pastes them: block by block, in their order, into one directory.

An HTML comment directly before a block says what a reader gathers from the text around it:

- `<!-- file: NAME -->`: the block is the file NAME.
- `<!-- answers: A B -->`: what is typed when its commands ask.
- `<!-- not run: REASON -->`: it cannot be run by a test.

Every other block of `sh` and `python` is run; `text` is output. Two things are changed: the ports, since those of the
manual may be in use, and a pipeline gets its share of a machine whose other tests use all cores (`--foreground`). A
command that runs until it is stopped (a node without `&`, `--follow`, "until stopped") gets a terminal of its own; the
next node or cluster is started when the node before has been stopped. A line with the comment `# shows TEXT`
is one of a block that must print TEXT.
"""

from __future__ import annotations

import json
import os
import random
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from kalda.network.free_ports import is_free

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
FILES = frozenset(("ini", "json", "properties", "sql", "toml", "yaml"))
LANGUAGES = frozenset(("python", "sh", "text")) | FILES
PORTS = {9092: 0, 9093: 1, 9094: 2, 9095: 3, 9192: 8, 9193: 9, 9404: 15}
"""Ports of the manual, and how far each is from the first of the session's. A cluster takes consecutive ones."""
UNTIL_STOPPED = re.compile(r"^kalda server(?!.*& *(#.*)?$)|--follow\b|# until stopped")
SERVES = re.compile(r"Kalda serves at|node \d+ of cluster \S+ serves")
BLOCK_S = 1_500
SHELL = """
set -mE
trap 'echo "failed: $BASH_COMMAND" >&3' ERR
while read -r file answers; do source "$file" < "$answers"; echo done >&3; done
kill $(jobs -p) 2>/dev/null
wait
"""
PYTHON = """
import os, sys, traceback
names = {"__name__": "__main__"}
for line in iter(sys.stdin.readline, ""):
    path = line.strip()
    try:
        exec(compile(open(path).read(), path, "exec"), names)
    except BaseException:
        os.write(3, ("failed: " + traceback.format_exc(limit=-3).replace("\\n", " | ") + "\\n").encode())
    os.write(3, b"done\\n")
"""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str
    directive: str
    """`file`, `answers`, `not run`, or empty."""
    argument: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def needs_spark(self) -> bool:
        return self.directive == "" and bool(re.search(r"spark|kalda pipeline", self.text))


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page, with the examples that it includes in their place."""
    found = []
    pattern = re.compile(
        r"(?:<!-- ([a-z ]+): ([^\n]*) -->\n)?^```(\w*)[^\n]*\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL
    )
    text = page.read_text()
    for match in pattern.finditer(text):
        directive, argument, language, body = match.groups(default="")
        included = re.sub(r'--8<-- "(\S+)"', lambda each: (ROOT / "docs/examples" / each[1]).read_text(), body)
        line = text.count("\n", 0, match.start(3)) + 1
        found.append(Block(page.name, line, language, included, directive, argument))
    return found


def _first_port() -> int:
    """The first of as many consecutive free ports as a page needs, below those of outgoing connections."""
    for _ in range(1_000):
        first = random.randrange(15_000, 31_000, 20)
        if all(is_free(port) for port in range(first, first + 16)):
            return first
    raise OSError("no 16 consecutive free ports between 15000 and 31000")


class Session:
    """A reader's terminals. `run` raises `AssertionError` where a command fails, with what it has printed."""

    def __init__(self, directory: Path, servers: str = "", python: str = "") -> None:
        """`servers`: HOST:PORT of a node that runs. `python`: of an environment with an installed Kalda."""
        self._directory = directory
        self._port = int(servers.rpartition(":")[2]) if servers else _first_port()
        self._pipe, self._control = os.pipe()
        self._replies = b""
        self._output = (directory / ".output").open("w+b")
        self._node: subprocess.Popen[bytes] | None = None
        self._written = 0
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | {
            "HOME": str(directory),
            "KALDA_BOOTSTRAP_SERVER": f"localhost:{self._port}",
            "PATH": f"{Path(python or sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(directory) if python else f"{ROOT / 'src'}:{directory}",
            "PYSPARK_PYTHON": sys.executable,
            "REGISTRY_URL": "mock://docs",
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        (directory / "examples").mkdir()
        for sample in ROOT.glob("examples/*.properties"):
            (directory / "examples" / sample.name).write_text(self._moved(sample.read_text()))
        with ExitStack() as opened:
            opened.callback(self.close)
            self._shell = self._terminal(["bash", "--noprofile", "--norc", "-c", SHELL])
            self._python: subprocess.Popen[bytes] | None = None
            opened.pop_all()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _terminal(self, command: list[str]) -> subprocess.Popen[bytes]:
        """A process whose descriptor 3 is the pipe of replies."""
        wrapper = ["bash", "-c", f'exec "$@" 3>&{self._control}', "bash", *command]
        return subprocess.Popen(
            wrapper, cwd=self._directory, env=self._environment, stdin=subprocess.PIPE, stdout=self._output,
            stderr=subprocess.STDOUT, pass_fds=(self._control,), start_new_session=True,
        )  # fmt: skip

    def run(self, block: Block) -> None:
        text = self._moved(block.text)
        if block.directive == "file":
            path = self._directory / block.argument.replace("~/", "")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        elif block.language == "sh":
            self._paste(block, text)
        elif "def test_" in text:
            test = self._write(text, "test_pasted_{}.py")
            self._paste(block, f"python -m pytest -q -p no:cacheprovider {test}\n")
        else:
            if self._python is None:
                self._python = self._terminal([sys.executable, "-c", PYTHON])
            self._send(self._python, str(self._write(text, ".pasted_{}.py")), block)

    def _paste(self, block: Block, text: str) -> None:
        """Lines into the shell; those that run until they are stopped into a terminal of their own."""
        gathered: list[str] = []
        for line in [*text.splitlines(), None]:
            if line is not None and not UNTIL_STOPPED.search(line):
                if line.startswith("kalda cluster up"):
                    self._stop_node()
                gathered.append(line)
                continue
            if gathered:
                script = self._write("\n".join(gathered) + "\n", ".pasted_{}.sh")
                answers = self._write(block.argument.replace(" ", "\n") + "\n", ".answers_{}")
                before = self._output.seek(0, os.SEEK_END)
                self._send(self._shell, f"{script} {answers}", block)
                printed = Path(self._output.name).read_bytes()[before:].decode(errors="replace")
                for each in gathered:
                    for expected in re.findall(r"# shows (.*)", each):
                        assert re.search(r"\s+".join(map(re.escape, expected.split())), printed), f"{each}\n{printed}"
                if any(re.match("kalda server.*&", each) for each in gathered):
                    self._wait_output(before, SERVES)
                gathered = []
            if line is not None:
                self._until_stopped(line)

    def _until_stopped(self, line: str) -> None:
        is_node = line.startswith("kalda server")
        if is_node:
            self._stop_node()
        before = self._output.seek(0, os.SEEK_END)
        process = subprocess.Popen(
            ["bash", "-c", f"exec {line}"], cwd=self._directory, env=self._environment,
            stdin=subprocess.DEVNULL, stdout=self._output, stderr=subprocess.STDOUT,
        )  # fmt: skip
        if is_node:
            self._node = process
        self._wait_output(before, SERVES if is_node else re.compile("."), process)
        if not is_node:
            process.send_signal(signal.SIGINT)
            code = process.wait(BLOCK_S)
            assert code in (0, 130, -signal.SIGINT), f"{line}: exit code {code}\n{self._shown()}"

    def _wait_output(
        self, before: int, pattern: re.Pattern[str], process: subprocess.Popen[bytes] | None = None
    ) -> None:
        """Wait until what is printed behind a position matches."""
        deadline = time.monotonic() + 300
        while not pattern.search(Path(self._output.name).read_bytes()[before:].decode(errors="replace")):
            assert process is None or process.poll() is None, f"it has ended:\n{self._shown()}"
            assert time.monotonic() < deadline, f"{pattern.pattern} is not in\n{self._shown()}"
            time.sleep(0.05)

    def _moved(self, text: str) -> str:
        """The text with the session's ports."""
        ports = re.compile(rf"(?<![\d.])({'|'.join(map(str, PORTS))})(?!\d)")
        text = ports.sub(lambda match: str(self._port + PORTS[int(match[1])]), text)
        text = re.sub(r"kalda pipeline (load|snapshot)\b", r"kalda pipeline \1 --foreground", text)
        nodes = r"^kalda server(?! \S*\.properties)(?!.*--port)"
        return re.sub(nodes, f"kalda server --port {self._port}", text, flags=re.MULTILINE)

    def _write(self, text: str, name: str) -> Path:
        self._written += 1
        path = self._directory / name.format(self._written)
        path.write_text(text)
        return path

    def _send(self, terminal: subprocess.Popen[bytes], line: str, block: Block) -> None:
        """Have a terminal run something, and wait until it is done."""
        assert terminal.stdin is not None
        terminal.stdin.write(f"{line}\n".encode())
        terminal.stdin.flush()
        failures = []
        for reply in iter(self._reply, "done"):
            failures.append(reply)
            if not reply.startswith("failed: "):
                break
        assert not failures, f"{block}: {json.dumps(failures)}\n{self._shown()}"

    def _reply(self) -> str:
        while b"\n" not in self._replies:
            if not select.select([self._pipe], [], [], BLOCK_S)[0]:
                return f"not done after {BLOCK_S} s"
            self._replies += os.read(self._pipe, 65536)
        reply, _, self._replies = self._replies.partition(b"\n")
        return reply.decode()

    def _shown(self) -> str:
        lines = Path(self._output.name).read_text(errors="replace").splitlines()
        return "\n".join(line for line in lines if "] INFO " not in line)[-3000:]

    def _stop_node(self) -> None:
        if self._node is not None:
            self._node.send_signal(signal.SIGINT)
            self._node.wait(60)
            self._node = None

    def close(self) -> None:
        """End the terminals, and then whatever still runs in the directory."""
        terminals = [each for each in (self._shell, self._python) if each is not None]
        for terminal in terminals:
            assert terminal.stdin is not None
            terminal.stdin.close()
        self._stop_node()
        for terminal in terminals:
            with suppress(subprocess.TimeoutExpired):
                terminal.wait(20)
        left = list(self._left())
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=30)
        for terminal in terminals:
            terminal.wait(30)
        self._output.close()
        os.close(self._pipe)
        os.close(self._control)

    def _left(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if Path(process.cwd()).is_relative_to(self._directory):
                    yield process


def starts_node(page: Path) -> bool:
    return any(re.search("kalda server|kalda cluster up", block.text) for block in blocks_of(page))


def run_page(page: Path, directory: Path, servers: str, chosen: Callable[[Block], bool]) -> None:
    """Run the chosen blocks of a page. Each block is run, is a file, or says why it is neither.

    `servers` is the node of the pages that start none."""
    blocks = [block for block in blocks_of(page) if chosen(block) and block.language != "text"]
    for block in blocks:
        assert block.directive in ("", "file", "answers", "not run"), f"{block}: <!-- {block.directive}: -->"
        assert block.language in LANGUAGES, f"{block}: no reader knows what {block.language or 'nothing'} is"
        assert block.language not in FILES or block.directive, f"{block}: which file is it?"
        assert block.directive != "not run" or block.argument, f"{block}: why is it not run?"
    blocks = [block for block in blocks if block.directive != "not run"]
    if any(block.directive != "file" for block in blocks):
        with Session(directory, "" if starts_node(page) else servers) as session:
            for block in blocks:
                session.run(block)
