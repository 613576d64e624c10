"""What is known of an authenticated peer, and what makes a principal of it (KIP-189).

A principal is a text, `User:alice`. `principal.builder.class` names a Python class of the interface `PrincipalBuilder`,
as `package.module.Name`; without one, `DefaultPrincipalBuilder` does what Kafka's does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from kalda.protocol.caller import ANONYMOUS
from kalda.security.principal_names import PrincipalMapping

if TYPE_CHECKING:
    from kalda.security.kerberos_names import KerberosNames


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
