"""The keywords of clients for type checkers and editors: made from the tables of keys, and checked by mypy.

A change of the tables is made again: `python tests/unit/client/test_keywords.py`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

import kalda
from kalda.base.configs.admin import ADMIN
from kalda.base.configs.client import KEYS
from kalda.base.configs.consumer import CONSUMER
from kalda.base.configs.definition import Key, Type
from kalda.base.configs.producer import PRODUCER
from kalda.base.configs.share_consumer import SHARE_CONSUMER

ROOT = Path(__file__).parents[3]
WRITTEN = ROOT / "src/kalda/client/keywords.py"
TYPES = {
    Type.BOOLEAN: "bool | str | None",
    Type.STRING: "str | None",
    Type.INT: "int | str | None",
    Type.SHORT: "int | str | None",
    Type.LONG: "int | str | None",
    Type.DOUBLE: "float | str | None",
    Type.LIST: "str | list[str] | tuple[str, ...] | None",
    Type.CLASS: "object",
    Type.PASSWORD: "str | None",
}
OTHER_TYPES = {"acks": "int | str | None", "interceptor.classes": "object", "partition.assignment.strategy": "object"}
OVERLOADED = ("key.deserializer", "value.deserializer")
"""Those of the consumer, which have types of their own in its constructors."""
HEAD = '''"""The keywords of clients, by the tables of keys in `kalda.base.configs`: for type checkers and editors only.

Written by tests/unit/client/test_keywords.py, and not edited. Every value may be the text that a properties file has;
None is as no value.
"""

from __future__ import annotations

from typing import TypedDict
'''


def written() -> str:
    """The module."""
    shared = {key.name for key in KEYS}
    parts = [HEAD, type_of("ClientKeywords", "TypedDict", "Of all clients.", KEYS)]
    for name, text, table in (
        ("ProducerKeywords", "Of producers.", PRODUCER),
        ("ConsumerKeywords", "Of consumers, besides their deserializers.", CONSUMER),
        ("ShareConsumerKeywords", "Of share consumers, besides their deserializers.", SHARE_CONSUMER),
        ("AdminKeywords", "Of admin clients.", ADMIN),
    ):
        own = [key for key in table if key.name not in (*shared, *OVERLOADED)]
        parts.append(type_of(name, "ClientKeywords", text, own))
    return "\n\n".join(parts)


def type_of(name: str, base: str, text: str, keys: Iterable[Key]) -> str:
    """One class."""
    types = {key.name: OTHER_TYPES.get(key.name, TYPES[key.type]) for key in sorted(keys)}
    lines = [f"    {key.replace('.', '_')}: {kind}" for key, kind in types.items()]
    return "\n".join([f"class {name}({base}, total=False):", f'    """{text}"""', "", *lines, ""])


def test_the_keywords_are_those_of_the_tables() -> None:
    assert WRITTEN.read_text() == written()


TYPED = """
import json
from typing import assert_type, Any
from kalda import Consumer, Producer, ProducerKeywords, Record
from kalda.aio import Admin, Consumer as AioConsumer

class Order: ...

class OrderReader:
    def deserialize(self, topic: str, headers: object, data: bytes) -> Order:
        return Order()

Producer({"bootstrap.servers": "h:1"})
Producer(bootstrap_servers=["h:1"], linger_ms=5, acks=1, enable_idempotence=False, value_serializer=json.dumps)
Admin(bootstrap_servers="h:1", client_id=None)
typed = Consumer(bootstrap_servers="h:1", key_deserializer=bytes.decode, value_deserializer=OrderReader())
assert_type(typed, Consumer[str, Order])
assert_type(typed.poll()[0].key, str | None)
for record in typed:
    assert_type(record, Record[str, Order])
half = AioConsumer(bootstrap_servers="h:1", value_deserializer=int.from_bytes)
plain = Consumer({"bootstrap.servers": "h:1"}, group_id="g")
assert_type(plain, Consumer[Any, Any])

async def read() -> None:
    async with AioConsumer(bootstrap_servers="h:1", value_deserializer=OrderReader()) as consumer:
        assert_type((await consumer.poll())[0].value, Order | None)

def handle(consumer: Consumer[str, Order], **keywords: int) -> None: ...
handle(typed)
ints = Consumer(bootstrap_servers="h:1", key_deserializer=int, value_deserializer=OrderReader())
"""
REFUSED = {
    'Producer(bootstrap_server="h:1")': "call-arg",
    'Producer(bootstrap_servers="h:1", linger_ms=[5])': "arg-type",
    'Admin(group_id="g")': "call-arg",
    'Consumer(bootstrap_server="h:1")': "call-arg",
    'AioConsumer(bootstrap_servers="h:1", max_poll_record=5)': "call-arg",
    "handle(ints)": "arg-type",
}


def checked(program: str, directory: Path) -> list[str]:
    """What mypy reports, a line each."""
    path = directory / "program.py"
    path.write_text(program)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--follow-imports=silent",
        "--no-pretty",
        "--hide-error-context",
    ]
    run = subprocess.run([*command, str(path)], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode in (0, 1), run.stdout + run.stderr
    return [line for line in run.stdout.splitlines() if ": error: " in line]


def test_mypy_takes_what_the_clients_take_and_refuses_the_rest(tmp_path: Path) -> None:
    begin = len(TYPED.splitlines()) + 1
    found = checked(TYPED + "\n".join(REFUSED) + "\n", tmp_path)
    reported = {int(line.split(":")[1]) - begin: line for line in found}
    assert sorted(reported) == list(range(len(REFUSED))), "\n".join(found)
    for index, (call, code) in enumerate(REFUSED.items()):
        assert f"[{code}]" in reported[index], call


def test_consumers_of_types_run_as_others() -> None:
    assert kalda.Consumer[str, bytes].__origin__ is kalda.Consumer
    with pytest.raises(kalda.InvalidConfig, match=r"nearest is bootstrap.servers"):
        kalda.Consumer[str, bytes](bootstrap_server="h:1", key_deserializer=bytes.decode)


if __name__ == "__main__":
    WRITTEN.write_text(written())
