"""Config keys as data: a type, a default, a validator, and how a value is read from text and written to it.

A `Definition` is an ordered table of `Key`s. `parse` turns properties into typed values as Kafka does: it accepts what
Kafka accepts and refuses what Kafka refuses, with Kafka's error messages. Surrounding blanks are cut, lists are split
at commas and lose duplicates, numbers follow Java's grammar.

Values in memory: `bool`, `int`, `float`, `str`, a tuple of `str` for lists, `None` for a key without a value. A class
name is kept as text: no class is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum, IntEnum
from typing import NamedTuple, TypeAlias

from kalda.base.errors import ApiError, ErrorCode

Value: TypeAlias = bool | int | float | str | tuple[str, ...] | None

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
DOUBLE_MAX = 1.7976931348623157e308


class InvalidConfig(ApiError):
    """An invalid value or an unknown key. `code` is INVALID_CONFIG, or INVALID_REQUEST where Kafka answers that."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.INVALID_CONFIG) -> None:
        super().__init__(code, message)


def invalid_value(name: str, value: object, why: str) -> InvalidConfig:
    """Kafka's usual error message for an invalid value."""
    return InvalidConfig(f"Invalid value {value} for configuration {name}: {why}")


class Type(IntEnum):
    """Types by their number in DescribeConfigs responses."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


BOOLEAN, STRING, INT, SHORT, LONG = Type.BOOLEAN, Type.STRING, Type.INT, Type.SHORT, Type.LONG
DOUBLE, LIST, CLASS, PASSWORD = Type.DOUBLE, Type.LIST, Type.CLASS, Type.PASSWORD


class Update(Enum):
    """Whether, and for which scope, a broker's key may change while the broker runs."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


READ_ONLY, PER_BROKER, CLUSTER_WIDE = Update.READ_ONLY, Update.PER_BROKER, Update.CLUSTER_WIDE


class _Required(Enum):
    REQUIRED = "required"


REQUIRED = _Required.REQUIRED
Validator: TypeAlias = Callable[[str, Value], None]


class Key(NamedTuple):
    """One key. A default of `REQUIRED` means that there is none."""

    name: str
    type: Type
    default: Value | _Required
    validator: Validator | None = None
    update: Update = READ_ONLY
    internal: bool = False

    @property
    def sensitive(self) -> bool:
        """True of values that are never shown."""
        return self.type is Type.PASSWORD

    def parse(self, text: str) -> Value:
        """The value of a text, checked. Raises `InvalidConfig`."""
        value = parse_value(self.name, text, self.type)
        if isinstance(value, tuple) and isinstance(self.validator, Items):
            value = tuple(dict.fromkeys(value)) if "" not in value else value
        if self.validator is not None:
            self.validator(self.name, value)
        return value


# -- validators


class AtLeast:
    """A number from `lowest` on."""

    def __init__(self, lowest: float) -> None:
        self.lowest = lowest

    def __call__(self, name: str, value: Value) -> None:
        """Raise `InvalidConfig` for anything else."""
        if value is None:
            raise invalid_value(name, "null", "Value must be non-null")
        assert isinstance(value, int | float)
        if value < self.lowest:
            raise invalid_value(name, to_text(value), f"Value must be at least {self.lowest}")


class Between(AtLeast):
    """A number from `lowest` to `highest`."""

    def __init__(self, lowest: float, highest: float) -> None:
        super().__init__(lowest)
        self.highest = highest

    def __call__(self, name: str, value: Value) -> None:
        """Raise `InvalidConfig` for anything else."""
        super().__call__(name, value)
        assert isinstance(value, int | float)
        if value > self.highest:
            raise invalid_value(name, to_text(value), f"Value must be no more than {self.highest}")


class OneOf:
    """One of some strings."""

    def __init__(self, *allowed: str) -> None:
        self.allowed = allowed

    def __call__(self, name: str, value: Value) -> None:
        """Raise `InvalidConfig` for anything else."""
        if value not in self.allowed:
            raise invalid_value(name, value, f"String must be one of: {', '.join(self.allowed)}")


class OneOfAnyCase(OneOf):
    """One of some strings, in any case."""

    def __call__(self, name: str, value: Value) -> None:
        """Raise `InvalidConfig` for anything else."""
        if not isinstance(value, str) or value.upper() not in (allowed.upper() for allowed in self.allowed):
            raise invalid_value(name, value, f"String must be one of (case insensitive): {', '.join(self.allowed)}")


class NonEmpty:
    """A string that is not empty; null is fine."""

    def __call__(self, name: str, value: Value) -> None:
        """Raise `InvalidConfig` for anything else."""
        if value == "":
            raise invalid_value(name, "", "String must be non-empty")


class Items:
    """A list without empty items; of the strings `allowed` only, where there are any. `Key.parse` drops duplicates."""

    def __init__(self, *allowed: str, empty: bool = True, null: bool = False) -> None:
        self.allowed = allowed
        self.empty = empty
        self.null = null

    def __call__(self, name: str, value: Value) -> None:
        """Raise `InvalidConfig` for anything else."""
        if value is None:
            if self.null:
                return
            raise InvalidConfig(f"Configuration '{name}' values must not be null.")
        assert isinstance(value, tuple)
        if not value and not self.empty:
            choice = f"[{', '.join(self.allowed)}]" if self.allowed else "any non-empty value"
            raise InvalidConfig(f"Configuration '{name}' must not be empty. Valid values include: {choice}")
        if "" in value:
            raise InvalidConfig(f"Configuration '{name}' values must not be empty.")
        if self.allowed:
            for item in value:
                OneOf(*self.allowed)(name, item)


class GzipLevel:
    """1 to 9, or -1 for the codec's own default."""

    def __call__(self, name: str, value: Value) -> None:
        """Raise `InvalidConfig` for anything else."""
        if value != -1 and not (isinstance(value, int) and 1 <= value <= 9):
            raise invalid_value(name, value, "Value must be between 1 and 9 or equal to -1")


class ThrottledReplicas:
    """`*`, or partition:broker pairs."""

    def __call__(self, name: str, value: Value) -> None:
        """Raise `InvalidConfig` for anything else."""
        if not isinstance(value, tuple):
            raise invalid_value(name, "null", "Value must be non-null")
        if value != ("*",) and not all(re.fullmatch(r"[0-9]+:[0-9]+", item, re.ASCII) for item in value):
            raise invalid_value(
                name,
                f"[{', '.join(value)}]",
                f"{name} must be the literal '*' or a list of replicas in the following format: "
                "[partitionId]:[brokerId],[partitionId]:[brokerId],...",
            )


class OffsetReset:
    """`earliest`, `latest`, or `by_duration:` with an ISO 8601 duration that is not negative."""

    def __call__(self, name: str, value: Value) -> None:
        """Raise `InvalidConfig` for anything else."""
        if isinstance(value, str):
            if value in ("earliest", "latest"):
                return
            if value.startswith("by_duration:") and parse_duration_ms(value[12:]) is not None:
                return
        raise invalid_value(
            name,
            value,
            f"Invalid value `{value}` for configuration {name}. The value must be either 'earliest', 'latest' or "
            "of the format 'by_duration:<PnDTnHnMn.nS>'.",
        )


_DURATION = (
    r"P(?:([0-9]{1,9})D)?(?:T(?=[0-9])(?:([0-9]{1,12})H)?(?:([0-9]{1,12})M)?(?:([0-9]{1,12})(?:\.([0-9]{1,9}))?S)?)?"
)


def parse_duration_ms(text: str) -> int | None:
    """Milliseconds of an ISO 8601 duration of days and below, without signs; None where it is not one."""
    found = re.fullmatch(_DURATION, text, re.IGNORECASE | re.ASCII)
    if found is None or not any(found.groups()):
        return None
    days, hours, minutes, seconds, fraction = (group or "0" for group in found.groups())
    whole = ((int(days) * 24 + int(hours)) * 60 + int(minutes)) * 60 + int(seconds)
    return whole * 1000 + int(fraction.ljust(3, "0")[:3])


# -- text to value and back

_INTEGER_BITS = {Type.SHORT: 16, Type.INT: 32, Type.LONG: 64}
_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_DOUBLE = re.compile(
    r"([+-]?)(?:(NaN|Infinity)|((?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?)", re.ASCII
)
"""Clients send values: there is one way only to read digits, so that the time is linear in the text."""
_HEX_DOUBLE = re.compile(r"([+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?", re.ASCII)
_SPACES = " \t\n\r\f\v"
_BLANKS = "".join(map(chr, range(33)))
"""The characters that Java's `trim` cuts."""
_MAX_DIGITS = 40


def parse_value(name: str, text: str, kind: Type) -> Value:
    """The value of a text of that type, unchecked. Raises `InvalidConfig`."""
    trimmed = text.strip(_BLANKS)
    match kind:
        case Type.BOOLEAN:
            lowered = trimmed.lower()
            if lowered not in ("true", "false"):
                raise invalid_value(name, text, "Expected value to be either true or false")
            return lowered == "true"
        case Type.INT | Type.LONG | Type.SHORT:
            if _INTEGER.fullmatch(trimmed) and len(trimmed) <= _MAX_DIGITS:
                number = int(trimmed)
                limit = 1 << (_INTEGER_BITS[kind] - 1)
                if -limit <= number < limit:
                    return number
            raise invalid_value(name, trimmed, f"Not a number of type {kind.name}")
        case Type.DOUBLE:
            number_or_none = _parse_double(trimmed)
            if number_or_none is None:
                raise invalid_value(name, trimmed, "Not a number of type DOUBLE")
            return number_or_none
        case Type.LIST:
            return tuple(item.strip(_SPACES) for item in trimmed.split(",")) if trimmed else ()
        case Type.PASSWORD:
            return text
        case _:
            return trimmed


def _parse_double(text: str) -> float | None:
    """As Java's `Double.parseDouble`; None for what that refuses."""
    if (found := _DOUBLE.fullmatch(text)) is not None:
        sign, word, number_text = found.groups()
        return float(sign + (word or number_text))
    if (found := _HEX_DOUBLE.fullmatch(text)) is None:
        return None
    try:
        return float.fromhex(found[1])
    except OverflowError:
        return float("-inf" if text.startswith("-") else "inf")


def to_text(value: Value) -> str | None:
    """A value as Kafka writes it."""
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case float():
            return _double_to_text(value)
        case tuple():
            return ",".join(value)
        case _:
            return str(value)


def _double_to_text(value: float) -> str:
    """As Java's `Double.toString`: digits between 10^-3 and 10^7, else `d.dddEn`."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        text = repr(value)
        if "e" not in text:
            return text
        return f"{value:f}"
    sign = "-" if value < 0 else ""
    digits, _, exponent = f"{abs(value)!r}".partition("e")
    whole, _, fraction = digits.partition(".")
    power = int(exponent or 0) + len(whole) - 1
    significant = (whole + ("" if fraction == "0" else fraction)).lstrip("0")
    if whole == "0":
        power -= len(fraction) - len(significant) + 1
    significant = significant.rstrip("0") or "0"
    return f"{sign}{significant[0]}.{significant[1:] or '0'}E{power}"


# -- tables


class Definition:
    """An ordered table of keys."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self._keys = {key.name: key for key in keys}

    def __contains__(self, name: object) -> bool:
        return name in self._keys

    def __getitem__(self, name: str) -> Key:
        return self._keys[name]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._keys.values())

    def __len__(self) -> int:
        return len(self._keys)

    def get(self, name: str) -> Key | None:
        """The key of that name, or None."""
        return self._keys.get(name)

    def names(self) -> list[str]:
        """Names in the order of the table."""
        return list(self._keys)

    def near(self, name: str) -> str | None:
        """The name that an unknown one was perhaps meant to be; None where none is like it."""
        from difflib import get_close_matches

        return next(iter(get_close_matches(name, self.names(), 1)), None)

    def default(self, name: str) -> Value:
        """A key's default; None where it has none."""
        default = self._keys[name].default
        return None if default is REQUIRED else default

    def parse(self, properties: Mapping[str, str]) -> dict[str, Value]:
        """Every key's value: from the properties, else its default. Properties that are not in the table are left out.

        Raises `InvalidConfig` for the first value that is not valid, or a required key that is missing.
        """
        values: dict[str, Value] = {}
        for key in self._keys.values():
            text = properties.get(key.name)
            if text is not None:
                values[key.name] = key.parse(text)
            elif key.default is REQUIRED:
                raise InvalidConfig(f'Missing required configuration "{key.name}" which has no default value.')
            else:
                values[key.name] = key.default
        return values
