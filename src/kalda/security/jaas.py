"""Login lines, `sasl.jaas.config` and JAAS files, parsed as Kafka and Java parse them.

    org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="secret";

A line names a login module, a control flag and options, and ends with a semicolon. There is no Java class to load here:
each of Kafka's login modules, and that of Kerberos, is a mechanism of this project, and any other module is refused
with its name, so that no line can have a class of its author's choice loaded (CVE-2023-25194, CVE-2025-27818).

No error message contains the value of an option, or a text that stands where a login module should.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

_PACKAGE = "org.apache.kafka.common.security."
PLAIN_MODULE = _PACKAGE + "plain.PlainLoginModule"
SCRAM_MODULE = _PACKAGE + "scram.ScramLoginModule"
OAUTHBEARER_MODULE = _PACKAGE + "oauthbearer.OAuthBearerLoginModule"
KERBEROS_MODULE = "com.sun.security.auth.module.Krb5LoginModule"
MODULES = (PLAIN_MODULE, SCRAM_MODULE, OAUTHBEARER_MODULE, KERBEROS_MODULE)
_FLAGS = ("REQUIRED", "REQUISITE", "SUFFICIENT", "OPTIONAL")
_SEPARATORS = "=;{}"
_CLASS = re.compile(r"[A-Za-z_$][\w$]*(?:\.[A-Za-z_$][\w$]*)+")


class BadJaas(ValueError):
    """A login line that cannot be used."""


_PlaceOf = Callable[[int], str]
"""What an error names, for the index of a character."""


class JaasEntry(NamedTuple):
    """One login module with its options."""

    module: str
    flag: str
    options: dict[str, str]

    def __repr__(self) -> str:
        return f"JaasEntry({self.module}, {self.flag}, options {sorted(self.options)})"


def module_of(mechanism: str) -> str | None:
    """The login module of a mechanism; None for a mechanism that has none here."""
    if mechanism == "PLAIN":
        return PLAIN_MODULE
    if mechanism == "GSSAPI":
        return KERBEROS_MODULE
    if mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        return SCRAM_MODULE
    return OAUTHBEARER_MODULE if mechanism == "OAUTHBEARER" else None


def parse_jaas(text: str, mechanism: str, key: str = "sasl.jaas.config") -> JaasEntry:
    """The only entry of `text`, which must be of the mechanism's login module. Raises `BadJaas`."""
    entries = parse_entries(text, key)
    if len(entries) != 1:
        raise BadJaas(f"JAAS config property {key} contains {len(entries)} login modules, should be 1 module")
    entry = entries[0]
    if entry.module not in MODULES:
        raise BadJaas(f"{key}: the login module {entry.module} is not allowed; there are {', '.join(MODULES)}")
    if entry.module != module_of(mechanism):
        raise BadJaas(f"{key}: {entry.module} is not the login module of {mechanism}")
    return entry


def parse_entries(text: str, key: str = "sasl.jaas.config") -> list[JaasEntry]:
    """All entries of `text`, in order. Raises `BadJaas`."""
    if not text.strip():
        raise BadJaas(f"{key}: Login module not specified in JAAS config")
    return _entries(list(_tokens(text, lambda _: key)), lambda _: key)


def _entries(tokens: Sequence[_Token], place_of: _PlaceOf) -> list[JaasEntry]:
    entries: list[JaasEntry] = []
    at = 0
    while at < len(tokens):
        module, start = tokens[at].text, tokens[at].at
        if tokens[at].is_separator or _CLASS.fullmatch(module) is None:
            # What stands in its place may be a password.
            raise BadJaas(f"{place_of(start)}: a login module, package.Class, is expected first")
        flag = tokens[at + 1] if at + 1 < len(tokens) else None
        if flag is None or flag.text.upper() not in _FLAGS:
            raise BadJaas(
                f"{place_of(start)}: the control flag of {module} is missing or not one of {', '.join(_FLAGS).lower()}"
            )
        at += 2
        options: dict[str, str] = {}
        while True:
            if at >= len(tokens):
                raise BadJaas(f"{place_of(start)}: JAAS config entry of {module} not terminated by semi-colon")
            if tokens[at].is_separator and tokens[at].text == ";":
                at += 1
                break
            name = tokens[at]
            has_value = at + 2 < len(tokens) and tokens[at + 1].is_separator and tokens[at + 1].text == "="
            if name.is_separator or not has_value or tokens[at + 2].is_separator:
                raise BadJaas(f"{place_of(name.at)}: Value not specified for a key of {module} in JAAS config")
            options[name.text] = tokens[at + 2].text
            at += 3
        entries.append(JaasEntry(module, flag.text.upper(), options))
    return entries


def parse_file(text: str, path: str) -> dict[str, list[JaasEntry]]:
    """The sections of a JAAS file, by name. Raises `BadJaas`.

    KafkaServer { org.apache.kafka.common.security.plain.PlainLoginModule required username="a"; };
    """

    def place_of(at: int) -> str:
        return f"{path}, line {text.count(chr(10), 0, at) + 1}"

    tokens = list(_tokens(text, place_of))
    marks = [token.text if token.is_separator else "" for token in tokens]
    sections: dict[str, list[JaasEntry]] = {}
    at = 0
    while at < len(tokens):
        start = tokens[at].at
        if tokens[at].is_separator or marks[at + 1 : at + 2] != ["{"]:
            raise BadJaas(f"{place_of(start)}: NAME {{ is expected at the beginning of each section")
        name = tokens[at].text
        try:
            end = marks.index("}", at)
        except ValueError:
            raise BadJaas(f"{place_of(start)}: the section {name} has no end") from None
        if marks[end + 1 : end + 2] != [";"]:
            raise BadJaas(f"{place_of(tokens[end].at)}: the section {name} is not terminated by semi-colon")
        if name in sections:
            raise BadJaas(f"{place_of(start)}: the section {name} is there twice")
        sections[name] = _entries(tokens[at + 2 : end], place_of)
        at = end + 2
    return sections


def entry_of(sections: dict[str, list[JaasEntry]], names: Sequence[str], mechanism: str, path: str) -> JaasEntry | None:
    """The login module of a mechanism in the first section of `names` that the file has; None without one. As in Kafka,
    modules of other mechanisms are passed over, and where a section has the module several times, the first that has an
    option counts for it. Raises `BadJaas`."""
    section = next((name for name in names if name in sections), None)
    found: JaasEntry | None = None
    for entry in sections[section] if section is not None else ():
        if entry.module not in MODULES:
            raise BadJaas(
                f"{path}, section {section}: the login module {entry.module} is not allowed; there are "
                f"{', '.join(MODULES)}"
            )
        if entry.module == module_of(mechanism):
            found = entry if found is None else found._replace(options=entry.options | found.options)
    return found


class _Token(NamedTuple):
    text: str
    is_separator: bool
    at: int
    """The index of its first character."""


def _tokens(text: str, place_of: _PlaceOf) -> Iterator[_Token]:
    at = 0
    while at < len(text):
        character = text[at]
        if character.isspace():
            at += 1
        elif text.startswith("//", at) or character == "#":
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
        elif text.startswith("/*", at):
            end = text.find("*/", at)
            at = len(text) if end < 0 else end + 2
        elif character in _SEPARATORS:
            yield _Token(character, True, at)
            at += 1
        elif character in "\"'":
            start = at
            value, at = _quoted(text, at, place_of)
            yield _Token(value, False, start)
        else:
            start = at
            while at < len(text) and not text[at].isspace() and text[at] not in _SEPARATORS + "\"'":
                at += 1
            yield _Token(text[start:at], False, start)


_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\x07", "v": "\x0b"}


def _quoted(text: str, at: int, place_of: _PlaceOf) -> tuple[str, int]:
    """The value of a quoted text and the index behind it."""
    quote, start, found = text[at], at, []
    at += 1
    while at < len(text) and text[at] != quote:
        if text[at] == "\\" and at + 1 < len(text):
            at += 1
            digits = 0
            while digits < 3 and at + digits < len(text) and text[at + digits] in "01234567":
                digits += 1
            if digits:
                found.append(chr(int(text[at : at + digits], 8) & 0xFF))
                at += digits
                continue
            found.append(_ESCAPES.get(text[at], text[at]))
        else:
            found.append(text[at])
        at += 1
    if at >= len(text):
        raise BadJaas(f"{place_of(start)}: a quoted value has no end")
    return "".join(found), at + 1
