"""Members of groups of the new kinds, of four clients, and what they got: in threads, Java's in processes."""

from __future__ import annotations

import json
import subprocess
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import confluent_kafka
from apache_kafka import java

import kalda
from waiting import wait_until

_TOOLS = {"consumer": ("VerifiableConsumer", "--group-protocol", "consumer"), "share": ("VerifiableShareConsumer",)}


class Member(threading.Thread):
    """One member of `group`, a consumer or a share group. Its values are those of `Writer`: numbers."""

    def __init__(self, kind: str, addresses: str, group: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.kind, self.group, self._topic = kind, group, topic
        self.settings: dict[str, Any] = {"bootstrap.servers": addresses, "group.id": group}
        self.seen: set[int] = set()
        self.count = 0
        self.failure: BaseException | None = None
        self._stopped = threading.Event()

    def __repr__(self) -> str:
        return f"{type(self).__name__} in the {self.kind} group {self.group}, {self.count} records"

    def run(self) -> None:
        try:
            for value in self.values():
                self.seen.add(int(value))
                self.count += 1
        except BaseException as failure:
            self.failure = failure
            raise

    @abstractmethod
    def values(self) -> Iterator[bytes | str]:
        """What it gets, until it is stopped; acknowledged or committed afterwards."""

    def stop(self) -> None:
        self._stopped.set()
        self.join(90)
        assert not self.is_alive(), self
        assert self.failure is None, self


class LibrdkafkaMember(Member):
    def values(self) -> Iterator[bytes]:
        if self.kind == "share":
            yield from self._shared()
            return
        own = {"group.protocol": "consumer", "auto.offset.reset": "earliest", "auto.commit.interval.ms": 500}
        consumer = confluent_kafka.Consumer({**self.settings, **own, "log_level": 0})
        consumer.subscribe([self._topic])
        while not self._stopped.is_set():
            yield from (each.value() or b"" for each in consumer.consume(500, 0.2) if each.error() is None)
        consumer.close()

    def _shared(self) -> Iterator[bytes]:
        consumer = confluent_kafka.ShareConsumer({**self.settings, "log_level": 0})
        consumer.subscribe([self._topic])
        while not self._stopped.is_set():
            yield from (each.value() or b"" for each in consumer.poll(timeout=0.2) if each.error() is None)
        consumer.close()


class KaldaMember(Member):
    def values(self) -> Iterator[bytes]:
        consumer: kalda.Consumer[bytes, bytes] | kalda.ShareConsumer[bytes, bytes]
        if self.kind == "share":
            consumer = kalda.ShareConsumer(self.settings)
        else:
            own = {"group.protocol": "consumer", "auto.offset.reset": "earliest", "auto.commit.interval.ms": 500}
            consumer = kalda.Consumer({**self.settings, **own})
        with consumer:
            consumer.subscribe([self._topic])
            while not self._stopped.is_set():
                yield from (record.value or b"" for record in consumer.poll(0.2))


class JavaMember(Member):
    """Apache Kafka's own tool for system tests, in a process."""

    def __init__(self, jars: Path, kind: str, addresses: str, group: str, topic: str, *more: str) -> None:
        super().__init__(kind, addresses, group, topic)
        name, *options = *_TOOLS[kind], *more
        command = [*java(jars, "128M", "WARN"), f"org.apache.kafka.tools.{name}", *options, "--verbose"]
        command += ["--bootstrap-server", addresses, "--topic", topic, "--group-id", group]
        self.lines: list[str] = []
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def values(self) -> Iterator[str]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.startswith("{"):
                self.lines.append(line.rstrip())
                continue
            event = json.loads(line)
            if event["name"] == "record_data":
                yield event["value"]

    def stop(self) -> None:
        self.process.terminate()
        super().stop()
        self.process.wait(60)


def of_each_client(jars: Path, kind: str, addresses: str, group: str, topic: str) -> list[Member]:
    """Three members of a group."""
    makers: list[Callable[..., Member]] = [LibrdkafkaMember, KaldaMember, partial(JavaMember, jars)]
    return [make(kind, addresses, group, topic) for make in makers]


class RunningMembers:
    """Members that run until the end of the block."""

    def __init__(self, members: list[Member], described: Callable[[], object] = str) -> None:
        """`described()` is what to say where members get nothing any more: the group, as its coordinator has it."""
        self.members, self._described = members, described
        self.former: list[Member] = []
        """Those that have left; they got records too."""

    def __enter__(self) -> RunningMembers:
        for member in self.members:
            member.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        failures = []
        for member in self.members:
            try:
                member.stop()
            except AssertionError as failure:
                failures.append(failure)
        if error is None and failures:
            raise failures[0]

    def seen(self, group: str) -> set[int]:
        """All values that a group's members got."""
        ever = [*self.members, *self.former]
        return set().union(*(member.seen.copy() for member in ever if member.group == group))

    def replace(self, member: JavaMember, successor: Member) -> None:
        """Kill one by SIGKILL, and start another one."""
        member.process.kill()
        member.stop()
        self.members.remove(member)
        self.former.append(member)
        self.members.append(successor)
        successor.start()

    def wait_all(self, group: str, written: Mapping[int, list[int]]) -> None:
        """Wait until the group's members got everything, which is given by partition."""
        left: dict[int, list[int]] = {}

        def has_all() -> bool:
            seen = self.seen(group)
            left.update({index: [value for value in values if value not in seen] for index, values in written.items()})
            return not any(left.values())

        try:
            wait_until(has_all, f"{group} got all records", 120)
        except AssertionError as error:
            some = {index: (len(values), values[:10]) for index, values in left.items()}
            raise AssertionError(f"{error}; by partition, how many are missing: {some}; {self._described()}") from None

    def wait_progress(self, what: str, records: int = 20) -> None:
        """Wait until each member got more."""
        goals = {member: member.count + records for member in self.members}

        def behind() -> list[Member]:
            return [member for member, goal in goals.items() if member.count < goal]

        try:
            wait_until(lambda: not behind(), f"members go on after {what}", 180)
        except AssertionError as error:
            raise AssertionError(f"{error}; no progress: {behind()}; {self._described()}") from None
