"""The two systems that are measured: how a node of each is formatted and run, and where Apache Kafka comes from.

Both have the same `server.properties`, so all other code about nodes and clusters is shared.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
KAFKA = "4.3.1"
_BENCH = Path(__file__).parents[1]


class System(NamedTuple):
    """A system's name, and its commands without their arguments."""

    name: str
    formatter: Sequence[str]
    server: Sequence[str]

    def format_command(self, properties: Path, *options: str) -> list[str]:
        return [*self.formatter, "-t", CLUSTER_ID, "-c", str(properties), *options]

    def server_command(self, properties: Path) -> list[str]:
        return [*self.server, str(properties)]


_KALDA = (sys.executable, "-m", "kalda.cli.main")
KALDA = System("Kalda", (*_KALDA, "storage", "format"), (*_KALDA, "server"))
"""The Kalda that is installed for this Python."""


def _another_kalda(src: str) -> System:
    kalda = ("env", f"PYTHONPATH={Path(src).resolve(strict=True)}", *_KALDA)
    return System("Kalda before", (*kalda, "storage", "format"), (*kalda, "server"))


def apache_kafka(heap: str) -> System | None:
    """Apache Kafka from its published jars, with the collector that its scripts choose; None where it cannot run."""
    if _kafka_jars() is None:
        print("Apache Kafka is not measured: it needs Java 17 and Maven, or KALDA_KAFKA_JARS", file=sys.stderr)
        return None
    formatter = (*java_command("kafka.tools.StorageTool", "256M"), "format")
    return System("Apache Kafka", formatter, java_command("kafka.Kafka", heap))


def java_command(main_class: str, heap: str) -> Sequence[str]:
    """How a class of Apache Kafka's jars is run. Raises `SystemExit` where there are no jars."""
    jars = _kafka_jars()
    if jars is None:
        raise SystemExit("Apache Kafka's classes need Java 17 and Maven, or KALDA_KAFKA_JARS")
    return (
        "java", f"-Xmx{heap}", f"-Xms{heap}", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
        "-Djava.awt.headless=true", f"-Dlog4j2.configurationFile={_BENCH / 'peer' / 'log4j2.xml'}",
        "-cp", f"{jars}/*", main_class,
    )  # fmt: skip


def systems(heap: str, *, alone: bool) -> list[System]:
    """Kalda, and then Apache Kafka, unless `alone` or where it cannot run.

    `KALDA_BEFORE` names the `src` folder of another Kalda, whose records are compiled: it takes Apache Kafka's place,
    so a change is measured beside what was there before it.
    """
    before = os.environ.get("KALDA_BEFORE")
    peer = None if alone else _another_kalda(before) if before else apache_kafka(heap)
    return [KALDA] if peer is None else [KALDA, peer]


def _kafka_jars() -> Path | None:
    """The folder of Apache Kafka's jars, resolved by Maven once; None where there is no Java, Maven or registry.

    `KALDA_KAFKA_JARS` names a folder that has them already.
    """
    named = os.environ.get("KALDA_KAFKA_JARS")
    if named:
        return Path(named)
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "kalda" / f"apache-kafka-{KAFKA}"
    done = cache / ".done"
    if not done.exists() and shutil.which("java") and shutil.which("mvn"):
        pom = _BENCH / "peer" / "pom.xml"
        copy = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={cache}"]
        if subprocess.run(copy, stdout=sys.stderr).returncode == 0:
            done.touch()
    return cache if done.exists() and shutil.which("java") else None
