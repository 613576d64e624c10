"""The processes of a machine that Spark runs in: its Java, and the class of those that others must not wait for.

Java is found before a session is made, so that its absence is one clear sentence (PySpark reports that its gateway
process has exited), and ended where the start of a session is interrupted.

Processes in the background get only the CPU and the disk that no other process uses. A bulk load that shares its
machine with a node would else take the cores in whole time slices, also with niceness 19, and clients of the node would
wait for them. A process of Linux's class SCHED_IDLE gives up the core as soon as any other process can run, and its own
reads and writes of files come after those of others.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kalda.base.errors import KafkaError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OLDEST: Final = 17
_UNIX_SOCKETS: Final = "spark.python.unix.domain.socket.enabled"
"""Over TCP, each Python task waits for 40 ms: Java writes the task and its input one after the other, Nagle's algorithm
holds the second until the first is acknowledged, and the Python process delays the acknowledgement."""
_SHUFFLE_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_DELTA_PARTITIONS: Final = "spark.databricks.delta.snapshotPartitions"
_ARCHIVE: Final = Path("python", "lib", "pyspark.zip")
"""Of PySpark, in Spark's home: the first entry of the workers' PYTHONPATH."""
_OF_SPARK_SUBMIT: Final = "PYSPARK_GATEWAY_PORT"
"""Set where spark-submit has started Java, with the settings of its user."""
_ADVICE: Final = (
    "Spark runs on Java 17 or 21. Install one (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; Fedora: dnf "
    "install java-21-openjdk-headless; macOS: brew install openjdk@17), or set JAVA_HOME to one that is there"
)


def java_advice() -> str | None:
    """What to do where there is no Java that Spark can use; else None."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if program is None:
        return f"there is no java on the PATH, and JAVA_HOME is not set. {_ADVICE}"
    if not os.access(program, os.X_OK):
        return f"JAVA_HOME is {home}, which has no bin/java. {_ADVICE}"
    done = subprocess.run([program, "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'version "(\d+)', done.stderr + done.stdout)
    if done.returncode or found is None:
        return f"{program} -version fails: {(done.stderr or done.stdout).strip()[:200]}. {_ADVICE}"
    if int(found[1]) < _OLDEST:
        return f"{program} is Java {found[1]}. {_ADVICE}"
    return None if os.name != "posix" else _advice_for_user(os.getuid())


def _advice_for_user(uid: int) -> str | None:
    """Spark's Hadoop requires the name of its user, whatever HADOOP_USER_NAME is: it fails with a NullPointerException
    where a container runs as a number without a name."""
    import pwd

    try:
        pwd.getpwuid(uid)
    except KeyError:
        return (
            f"Spark needs a user with a name, and user {uid} has no entry in /etc/passwd. Run it as another user, or "
            f"give the image that entry: echo 'spark:x:{uid}:0::/tmp:/bin/false' >> /etc/passwd"
        )
    return None


@contextmanager
def ending_java(prepare: Callable[[], None] | None = None) -> Iterator[None]:
    """Ends the Java process that PySpark starts in the block, where the block is interrupted before PySpark holds a
    connection to it: nothing else would ever end that process. SIGTERM, too, interrupts the block, unless the program
    handles it. `prepare` is called in that process before Java runs.

    Java is in a process group of its own. A SIGTERM to the group of the command, as `timeout` and some shells send it,
    would else end Java too, and what the command does at its end would fail."""
    try:
        from pyspark import SparkContext, java_gateway
    except ImportError:  # PySpark's client of Spark Connect alone, which starts no Java
        yield
        return
    popen = vars(java_gateway)["Popen"]
    started: list[subprocess.Popen[bytes]] = []

    def start(command: list[str], **keywords: Any) -> subprocess.Popen[bytes]:
        command, keywords["env"] = quick_workers(command, keywords.get("env", os.environ))
        of_pyspark = keywords.get("preexec_fn")
        if of_pyspark is not None:  # None on Windows

            def begin() -> None:
                of_pyspark()
                if prepare is not None:
                    prepare()
                if os.getpgrp() != os.getpid():
                    os.setpgid(0, 0)

            keywords["preexec_fn"] = begin
        started.append(popen(command, **keywords))
        return started[-1]

    setattr(java_gateway, "Popen", start)  # noqa: B010
    try:
        with _terminating():
            yield
    except BaseException:
        if SparkContext._gateway is None:
            for process in started:
                process.kill()
        raise
    finally:
        setattr(java_gateway, "Popen", popen)  # noqa: B010


def quick_workers(command: list[str], environment: Mapping[str, str]) -> tuple[list[str], Mapping[str, str]]:
    """The command and the environment that start Java, so that its Python workers import PySpark from the files that
    this Python has. They would take it from an archive, and compile it each time: 0.9 s of CPU and not 0.3 s for each
    of some five processes of a query. Spark gives up on one that does not answer within 10 s.

    The archive is in Spark's home, so Java gets another home, of links, with a directory in its place. Unchanged are a
    home of the user's, and workers of another Python."""
    import py4j
    import pyspark

    packages = [Path(str(each.__file__)).parent for each in (pyspark, py4j)]
    home = packages[0]
    is_own = home == Path(command[0]).parent.parent and "SPARK_HOME" not in environment
    if os.name != "posix" or not is_own or environment.get("PYSPARK_PYTHON", sys.executable) != sys.executable:
        return command, environment
    try:
        cache = user_cache(environment)
        other = cache / f"spark-{sha256(repr(packages).encode()).hexdigest()[:16]}"
        if not other.exists():
            cache.mkdir(parents=True, exist_ok=True)
            made = Path(tempfile.mkdtemp(prefix=".spark-", dir=cache))
            (made / _ARCHIVE).mkdir(parents=True)
            for each in (*(home / name for name in ("bin", "conf", "jars")), *packages):
                (made / (_ARCHIVE if each in packages else "") / each.name).symlink_to(each)
            made.rename(other)
    except OSError:  # nothing can be written there; or another process was first, and the next session has it
        return command, environment
    return [str(other / "bin" / Path(command[0]).name), *command[1:]], {**environment, "SPARK_HOME": str(other)}


@contextmanager
def _terminating() -> Iterator[None]:
    """SIGTERM, which would end the process at once, raises `SystemExit`."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def sockets_of_workers() -> dict[str, str]:
    """The setting by which Java and Python processes use Unix sockets; none where spark-submit has started Java."""
    return {_UNIX_SOCKETS: "true"} if os.name == "posix" and _OF_SPARK_SUBMIT not in os.environ else {}


class SparkUnavailable(KafkaError, RuntimeError):
    """Spark or its Java is not installed; the message has what to do."""


def settings_of_machine(master: str) -> dict[str, str]:
    """Numbers of partitions that fit this machine, where the master is one of its processes; none for another master.
    Spark's own are those of a cluster: 200 tasks for each shuffle, 50 for each version of a Delta table."""
    found = re.fullmatch(r"local(?:\[(\d+|\*)(?:,\d+)?\])?", master)
    if found is None:
        return {}
    number = (os.cpu_count() or 1) if found[1] == "*" else int(found[1] or 1)
    return dict.fromkeys((_SHUFFLE_PARTITIONS, _DELTA_PARTITIONS), str(number))


def new_session(app_name: str, master: str | None, settings: Mapping[str, object]) -> SparkSession:
    """See `kalda.spark.session`."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise SparkUnavailable(f"Spark is not installed ({error}): pip install 'kalda[spark]'") from error
    from kalda.spark.source import register_in

    server = master or os.environ.get("SPARK_REMOTE", "")
    is_remote = server.startswith("sc://")  # Spark Connect: Java is where the server is
    advice = None if is_remote else java_advice()
    if advice is not None:
        raise SparkUnavailable(advice)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name)
    own = {} if is_remote else sockets_of_workers() | settings_of_machine(_master(master, settings))
    for name, text in own.items():
        builder = builder.config(name, text)
    if master is not None:
        builder = builder.remote(master) if is_remote else builder.master(master)
    for name, value in settings.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        builder = builder.config(name.replace("_", ".") if name.startswith("spark_") else name, text)
    with ending_java():
        spark: SparkSession = builder.getOrCreate()
    register_in(spark)
    return spark


def _master(given: str | None, settings: Mapping[str, object]) -> str:
    """The master that a session will have; an empty text where the user has chosen it elsewhere: by spark-submit, or in
    files of Spark. Spark's own default is all cores of this machine."""
    named = given or settings.get("spark_master") or settings.get("spark.master")
    elsewhere = {_OF_SPARK_SUBMIT, "SPARK_CONF_DIR", "SPARK_HOME", "MASTER"} & os.environ.keys()
    return str(named or ("" if elsewhere else "local[*]"))


def user_cache(environment: Mapping[str, str] = os.environ) -> Path:
    """The directory `kalda` of the user's cache, which may not exist. The user of a container is often a number that
    has no passwd entry, with a `HOME` that is unset or `/`: a directory among temporary files, readable by that user
    only, is in its place. Raises `PermissionError` where another user has made that one."""
    given = environment.get("XDG_CACHE_HOME")
    if given:
        return Path(given) / "kalda"
    home = environment.get("HOME") or os.path.expanduser("~")
    if os.access(home, os.W_OK):
        return Path(home) / ".cache" / "kalda"
    made = Path(tempfile.gettempdir()) / f"kalda-{os.getuid()}"
    made.mkdir(0o700, exist_ok=True)
    if made.lstat().st_uid != os.getuid():
        raise PermissionError(f"{made} belongs to another user")
    return made


# -- the background

SMALL_FETCHES: Final = {"kafka.max.partition.fetch.bytes": str(1024 * 1024)}
"""Options of the source: the node is in no background, and what it does for one large response delays others."""
_LOWEST: Final = 19
_LITTLE: Final = 0.1
_TICKS_A_SECOND: Final = 100
"""Linux's USER_HZ."""
_AUTOGROUPS: Final = Path("/proc/sys/kernel/sched_autogroup_enabled")


def enter_background() -> None:
    """Put this process, and all that it starts, into the background; where the platform has no such class, with the
    lowest priority. Called in a new process of one thread."""
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except (AttributeError, OSError):  # not Linux, or a sandbox that refuses the call
        os.nice(_LOWEST)
    if _has_autogroups():
        _lower_autogroup()


def _has_autogroups() -> bool:
    """Whether the kernel divides the cores between sessions of processes first, and in a session by class."""
    try:
        return _AUTOGROUPS.read_text().strip() == "1"
    except OSError:
        return False


def _lower_autogroup() -> None:
    """Begin a session, and give it the smallest share: else it has as much of the cores as the node's session."""
    with suppress(OSError):
        os.setsid()
        Path("/proc/self/autogroup").write_text(str(_LOWEST))


class CpuWait:
    """Whether the processes that this one has started want the CPU and hardly get it; never on others than Linux."""

    def __init__(self, proc: Path | None = None, pid: int | None = None) -> None:
        self._proc = Path("/proc") if proc is None else proc
        self._pid = os.getpid() if pid is None else pid
        self._used: tuple[float, int] | None = None
        """When it was last looked at, and the ticks of the CPU used until then."""

    def is_long(self, now_s: float) -> bool:
        """Since the last call, at `now_s` on a clock of seconds: a thread could run, and less than a tenth of a core
        was used."""
        threads = [
            (fields[0], int(fields[11]) + int(fields[12]))
            for pid in self._children(self._pid)
            for fields in self._of(pid)
        ]
        used = sum(ticks for _, ticks in threads)
        before, self._used = self._used, (now_s, used)
        if before is None or now_s <= before[0]:
            return False
        share = (used - before[1]) / _TICKS_A_SECOND / (now_s - before[0])
        return share < _LITTLE and any(state == "R" for state, _ in threads)

    def _children(self, pid: int) -> list[int]:
        found: list[int] = []
        for file in (self._proc / str(pid) / "task").glob("*/children"):
            with suppress(OSError):
                for child in map(int, file.read_text().split()):
                    found += [child, *self._children(child)]
        return found

    def _of(self, pid: int) -> list[list[str]]:
        """The fields of each thread's stat behind its name, of which the first is its state."""
        found = []
        for file in (self._proc / str(pid) / "task").glob("*/stat"):
            with suppress(OSError):
                found.append(file.read_text().rpartition(")")[2].split())
        return found
