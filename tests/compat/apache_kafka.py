"""Apache Kafka's own tools and broker, from its published jars, to put beside a Kalda node.

Maven fetches the jars once, by `bench/peer/pom.xml`, into the user's cache. This repository has no part of them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from functools import cache, reduce
from pathlib import Path
from typing import Any, ClassVar

import pyspark
from lone_node import LoneNode
from py4j.java_gateway import CallbackServerParameters, GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JJavaError

KAFKA = "4.3.1"
PEER = Path(__file__).parents[2] / "bench" / "peer"
_TOOL_S = 120
_CLASSES = {
    "broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "cluster": "org.apache.kafka.tools.ClusterTool",
    "configs": "kafka.admin.ConfigCommand",
    "console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "features": "org.apache.kafka.tools.FeatureCommand",
    "get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "groups": "org.apache.kafka.tools.GroupsCommand",
    "leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "storage": "kafka.tools.StorageTool",
    "streams-groups": "org.apache.kafka.tools.streams.StreamsGroupCommand",
    "topics": "org.apache.kafka.tools.TopicCommand",
    "transactional-message-copier": "org.apache.kafka.tools.TransactionalMessageCopier",
    "transactions": "org.apache.kafka.tools.TransactionsCommand",
}

_CLASSES_OF_4_4 = {"configs": "org.apache.kafka.tools.ConfigCommand"}


def kafka_jars(release: str = KAFKA) -> Path | str:
    """The folder of a release's jars, or why there is none. `KALDA_KAFKA_JARS` names a folder that has those of the
    first one, or of a later release."""
    named = os.environ.get("KALDA_KAFKA_JARS")
    if named and release == KAFKA:
        return Path(named)
    if shutil.which("java") is None:
        return "needs Java 17: apt-get install openjdk-17-jre-headless"
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "kalda" / f"apache-kafka-{release}"
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one of the processes that run the tests fetches them, and the others wait
        return _fetched(cache, release) or cache


def release_of(jars: Path) -> str:
    """The release of these jars, as storage is formatted for it: 4.3."""
    name = next(jars.glob("kafka-clients-*.jar")).stem
    return ".".join(name.removeprefix("kafka-clients-").split(".")[:2])


def _fetched(cache: Path, release: str) -> str | None:
    """Why the folder does not have the jars; None where it has."""
    done = cache / ".done"
    if done.exists():
        return None
    if shutil.which("mvn") is None:
        return "needs Apache Kafka's jars: install Maven, or set KALDA_KAFKA_JARS to their folder"
    pom = str(PEER / "pom.xml")
    copy = ["mvn", "-q", "-B", "-f", pom, f"-Dkafka.version={release}", "dependency:copy-dependencies"]
    copy.append(f"-DoutputDirectory={cache}")
    if subprocess.run(copy, stdout=sys.stderr, check=False).returncode != 0:
        return "needs Apache Kafka's jars: Maven reaches no registry that has them"
    done.touch()
    return None


def java(jars: Path, heap: str, level: str, *options: str) -> list[str]:
    """The command line of a JVM that has Kafka on its class path."""
    return [
        "java",
        *options,
        f"-Xmx{heap}",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-Djava.awt.headless=true",
        f"-Dlog4j2.configurationFile={PEER / 'log4j2.xml'}",
        f"-Dlevel={level}",
        "-cp",
        f"{jars}/*",
    ]


class SharedClasses:
    """The classes of a first run, saved in an archive with which later runs start in half the time."""

    def __init__(self, jars: Path, name: str, run: object) -> None:
        """`run` tells apart the processes that may save the archive called `name` at the same time."""
        self._archive = jars / f"{name}.jsa"
        self._made = jars / f"{name}.jsa.{run}"

    @property
    def options(self) -> tuple[str, ...]:
        """For the command line of a JVM."""
        if self._archive.exists():
            return ("-Xlog:disable", "-Xshare:auto", f"-XX:SharedArchiveFile={self._archive}")
        return ("-Xlog:disable", f"-XX:ArchiveClassesAtExit={self._made}")

    def keep(self) -> None:
        """Take the archive of a JVM that has ended, where it saved one."""
        if self._made.exists():
            self._made.replace(self._archive)


def _package_of_exit(jars: Path) -> str:
    """Where the class is that ends the process of a tool; 4.4 has moved it."""
    return "org.apache.kafka.common.utils" + (".internals" if release_of(jars) != "4.3" else "")


class _Exit:
    """What Kafka's tools call to end their process."""

    def __init__(self) -> None:
        self.code = 0

    def execute(self, code: int, message: str | None) -> None:
        """The last step of a tool that has succeeded; what fails goes no further."""
        if code:
            self.code = self.code or code
            raise RuntimeError(message)

    class Java:
        implements: ClassVar[list[str]]


class _Hooks:
    """What Kafka's tools want to be done before their process ends."""

    def __init__(self) -> None:
        self.all: list[Any] = []

    def addShutdownHook(self, _name: str, hook: Any) -> None:  # noqa: N802 (as Java calls it)
        self.all.append(hook)

    class Java:
        implements: ClassVar[list[str]]


class KafkaTools:
    """Runs a tool to its end. The result is its output on both streams; a failure of the tool fails the test.

    All run in one JVM, one after the other: to start it and to load Kafka's classes takes longer than a tool."""

    def __init__(self, jars: Path) -> None:
        self._classes = {**_CLASSES, **(_CLASSES_OF_4_4 if release_of(jars) != "4.3" else {})}
        self._exits = f"{_package_of_exit(jars)}.Exit"
        command = java(jars, "256M", "ERROR")
        port = launch_gateway(
            jarpath=str(next((Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar"))),
            classpath=command[-1],
            javaopts=command[1:-2],
            die_on_exit=True,
        )
        self._gateway = gateway = JavaGateway(
            gateway_parameters=GatewayParameters(port=port, read_timeout=_TOOL_S),
            callback_server_parameters=CallbackServerParameters(port=0, daemonize=True, daemonize_connections=True),
        )
        server = gateway.java_gateway_server
        server.resetCallbackClient(
            server.getCallbackClient().getAddress(), gateway.get_callback_server().get_listening_port()
        )

    def run(self, tool: str, *arguments: object, stdin: str = "") -> str:
        jvm = self._gateway.jvm
        _Exit.Java.implements = [f"{self._exits}$Procedure"]
        _Hooks.Java.implements = [f"{self._exits}$ShutdownHookAdder"]
        exits = reduce(getattr, self._exits.split("."), jvm)
        end, hooks, output = _Exit(), _Hooks(), jvm.java.io.ByteArrayOutputStream()
        exits.setExitProcedure(end)
        exits.setShutdownHookAdder(hooks)
        printed = jvm.java.io.PrintStream(output, True)
        jvm.System.setOut(printed)
        jvm.System.setErr(printed)
        jvm.System.setIn(jvm.java.io.ByteArrayInputStream(stdin.encode()))
        given = self._gateway.new_array(jvm.String, len(arguments))
        for index, argument in enumerate(arguments):
            given[index] = str(argument)
        try:
            reduce(getattr, self._classes[tool].split("."), jvm).main(given)
        except Py4JJavaError as error:
            end.code = end.code or 1
            printed.println(str(error))
        for hook in hooks.all:
            hook.run()
        said = str(output.toString())
        assert end.code == 0, f"kafka-{tool} ended with {end.code}:\n{said}"
        return said


@cache
def tools_of(jars: Path) -> KafkaTools:
    """Those of this process. Their JVM ends with it."""
    return KafkaTools(jars)


class ApacheKafkaNode(LoneNode):
    """Apache Kafka with the same properties as a Kalda node."""

    serves = "Kafka Server started"

    def __init__(self, home: Path, jars: Path, properties: dict[str, object] | None = None) -> None:
        super().__init__(home, properties)
        self._jars = jars
        self._classes = SharedClasses(jars, "server", f"{os.getpid()}.{self.port}")

    def format(self, cluster_id: str = "4L6g3nShT-eMCtK--X86sw", *arguments: str, release: str | None = None) -> None:
        """Kafka's own storage tool."""
        command = ["format", "-t", cluster_id, "-c", str(self.file), "--standalone", *arguments]
        command += ["--release-version", release] if release is not None else []
        tools_of(self._jars).run("storage", *command)

    def command(self) -> list[str]:
        """The command that runs the node."""
        return [*java(self._jars, "512M", "INFO", *self._classes.options), "kafka.Kafka", str(self.file)]

    def wait_exit(self, timeout_s: float = 60) -> int:
        code = super().wait_exit(timeout_s)
        if code in (0, 143):
            self._classes.keep()
        return code
