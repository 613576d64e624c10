"""`kalda server [FILE] [--override KEY=VALUE]…`: run a node in the foreground until SIGTERM, SIGINT or SIGHUP.

Without FILE, it is the single node of a directory (see `single_node`).

A second SIGTERM or SIGINT ends the controlled shutdown: the node does not wait until its leaderships have moved, but
its logs are closed cleanly. A second SIGHUP has no effect, as two of them come when a terminal is closed, from its
shell and from the system.

No command-line library is loaded here: a node must answer a few hundred milliseconds after its start.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import shlex
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kalda.base.configs.server import ServerConfig

_MANY_OBJECTS = 500_000
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of <malloc.h>
_FEW_FILES = 10_000
_KEPT_BYTES = 32 * 1024 * 1024
_MAPPED_BYTES = 4 * 1024 * 1024
_SWITCH_INTERVAL_S = 0.001
"""A thread that runs Python (recovery, producer snapshots, compaction of compressed batches) lets the event loop go on
after that time. Python's own 5 ms would be added to each of the loop's turns meanwhile."""
_INTERRUPTED = 130
"""What a shell says of a command that Ctrl-C has ended."""

USAGE = """Usage: kalda server [FILE] [--dir DIR] [--port PORT] [--override KEY=VALUE]... [--log-level LEVEL]
                    [--log-format text|json]

Start a node with the server.properties FILE, as kafka-server-start does. The log directories must have been
formatted with `kalda storage format`.

Without FILE, start a single node, broker and controller, at localhost:9092. Its server.properties, its data and its
log (server.log) are in the directory of --dir. They are made and formatted by the first start, and used again by the
next ones. Warnings are printed too.

Options:
  --dir DIR              The directory of a single node, instead of ./kalda-data. Not with FILE.
  --port PORT            Move the node: its first listener to PORT, the next one (its controller) to PORT + 1. What
                         it advertises, and its own address in the quorum, follow.
  --override KEY=VALUE   Set a property, instead of its value in FILE. May be repeated.
  --log-level LEVEL      Print lines of DEBUG, INFO, WARNING or ERROR and above. [default: INFO with FILE, else WARNING]
  --log-format FORMAT    text (default) or json.
  --help                 Show this message.

Examples:
  kalda server
  kalda server --dir other --port 9192
  kalda storage format -t $(kalda storage random-uuid) -c server.properties --standalone
  kalda server server.properties --override log.retention.hours=24
"""


_WITH_VALUE = ("--dir", "--port", "--override", "--log-level", "--log-format")


def _hint(option: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(option, (*_WITH_VALUE, "--help"), 1)
    return f". Did you mean {near[0]}?" if near else ""


class UsageError(Exception):
    """The command line is wrong; the message is for the user."""


class ServerOptions:
    """The parsed command line."""

    def __init__(self, arguments: list[str]) -> None:
        self.file = ""
        """The properties file; empty for the single node of `directory`."""
        self.directory = ""
        self.overrides: dict[str, str] = {}
        self.port: int | None = None
        """Where the node is moved to; None: where its properties have it."""
        self.log_level = ""
        """What is printed; empty where the command line does not say."""
        self.log_format = "text"
        rest = list(arguments)
        while rest:
            argument = rest.pop(0)
            name, equals, value = argument.partition("=")
            if name in _WITH_VALUE:
                if not equals:
                    if not rest:
                        raise UsageError(f"{name} needs a value")
                    value = rest.pop(0)
                self._set(name, value)
            elif argument.startswith("-"):
                raise UsageError(f"no such option: {argument}{_hint(name)}")
            elif self.file:
                raise UsageError(f"only one FILE is expected, but {self.file} and {argument} are given")
            else:
                self.file = argument
        if self.file and self.directory:
            raise UsageError(f"--dir {self.directory} is for a node without FILE, but {self.file} is given")
        self.directory = self.directory or "kalda-data"

    @property
    def source(self) -> str:
        """What the node is started from."""
        return self.file or self.directory

    def _set(self, name: str, value: str) -> None:
        if name == "--override":
            key, equals, setting = value.partition("=")
            if not equals or not key:
                raise UsageError(f"--override {value}: KEY=VALUE is expected")
            self.overrides[key] = setting
        elif name == "--dir":
            if not value:
                raise UsageError("--dir needs a value")
            self.directory = value
        elif name == "--port":
            if not value.isascii() or not value.isdecimal() or not 1 <= int(value) < 65_535:
                raise UsageError(f"--port {value}: a number from 1 to 65534 is expected")
            self.port = int(value)
        elif name == "--log-level":
            if value.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR"):
                raise UsageError(f"--log-level {value}: DEBUG, INFO, WARNING or ERROR is expected")
            self.log_level = value.upper()
        else:
            if value not in ("text", "json"):
                raise UsageError(f"--log-format {value}: text or json is expected")
            self.log_format = value


def run(arguments: list[str]) -> int:
    """Run a node. Exit codes: 0 after a clean stop, 1 when the node could not run, 2 for a wrong command line, 130 when
    Ctrl-C ended its start."""
    if "--help" in arguments or "-h" in arguments:
        sys.stdout.write(USAGE)
        return 0
    try:
        options = ServerOptions(arguments)
    except UsageError as error:
        sys.stderr.write(f"kalda server: {error}\n\n{USAGE}")
        return 2
    # A start makes a hundred thousand objects and drops few: collection of cycles is off until the node serves.
    gc.disable()

    from kalda.broker.process import loggers

    loggers.set_up(options.log_level or ("INFO" if options.file else "WARNING"), options.log_format == "json")
    try:
        _try_threads()
    except RuntimeError as error:
        from kalda.base.errors import MORE_THREADS

        log = logging.getLogger("kalda.server")
        log.error("cannot start: %s; a node needs at least %d threads: %s", error, _LEAST_THREADS, MORE_THREADS)
        return 1
    try:
        import uvloop
    except ImportError:
        return asyncio.run(_serve(options))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(options))


def _read_config(options: ServerOptions) -> ServerConfig:
    """Raises `OSError`, `ValueError`, `InvalidConfig`."""
    from kalda.base.texts import read_properties_file
    from kalda.cli.local.single_node import LOG_FILE, check_formatted, configured, prepare

    if not options.file:
        config = prepare(options.directory, options.overrides, options.port)
        if not options.log_level:
            from kalda.broker.process import loggers

            loggers.write_to(os.path.join(options.directory, LOG_FILE), options.log_format == "json")
        return config
    from kalda.cli.local.ports import check_ports

    config = configured(read_properties_file(options.file), options.overrides, options.port)
    check_formatted(config, options.file)
    check_ports(config, f"kalda server {shlex.quote(options.file)}")
    return config


def _allow_many_files() -> None:
    """Raise the limit of open files to the maximum: each log in use keeps one or two files open, and each connection
    needs a descriptor too."""
    import resource

    log = logging.getLogger("kalda.server")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or soft < hard:
        limit = 1_048_576 if hard == resource.RLIM_INFINITY else hard
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, limit), hard))
        except (ValueError, OSError) as error:
            log.warning("the limit of open files cannot be raised: %s", error)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    level = logging.WARNING if soft < _FEW_FILES else logging.INFO
    log.log(level, "%d files and connections can be open at a time (RLIMIT_NOFILE, its hard limit is %d)", soft, hard)


def _keep_freed_memory() -> None:
    """Make glibc's allocator keep some megabytes of freed memory. Else it returns them to the kernel and requests them
    again, and the kernel makes new pages for each piece of a log that is read. Other C libraries have no `mallopt`."""
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)


def _greet(config: ServerConfig, directory: str) -> None:
    from kalda.cli.local.single_node import greeting

    sys.stdout.write(greeting(config, directory))
    sys.stdout.flush()


def _notify(state: str) -> None:
    """Report to systemd, where it runs the node."""
    if "NOTIFY_SOCKET" in os.environ:
        notify(state)


_STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def _ignore_signals(loop: asyncio.AbstractEventLoop) -> None:
    """A signal that comes now would end a process that has stopped cleanly as if it had not."""
    for number in _STOPPING:
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)


def _collect_rarely() -> None:
    """The collector of Python for a node that has started."""
    # The objects of the start stay alive: `freeze` excludes them from later collections. With the metadata of a very
    # large cluster, a full collection before it would take seconds without an answer, and free little.
    if gc.get_count()[0] < _MANY_OBJECTS:
        gc.collect()
    gc.freeze()
    # A collection of the younger generations visits at most 20,000 objects, 5 to 15 ms; a full one is rare.
    gc.set_threshold(5_000, 2, 25_000)
    gc.enable()


_LEAST_THREADS = 7
"""Four of libuv, the watchdog's two, one for jobs."""


def _try_threads() -> None:
    """Start the least number of threads, and end them: libuv aborts the process without a word where it cannot start
    its own. Raises `RuntimeError`."""
    may_end = threading.Event()
    started: list[threading.Thread] = []
    try:
        for _ in range(_LEAST_THREADS):
            thread = threading.Thread(target=may_end.wait, daemon=True)
            thread.start()
            started.append(thread)
    finally:
        may_end.set()
        for thread in started:
            thread.join()


async def _serve(options: ServerOptions) -> int:
    from kalda.base.configs.definition import InvalidConfig
    from kalda.broker.process.node import Node, StartError
    from kalda.broker.process.shell import Host
    from kalda.cli.common.os_errors import sentence

    log = logging.getLogger("kalda.server")
    try:
        config = _read_config(options)
    except IsADirectoryError:
        log.error("cannot start with %s: it is a directory: --dir %s is meant", options.source, options.source)
        return 1
    except OSError as error:
        log.error("cannot start with %s: %s", options.source, sentence(error, options.source))
        return 1
    except (ValueError, InvalidConfig) as error:
        log.error("cannot start with %s: %s", options.source, error)
        return 1
    _allow_many_files()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    stop = asyncio.Event()
    node = Node(config, Host(owns_process=True))

    code = 0

    def on_signal(number: signal.Signals) -> None:
        nonlocal code
        if number is signal.SIGINT and not starting.done():
            code = _INTERRUPTED
        log.info("Terminating process due to signal %s", number.name)
        if stop.is_set() and number is not signal.SIGHUP:
            node.skip_handover()
        stop.set()

    loop = asyncio.get_running_loop()
    starting = asyncio.ensure_future(node.start())
    for number in _STOPPING:
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            loop.add_signal_handler(number, on_signal, number)
    node.on_fatal = lambda _: stop.set()
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.wait((starting,))
            if not starting.cancelled():
                starting.exception()  # of a start that is not awaited any more
        else:
            starting.result()
            _collect_rarely()
            _keep_freed_memory()
            if not options.file:
                _greet(config, options.directory)
            _notify(f"READY=1\nSTATUS=node {config.node_id} serves")
            await stopping
    except StartError as error:
        log.error("%s", error)
        return 1
    finally:
        gc.enable()
        _notify("STOPPING=1")
        stopping.cancel()
        await node.stop()
        _ignore_signals(loop)
    return 1 if node.failed else code


# What a node reports to systemd (`Type=notify`): that it serves, and that it stops.
#
# The protocol is one datagram with lines `KEY=VALUE` to the socket that `NOTIFY_SOCKET` names; without it, nothing is
# sent.

log = logging.getLogger("kalda.server")


def notify(*lines: str) -> None:
    """Send lines such as `READY=1`. A failure is logged: the node serves all the same."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):  # an abstract address
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.connect(address)
            sender.sendall("\n".join(lines).encode())
    except OSError as error:
        log.warning("systemd could not be notified of %s: %s", " ".join(lines), error)
