"""What is known of an authenticated peer, and what makes a principal of it (KIP-189).

A principal is a text, `User:alice`. `principal.builder.class` names a Python class of the interface `PrincipalBuilder`,
as `package.module.Name`; without one, `DefaultPrincipalBuilder` does what Kafka's does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, NoReturn, Protocol

from kalda.base.patterns import BadPattern, Pattern, java_pattern, re2_pattern
from kalda.protocol.access import ANONYMOUS

# `ssl.principal.mapping.rules` (KIP-371): which name the owner of a certificate gets.
#
#     RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L,RULE:^CN=(.*?)$/$1/,DEFAULT
#
# Rules are tried in order; the first whose pattern matches the whole distinguished name decides. As in Kafka, each
# match of its pattern within the name is then replaced, as Java's `String.replaceAll` does it. `L` and `U` change the
# case of the result; `DEFAULT` is the distinguished name itself.

_RULE = r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?).*?|(.*?)"
_SPLITTER = r"\s*(" + _RULE + r")\s*(,\s*|$)"
_DEFAULT = "DEFAULT"
_DIGITS = tuple("0123456789")
_REFERENCE = re.compile(r"\$(\d+)", re.ASCII)


class NoMatchingRule(ValueError):
    """No rule is for this distinguished name."""


class _Rule(NamedTuple):
    pattern: Pattern | None
    """None: DEFAULT."""
    replacement: str
    case: str

    def apply(self, name: str) -> str | None:
        """The name that the rule makes of a distinguished name; None where it is for others. Raises `ValueError` for a
        replacement that Java cannot read."""
        if self.pattern is None:
            return name
        if not self.pattern.matches(name):
            return None
        result = self.pattern.compiled.sub(partial(_replaced, self.replacement), name)
        return result.lower() if self.case == "L" else result.upper() if self.case == "U" else result


def _replaced(replacement: str, found: re.Match[str]) -> str:
    """What replaces a match: `\\x` stands for x, `$12` for the group of that number, or of as many of its digits as
    there are groups, `${name}` for a group with a name. Raises `ValueError`."""
    parts = []
    at, groups = 0, len(found.groups())
    while at < len(replacement):
        character = replacement[at]
        at += 1
        if character == "\\":
            parts.append(replacement[at : at + 1] or _unreadable(replacement))
            at += 1
        elif character != "$":
            parts.append(character)
        elif replacement[at : at + 1] == "{":
            end = replacement.find("}", at)
            name = replacement[at + 1 : end]
            parts.append(found[name] or "" if name in found.re.groupindex else _unreadable(replacement))
            at = end + 1
        else:
            start = at
            while replacement[at : at + 1] in _DIGITS and (at == start or int(replacement[start : at + 1]) <= groups):
                at += 1
            if at == start or int(replacement[start:at]) > groups:
                _unreadable(replacement)
            parts.append(found[int(replacement[start:at])] or "")
    return "".join(parts)


def _unreadable(replacement: str) -> NoReturn:
    raise ValueError(f"ssl.principal.mapping.rules: the replacement {replacement} has a reference to no group")


def _escaped(replacement: str, groups: int) -> str:
    """With the references to groups that the pattern lacks as plain text. As in Kafka, not where it has no group, and
    only the first of several is escaped at its place."""
    value = replacement
    for found in _REFERENCE.finditer(replacement) if groups else ():
        index = int(found[1])
        while index > groups and index >= 10:
            index //= 10
        if index > groups and not found[1].startswith("0"):
            value = f"{value[: found.start()]}\\{value[found.start() :]}"
    return value


class PrincipalMapping:
    """The rules of one listener."""

    def __init__(self, rules: str) -> None:
        """Raises `ValueError` for a rule that cannot be read."""
        self._text = rules
        self._rules = [_Rule(None, "", "")] if rules.strip() == _DEFAULT else _parsed(rules)

    def name_of(self, distinguished_name: str) -> str:
        """The name in the principal. Raises `NoMatchingRule`, `ValueError`."""
        for rule in self._rules:
            name = rule.apply(distinguished_name)
            if name is not None:
                return name
        raise NoMatchingRule(f"No rules apply to {distinguished_name}, rules {self._text}")


def _parsed(rules: str) -> list[_Rule]:
    splitter, parser = (re2_pattern(each).compiled for each in (_SPLITTER, _RULE))
    return [_parse(parser, found[1]) for found in splitter.finditer(rules.strip()) if found[1]]


def _parse(parser: re.Pattern[str], rule: str) -> _Rule:
    found = parser.match(rule)
    if found is None:
        raise ValueError(f"Invalid rule: {rule}")
    if found.end() != len(rule) or (found[1] is None and found[2] is None):
        raise ValueError(f"Invalid rule: `{rule}`, unmatched substring: `{rule[found.end() :]}`")
    if found[1] is not None:
        return _Rule(None, "", "")
    try:
        pattern = java_pattern(found[2])
        return _Rule(pattern, _escaped(found[3], pattern.compiled.groups), found[4])
    except BadPattern as error:
        raise ValueError(f"Invalid rule: `{rule}`: {error}") from error


# The subject of an X.509 certificate as text (RFC 2253), written as Java's `X500Principal.getName()` writes it.
#
# Principals and the rules of `ssl.principal.mapping.rules` are made for exactly this text, so the DER of the
# certificate is read here: the order of attributes, their escapes and the attributes that are written as hex all follow
# Java.

_SEQUENCE, _SET, _OID = 0x30, 0x31, 0x06
_VERSION, _EXTENSIONS = 0xA0, 0xA3
_SUBJECT_ALTERNATIVE_NAME = bytes((0x55, 0x1D, 0x11))
_KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
"""The attributes that RFC 2253 names; all others are written as their object identifier, with the value in hex."""
_ESCAPED = frozenset(',=+<>#;"\\')
_TEXT_ENCODINGS = {0x0C: "utf-8", 0x13: "ascii", 0x16: "ascii", 0x14: "latin-1", 0x1E: "utf-16-be", 0x1C: "utf-32-be"}
"""By DER tag: UTF8String, PrintableString, IA5String, T61String, BMPString, UniversalString."""


class BadCertificate(ValueError):
    """Bytes that are not the DER of a certificate."""


class Identity(NamedTuple):
    """What a certificate says about its owner."""

    subject: str
    """The distinguished name, RFC 2253."""
    alternative_names: frozenset[bytes]
    """Each in DER; for comparisons."""


class _Element(NamedTuple):
    tag: int
    content: bytes
    encoded: bytes
    """Tag, length and content."""


def identity_of(certificate: bytes) -> Identity:
    """The owner that a certificate in DER names. Raises `BadCertificate`."""
    try:
        outer = next(_elements(certificate))
        parts = list(_elements(next(_elements(outer.content)).content))
        if parts[0].tag == _VERSION:
            del parts[0]
        # serialNumber, signature, issuer, validity, subject
        extensions = next((part for part in parts if part.tag == _EXTENSIONS), None)
        return Identity(
            _name(parts[4].content), frozenset() if extensions is None else _alternative_names(extensions.content)
        )
    except (IndexError, StopIteration, UnicodeDecodeError) as error:
        raise BadCertificate(f"not a certificate: {error!r}") from error


def _elements(data: bytes) -> Iterator[_Element]:
    at = 0
    while at < len(data):
        start, tag, length = at, data[at], data[at + 1]
        at += 2
        if length & 0x80:
            count = length & 0x7F
            if not 0 < count <= 4:
                raise BadCertificate(f"a length of {count} bytes")
            length = int.from_bytes(data[at : at + count], "big")
            at += count
        if at + length > len(data):
            raise BadCertificate(f"an element of {length} bytes, of which {len(data) - at} are there")
        yield _Element(tag, data[at : at + length], data[start : at + length])
        at += length


def _alternative_names(extensions: bytes) -> frozenset[bytes]:
    for extension in _elements(next(_elements(extensions)).content):
        parts = list(_elements(extension.content))
        if parts[0].content == _SUBJECT_ALTERNATIVE_NAME:
            names = next(_elements(parts[-1].content))
            return frozenset(name.encoded for name in _elements(names.content))
    return frozenset()


def _name(sequence: bytes) -> str:
    """The relative names in reverse order, as RFC 2253 has it."""
    relative_names = []
    for relative_name in _elements(sequence):
        attributes = [_attribute(attribute.content) for attribute in _elements(relative_name.content)]
        relative_names.append("+".join(attributes))
    return ",".join(reversed(relative_names))


def _attribute(content: bytes) -> str:
    kind, value = list(_elements(content))
    oid = _oid(kind.content)
    keyword, encoding = _KEYWORDS.get(oid), _TEXT_ENCODINGS.get(value.tag)
    if keyword is None or encoding is None:
        return f"{keyword or oid}=#{value.encoded.hex()}"
    return f"{keyword}={_escape(value.content.decode(encoding))}"


def _oid(content: bytes) -> str:
    first, value, numbers = content[0], 0, []
    for byte in content[1:]:
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(value)
            value = 0
    return ".".join(map(str, [min(first // 40, 2), first - 40 * min(first // 40, 2), *numbers]))


def _escape(text: str) -> str:
    """Java's: the special characters everywhere, blanks at both ends."""
    inner = text.strip(" ")
    leading = len(text) - len(text.lstrip(" "))
    trailing = len(text) - leading - len(inner)
    escaped = "".join("\\" + each if each in _ESCAPED else "\\00" if each == "\0" else each for each in inner)
    return "\\ " * leading + escaped + "\\ " * trailing


class AuthenticationContext(NamedTuple):
    """A peer that has completed the handshakes of its listener."""

    security_protocol: str
    """PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
    listener_name: str
    client_host: str
    """The peer's address as text."""
    subject: str | None = None
    """The distinguished name of the peer's certificate, RFC 2253; None without a certificate."""
    sasl_mechanism: str | None = None
    authorization_id: str | None = None
    """The user that SASL has authenticated."""


class PrincipalBuilder(Protocol):
    """Makes principals."""

    def build(self, context: AuthenticationContext) -> str:
        """`type:name`. An exception refuses the connection."""
        ...


class DefaultPrincipalBuilder:
    """`User:` and the SASL user, which rules make of a Kerberos principal; else the mapped subject of the certificate;
    else ANONYMOUS."""

    def __init__(self, mapping: PrincipalMapping | None = None, kerberos: KerberosNames | None = None) -> None:
        """`kerberos`: None where no peer authenticates by GSSAPI."""
        self._kerberos = kerberos
        self._mapping = mapping if mapping is not None else PrincipalMapping("DEFAULT")

    def build(self, context: AuthenticationContext) -> str:
        """Raises `PrincipalFailed` where no rule is for the subject, or for the Kerberos principal."""
        if context.sasl_mechanism == "GSSAPI" and self._kerberos is not None and context.authorization_id is not None:
            try:
                return f"User:{self._kerberos.user_of(context.authorization_id)}"
            except ValueError as error:
                raise PrincipalFailed(
                    f"Failed to set name for '{context.authorization_id}' based on Kerberos authentication rules."
                ) from error
        if context.sasl_mechanism is not None:
            return f"User:{context.authorization_id}"
        if context.subject is None:
            return ANONYMOUS
        try:
            return f"User:{self._mapping.name_of(context.subject)}"
        except ValueError as error:
            raise PrincipalFailed(
                f"Failed to map name for '{context.subject}' based on SSL principal mapping rules."
            ) from error


class PrincipalFailed(ValueError):
    """No principal can be made of a peer."""


# User names of Kerberos principals, by `sasl.kerberos.principal.to.local.rules`.
#
#     RULE:[2:$1](kafka.*)s/kafka/broker/,RULE:[1:$1@$0](.*@OTHER.ORG)s/@.*//L,DEFAULT
#
# Rules are tried in order; the first that is for the principal decides. `[2:$1]` is for principals of two components,
# and takes the first; the text in parentheses must match all of it; `s/a/b/g` replaces; `L` and `U` change the case.
# `DEFAULT` is the first component of a principal of the default realm.

_NAME = re.compile(r"([^/@]*)(?:/([^/@]*))?@([^/@]*)")
_KERBEROS_RULE = re.compile(r"(DEFAULT)|RULE:\[(\d*):([^\]]*)\](?:\(([^)]*)\))?(?:s/([^/]*)/([^/]*)/(g)?)?/?(L|U)?")
_PARAMETER = re.compile(r"\$(\d)")
_KERBEROS_REFERENCE = re.compile(r"\\(.)|\$(\d)", re.DOTALL)


class NoMatchingKerberosRule(ValueError):
    """No rule makes a user name of a Kerberos principal."""


class _KerberosRule(NamedTuple):
    """One rule of `sasl.kerberos.principal.to.local.rules`."""

    is_default: bool
    components: int
    """How many components a principal has that the rule is for: 1 for `alice@R`, 2 for `kafka/host@R`."""
    template: str
    """`$0` is the realm, `$1` and `$2` are the components."""
    match: Pattern | None
    pattern: Pattern | None
    """What `replacement` takes the place of; None where nothing is replaced."""
    replacement: str
    replaces_all: bool
    case: str

    def apply(self, parameters: Sequence[str], default_realm: str) -> str | None:
        """The user name; None where the rule is for other principals. Raises `NoMatchingKerberosRule`."""
        if self.is_default:
            result = parameters[1] if parameters[0] == default_realm else None
        elif len(parameters) - 1 != self.components:
            return None
        else:
            result = _PARAMETER.sub(lambda found: _parameter(parameters, int(found[1])), self.template)
            if self.match is not None and not self.match.matches(result):
                return None
            if self.pattern is not None:
                result = self.pattern.compiled.sub(self._text_of, result, count=0 if self.replaces_all else 1)
        if result is not None and ("/" in result or "@" in result):
            raise NoMatchingKerberosRule(f"Non-simple name {result} after auth_to_local rule")
        return None if result is None else {"L": str.lower, "U": str.upper}.get(self.case, str)(result)

    def _text_of(self, found: re.Match[str]) -> str:
        return _KERBEROS_REFERENCE.sub(lambda each: each[1] or found[int(each[2])] or "", self.replacement)


def _parameter(parameters: Sequence[str], number: int) -> str:
    if number >= len(parameters):
        raise NoMatchingKerberosRule(f"the index {number} of an auth_to_local rule is out of range")
    return parameters[number]


class KerberosNames:
    """User names of Kerberos principals, by `sasl.kerberos.principal.to.local.rules`."""

    def __init__(self, rules: Sequence[str], default_realm: Callable[[], str]) -> None:
        """`default_realm()` is the realm of the principals that the rule DEFAULT is for. Raises `ValueError`."""
        self._rules = [_parse_rule(rule.strip()) for rule in rules or ("DEFAULT",)]
        self._default_realm = default_realm

    def user_of(self, principal: str) -> str:
        """Raises `ValueError`."""
        found = _NAME.fullmatch(principal)
        if found is None:
            if "@" in principal:
                raise ValueError(f"Malformed Kerberos name: {principal}")
            return principal
        parameters = [found[3], found[1]] + ([] if found[2] is None else [found[2]])
        for rule in self._rules:
            user = rule.apply(parameters, self._default_realm() if rule.is_default else "")
            if user is not None:
                return user
        raise NoMatchingKerberosRule(f"No rules apply to {principal}")


def _parse_rule(rule: str) -> _KerberosRule:
    found = _KERBEROS_RULE.fullmatch(rule)
    if found is None:
        raise ValueError(f"sasl.kerberos.principal.to.local.rules: invalid rule: {rule}")
    if found[1]:
        return _KerberosRule(True, 0, "", None, None, "", False, "")
    try:
        match, pattern = (None if each is None else java_pattern(each) for each in (found[4], found[5]))
        components = int(found[2])
    except ValueError as error:
        raise ValueError(f"sasl.kerberos.principal.to.local.rules: invalid rule: {rule}: {error}") from error
    return _KerberosRule(False, components, found[3], match, pattern, found[6] or "", bool(found[7]), found[8] or "")
