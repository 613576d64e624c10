"""The settings of one side of TLS: the `ssl.*` keys of a listener, of a node as a client, or of a client, as values.

Kafka's keys name stores by location or contain them. A location is read by the caller: `stores` says which, and
`key_material` and `trusted` take what was read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kalda.security.keystores import (
    BadStore,
    KeyMaterial,
    pem_blocks,
    pem_key_material,
    read_key_store,
    read_trust_store,
)

_DEFAULT_PROTOCOLS = ("TLSv1.2", "TLSv1.3")


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """One side of TLS. `repr` shows no password and no key."""

    client_auth: str
    """none, requested or required; of servers."""
    protocols: tuple[str, ...]
    """Oldest first."""
    cipher_suites: tuple[str, ...]
    """Java's or OpenSSL's names; empty for the defaults."""
    checks_host: bool
    """Whether the name of the server is compared with its certificate; of clients."""
    keystore_type: str
    keystore_location: str | None
    truststore_type: str
    truststore_location: str | None
    _secrets: dict[str, str | None]
    """Passwords, and stores that the configuration contains, by key."""

    def __repr__(self) -> str:
        return f"TlsSettings(keystore={self.keystore_location}, truststore={self.truststore_location})"

    @classmethod
    def of(cls, value_of: Callable[[str], Any], client_auth: str = "none") -> TlsSettings:
        """`value_of(key)` is the typed value of an `ssl.*` key, None without one. Raises `ValueError`."""
        if value_of("ssl.engine.factory.class"):
            raise ValueError("ssl.engine.factory.class: Java classes cannot be loaded; remove the key")
        return cls(
            client_auth=client_auth,
            protocols=enabled_protocols(tuple(value_of("ssl.enabled.protocols") or _DEFAULT_PROTOCOLS)),
            cipher_suites=tuple(value_of("ssl.cipher.suites") or ()),
            checks_host=bool((value_of("ssl.endpoint.identification.algorithm") or "").strip()),
            keystore_type=str(value_of("ssl.keystore.type") or "JKS"),
            keystore_location=value_of("ssl.keystore.location") or None,
            truststore_type=str(value_of("ssl.truststore.type") or "JKS"),
            truststore_location=value_of("ssl.truststore.location") or None,
            _secrets={
                name: value_of(name)
                for name in (
                    "ssl.key.password",
                    "ssl.keystore.certificate.chain",
                    "ssl.keystore.key",
                    "ssl.keystore.password",
                    "ssl.truststore.certificates",
                    "ssl.truststore.password",
                )
            },
        )

    @property
    def stores(self) -> tuple[str, ...]:
        """The files that have to be read."""
        return tuple(each for each in (self.keystore_location, self.truststore_location) if each is not None)

    def key_material(self, contents: Mapping[str, bytes]) -> KeyMaterial | None:
        """The own key and certificates; None without a key store. `contents` by location. Raises `BadStore`."""
        secrets = self._secrets
        key_password = secrets["ssl.key.password"]
        if secrets["ssl.keystore.key"] is not None or secrets["ssl.keystore.certificate.chain"] is not None:
            if self.keystore_type.upper() != "PEM":
                raise BadStore("ssl.keystore.key and ssl.keystore.certificate.chain need ssl.keystore.type=PEM")
            if self.keystore_location is not None:
                raise BadStore("Both SSL key store location and separate private key are specified.")
            parts = secrets["ssl.keystore.key"], secrets["ssl.keystore.certificate.chain"]
            if None in parts:
                raise BadStore("ssl.keystore.key and ssl.keystore.certificate.chain have to be set both")
            return pem_key_material("\n".join(part or "" for part in parts), key_password)
        if self.keystore_location is None:
            return None
        content, kind = (
            contents[self.keystore_location],
            self._kind(self.keystore_type, self.keystore_location, contents),
        )
        if kind == "PEM" and secrets["ssl.keystore.password"] is not None:
            raise BadStore(
                "SSL key store password cannot be specified with PEM format, only key password may be specified."
            )
        return read_key_store(kind, content, secrets["ssl.keystore.password"], key_password)

    def trusted(self, contents: Mapping[str, bytes]) -> tuple[str, ...] | None:
        """The trusted certificates in PEM; None for those of the system. Raises `BadStore`."""
        embedded = self._secrets["ssl.truststore.certificates"]
        if embedded is not None:
            if self.truststore_type.upper() != "PEM":
                raise BadStore("ssl.truststore.certificates needs ssl.truststore.type=PEM")
            if self.truststore_location is not None:
                raise BadStore("Both SSL trust store location and separate trust certificates are specified.")
            certificates = pem_blocks(embedded)[1]
            if not certificates:
                raise BadStore("ssl.truststore.certificates contains no certificate")
            return certificates
        if self.truststore_location is None:
            return None
        kind = self._kind(self.truststore_type, self.truststore_location, contents)
        if kind == "PEM" and self._secrets["ssl.truststore.password"] is not None:
            raise BadStore("SSL trust store password cannot be specified for PEM format.")
        return read_trust_store(kind, contents[self.truststore_location], self._secrets["ssl.truststore.password"])

    @staticmethod
    def _kind(declared: str, location: str, contents: Mapping[str, bytes]) -> str:
        """JKS is the default of the types: a file of PEM text is accepted without a type."""
        if declared.upper() == "JKS" and b"-----BEGIN " in contents[location][:65_536]:
            return "PEM"
        return declared.upper()


# Names of TLS protocols and cipher suites: those of Java, which Kafka's keys have, to those of OpenSSL.

PROTOCOLS = ("TLSv1.2", "TLSv1.3")
"""Those that are served, oldest first."""
_OLD_PROTOCOLS = ("SSL", "SSLv2", "SSLv3", "TLSv1", "TLSv1.1")
_TLS_1_3 = re.compile(r"TLS_(AES|CHACHA20)_[A-Z0-9_]+")
_JAVA = re.compile(
    r"(?:TLS|SSL)_(?P<exchange>[A-Z_]+?)_WITH_(?P<cipher>[A-Z0-9_]+?)_(?P<mac>SHA(?:256|384)?|CCM(?:_8)?)"
)


def enabled_protocols(names: tuple[str, ...]) -> tuple[str, ...]:
    """The protocols of `ssl.enabled.protocols` that are served, oldest first. Raises `ValueError`."""
    known = {*PROTOCOLS, *_OLD_PROTOCOLS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"ssl.enabled.protocols: {', '.join(unknown)} is not one of {', '.join(PROTOCOLS)}")
    enabled = tuple(name for name in PROTOCOLS if name in names)
    if not enabled:
        raise ValueError(
            f"ssl.enabled.protocols={','.join(names)}: only {' and '.join(PROTOCOLS)} are served; older ones are broken"
        )
    return enabled


def is_tls_1_3(suite: str) -> bool:
    """Whether a suite is one of TLS 1.3, which OpenSSL names as Java does."""
    return _TLS_1_3.fullmatch(suite) is not None


def openssl_name(suite: str) -> str:
    """`TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256` as `ECDHE-RSA-AES128-GCM-SHA256`; a name of another form stays."""
    found = _JAVA.fullmatch(suite)
    if found is None:
        return suite
    exchange = found["exchange"].replace("_", "-")
    cipher = found["cipher"].replace("_", "-")
    cipher = re.sub(r"AES-(128|256)", r"AES\1", cipher).removesuffix("-CBC")
    if cipher.startswith("CHACHA20"):
        parts = [exchange, cipher]
    else:
        parts = [exchange, cipher, found["mac"].replace("_", "-")]
    if exchange == "RSA":
        del parts[0]
    return "-".join(parts)
