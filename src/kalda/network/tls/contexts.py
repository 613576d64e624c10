"""OpenSSL contexts of the two sides of TLS, and certificate files for tests.

A private key reaches OpenSSL through a file only; a key out of a key store is passed in memory (`memfd`), and never
written to a disk where the system has such files.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import re
import ssl
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from kalda.network.named_files import read_named_file
from kalda.security.certificates import DAYS, Authority, Issued
from kalda.security.keystores import BadStore, KeyMaterial, der_of
from kalda.security.tls_settings import TlsSettings, is_tls_1_3, openssl_name

log = logging.getLogger("kalda.network")

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}

_WEAK = re.compile(
    rb"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x05"  # sha1WithRSAEncryption
    rb"|\x2a\x86\x48\xce\x3d\x04\x01\x30?"  # ecdsa-with-SHA1
    rb"|\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01\x05\x00\x03\x81[\x80-\xff]",  # an RSA key of 1,024 to 2,000 bits
    re.DOTALL,
)
"""What OpenSSL refuses in a certificate by default, and Java takes."""
_REFUSED_CERTIFICATES = ("CA_KEY_TOO_SMALL", "CA_MD_TOO_WEAK", "EE_KEY_TOO_SMALL")

_MAX_FLIGHTS = 10
"""Messages of one handshake in each direction."""


class TlsFailed(Exception):
    """A context cannot be made. The message says why."""


def read_stores(settings: TlsSettings) -> dict[str, bytes]:
    """The contents of the stores by location. Raises `TlsFailed`."""
    contents = {}
    for location in settings.stores:
        try:
            contents[location] = read_named_file(location)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise TlsFailed(f"the store {location} cannot be read: {why}") from error
    return contents


def server_context(settings: TlsSettings, contents: Mapping[str, bytes]) -> ssl.SSLContext:
    """The context of a listener. Raises `TlsFailed`."""
    try:
        material, trusted = settings.key_material(contents), settings.trusted(contents)
        if material is None:
            raise TlsFailed("a listener with TLS needs ssl.keystore.location, or ssl.keystore.key")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = _CLIENT_AUTH[settings.client_auth]
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
        _apply(context, settings, material, trusted)
        if trusted is not None:
            context.load_verify_locations(cadata="\n".join(trusted) + "\n")
        elif settings.client_auth != "none":
            context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    except (BadStore, ssl.SSLError, ValueError) as error:
        raise TlsFailed(_text(settings, error)) from error
    return context


def client_context(settings: TlsSettings, contents: Mapping[str, bytes]) -> ssl.SSLContext:
    """The context of connections to servers. Raises `TlsFailed`."""
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = settings.checks_host
        material, trusted = settings.key_material(contents), settings.trusted(contents)
        _apply(context, settings, material, trusted)
        if trusted is None:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        else:
            context.load_verify_locations(cadata="\n".join(trusted) + "\n")
    except (BadStore, ssl.SSLError, ValueError) as error:
        raise TlsFailed(_text(settings, error)) from error
    return context


def handshake_failure(client: ssl.SSLContext, server: ssl.SSLContext) -> str | None:
    """Why a client with one context and a server with the other cannot connect; None where they can."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server_name = "localhost" if client.check_hostname else None
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname=server_name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(_MAX_FLIGHTS):
        done = 0
        for side in sides:
            try:
                side.do_handshake()
                side.read(1)  # of TLS 1.3, a server verifies the client after the client's handshake is done
            except ssl.SSLWantReadError:
                done += side.version() is not None
            except ssl.SSLError as error:
                why = getattr(error, "verify_message", None) or error.reason
                return f"a handshake with the stores in use fails: {why}"
        if done == len(sides) and not to_server.pending and not to_client.pending:
            return None
    return "a handshake with the stores in use does not end"


def _names(settings: TlsSettings) -> str:
    return ", ".join(settings.stores) or "the stores in the configuration"


def _text(settings: TlsSettings, error: Exception) -> str:
    return f"TLS cannot be set up with {_names(settings)}: {getattr(error, 'reason', None) or error}"


def _apply(
    context: ssl.SSLContext, settings: TlsSettings, material: KeyMaterial | None, trusted: Iterable[str] | None
) -> None:
    """Protocols, cipher suites, own key. Raises `ssl.SSLError`, `ValueError` (of which `BadStore` is one)."""
    lowest, highest = settings.protocols[0], settings.protocols[-1]
    suites = settings.cipher_suites
    if suites:
        older = [openssl_name(suite) for suite in suites if not is_tls_1_3(suite)]
        if not older:
            lowest = "TLSv1.3"
        elif len(older) == len(suites):
            highest = "TLSv1.2"
        if lowest not in settings.protocols or highest not in settings.protocols:
            raise ValueError(f"ssl.cipher.suites has none of ssl.enabled.protocols={','.join(settings.protocols)}")
        if older:
            context.set_ciphers(":".join(older))
    own = () if material is None else material.certificates
    if any(_WEAK.search(der_of(each)) for each in (*own, *(trusted or ()))):
        log.warning(
            "a certificate in %s is signed with SHA-1, or its RSA key has less than 2,048 bits. As with Java, such "
            "certificates are accepted therefore; issue new ones",
            _names(settings),
        )
        same = [each["name"] for each in context.get_ciphers() if not is_tls_1_3(each["name"])]
        context.set_ciphers(":".join(same) + ":@SECLEVEL=0")
    context.minimum_version, context.maximum_version = _VERSIONS[lowest], _VERSIONS[highest]
    # As in Java, every certificate of a trust store is trusted by itself, also where its issuer is not.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if material is not None:
        _load_key(context, material)


def _load_key(context: ssl.SSLContext, material: KeyMaterial) -> None:
    """Raises `BadStore`."""
    try:
        with _as_file(material.key + "\n" + material.chain) as path:
            # Without a password OpenSSL would prompt for it on the terminal.
            context.load_cert_chain(path, password=material.key_password or "")
    except ssl.SSLError as error:
        if error.reason in ("KEY_VALUES_MISMATCH", "NO_CERTIFICATE_ASSIGNED", "KEY_TYPE_MISMATCH"):
            raise BadStore("the first certificate of the key store is not that of its private key") from error
        if error.reason in _REFUSED_CERTIFICATES:
            raise BadStore(f"OpenSSL refuses a certificate of the key store: {error.reason}") from error
        raise BadStore(
            "the private key or a certificate of the key store cannot be read: it is malformed, or ssl.key.password is "
            f"missing or wrong (OpenSSL: {error.reason or error})"
        ) from error


@contextlib.contextmanager
def _as_file(text: str) -> Iterator[str]:
    """The path of a file with this content, that only this process can read, while the context lasts."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("kalda-key", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:  # readable by its owner only
        file.write(text)
        file.flush()
        yield file.name


# Certificates of a test cluster as files: an authority, one certificate for nodes, one for each client.
#
#     ca.pem          the authority's certificate, for all trust stores
#     ca.key          its key
#     node.pem        key and certificate of the nodes, valid for their hosts
#     <client>.pem    key and certificate of a client: CN=<client>
#
# Keys have no password, and are readable by their owner only.

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


class CertificateFiles(NamedTuple):
    """Where the files are."""

    authority: Path
    node: Path
    clients: dict[str, Path]
    """By name."""


def make_certificates(
    directory: Path, hosts: Sequence[str], clients: Sequence[str], days: int = DAYS
) -> CertificateFiles:
    """Make all files. Raises `OSError`; `FileExistsError` where the directory has an authority already, whose
    certificates would no longer be trusted; `ValueError` for a name that no certificate can have."""
    names = ["node", *clients]
    if "ca" in names or len(set(names)) != len(names) or not all(map(_NAME.fullmatch, names)):
        raise ValueError(
            f"names of clients: {', '.join(clients)}: each once, of letters, digits, - _ and ., not ca and not node"
        )
    directory.mkdir(parents=True, exist_ok=True)
    authority = Authority("CN=Kalda test CA", datetime.datetime.now(datetime.UTC), days)
    _write(directory / "ca.key", authority.issued.key)
    (directory / "ca.pem").write_text(authority.issued.certificate)
    paths = {}
    for name in names:
        issued = authority.issue(f"CN={name}", hosts if name == "node" else (), days)
        paths[name] = directory / f"{name}.pem"
        _write(paths[name], _store(issued), replace=True)
    node = paths.pop("node")
    return CertificateFiles(directory / "ca.pem", node, paths)


def _store(issued: Issued) -> str:
    return issued.key + issued.certificate


def _write(path: Path, text: str, replace: bool = False) -> None:
    """Write a file that only its owner can read."""
    how = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if replace else os.O_EXCL)
    with open(os.open(path, how, 0o600), "w") as file:
        file.write(text)
