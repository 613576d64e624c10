"""A PostgreSQL of this machine, on a port of loopback, for one module of tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import psutil

from kalda.network.free_ports import free_ports
from waiting import wait_until

PROGRAMS = ("initdb", "postgres", "psql")
_USER = "postgres"


def driver_jars() -> list[str]:
    """The jar of the JDBC driver that `KALDA_POSTGRESQL_JAR` names, or that Spark has resolved for a session before."""
    given = os.environ.get("KALDA_POSTGRESQL_JAR")
    if given:
        return [given]
    folders = [home / "jars" for home in sorted(Path.home().glob(".ivy2*"))]
    return [str(jar) for folder in folders for jar in folder.glob("org.postgresql_postgresql-*.jar")][-1:]


def missing() -> str | None:
    """What a PostgreSQL lacks here; None where it can run."""
    for name in PROGRAMS:
        if shutil.which(name) is None:
            return f"needs {name} of PostgreSQL"
    if os.getuid() == 0 and (
        shutil.which("runuser") is None or subprocess.call(["id", "-u", _USER], stdout=subprocess.DEVNULL)
    ):
        return "needs a user postgres: PostgreSQL does not run as root"
    return None if driver_jars() else "needs the JDBC driver of PostgreSQL, see KALDA_POSTGRESQL_JAR"


class Postgres:
    """A server with an empty database, `postgres`, whose user has the password `a secret`."""

    def __init__(self, settings: tuple[str, ...] = ()) -> None:
        self._settings = settings
        (self.port,) = free_ports(1)
        self._home = Path(tempfile.mkdtemp(prefix="kalda-postgres-"))
        self._server: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"jdbc:postgresql://127.0.0.1:{self.port}/postgres"

    @property
    def _as_user(self) -> list[str]:
        return ["runuser", "-u", _USER, "--"] if os.getuid() == 0 else []

    def __enter__(self) -> Postgres:
        if os.getuid() == 0:
            shutil.chown(self._home, _USER)
        secret = self._home / "secret"
        secret.write_text("a secret\n")
        secret.chmod(0o644)
        make = [
            "initdb",
            "-D",
            str(self._home / "data"),
            "-U",
            _USER,
            "-A",
            "md5",
            "--no-sync",
            "--pwfile",
            str(secret),
        ]
        subprocess.run([*self._as_user, *make], check=True, stdout=subprocess.DEVNULL)
        self.start()
        return self

    def start(self) -> None:
        settings = [f"port={self.port}", "listen_addresses=127.0.0.1", f"unix_socket_directories={self._home}"]
        options = [part for each in (*settings, *self._settings) for part in ("-c", each)]
        command = [*self._as_user, shutil.which("postgres") or "postgres", "-D", str(self._home / "data"), *options]
        self._server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda: self._psql("SELECT 1").returncode == 0, "PostgreSQL answers")

    def kill(self) -> None:
        """SIGKILL of its first process. The others end by themselves, and are waited for: until then it cannot start
        again."""
        first = psutil.Process(int((self._home / "data" / "postmaster.pid").read_text().split("\n")[0]))
        others = first.children(recursive=True)
        first.kill()
        assert self._server is not None
        self._server.wait()
        assert not psutil.wait_procs(others, timeout=60)[1]

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        number = int((self._home / "data" / "postmaster.pid").read_text().split("\n")[0])
        os.kill(number, 2)
        self._server.wait()
        shutil.rmtree(self._home)

    def run(self, sql: str) -> list[list[str]]:
        """The rows of the last statement, as text."""
        done = self._psql(sql)
        assert done.returncode == 0, done.stderr
        return [line.split("|") for line in done.stdout.splitlines() if "|" in line or line]

    def _psql(self, sql: str) -> subprocess.CompletedProcess[str]:
        command = ["psql", "-X", "-q", "-t", "-A", "-h", "127.0.0.1", "-p", str(self.port), "-U", _USER, "-c", sql]
        environment = {**os.environ, "PGPASSWORD": "a secret"}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
