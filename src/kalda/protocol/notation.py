"""The notation in which messages are declared.

```python
class ListOffsetsTopic(Struct):
    name: String = ""
    partitions: list[ListOffsetsPartition] = []

class ListOffsetsRequest(Request, key=2, versions="1-11", flexible="6+"):
    replica_id: Int32 = 0
    isolation_level: Int8 = field("2+", default=0)
    topics: list[ListOffsetsTopic] = []
    timeout_ms: Int32 = field("10+", default=0, ignorable=True)
```

The annotation is the wire type; with `| None` null is allowed. A field with a plain default exists in every version
that its struct has. A list or struct default is created anew for each instance.

Classes are slotted and cheap to define, because a node imports hundreds of them before it serves. The metaclass only
removes the defaults from the class body, where they would conflict with the slots. `__init__` is generated when a class
is first instantiated, the schema when it is first encoded or decoded.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, ClassVar, TypeAlias, TypeVar, dataclass_transform

from kalda.base.ids import Uuid

Buffer: TypeAlias = bytes | bytearray | memoryview

Bool: TypeAlias = bool
Int8: TypeAlias = int
Int16: TypeAlias = int
UInt16: TypeAlias = int
Int32: TypeAlias = int
UInt32: TypeAlias = int
Int64: TypeAlias = int
Float64: TypeAlias = float
String: TypeAlias = str
LegacyString: TypeAlias = str
"""A string with an int16 length in every version: the client id, which a broker of any age must be able to decode."""
Bytes: TypeAlias = Buffer
"""Decoded to `bytes`; any buffer is encoded."""
Records: TypeAlias = Buffer | list[Buffer]
"""Decoded to a view of the frame; a buffer or a list of buffers is encoded, without joining them."""

__all__ = [
    "Bool",
    "Buffer",
    "Bytes",
    "Float64",
    "Int8",
    "Int16",
    "Int32",
    "Int64",
    "LegacyString",
    "Message",
    "RecordBody",
    "Records",
    "Request",
    "Response",
    "String",
    "Struct",
    "UInt16",
    "UInt32",
    "Uuid",
    "field",
]


class FieldSpec:
    """The arguments of `field(...)`; read by `kalda.protocol.schema`."""

    __slots__ = ("default", "ignorable", "nullable", "tag", "tagged", "versions")

    def __init__(
        self, versions: str, default: object, nullable: str | None, tag: int | None, tagged: str | None, ignorable: bool
    ) -> None:
        self.versions = versions
        self.default = default
        self.nullable = nullable
        self.tag = tag
        self.tagged = tagged
        self.ignorable = ignorable


def field(
    versions: str,
    *,
    default: Any,
    nullable: str | None = None,
    tag: int | None = None,
    tagged: str | None = None,
    ignorable: bool = False,
) -> Any:
    """A field that some versions lack, or that differs between versions.

    `versions` are those that have it (`"7+"`, `"3"`, `"4-12"`); `nullable` those in which it may be null, where that is
    not all of them; `tag` its number in the tagged section, in the versions `tagged`. In a version without the field a
    value other than the default is dropped when `ignorable`, and refused otherwise.
    """
    return FieldSpec(versions, default, nullable, tag, tagged, ignorable)


class StructMeta(type):
    """Turns a declaration into a slotted class; keeps the declaration in `declared`."""

    declared: dict[str, FieldSpec | object]

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **keywords: Any) -> StructMeta:
        declared = {key: namespace.pop(key) for key in namespace.get("__annotations__", ()) if key in namespace}
        namespace["__slots__"] = tuple(declared)
        namespace["declared"] = declared
        return super().__new__(mcs, name, bases, namespace, **keywords)


S = TypeVar("S", bound="Struct")


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
class Struct(metaclass=StructMeta):
    """A group of fields. Instances compare by value; they are plain mutable data."""

    def __init__(self, **values: Any) -> None:
        cls = type(self)
        cls.__init__ = _compile_init(cls)  # type: ignore[method-assign]
        cls.__init__(self, **values)

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in type(self).declared)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={getattr(self, name)!r}" for name in type(self).declared)
        return f"{type(self).__name__}({inside})"


class Message(Struct):
    """A struct that is sent or stored on its own, in one of its `versions`.

    `flexible` (`"9+"`) are the versions with compact lengths and tagged fields (KIP-482).
    """

    VERSIONS: ClassVar[str] = ""
    FLEXIBLE: ClassVar[str] = ""

    def __init_subclass__(cls, *, versions: str = "", flexible: str = "", **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        cls.VERSIONS = versions
        cls.FLEXIBLE = flexible


class Request(Message):
    """A request of the API `key`."""

    API_KEY: ClassVar[int] = -1

    def __init_subclass__(cls, *, key: int = -1, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        cls.API_KEY = key


class Response(Message):
    """A response of the API `key`."""

    API_KEY: ClassVar[int] = -1

    def __init_subclass__(cls, *, key: int = -1, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        cls.API_KEY = key


class RecordBody(Message):
    """The value or the key of a record of an internal topic, of the record type `id`."""

    RECORD_TYPE: ClassVar[int] = -1

    def __init_subclass__(cls, *, id: int = -1, **keywords: Any) -> None:  # noqa: A002
        super().__init_subclass__(**keywords)
        cls.RECORD_TYPE = id


def default_of(cls: type[Struct], name: str) -> object:
    """The declared default of a field. A list or struct is shared by all callers: it must not be changed."""
    value = cls.declared[name]
    return value.default if isinstance(value, FieldSpec) else value


_copiers: dict[type, Callable[[Any], Any]] = {}
"""By class, what `shallow_copy` calls."""


def shallow_copy(struct: S) -> S:
    """A struct with the same fields."""
    return copier(type(struct))(struct)


def copier(cls: type[S]) -> Callable[[S], S]:
    """What `shallow_copy` calls for structs of this class."""
    made = _copiers.get(cls)
    if made is None:
        body = "\n".join(f" copy.{name} = struct.{name}" for name in cls.declared)
        names: dict[str, Any] = {"_new": object.__new__, "_cls": cls}
        exec(
            compile(f"def copied(struct):\n copy = _new(_cls)\n{body}\n return copy", f"<copy {cls.__name__}>", "exec"),
            names,
        )
        made = _copiers[cls] = names["copied"]
    return made


def all_fields_but(cls: type[Struct], name: str) -> Callable[[Any], tuple[Any, ...]]:
    """A function from a `cls` to the values of its fields without the one of that name: two that have equal ones differ
    in that field alone."""
    return attrgetter(*(each for each in cls.declared if each != name))


def maker(cls: type[S], *given: str) -> Callable[..., S]:
    """A function that makes a `cls` of the values of the fields `given`, in that order; other fields have their
    defaults.

    The result is that of `cls(...)`, without the cost of calling a class with keywords, which is more than half of the
    whole. The data path uses it for structs that it makes for each request. All that a maker makes share the structs
    that are defaults, as a partition of a response has three of them: they are replaced, never changed.
    """
    assert cls.declared.keys() >= set(given), f"{cls.__name__} has not all of {given}"
    names: dict[str, Any] = {"_new": object.__new__}
    body: list[str] = []
    _fresh_struct("made", cls, names, body, given, shares_structs=True)
    source = "\n".join((f"def make({', '.join(given)}):", *(line[1:] for line in body), " return made"))
    exec(compile(source, f"<make {cls.__name__}>", "exec"), names)
    make: Callable[..., S] = names["make"]
    return make


def _compile_init(cls: type[Struct]) -> Any:
    """A straight-line keyword-only `__init__`, about four times as fast as a loop over the fields."""
    names: dict[str, Any] = {"_M": _MISSING, "_new": object.__new__}
    arguments: list[str] = []
    body: list[str] = []
    for name in cls.declared:
        default = default_of(cls, name)
        if isinstance(default, Struct):
            arguments.append(f"{name}=_M")
            body.append(f" if {name} is _M:")
            _fresh_struct(f"_s_{name}", type(default), names, body)
            body.append(f"  {name} = _s_{name}")
            body.append(f" self.{name} = {name}")
        elif isinstance(default, list):
            arguments.append(f"{name}=_M")
            body.append(f" self.{name} = [] if {name} is _M else {name}")
        else:
            names[f"_d_{name}"] = default
            arguments.append(f"{name}=_d_{name}")
            body.append(f" self.{name} = {name}")
    signature = f"self, *, {', '.join(arguments)}" if arguments else "self"
    source = f"def __init__({signature}):\n" + ("\n".join(body) or " pass")
    exec(source, names)
    return names["__init__"]


def _fresh_struct(
    target: str,
    cls: type[Struct],
    names: dict[str, Any],
    body: list[str],
    given: tuple[str, ...] = (),
    *,
    shares_structs: bool = False,
) -> None:
    """Append lines to `body` that make a struct without a call, from the locals `given` and from defaults. Those that
    are structs are made too, or shared."""
    names[f"{target}_c"] = cls
    body.append(f"  {target} = _new({target}_c)")
    for name in cls.declared:
        default = default_of(cls, name)
        if name in given:
            body.append(f"  {target}.{name} = {name}")
        elif isinstance(default, Struct) and not shares_structs:
            _fresh_struct(f"{target}_{name}", type(default), names, body)
            body.append(f"  {target}.{name} = {target}_{name}")
        elif isinstance(default, list):
            body.append(f"  {target}.{name} = []")
        else:
            names[f"{target}_{name}"] = default
            body.append(f"  {target}.{name} = {target}_{name}")


_MISSING: Any = object()
