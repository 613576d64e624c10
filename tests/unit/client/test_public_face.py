"""What users of the clients hold in their hands: each public name with its signature and its docstring, as recorded.

A change that is meant is recorded again: `python tests/unit/client/test_public_face.py`.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kalda
import kalda.aio
from kalda.client.producer.delivery import DeliveryFuture, TableFuture

RECORDED = Path(__file__).with_name("public_face.txt")
CLASSES: dict[str, type] = {
    "kalda.Producer": kalda.Producer,
    "kalda.Consumer": kalda.Consumer,
    "kalda.ShareConsumer": kalda.ShareConsumer,
    "kalda.Admin": kalda.Admin,
    "kalda.aio.Producer": kalda.aio.Producer,
    "kalda.aio.Consumer": kalda.aio.Consumer,
    "kalda.aio.ShareConsumer": kalda.aio.ShareConsumer,
    "kalda.aio.Admin": kalda.aio.Admin,
    "kalda.DeliveryFuture": DeliveryFuture,
    "kalda.TableFuture": TableFuture,
}
PROTOCOLS = (
    "__init__",
    "__iter__",
    "__next__",
    "__enter__",
    "__exit__",
    "__aiter__",
    "__anext__",
    "__aenter__",
    "__aexit__",
)


def face() -> str:
    """All classes with their members, in the order of their names."""
    return "\n".join(line for name, kind in CLASSES.items() for line in _class(name, kind)) + "\n"


def _class(path: str, kind: type) -> Iterator[str]:
    yield f"{path}\n{_indented(inspect.getdoc(kind))}"
    for name, _ in inspect.getmembers_static(kind):
        if name.startswith("_") and name not in PROTOCOLS:
            continue
        member = inspect.getattr_static(kind, name)
        if not (callable(member) or isinstance(member, property | classmethod | staticmethod)):
            continue
        if getattr(member, "__objclass__", None) is object:
            continue
        function: Any = member.fget if isinstance(member, property) else getattr(kind, name)
        begin = "property " if isinstance(member, property) else ""
        begin += "async " if inspect.iscoroutinefunction(function) else ""
        yield f"{path}: {begin}{name}{inspect.signature(function)}\n{_indented(inspect.getdoc(member))}"


def _indented(text: str | None) -> str:
    return "".join(f"    {line}".rstrip() + "\n" for line in (text or "").splitlines())


def test_the_public_face_is_the_recorded_one() -> None:
    assert face() == RECORDED.read_text()


def test_every_public_name_can_be_imported() -> None:
    for name in kalda._PUBLIC:
        assert getattr(kalda, name) is not None


def test_the_admin_client_imports_no_messages_before_the_first_call() -> None:
    program = "import kalda, sys; kalda.Admin; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    messages = {each.rpartition(".")[2] for each in loaded if each.startswith("kalda.protocol.messages.")}
    assert not messages & {
        "admin",
        "brokers",
        "configs",
        "fetch",
        "offsets",
        "quorum",
        "security",
        "topics",
        "transactions",
    }


if __name__ == "__main__":
    RECORDED.write_text(face())
