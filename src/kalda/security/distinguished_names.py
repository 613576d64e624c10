"""The subject of an X.509 certificate as text (RFC 2253), written as Java's `X500Principal.getName()` writes it.

Principals and the rules of `ssl.principal.mapping.rules` are made for exactly this text, so the DER of the certificate
is read here: the order of attributes, their escapes and the attributes that are written as hex all follow Java.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

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
