"""Key, certificates and trusted certificates out of Kafka's kinds of stores: PEM, PKCS #12 and JKS; all become PEM.

PKCS #12 is read by `cryptography`, which is imported for such a store only. JKS is read here: it is a list of entries
behind one SHA-1, and the library that reads it (pyjks) has had no release since 2020 and needs three unmaintained
packages. As Java does, a store declared as JKS or PKCS12 may be of the other kind: its first bytes decide.

No error message contains a password.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections import deque
from collections.abc import Iterator
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import NamedTuple

from kalda.base.texts import decode_text

_JKS_MAGIC = b"\xfe\xed\xfe\xed"
_JKS_KEY, _JKS_CERTIFICATE = 1, 2
_JKS_PROTECTOR = bytes.fromhex("2b060104012a02110101")
"""The object identifier of the Sun key protector: 1.3.6.1.4.1.42.2.17.1.1."""
_DIGEST_BYTES = 20
_MAX_ENTRIES = 10_000
_u16 = Struct(">H").unpack_from
_u32 = Struct(">I").unpack_from
_MARKER = re.compile(r"-----(BEGIN|END) ([A-Z0-9 ]+)-----")


class BadStore(ValueError):
    """A store that cannot be read."""


class KeyMaterial(NamedTuple):
    """A private key and its certificates, in PEM, the owner's certificate first."""

    key: str
    certificates: tuple[str, ...]
    key_password: str | None = None
    """None for a key that is not encrypted."""

    def __repr__(self) -> str:
        return f"KeyMaterial({len(self.certificates)} certificates)"

    @property
    def chain(self) -> str:
        """All certificates as one text."""
        return "\n".join(self.certificates) + "\n"


def pem_blocks(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The private keys and the certificates of a PEM text."""
    keys, certificates = [], []
    # A value in a properties file may have lost its line breaks to blanks (KIP-651).
    for label, block in _blocks(text):
        if label.endswith("PRIVATE KEY"):
            keys.append(_wrapped(block, label))
        elif label == "CERTIFICATE":
            certificates.append(_wrapped(block, label))
    return tuple(keys), tuple(certificates)


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """Label and text of each block, up to the first end with the label of its begin. In time linear in the text: it may
    be a value that a client has sent."""
    markers = list(_MARKER.finditer(text))
    ends: dict[str, deque[int]] = {}
    for marker in markers:
        if marker[1] == "END":
            ends.setdefault(marker[2], deque()).append(marker.end())
    at = 0
    for marker in markers:
        begin, label = marker.start(), marker[2]
        if begin < at or marker[1] != "BEGIN" or label not in ends:
            continue
        while ends[label] and ends[label][0] < begin:
            ends[label].popleft()
        if ends[label]:
            at = ends[label].popleft()
            yield label, text[begin:at]


def _wrapped(block: str, label: str) -> str:
    """The block with lines of 64 characters. Blocks with headers (RFC 1421) stay as they are."""
    inner = block.removeprefix(f"-----BEGIN {label}-----").removesuffix(f"-----END {label}-----")
    if ":" in inner:
        return block
    return _pem(label, "".join(inner.split()))


def _pem(label: str, encoded: str) -> str:
    lines = [encoded[at : at + 64] for at in range(0, len(encoded), 64)]
    return "\n".join([f"-----BEGIN {label}-----", *lines, f"-----END {label}-----"])


def pem_of(label: str, der: bytes) -> str:
    """A block of PEM."""
    return _pem(label, base64.b64encode(der).decode())


def der_of(pem: str) -> bytes:
    """The bytes of the first block. Raises `BadStore`."""
    label, block = next(_blocks(pem), ("", ""))
    if not label:
        raise BadStore("no PEM block")
    inner = block.removeprefix(f"-----BEGIN {label}-----").removesuffix(f"-----END {label}-----")
    try:
        return base64.b64decode("".join(inner.split()), validate=True)
    except binascii.Error as error:
        raise BadStore(f"PEM block {label}: {error}") from error


def pem_key_material(text: str, key_password: str | None) -> KeyMaterial:
    """One private key and its certificates, out of PEM. Raises `BadStore`."""
    keys, certificates = pem_blocks(text)
    if len(keys) != 1:
        raise BadStore(f"PEM key store: one private key is expected, {len(keys)} were found")
    if not certificates:
        raise BadStore("PEM key store: no certificate was found")
    return KeyMaterial(keys[0], certificates, key_password)


def read_key_store(kind: str, content: bytes, password: str | None, key_password: str | None) -> KeyMaterial:
    """The key and certificates in a store of `ssl.keystore.type` `kind`. Raises `BadStore`."""
    kind = kind.upper()
    if kind == "PEM":
        return pem_key_material(_text(content), key_password)
    _require_java(kind)
    if content.startswith(_JKS_MAGIC):
        return _jks_key(content, password, key_password)
    found = _pkcs12(content, password)[0]
    if found is None:
        raise BadStore("key store: it contains no private key")
    return found


def read_trust_store(kind: str, content: bytes, password: str | None) -> tuple[str, ...]:
    """The trusted certificates in a store of `ssl.truststore.type` `kind`, in PEM. As in Java, the certificate of a key
    is one of them. Raises `BadStore`."""
    kind = kind.upper()
    if kind == "PEM":
        certificates = pem_blocks(_text(content))[1]
    else:
        _require_java(kind)
        if content.startswith(_JKS_MAGIC):
            keys, trusted = _jks_entries(content, password)
            owners = [chain[0] for _, chain in keys if chain]
            certificates = tuple(pem_of("CERTIFICATE", each) for each in (*owners, *trusted))
        else:
            material, others = _pkcs12(content, password)
            certificates = others if material is None else material.certificates
    if not certificates:
        raise BadStore("trust store: it contains no certificate")
    return certificates


def _text(content: bytes) -> str:
    text = decode_text(content)
    if not text.isascii() and "-----BEGIN" not in text:
        raise BadStore("PEM store: it is not text; set the type of the store to PKCS12 or JKS")
    return text


def _require_java(kind: str) -> None:
    if kind not in ("JKS", "PKCS12"):
        raise BadStore(f"store type {kind} is not one of JKS, PKCS12, PEM")


# -- PKCS #12


def _pkcs12(content: bytes, password: str | None) -> tuple[KeyMaterial | None, tuple[str, ...]]:
    """The key with its certificates, and the certificates without a key."""
    try:
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, pkcs12
    except ImportError:
        raise BadStore("a PKCS #12 store needs the package cryptography: pip install 'kalda[security]'") from None
    try:
        found = pkcs12.load_pkcs12(content, None if password is None else password.encode())
    except ValueError:
        raise BadStore("it is neither JKS nor PKCS #12, or its password is wrong") from None
    others = tuple(each.certificate.public_bytes(Encoding.PEM).decode().strip() for each in found.additional_certs)
    if found.key is None or found.cert is None:
        return None, others
    key = found.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    own = found.cert.certificate.public_bytes(Encoding.PEM).decode().strip()
    return KeyMaterial(key, (own, *others)), others


# -- JKS


class _Reader:
    def __init__(self, content: bytes) -> None:
        self.content = content
        self.at = 0

    def number(self) -> int:
        self.at += 4
        found: int = _u32(self.content, self.at - 4)[0]
        return found

    def text(self) -> str:
        self.at += 2
        return self.take(_u16(self.content, self.at - 2)[0]).decode("utf-8", "replace")

    def block(self) -> bytes:
        return self.take(self.number())

    def take(self, size: int) -> bytes:
        if self.at + size > len(self.content):
            raise BadStore("JKS store: it ends within an entry")
        self.at += size
        return self.content[self.at - size : self.at]


def _jks_entries(content: bytes, password: str | None) -> tuple[list[tuple[bytes, list[bytes]]], list[bytes]]:
    """Protected keys with their certificates, and trusted certificates, all in DER. Raises `BadStore`.

    Without a password the store is read, and nothing shows whether it was changed, as in Java.
    """
    body, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    if password is not None:
        expected = hashlib.sha1(password.encode("utf-16-be") + b"Mighty Aphrodite" + body).digest()
        if not hmac.compare_digest(expected, digest):
            raise BadStore("JKS store: it was changed, or its password is wrong")
    reader = _Reader(body)
    keys: list[tuple[bytes, list[bytes]]] = []
    trusted: list[bytes] = []
    try:
        reader.at = 4
        version = reader.number()
        if version not in (1, 2):
            raise BadStore(f"JKS store: version {version}")
        for _ in range(_bounded(reader.number())):
            tag = reader.number()
            reader.text()  # the alias
            reader.at += 8  # when it was made
            if tag == _JKS_KEY:
                protected = reader.block()
                keys.append((protected, [_certificate(reader, version) for _ in range(_bounded(reader.number()))]))
            elif tag == _JKS_CERTIFICATE:
                trusted.append(_certificate(reader, version))
            else:
                raise BadStore(f"JKS store: an entry of the kind {tag}")
    except StructError:
        raise BadStore("JKS store: it ends within an entry") from None
    return keys, trusted


def _bounded(count: int) -> int:
    if count > _MAX_ENTRIES:
        raise BadStore(f"JKS store: {count} entries")
    return count


def _certificate(reader: _Reader, version: int) -> bytes:
    if version == 2:
        reader.text()  # the kind: X.509
    return reader.block()


def _jks_key(content: bytes, password: str | None, key_password: str | None) -> KeyMaterial:
    keys, _ = _jks_entries(content, password)
    if not keys:
        raise BadStore("key store: it contains no private key")
    protected, certificates = keys[0]
    secret = key_password if key_password is not None else password
    if secret is None:
        raise BadStore("JKS store: the key needs ssl.key.password or ssl.keystore.password")
    key = _unprotect(protected, secret.encode("utf-16-be"))
    return KeyMaterial(pem_of("PRIVATE KEY", key), tuple(pem_of("CERTIFICATE", each) for each in certificates))


def _unprotect(protected: bytes, secret: bytes) -> bytes:
    """Undo Sun's key protector: salt, the key XORed with a chain of SHA-1, and a SHA-1 of the key."""
    if _JKS_PROTECTOR not in protected[:40]:
        raise BadStore("JKS store: the key is protected by an unknown algorithm")
    at = protected.index(_JKS_PROTECTOR) + len(_JKS_PROTECTOR)
    at += 2  # NULL, the parameters
    if protected[at] != 0x04:
        raise BadStore("JKS store: the protected key is malformed")
    length = protected[at + 1]
    at += 2 + (length & 0x7F if length & 0x80 else 0)
    sealed = protected[at:]
    salt, encrypted, check = sealed[:_DIGEST_BYTES], sealed[_DIGEST_BYTES:-_DIGEST_BYTES], sealed[-_DIGEST_BYTES:]
    found, digest = bytearray(), salt
    for start in range(0, len(encrypted), _DIGEST_BYTES):
        digest = hashlib.sha1(secret + digest).digest()
        found += bytes(a ^ b for a, b in zip(encrypted[start : start + _DIGEST_BYTES], digest, strict=False))
    key = bytes(found)
    if not hmac.compare_digest(hashlib.sha1(secret + key).digest(), check):
        raise BadStore("JKS store: the password of the key is wrong")
    return key
