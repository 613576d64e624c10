"""Certificate authorities and certificates for test clusters, made by `cryptography`.

They are for tests and for trying things out: the authority's key has no password.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, CertificateBuilder, GeneralName, Name

DAYS = 3650
_MINUTES_BACK = 5
"""Certificates are valid from some minutes ago on: clocks of other hosts may be late."""


class Issued(NamedTuple):
    """A certificate and its key, in PEM."""

    certificate: str
    key: str

    def __repr__(self) -> str:
        return "Issued()"


class Authority:
    """A certificate authority."""

    def __init__(self, name: str, now: datetime.datetime, days: int = DAYS) -> None:
        """`now` has a time zone."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes

        self._now = now
        self._key, self._name = _new_key(), _name_of(name)
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        builder = (
            _builder(self._name, self._name, self._key, now, now + datetime.timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
        )
        self._certificate: Certificate = builder.sign(self._key, hashes.SHA256())
        self.issued = _issued(self._certificate, self._key)

    def issue(
        self, subject: str, hosts: Sequence[str] = (), days: float = DAYS, not_before: datetime.datetime | None = None
    ) -> Issued:
        """A certificate for `subject`, such as `CN=alice,OU=Test`, valid for servers at `hosts` and for clients. It has
        expired already where `days` after `not_before` have passed."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.x509.oid import ExtendedKeyUsageOID

        key = _new_key()
        start = self._now if not_before is None else not_before
        builder = _builder(_name_of(subject), self._name, key, start, start + datetime.timedelta(days=days))
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        builder = builder.add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
        )
        if hosts:
            names = [_host_name(host) for host in dict.fromkeys(hosts)]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return _issued(builder.sign(self._key, hashes.SHA256()), key)


def pkcs12(issued: Issued, authority: Issued, password: str) -> bytes:
    """A key store of the kind PKCS12."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.serialization.pkcs12 import serialize_key_and_certificates
    from cryptography.x509 import load_pem_x509_certificate

    key = serialization.load_pem_private_key(issued.key.encode(), None)
    own, issuer = (load_pem_x509_certificate(each.certificate.encode()) for each in (issued, authority))
    encryption = serialization.BestAvailableEncryption(password.encode())
    return serialize_key_and_certificates(b"kalda", key, own, [issuer], encryption)  # type: ignore[arg-type]


def _new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _name_of(text: str) -> Name:
    from cryptography import x509

    return x509.Name.from_rfc4514_string(text if "=" in text else f"CN={text}")


def _host_name(host: str) -> GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(
    subject: Name,
    issuer: Name,
    key: EllipticCurvePrivateKey,
    start: datetime.datetime,
    end: datetime.datetime,
) -> CertificateBuilder:
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - datetime.timedelta(minutes=_MINUTES_BACK))
        .not_valid_after(end)
    )


def _issued(certificate: Certificate, key: EllipticCurvePrivateKey) -> Issued:
    from cryptography.hazmat.primitives import serialization

    encoding = serialization.Encoding.PEM
    private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Issued(certificate.public_bytes(encoding).decode(), private.decode())
