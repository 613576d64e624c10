"""The common part of the generators of encoders and decoders: lines of Python, the names that they use, formats.

The generated source is what a person would write by hand for one version of one message: straight-line, nested structs
inline, and adjacent fields of fixed size in one `struct` call. For this, reads and writes of fixed size are collected
in `pending` until a field of variable size, or a branch, follows.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Any

from kalda.base.errors import InvalidRequest
from kalda.protocol.notation import Message
from kalda.protocol.schema import supported_versions

FORMATS = {
    "Bool": "?", "Int8": "b", "Int16": "h", "UInt16": "H", "Int32": "i", "UInt32": "I", "Int64": "q",
    "Float64": "d", "Uuid": "16s",
}  # fmt: skip
MAX_STRING = 32767
"""Kafka's bound on the bytes of a string, with lengths of either kind: the largest int16."""
TABLE_SIZE = 64
"""Lists shorter than this are packed and unpacked by a `struct` method from a table."""


class Source:
    """Lines of a function and the names that it uses."""

    def __init__(self, cls: type[Message], version: int) -> None:
        if version not in supported_versions(cls):
            raise InvalidRequest(f"{cls.__name__} has versions {cls.VERSIONS}, not {version}")
        self.cls = cls
        self.version = version
        self.lines: list[str] = []
        self.indent = 0
        self.names: dict[str, Any] = {"InvalidRequest": InvalidRequest}
        self.pending: list[tuple[str, str]] = []
        """Reads or writes of fixed size that are not emitted yet: an expression and its format."""
        self._counter = 0

    def line(self, text: str) -> None:
        self.lines.append(" " * self.indent + text)

    def fresh(self, prefix: str) -> str:
        self._counter += 1
        return f"{prefix}{self._counter}"

    def name(self, prefix: str, value: object) -> str:
        """A global name for `value`; the same one for the same value."""
        for name, other in self.names.items():
            if other is value:
                return name
        name = self.fresh(prefix)
        self.names[name] = value
        return name

    def packer(self, operation: str, fields: str) -> str:
        """The name of a bound `struct` method for a format, shared where the format was used before."""
        name = f"{operation}_{fields.replace('?', 'T').replace('16s', 'U')}"
        self.names.setdefault(name, getattr(struct.Struct(">" + fields), operation))
        return name

    def packers(self, operation: str, kind: str) -> str:
        """The name of a table of bound `struct` methods by count, for short lists of one kind."""
        name = f"{operation}_{FORMATS[kind].replace('?', 'T')}s"
        self.names[name] = _table(operation, FORMATS[kind])
        return name

    def build(self, function: str) -> Any:
        """Compile the lines, which define `function`."""
        assert not self.pending, f"{self.cls.__name__} v{self.version}: {self.pending} was never written"
        where = f"<{function} {self.cls.__name__} v{self.version}>"
        exec(compile("\n".join(self.lines), where, "exec"), self.names)
        return self.names[function]


@cache
def _table(operation: str, code: str) -> tuple[Any, ...]:
    return tuple(getattr(struct.Struct(f">{count}{code}"), operation) for count in range(TABLE_SIZE))
