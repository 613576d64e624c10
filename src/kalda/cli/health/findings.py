"""A finding of `kalda doctor`, and the addresses that it examines.

A finding: what was examined, what was found, and what mends it.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
import time
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from kalda.clientcore.connections.metadata import Address


class Severity(Enum):
    OK = "ok"
    WARNING = "warning"
    """It works, and will not under load, with time, or for other clients."""
    ERROR = "error"
    """Something does not work now."""


class Finding(NamedTuple):
    check: str
    severity: Severity
    text: str
    """One sentence."""
    mend: str = ""
    """What to do; empty where all is well."""


def ok(check: str, text: str) -> Finding:
    return Finding(check, Severity.OK, text)


def warning(check: str, text: str, mend: str) -> Finding:
    return Finding(check, Severity.WARNING, text, mend)


def error(check: str, text: str, mend: str) -> Finding:
    return Finding(check, Severity.ERROR, text, mend)


# Addresses as this host sees them: whether a name resolves, a port can be reached, and what the port speaks.

TIMEOUT_S = 3.0
_API_VERSIONS = bytes.fromhex("00120000000000010006") + b"doctor"
"""ApiVersions v0 with correlation id 1: every broker since 0.10 answers it, before a login too."""
_DAY_S = 86_400
_FEW_DAYS = 30


class Spoken(Enum):
    """What a port speaks."""

    PLAIN = "plain text"
    TLS = "TLS"
    OTHER = "something else"


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, whoever asks."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def spoken_at(host: str, port: int, timeout_s: float = TIMEOUT_S) -> Spoken:
    """Raises `OSError` where no connection is made."""
    with socket.create_connection((host, port), timeout_s) as plain:
        plain.sendall(len(_API_VERSIONS).to_bytes(4, "big") + _API_VERSIONS)
        try:
            answer = _exactly(plain, 8)
        except OSError:
            answer = b""
    if answer[4:8] == (1).to_bytes(4, "big"):
        return Spoken.PLAIN
    return Spoken.OTHER if certificate_of(host, port, timeout_s) is None else Spoken.TLS


def _exactly(source: socket.socket, count: int) -> bytes:
    """`count` bytes; fewer where the peer closes. Raises `OSError`."""
    found = b""
    while len(found) < count and (more := source.recv(count - len(found))):
        found += more
    return found


def certificate_of(host: str, port: int, timeout_s: float = TIMEOUT_S) -> bytes | None:
    """The certificate that the port shows, in DER, unverified; None where it does not speak TLS. Raises `OSError` where
    no connection is made."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    shown: bytes | None = None
    with socket.create_connection((host, port), timeout_s) as plain:
        try:
            with context.wrap_socket(plain, server_hostname=host) as encrypted:
                shown = encrypted.getpeercert(binary_form=True) or b""
        except ssl.SSLError as failure:  # with a certificate required of clients, the alert comes after the handshake
            return b"" if "ALERT" in str(failure.reason or "") else None
        except OSError:
            return None
    return shown


def examine(check: str, host: str, port: int, protocol: str) -> Iterator[Finding]:
    """An address that clients use with `security.protocol=protocol`."""
    address = str(Address(host, port))
    try:
        socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as failure:
        yield error(
            check,
            f"the name {host} does not resolve from here: {failure.strerror or failure}",
            "correct the name, or enter it into DNS or /etc/hosts; brokers give those of advertised.listeners",
        )
        return
    try:
        spoken = spoken_at(host, port)
    except OSError as failure:
        yield error(
            check,
            f"{address} cannot be reached from here: {failure.strerror or failure}",
            "start the node, correct the address (a broker's is its advertised.listeners), or open the port in the "
            "firewall",
        )
        return
    yield _spoken(check, address, spoken, protocol)
    if spoken is Spoken.TLS:
        yield from _certificate(check, host, port)


def _spoken(check: str, address: str, spoken: Spoken, protocol: str) -> Finding:
    wants_tls = protocol in ("SSL", "SASL_SSL")
    if spoken is Spoken.OTHER:
        return error(
            check,
            f"{address} is reached, but answers neither as a broker nor with TLS",
            "check the port: another service may have it, or it is a port of controllers that has other security",
        )
    if spoken is Spoken.TLS and not wants_tls:
        return error(
            check,
            f"{address} speaks TLS, and the client would send plain text (security.protocol={protocol})",
            f"set security.protocol={'SASL_SSL' if 'SASL' in protocol else 'SSL'} and ssl.truststore.location, or use "
            "the port of a listener without TLS",
        )
    if spoken is Spoken.PLAIN and wants_tls:
        return error(
            check,
            f"{address} speaks plain text, and the client would begin with TLS (security.protocol={protocol})",
            f"set security.protocol={'SASL_PLAINTEXT' if 'SASL' in protocol else 'PLAINTEXT'}, or use the port of a "
            "listener with TLS",
        )
    return ok(check, f"{address} is reached, and speaks {spoken.value}")


def _certificate(check: str, host: str, port: int) -> Iterator[Finding]:
    try:
        shown = certificate_of(host, port)
        if shown:
            yield certificate_end(check, f"{host}:{port}", shown)
    except (OSError, ValueError):
        return


def certificate_end(check: str, whose: str, der: bytes) -> Finding:
    """When a certificate ends. Raises `ValueError` where it is none."""
    from cryptography import x509

    ends = x509.load_der_x509_certificate(der).not_valid_after_utc
    left = int((ends.timestamp() - time.time()) // _DAY_S)
    text = f"the certificate of {whose} {'ended' if left < 0 else 'ends'} on {ends:%Y-%m-%d}"
    if left >= _FEW_DAYS:
        return ok(check, text)
    mend = "renew it: replace the file of ssl.keystore.location; a node reads it again by itself"
    return (error if left < 0 else warning)(check, text, mend)
