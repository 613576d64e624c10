"""An application of Kafka Streams as real processes, what it is fed, and what it must have counted."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from waiting import wait_until

SOURCE = Path(__file__).with_name("CountingApplication.java")
PARTITIONS = {"lines": 4, "left": 4, "right": 4, "names": 1}
OUTPUTS = ("counts", "windows", "joined", "named", "sums")
_WINDOW_MS = 10_000
_STEP_MS = 50
_AGE_MS = 3_600_000
"""How old the first record is: Apache Kafka warns of records of the future."""
_NAMES = 5


def streams_jars() -> Path | str:
    """The folder of the jars of Kafka Streams and of what it needs, or why there is none."""
    named = os.environ.get("KALDA_STREAMS_JARS")
    if not named:
        return "set KALDA_STREAMS_JARS to a folder with org.apache.kafka:kafka-streams and what it needs"
    if shutil.which("javac") is None:
        return "needs a Java 17 compiler: apt-get install openjdk-17-jdk-headless"
    return Path(named)


class StreamsApplication:
    """One instance. It has a directory of its own, in which it keeps its state from process to process."""

    def __init__(self, home: Path, classes: Path, jars: Path, settings: dict[str, object]) -> None:
        self.home = home
        home.mkdir(parents=True, exist_ok=True)
        self.lines: list[str] = []
        self._command = [
            "java", "-Xmx256M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
            *os.environ.get("KALDA_STREAMS_OPTIONS", "").split(),
            "-cp", f"{classes}:{jars}/*", "CountingApplication", f"state.dir={home / 'state'}",
            *(f"{name}={value}" for name, value in settings.items()),
        ]  # fmt: skip
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> StreamsApplication:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        self._process = process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        threading.Thread(target=self._read, args=(process,), daemon=True).start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with open(self.home / "output.txt", "a", encoding="utf-8") as kept:
            for line in process.stdout:
                self.lines.append(line.rstrip())
                kept.write(line)

    def has_said(self, pattern: str) -> bool:
        return any(re.search(pattern, line) for line in self.lines)

    def wait_running(self) -> None:
        wait_until(lambda: self.has_said("state RUNNING"), f"{self.home.name} runs", timeout_s=300)

    def kill(self) -> None:
        """With SIGKILL, where it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        """With SIGTERM: it commits and leaves."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)


def compiled(jars: Path, into: Path) -> Path:
    """The folder of the application's classes."""
    subprocess.run(["javac", "-cp", f"{jars}/*", "-d", str(into), str(SOURCE)], check=True)
    return into


class Feed:
    """Numbered records of all inputs, and what was counted of them."""

    def __init__(self, bootstrap: str, replication: int = 1) -> None:
        self._bootstrap = bootstrap
        self._began_ms = int(time.time() * 1000) - _AGE_MS
        self.fed = 0
        self.seen: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
        """By output: keys and values that were committed, in order of each partition."""
        topics = [NewTopic(name, count, replication) for name, count in PARTITIONS.items()]
        topics += [NewTopic(name, 2, replication) for name in OUTPUTS]
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        for made in admin.create_topics(topics).values():
            made.result(30)
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        )
        for number in range(_NAMES):
            self._producer.produce("names", f"name{number}", str(number))
        assert self._producer.flush(60) == 0
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "checker",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        self._consumer.assign(
            [confluent_kafka.TopicPartition(topic, index, 0) for topic in OUTPUTS for index in range(2)]
        )

    @staticmethod
    def _words(number: int) -> list[str]:
        return [f"w{number % 7}", f"w{number % 11}", f"w{number % 13}"]

    def produce(self, count: int) -> None:
        """So many more records of each input, acknowledged by all."""
        for number in range(self.fed, self.fed + count):
            at = self._began_ms + number * _STEP_MS
            key = f"j{number}"
            self._producer.produce("lines", " ".join(self._words(number)), f"k{number % 17}", timestamp=at)
            self._producer.produce("left", f"l{number}", key, timestamp=at)
            self._producer.produce("right", f"r{number}", key, timestamp=at)
            self._producer.poll(0)
        self.fed += count
        assert self._producer.flush(120) == 0

    def _expected(self) -> dict[str, Counter[str]]:
        numbers = range(self.fed)
        starts = {number: (self._began_ms + number * _STEP_MS) // _WINDOW_MS * _WINDOW_MS for number in numbers}
        return {
            "counts": Counter(word for number in numbers for word in self._words(number)),
            "windows": Counter(f"{word}@{starts[number]}" for number in numbers for word in self._words(number)),
            "joined": Counter(f"l{number}+r{number}" for number in numbers),
            "sums": Counter(f"{number % 10}:{count // 10 + 1}" for count, number in enumerate(numbers)),
        }

    def _found(self) -> dict[str, Counter[str]]:
        return {
            "counts": Counter({key: int(value) for key, value in self.seen["counts"]}),
            "windows": Counter({key: int(value) for key, value in self.seen["windows"]}),
            "joined": Counter(value for _, value in self.seen["joined"]),
            "sums": Counter(f"{key}:{value}" for key, value in self.seen["sums"]),
        }

    def _collect(self) -> None:
        while messages := self._consumer.consume(500, 0.5):
            for message in messages:
                if message.error() is None:
                    key, value = message.key() or b"", message.value() or b""
                    self.seen[message.topic() or ""].append((key.decode(), value.decode()))

    def wait_counted(self, timeout: float = 300) -> None:
        """Wait until everything that was produced is counted."""
        expected = self._expected()

        def is_counted() -> bool:
            self._collect()
            found = self._found()
            return len(self.seen["named"]) >= self.fed and all(found[each] >= expected[each] for each in expected)

        wait_until(is_counted, f"{self.fed} records are counted", timeout_s=timeout)

    def check_exactly_once(self) -> None:
        """To be called when the application has ended."""
        self._collect()
        found, expected = self._found(), self._expected()
        for output, counts in expected.items():
            assert found[output] == counts, (output, found[output] - counts, counts - found[output])
        assert len(self.seen["named"]) == self.fed
        assert {value for _, value in self.seen["named"]} <= {f"name{number}" for number in range(_NAMES)}

    def close(self) -> None:
        self._consumer.close()


def started(applications: Iterable[StreamsApplication]) -> None:
    for each in applications:
        each.start()
    for each in applications:
        each.wait_running()
