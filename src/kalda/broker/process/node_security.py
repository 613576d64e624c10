"""The security of one node: that of its listeners, and that of its own connections to other nodes.

Made only where a listener or a connection of the node is not PLAINTEXT, or makes principals by an own class. Stores of
keys are read at the start, and again when a dynamic config names others or when the files change
(`kalda.ssl.reload.interval.ms`): new connections use what was read last, those that are open keep what they have. A
store that cannot be read, or whose certificate has another owner than the one before (KIP-978: `ssl.allow.dn.changes`,
`ssl.allow.san.changes`), is logged, and the one before stays.

Not obvious:

- `_of_sasl` names every property whose change makes a listener's SASL anew; all begin with `sasl.` or `kalda.sasl.`,
  or are listed there.
- The stamps of a key store's files are taken before they are read, and each side has its own.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from kalda.base.configs.addresses import ListenerEndpoint
from kalda.base.configs.definition import InvalidConfig
from kalda.base.configs.server import ServerConfig
from kalda.base.errors import ErrorCode
from kalda.base.scheduling import Timer, Timers
from kalda.broker.process.listener_security import (
    ListenerAnswers,
    ListenerSecurity,
    SaslSettings,
    ScramSecrets,
    TokenValidator,
)
from kalda.broker.process.shell import Host, JobPool
from kalda.metadata.image import EMPTY, MetadataImage
from kalda.network.client.security import ClientSecurity
from kalda.network.login.kerberos import GssapiServer, Kerberos, default_realm
from kalda.network.named_files import find_entry, server_sections
from kalda.network.python_classes import make
from kalda.network.tls.contexts import TlsFailed, client_context, handshake_failure, read_stores, server_context
from kalda.security.jaas import JaasEntry, parse_jaas
from kalda.security.keystores import der_of
from kalda.security.mechanisms import PlainServer, ServerMechanism, plain_users
from kalda.security.oauthbearer import ClaimRules, OAuthBearerServer
from kalda.security.principals import (
    DefaultPrincipalBuilder,
    Identity,
    KerberosNames,
    PrincipalBuilder,
    PrincipalMapping,
    identity_of,
)
from kalda.security.scram import NONCE_BYTES, ScramServer
from kalda.security.tls_settings import TlsSettings

log = logging.getLogger("kalda.authentication")

_Stamp: TypeAlias = tuple[int, int, int]
_MISSING: _Stamp = (0, 0, 0)
_KAFKA = "org.apache.kafka.common.security."
_BUILDER = "principal.builder.class"
_DEFAULT_HANDLERS = (
    _KAFKA + "plain.internals.PlainServerCallbackHandler",
    _KAFKA + "scram.internals.ScramServerCallbackHandler",
    _KAFKA + "oauthbearer.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler",
)
_SIGNED_HANDLERS = (
    _KAFKA + "oauthbearer.OAuthBearerValidatorCallbackHandler",
    _KAFKA + "oauthbearer.secured.OAuthBearerValidatorCallbackHandler",
)
_METHODS = {"PLAIN": "check_password", "OAUTHBEARER": "validate_token"}
"""What a handler of a mechanism has to have."""


class _Tls:
    """The context of one side, and what it was made of."""

    def __init__(self, settings: TlsSettings, contents: Mapping[str, bytes], is_server: bool) -> None:
        """Raises `TlsFailed`."""
        self.settings = settings
        self.contents = contents
        make_context = server_context if is_server else client_context
        self.context: ssl.SSLContext = make_context(settings, contents)
        material = settings.key_material(contents)
        self.identity: Identity | None = None if material is None else identity_of(der_of(material.certificates[0]))

    def client_side(self) -> ssl.SSLContext:
        """The context of a client with the same stores, which compares no host name. Raises `TlsFailed`."""
        return client_context(replace(self.settings, checks_host=False), self.contents)


class NodeSecurity:
    """Everything of a node that is not PLAINTEXT, and the principals of own classes."""

    def __init__(self, config: ServerConfig, host: Host, timers: Timers, jobs: JobPool) -> None:
        """`jobs` is a pool of its own: files that configs name may be on a device that does not answer, and callback
        handlers may wait; whoever made it closes it."""
        self.image: Callable[[], MetadataImage] = lambda: EMPTY
        """The newest metadata image, with users and tokens; the start sets it when the loader is made."""
        self._config = config
        self._host = host
        self._timers = timers
        self.jobs = jobs
        self._scram = ScramSecrets(lambda: self.image(), config["delegation.token.secret.key"])
        self._listeners: dict[str, ListenerSecurity] = {}
        self._clients: dict[str, ClientSecurity] = {}
        """By the listener of other nodes that they connect to."""
        self._tls: dict[tuple[str, bool], _Tls] = {}
        """By listener, and whether it is of the server's side."""
        self._stamps: dict[tuple[str, bool], dict[str, _Stamp]] = {}
        """By the keys of `_tls`: the state of each store's file from before it was last read for that side."""
        self._timer: Timer | None = None
        self._is_checking = False
        """Whether a thread looks for changed files."""

    # -- made at the start

    def of_listener(self, endpoint: ListenerEndpoint) -> ListenerSecurity | None:
        """The security of a listener; None where all its peers are ANONYMOUS. Raises `ValueError`."""
        config, name, protocol = self._config, endpoint.listener, endpoint.security_protocol
        if protocol == "PLAINTEXT" and config.principal_builder(name) is None:
            return None
        tls = self._load(config, name, is_server=True).context if protocol.endswith("SSL") else None
        security = self._listeners[name] = ListenerSecurity(
            protocol,
            name,
            tls,
            self._sasl(config, name) if protocol.startswith("SASL") else None,
            self._principals(config, name),
            config.for_listener(name, "connection.failed.authentication.delay.ms"),
            self._host.clock.wall_ms,
        )
        return security

    def to_brokers(self) -> ClientSecurity | None:
        """The security of connections to other brokers; None for PLAINTEXT. Raises `ValueError`."""
        return self._client_of(self._config.inter_broker_listener_name, "sasl.mechanism.inter.broker.protocol")

    def to_controllers(self) -> ClientSecurity | None:
        """The security of connections to controllers; None for PLAINTEXT. Raises `ValueError`."""
        return self._client_of(self._config.controller_listener_names[0], "sasl.mechanism.controller.protocol")

    def _client_of(self, listener: str, mechanism_key: str) -> ClientSecurity | None:
        """Of connections to that listener of other nodes. `mechanism_key` names the key of the SASL mechanism."""
        config = self._config
        protocol = config.protocol_map.get(listener, "PLAINTEXT")
        if protocol == "PLAINTEXT":
            return None
        if listener not in self._clients:
            tls = self._load(config, listener, is_server=False).context if protocol.endswith("SSL") else None
            mechanism = jaas = None
            if protocol.startswith("SASL"):
                mechanism = str(config.for_listener(listener, mechanism_key))
                jaas = self._jaas(config, listener, mechanism)
                if jaas is None:
                    raise ValueError(
                        f"listener.name.{listener.lower()}.{mechanism.lower()}.sasl.jaas.config is not set: this node "
                        f"needs it to log in to the listener {listener} of other nodes by {mechanism_key}={mechanism}"
                    )
            urls = config["kalda.sasl.oauthbearer.allowed.urls"]
            files = config["kalda.sasl.oauthbearer.allowed.files"]
            of_mechanism = mechanism or ""

            def value_of(key: str) -> Any:
                return self._value(self._config, listener, of_mechanism, key)

            self._clients[listener] = ClientSecurity(tls, mechanism, jaas, value_of, urls, config.properties, files)
        return self._clients[listener]

    def start(self) -> None:
        """Look for changed stores from now on."""
        interval_ms: int = self._config["kalda.ssl.reload.interval.ms"]
        if interval_ms and self._tls:
            self._timer = self._timers.call_later_ms(interval_ms, self._check_files)

    def close(self) -> None:
        """Stop looking for changed stores."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- parts

    def _value(self, config: ServerConfig, listener: str, mechanism: str, key: str) -> Any:
        """A key's value for a mechanism of a listener: `listener.name.<listener>.<mechanism>.<key>`, else that of the
        listener."""
        name = f"listener.name.{listener.lower()}.{mechanism.lower()}.{key}"
        return config[name] if config.is_set(name) else config.for_listener(listener, key)

    def _jaas(self, config: ServerConfig, listener: str, mechanism: str) -> JaasEntry | None:
        """As in Kafka, the line with the prefix of listener and mechanism counts on a node, else the JAAS file."""
        name = f"listener.name.{listener.lower()}.{mechanism.lower()}.sasl.jaas.config"
        text = config[name] if config.is_set(name) else None
        if text is None:
            return find_entry(server_sections(listener), mechanism)
        return parse_jaas(text, mechanism, name)

    def _sasl(self, config: ServerConfig, listener: str) -> SaslSettings:
        enabled: tuple[str, ...] = config.for_listener(listener, "sasl.enabled.mechanisms")
        users: dict[str, str] = {}
        tokens: TokenValidator | None = None
        handlers: dict[str, Any] = {}
        begin: dict[str, Callable[[], ServerMechanism]] = {}
        for mechanism in enabled:
            if mechanism not in _MECHANISMS:
                raise ValueError(
                    f"sasl.enabled.mechanisms of listener {listener}: {mechanism} is not one of "
                    f"{', '.join(_MECHANISMS)}"
                )
            begin[mechanism] = partial(_begin, mechanism)
            entry = self._jaas(config, listener, mechanism)
            key = "sasl.server.callback.handler.class"
            path = self._value(config, listener, mechanism, key)
            is_own = bool(path) and path not in (*_DEFAULT_HANDLERS, *_SIGNED_HANDLERS)
            if is_own and mechanism in _METHODS:
                handlers[mechanism] = make(key, path, config.properties, _METHODS[mechanism])
            elif mechanism == "GSSAPI":
                begin[mechanism] = partial(GssapiServer, self._kerberos(listener, entry).accepting)
            elif mechanism == "PLAIN":
                if entry is None:
                    raise ValueError(
                        f"listener.name.{listener.lower()}.plain.sasl.jaas.config is not set: PLAIN needs its users, "
                        "or sasl.server.callback.handler.class"
                    )
                users = plain_users(entry.options)
            elif mechanism == "OAUTHBEARER":
                tokens = self._tokens(config, listener, entry, path in _SIGNED_HANDLERS)
        return SaslSettings(
            begin,
            ListenerAnswers(self._scram, users, tokens, handlers, self.jobs),
            {name: self._value(config, listener, name, "connections.max.reauth.ms") for name in enabled},
            config.for_listener(listener, "sasl.server.max.receive.size"),
        )

    def _tokens(self, config: ServerConfig, listener: str, entry: JaasEntry | None, signed: bool) -> TokenValidator:
        from kalda.network.login.token_validation import BROKER, DEFAULT, VALIDATOR, UnsecuredTokens, signed_tokens

        options = {} if entry is None else entry.options
        value = partial(config.for_listener, listener)
        if not signed:
            unsecured = ClaimRules(
                options.get("unsecuredValidatorPrincipalClaimName", "sub"),
                options.get("unsecuredValidatorScopeClaimName", "scope"),
                int(options.get("unsecuredValidatorAllowableClockSkewMs", "0")) // 1000,
                required_scope=tuple(options.get("unsecuredValidatorRequiredScope", "").split()),
            )
            log.warning(
                "listener %s accepts OAuth tokens without a signature, which anybody can make: for tests only. Set "
                "sasl.server.callback.handler.class and sasl.oauthbearer.jwks.endpoint.url",
                listener,
            )
            return UnsecuredTokens(unsecured)
        validator = value(VALIDATOR)
        if validator not in (DEFAULT, BROKER):
            raise ValueError(
                f"{VALIDATOR}={validator}: a listener validates tokens by {DEFAULT}; set "
                "sasl.server.callback.handler.class for an own class"
            )
        return signed_tokens(value, config["kalda.sasl.oauthbearer.allowed.urls"])

    @staticmethod
    def _kerberos(listener: str, entry: JaasEntry | None) -> Kerberos:
        if entry is None:
            raise ValueError(
                f"listener.name.{listener.lower()}.gssapi.sasl.jaas.config is not set: GSSAPI needs the principal of "
                "this node and its key table"
            )
        return Kerberos(entry.options)

    def _principals(self, config: ServerConfig, listener: str) -> PrincipalBuilder:
        path = config.principal_builder(listener)
        if path is not None:
            builder: PrincipalBuilder = make(_BUILDER, path, config.properties, "build")
            return builder
        rules = config.for_listener(listener, "sasl.kerberos.principal.to.local.rules")
        return DefaultPrincipalBuilder(
            PrincipalMapping(config.for_listener(listener, "ssl.principal.mapping.rules")),
            KerberosNames(rules, default_realm),
        )

    # -- stores of keys

    def _settings(self, config: ServerConfig, listener: str, is_server: bool) -> TlsSettings:
        client_auth = "none"
        if is_server:
            client_auth = config.for_listener(listener, "ssl.client.auth")
            override = f"listener.name.{listener.lower()}.ssl.client.auth"
            if (
                config.protocol_map.get(listener) == "SASL_SSL"
                and not config.is_set(override)
                and client_auth != "none"
            ):
                # KIP-684: with SASL, only the key with the listener's prefix has clients show certificates.
                log.warning(
                    "listener %s: ssl.client.auth=%s has no effect with SASL_SSL; set %s",
                    listener,
                    client_auth,
                    override,
                )
                client_auth = "none"
        return TlsSettings.of(partial(config.for_listener, listener), client_auth)

    def _load(self, config: ServerConfig, listener: str, is_server: bool) -> _Tls:
        """Read the stores. Raises `ValueError`."""
        settings = self._settings(config, listener, is_server)
        self._stamps[listener, is_server] = _stamps(settings)
        try:
            tls = _Tls(settings, read_stores(settings), is_server)
        except TlsFailed as error:
            raise ValueError(f"listener {listener}: {error}") from error
        self._tls[listener, is_server] = tls
        return tls

    def _replace(self, listener: str, is_server: bool, tls: _Tls) -> None:
        """Use a new context for new connections, where its owner may have changed as it has."""
        before = self._tls[listener, is_server]
        why = self._refusal(listener, before.identity, tls.identity, self._config)
        if why is not None:
            log.error("listener %s: the new key store is not used: %s", listener, why)
            return
        self._tls[listener, is_server] = tls
        if is_server:
            self._listeners[listener].tls = tls.context
        else:
            self._clients[listener].tls = tls.context
        log.info("listener %s: new %s connections use new keys or certificates", listener, "" if is_server else "own")

    @staticmethod
    def _refusal(listener: str, before: Identity | None, after: Identity | None, config: ServerConfig) -> str | None:
        if before is None or after is None:
            return None
        if before.subject != after.subject and not config.for_listener(listener, "ssl.allow.dn.changes"):
            return f"Keystore DistinguishedName does not match: existing={before.subject}, new={after.subject}"
        missing = before.alternative_names - after.alternative_names
        if missing and not config.for_listener(listener, "ssl.allow.san.changes"):
            return "Keystore SubjectAltNames does not match: the new certificate lacks names of the one before"
        return None

    def on_config(self, current: ServerConfig) -> None:
        """Dynamic configs have changed."""
        before_all, self._config = self._config, current
        for (listener, is_server), before in list(self._tls.items()):
            try:
                settings = self._settings(current, listener, is_server)
            except ValueError as error:
                log.error("listener %s: its TLS configuration is not used: %s", listener, error)
                continue
            if settings != before.settings:
                self._reload(listener, is_server, settings)
        for name, security in self._listeners.items():
            if current.for_listener(name, _BUILDER) != before_all.for_listener(name, _BUILDER):
                try:
                    security.principals = self._principals(current, name)
                except ValueError as error:
                    log.error("listener %s: the former principal builder stays: %s", name, error)
            security.failure_delay_ms = current.for_listener(name, "connection.failed.authentication.delay.ms")
            if security.sasl is not None and _of_sasl(current, name) != _of_sasl(before_all, name):
                try:
                    security.sasl = self._sasl(current, name)
                except ValueError as error:
                    log.error("listener %s: its SASL configuration is not used: %s", name, error)
        for name, client in self._clients.items():
            if client.mechanism is not None and _of_sasl(current, name) != _of_sasl(before_all, name):
                try:
                    client.replace_options(self._jaas(current, name, client.mechanism))
                except ValueError as error:
                    log.error("listener %s: own logins go on with the former login line: %s", name, error)

    def check_of(self, altered: ServerConfig) -> Callable[[], None] | None:
        """What checks the stores and classes that `altered` names, where they differ from those in use; it reads files,
        and so runs on a thread. It raises `InvalidConfig` with INVALID_REQUEST, as Kafka does. None where none differ.
        Raises `InvalidConfig` as well."""
        checks: list[Callable[[], object]] = []
        try:
            for (listener, is_server), before in self._tls.items():
                settings = self._settings(altered, listener, is_server)
                if settings != before.settings:
                    checks.append(partial(self._check_stores, altered, listener, is_server, before, settings))
        except ValueError as error:
            raise _refused_alteration(error) from error
        checks += [
            partial(self._principals, altered, listener)
            for listener in self._listeners
            if altered.for_listener(listener, _BUILDER) != self._config.for_listener(listener, _BUILDER)
        ]
        if not checks:
            return None

        def check() -> None:
            try:
                for each in checks:
                    each()
            except ValueError as error:
                raise _refused_alteration(error) from error

        return check

    def _check_stores(
        self, altered: ServerConfig, listener: str, is_server: bool, before: _Tls, settings: TlsSettings
    ) -> None:
        """Raises `ValueError` where the stores of one side cannot be used, or not together with those in use: other
        nodes connect to the inter-broker listener by the former stores until they have the new ones."""
        try:
            after = _Tls(settings, read_stores(settings), is_server)
        except (TlsFailed, ValueError) as error:
            raise ValueError(f"listener {listener}: {error}") from error
        why = self._refusal(listener, before.identity, after.identity, altered)
        if why is None and is_server and listener == altered.inter_broker_listener_name:
            why = handshake_failure(before.client_side(), after.context) or handshake_failure(
                after.client_side(), before.context
            )
        if why is not None:
            raise ValueError(f"listener {listener}: {why}")

    def _reload(self, listener: str, is_server: bool, settings: TlsSettings) -> None:
        """Read the stores on a thread, and use them."""

        def read() -> tuple[dict[str, _Stamp], _Tls | str]:
            # Before the stores are read: a change while they are read is found by the next look.
            stamps = _stamps(settings)
            try:
                return stamps, _Tls(settings, read_stores(settings), is_server)
            except (TlsFailed, ValueError) as error:
                return stamps, str(error)

        def finish(found: tuple[dict[str, _Stamp], _Tls | str] | None, failure: BaseException | None) -> None:
            stamps, tls = found if found is not None else ({}, repr(failure))
            self._stamps[listener, is_server] = stamps
            if isinstance(tls, str):
                log.error("listener %s: its stores cannot be used, those before stay: %s", listener, tls)
            else:
                self._replace(listener, is_server, tls)

        self.jobs.run(read, finish)

    def _check_files(self) -> None:
        """Look whether a store's file has changed, on a thread; then read it again."""
        self._timer = self._timers.call_later_ms(
            self._config["kalda.ssl.reload.interval.ms"] or 60_000, self._check_files
        )
        if self._is_checking:
            return
        self._is_checking = True
        seen = dict(self._stamps)

        def look() -> list[tuple[str, bool]]:
            return [side for side, stamps in seen.items() if any(map(_has_changed, stamps, stamps.values()))]

        def finish(changed: list[tuple[str, bool]] | None, error: BaseException | None) -> None:
            self._is_checking = False
            for side in changed or ():
                self._reload(*side, self._tls[side].settings)

        self.jobs.run(look, finish)


def _of_sasl(config: ServerConfig, listener: str) -> dict[str, str]:
    """The properties that concern SASL on a listener: what is made of them keeps keys of tokens and classes of the
    operator, and so is made anew only when one of them changes."""
    own = f"listener.name.{listener.lower()}."
    return {
        name: text
        for name, text in config.properties.items()
        if name.startswith(("sasl.", "kalda.sasl.", "connections.max.reauth.ms"))
        or (name.startswith(own) and not name.startswith(own + "ssl."))
    }


def _refused_alteration(why: ValueError) -> InvalidConfig:
    return InvalidConfig(f"Validation of dynamic config update of SSLFactory failed: {why}", ErrorCode.INVALID_REQUEST)


def _stamps(settings: TlsSettings) -> dict[str, _Stamp]:
    """The state of each store's file."""
    return {location: _stamp(location) for location in settings.stores}


def _has_changed(location: str, before: _Stamp) -> bool:
    """Whether the file has been written or replaced. One that is missing is about to be replaced."""
    return _stamp(location) not in (before, _MISSING)


def _stamp(location: str) -> _Stamp:
    """What changes when a file is written or replaced."""
    try:
        status = os.stat(location)
    except OSError:
        return _MISSING
    return status.st_mtime_ns, status.st_size, status.st_ino


_MECHANISMS = ("GSSAPI", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


def _begin(mechanism: str) -> ServerMechanism:
    if mechanism == "PLAIN":
        return PlainServer()
    if mechanism == "OAUTHBEARER":
        return OAuthBearerServer()
    return ScramServer(mechanism, os.urandom(NONCE_BYTES).hex())
