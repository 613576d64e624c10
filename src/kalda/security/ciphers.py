"""Names of TLS protocols and cipher suites: those of Java, which Kafka's keys have, to those of OpenSSL."""

from __future__ import annotations

import re

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
