"""The security of a test cluster: its certificates, its users, and the configuration of nodes and clients.

Every listener, the controllers' too, is of the cluster's security protocol. There is one user for each entry of
`users`, with PLAIN and both kinds of SCRAM, and the nodes log in as `node`, by PLAIN. OAUTHBEARER accepts tokens that
have no signature. With SSL a client's certificate is required, and its common name is the user.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kalda.base.configs.addresses import CONTROLLER
from kalda.network.tls.contexts import CertificateFiles, make_certificates
from kalda.security.jaas import OAUTHBEARER_MODULE, PLAIN_MODULE, SCRAM_MODULE

PROTOCOLS = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
ADMIN = "admin"
DEFAULT_USERS = {ADMIN: "admin-secret", "alice": "alice-secret"}
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_NODE_PASSWORD = "node-secret"


class ClusterSecurity:
    """What `Cluster(security=...)` adds to the properties of its nodes."""

    def __init__(self, protocol: str, users: Mapping[str, str] | None = None) -> None:
        """`users`: passwords by name; None for `DEFAULT_USERS`. Raises `ValueError`."""
        if protocol not in PROTOCOLS:
            raise ValueError(f"security={protocol!r} is not one of {', '.join(PROTOCOLS)}")
        self.protocol = protocol
        self.users = dict(DEFAULT_USERS if users is None else users)
        self.certificates: CertificateFiles | None = None
        """Made by `prepare`; None without TLS."""

    @property
    def has_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.protocol.endswith("SSL")

    @property
    def has_sasl(self) -> bool:
        """Whether clients log in by SASL."""
        return self.protocol.startswith("SASL")

    def prepare(self, directory: Path, hosts: tuple[str, ...]) -> None:
        """Make the certificates, once."""
        if self.has_tls and self.certificates is None:
            self.certificates = make_certificates(directory, hosts, list(self.users))

    @property
    def scram_arguments(self) -> list[str]:
        """What formats the users' SCRAM credentials into the metadata, as `--add-scram` does."""
        return [
            f"{mechanism}=[name={user},password={password}]"
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
            for user, password in self.users.items()
            if self.has_sasl
        ]

    def node_properties(self, listener: str) -> dict[str, str]:
        """The properties of a node whose clients use that listener."""
        names = (listener.lower(), CONTROLLER.lower())
        properties = {"super.users": f"User:node;User:CN=node;User:{ADMIN}"}
        properties["listener.security.protocol.map"] = f"{listener}:{self.protocol},{CONTROLLER}:{self.protocol}"
        if self.has_tls:
            files = self.certificates
            assert files is not None, "prepared before the nodes are made"
            properties |= _stores(files.node, files.authority)
            properties["ssl.client.auth"] = "none" if self.has_sasl else "required"
            properties["ssl.principal.mapping.rules"] = "RULE:^CN=([^,]*).*$/$1/,DEFAULT"
        if self.has_sasl:
            users = {"node": _NODE_PASSWORD, **self.users}
            known = " ".join(f'user_{user}="{password}"' for user, password in users.items())
            own = f'{PLAIN_MODULE} required username="node" password="{_NODE_PASSWORD}" {known};'
            for name in names:
                properties[f"listener.name.{name}.plain.sasl.jaas.config"] = own
                properties[f"listener.name.{name}.oauthbearer.sasl.jaas.config"] = f"{OAUTHBEARER_MODULE} required;"
            properties["sasl.enabled.mechanisms"] = ",".join(MECHANISMS)
            properties["sasl.mechanism.inter.broker.protocol"] = "PLAIN"
            properties["sasl.mechanism.controller.protocol"] = "PLAIN"
        return properties

    def client_properties(
        self, user: str = ADMIN, mechanism: str = "PLAIN", password: str | None = None
    ) -> dict[str, str]:
        """The keys of a client that is that user."""
        properties = {"security.protocol": self.protocol}
        if self.has_tls:
            assert self.certificates is not None, "prepared before the nodes are made"
            properties |= _stores(
                None if self.has_sasl else self.certificates.clients[user], self.certificates.authority
            )
        if self.has_sasl:
            secret = self.users.get(user, "") if password is None else password
            lines = {
                "PLAIN": f'{PLAIN_MODULE} required username="{user}" password="{secret}";',
                "OAUTHBEARER": f'{OAUTHBEARER_MODULE} required unsecuredLoginStringClaim_sub="{user}";',
            }
            scram = f'{SCRAM_MODULE} required username="{user}" password="{secret}";'
            properties["sasl.mechanism"] = mechanism
            properties["sasl.jaas.config"] = lines.get(mechanism, scram)
        return properties


def _stores(own: Path | None, authority: Path) -> dict[str, str]:
    properties = {"ssl.truststore.location": str(authority), "ssl.truststore.type": "PEM"}
    if own is not None:
        properties |= {"ssl.keystore.location": str(own), "ssl.keystore.type": "PEM"}
    return properties
