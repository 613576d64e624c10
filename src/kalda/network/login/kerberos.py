"""The SASL mechanism GSSAPI (RFC 4752), by Kerberos: the exchange on both sides.

The exchange runs on the package `gssapi`, an extra of this one, which binds the system's Kerberos library. Neither side
offers more than authentication: with TLS the connection is encrypted, without it Kafka's records are not either.

    client                              server
    token of the ticket           ->
                                  <-    token (where the client demands that the server authenticates as well)
    empty                         ->
                                  <-    wrapped: security layers that are offered, here none
    wrapped: no layer             ->

The login is complete with the client's last token. The server has no token after it: a SaslAuthenticate is answered
with an empty one, a bare token (after SaslHandshake v0) with nothing.

Each step may read a key table, and a client's first step may send requests to the KDC, so all run on threads.

Not obvious:

- Each login by GSSAPI has a ticket cache of its own name, since plain `MEMORY:` is shared in the process. A prepared
  exchange is used within 60 s: servers refuse old authenticators.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from kalda.security.mechanisms import LoginOutcome, Lookup, Negotiate, SaslFailed, Step

_NO_LAYER = 1
"""The bit of the security layer that protects nothing."""


@cache
def default_realm() -> str:
    """The realm of the system's Kerberos configuration; empty where it has none."""
    gssapi = library()
    try:
        name = gssapi.Name("any", gssapi.NameType.kerberos_principal).canonicalize(gssapi.MechType.kerberos)
    except gssapi.exceptions.GSSError:
        return ""
    return str(name).rpartition("@")[2]


# -- the library


def library() -> Any:
    """The package `gssapi`. Raises `ValueError` where it is not installed."""
    try:
        return import_module("gssapi")
    except (ImportError, OSError) as error:
        raise ValueError(f"GSSAPI needs the package gssapi: pip install 'kalda[kerberos]' ({error})") from error


class Kerberos:
    """Who this process is in Kerberos, by the options of a Krb5LoginModule."""

    def __init__(self, options: dict[str, str]) -> None:
        """Raises `ValueError`."""
        self._gssapi = library()
        self._key_table = options.get("keyTab")
        self.principal = options.get("principal")
        self._cache = f"MEMORY:kalda-{os.urandom(8).hex()}"
        """Holds the tickets of this principal alone: the library shares caches of one name in the process."""
        if options.get("useKeyTab", "false").lower() == "true" and not (self._key_table and self.principal):
            raise ValueError("Krb5LoginModule: useKeyTab=true needs keyTab and principal")

    def accepting(self) -> Any:
        """What a server accepts tickets with. Raises `ValueError`."""
        return self._credentials("accept", {"keytab": self._key_table})

    def initiating(self) -> Any:
        """What a client requests tickets with: a ticket got by the key table, or the user's own one of `kinit`. May
        send requests to the KDC. Raises `ValueError`."""
        return self._credentials("initiate", {"client_keytab": self._key_table, "ccache": self._cache})

    def _credentials(self, usage: str, store: dict[str, str | None]) -> Any:
        gssapi = self._gssapi
        name = None if self.principal is None else gssapi.Name(self.principal, gssapi.NameType.kerberos_principal)
        try:
            if self._key_table is None:
                return gssapi.Credentials(name=name, usage=usage)
            return gssapi.Credentials(name=name, usage=usage, store=store)
        except gssapi.exceptions.GSSError as error:
            raise ValueError(
                f"no Kerberos credentials for {self.principal or 'the default principal'}: {error}"
            ) from error


# -- the exchange


class GssapiServer:
    """The server's side of one exchange."""

    def __init__(self, credentials: Callable[[], Any]) -> None:
        """`credentials()` returns `Kerberos.accepting`; it is called on a thread."""
        self._credentials = credentials
        self._context: Any = None
        self._has_offered = False

    def on_token(self, token: bytes) -> Step:
        """Raises `SaslFailed`."""
        return Lookup(Negotiate(lambda: self._step(token)), self._go_on)

    @staticmethod
    def _go_on(step: Step | SaslFailed) -> Step:
        if isinstance(step, SaslFailed):
            raise step
        return step

    def _step(self, token: bytes) -> Step:
        gssapi = library()
        try:
            if self._context is None:
                self._context = gssapi.SecurityContext(creds=self._credentials(), usage="accept")
            if not self._context.complete:
                answer = self._context.step(token)
                if answer or not self._context.complete:
                    return bytes(answer or b"")
                token = b""
            if not self._has_offered:
                if token:
                    raise SaslFailed("an empty token is expected once the ticket is accepted")
                self._has_offered = True
                return bytes(self._context.wrap(bytes((_NO_LAYER, 0, 0, 0)), False).message)
            chosen = bytes(self._context.unwrap(token).message)
            if len(chosen) < 4 or chosen[0] != _NO_LAYER:
                raise SaslFailed("the client has chosen a security layer that was not offered")
            return LoginOutcome(str(self._context.initiator_name), None)
        except gssapi.exceptions.GSSError as error:
            raise SaslFailed(f"GSSAPI: {_text_of(error)}") from error
        except ValueError as error:
            raise SaslFailed(str(error)) from error


class GssapiClient:
    """The client's side of one exchange."""

    def __init__(self, kerberos_credentials: Any, service: str, host: str) -> None:
        """May send requests to the KDC. Raises `SaslFailed`."""
        gssapi = library()
        target = gssapi.Name(f"{service}@{host}", gssapi.NameType.hostbased_service)
        self._target = f"{service}/{host}"
        self._errors = gssapi.exceptions.GSSError
        self._context = gssapi.SecurityContext(
            name=target,
            creds=kerberos_credentials,
            usage="initiate",
            mech=gssapi.MechType.kerberos,
            flags=gssapi.RequirementFlag.mutual_authentication | gssapi.RequirementFlag.integrity,
        )
        self._is_done = False
        try:
            self._first = bytes(self._context.step(None) or b"")
        except self._errors as error:
            raise SaslFailed(f"no Kerberos ticket for {self._target}: {_text_of(error)}") from error

    def first(self) -> bytes:
        """The token of the ticket for the service."""
        return self._first

    def on_challenge(self, token: bytes) -> bytes | None:
        """Raises `SaslFailed`."""
        if self._is_done:
            return None
        try:
            if not self._context.complete:
                return bytes(self._context.step(token) or b"")
            offered = bytes(self._context.unwrap(token).message)
            if len(offered) != 4 or not offered[0] & _NO_LAYER:
                raise SaslFailed("the server demands a security layer")
            self._is_done = True
            return bytes(self._context.wrap(bytes((_NO_LAYER, 0, 0, 0)), False).message)
        except self._errors as error:
            raise SaslFailed(f"GSSAPI with {self._target}: {_text_of(error)}") from error


def _text_of(error: Any) -> str:
    """The library's words, without the codes."""
    messages = [
        str(error.get_all_statuses(code, is_major)[-1])
        for code, is_major in ((error.maj_code, True), (error.min_code, False))
    ]
    return "; ".join(dict.fromkeys(each.strip() for each in messages if each.strip()))
