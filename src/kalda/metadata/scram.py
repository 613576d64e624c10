"""SCRAM credentials, by mechanism and user (KIP-900)."""

from __future__ import annotations

import binascii
import hashlib
import hmac
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

from kalda.metadata.image_records import ImageWriter
from kalda.protocol.messages.metadata_records import RemoveUserScramCredentialRecord, UserScramCredentialRecord


class ScramMechanism(IntEnum):
    """SCRAM mechanisms by Kafka's ids."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def mechanism_name(self) -> str:
        """The name in SASL: `SCRAM-SHA-256`."""
        return self.name.replace("_", "-")

    @property
    def digest(self) -> str:
        """The name of the hash function in hashlib."""
        return "sha256" if self is ScramMechanism.SCRAM_SHA_256 else "sha512"

    @property
    def min_iterations(self) -> int:
        return 4096

    @property
    def max_iterations(self) -> int:
        return 16384


class StoredScramCredential(NamedTuple):
    """What a server stores of a password (RFC 5802): it reveals neither the password nor the client's key."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


ScramKey = tuple[int, str]
"""Mechanism id and user."""


class ScramImage(NamedTuple):
    """Credential by mechanism and user."""

    credentials: Mapping[ScramKey, StoredScramCredential]

    @property
    def is_empty(self) -> bool:
        return not self.credentials

    def get(self, mechanism: ScramMechanism, user: str) -> StoredScramCredential | None:
        return self.credentials.get((mechanism.value, user))

    def mechanisms_of(self, user: str) -> list[ScramMechanism]:
        return [mechanism for mechanism in ScramMechanism if (mechanism.value, user) in self.credentials]

    def users(self) -> list[str]:
        """Each once, sorted."""
        return sorted({user for _, user in self.credentials})

    def write(self, writer: ImageWriter) -> None:
        if self.is_empty:
            return
        if not writer.metadata_version.is_scram_supported:
            writer.lose("SCRAM credentials")
            return
        for (mechanism, user), credential in self.credentials.items():
            writer.write(
                UserScramCredentialRecord(
                    name=user,
                    mechanism=mechanism,
                    salt=credential.salt,
                    stored_key=credential.stored_key,
                    server_key=credential.server_key,
                    iterations=credential.iterations,
                )
            )


EMPTY = ScramImage({})


class ScramDelta:
    """Changed credentials; None for one that was removed."""

    __slots__ = ("changes", "image")

    def __init__(self, image: ScramImage) -> None:
        self.image = image
        self.changes: dict[ScramKey, StoredScramCredential | None] = {}

    @classmethod
    def of_whole(cls, image: ScramImage) -> ScramDelta:
        """From nothing to `image`."""
        delta = cls(EMPTY)
        delta.changes.update(image.credentials)
        return delta

    def replay(self, record: UserScramCredentialRecord) -> None:
        self.changes[record.mechanism, record.name] = StoredScramCredential(
            bytes(record.salt), bytes(record.stored_key), bytes(record.server_key), record.iterations
        )

    def remove(self, record: RemoveUserScramCredentialRecord) -> None:
        self.changes[record.mechanism, record.name] = None

    def finish_snapshot(self) -> None:
        for key in self.image.credentials:
            self.changes.setdefault(key, None)

    def apply(self) -> ScramImage:
        merged = {**self.image.credentials, **self.changes}
        return ScramImage({key: credential for key, credential in merged.items() if credential is not None})


# SCRAM credentials from arguments of a command line.
#
# `SCRAM-SHA-256=[name=alice,password=secret]`, or with `iterations`, `salt` and `saltedpassword` (base64). The
# password is encoded as UTF-8 without normalization, as in Kafka.

DEFAULT_ITERATIONS = 4096
_SALT_BYTES = 24
_KNOWN = ("name", "salt", "iterations", "password", "saltedpassword")
_MECHANISMS = {mechanism.mechanism_name: mechanism for mechanism in ScramMechanism}


def salted_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """RFC 5802's `Hi`: PBKDF2 with the mechanism's HMAC."""
    return hashlib.pbkdf2_hmac(mechanism.digest, password.encode("utf-8"), salt, iterations)


def credential(mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int) -> StoredScramCredential:
    """The credential that a server stores for a salted password (RFC 5802)."""
    client_key = hmac.digest(salted, b"Client Key", mechanism.digest)
    stored_key = hashlib.new(mechanism.digest, client_key).digest()
    return StoredScramCredential(salt, stored_key, hmac.digest(salted, b"Server Key", mechanism.digest), iterations)


def parse_scram_arguments(arguments: Iterable[str], entropy: Callable[[int], bytes]) -> list[UserScramCredentialRecord]:
    """One record for each argument; a salt that is not given comes from `entropy`. Raises `ValueError`."""
    return [_parse(argument.strip(), entropy) for argument in arguments]


def _parse(argument: str, entropy: Callable[[int], bytes]) -> UserScramCredentialRecord:
    name, equals, config = argument.partition("=")
    if not equals:
        raise ValueError(f"Failed to find equals sign in SCRAM argument '{argument}'")
    mechanism = _MECHANISMS.get(name)
    if mechanism is None:
        raise ValueError(f"The add-scram mechanism {name} is not supported.")
    if not config.startswith("["):
        raise ValueError("Expected configuration string to start with [")
    if not config.endswith("]"):
        raise ValueError("Expected configuration string to end with ]")
    parts = _components(config[1:-1])
    unknown = [key for key in sorted(parts) if key not in _KNOWN]
    if "name" not in parts:
        raise ValueError("You must supply 'name' to add-scram")
    iterations = _iterations(mechanism, parts.get("iterations"))
    if unknown:
        raise ValueError(f"Unknown SCRAM configurations: {', '.join(unknown)}")
    salt = _base64(parts["salt"], "salt") if "salt" in parts else None
    if "password" in parts:
        if not parts["password"]:
            raise ValueError(f"The password of {parts['name']} is empty")
        salt = entropy(_SALT_BYTES) if salt is None else salt
        salted = salted_password(mechanism, parts["password"], salt, iterations)
    elif "saltedpassword" in parts:
        if salt is None:
            raise ValueError("You must supply 'salt' with 'saltedpassword' to add-scram")
        salted = _base64(parts["saltedpassword"], "saltedpassword")
    else:
        raise ValueError("You must supply one of 'password' or 'saltedpassword' to add-scram")
    stored = credential(mechanism, salted, salt, iterations)
    return UserScramCredentialRecord(
        name=parts["name"],
        mechanism=mechanism.value,
        salt=stored.salt,
        stored_key=stored.stored_key,
        server_key=stored.server_key,
        iterations=stored.iterations,
    )


def _components(config: str) -> dict[str, str]:
    parts = {}
    for component in config.split(","):
        key, equals, value = component.partition("=")
        if not equals:
            raise ValueError(f"No equals sign found in SCRAM component: {component}")
        if len(value) >= 2 and value.startswith('"') and value.endswith('"'):
            value = value[1:-1]
        parts[key] = value
    return parts


def _iterations(mechanism: ScramMechanism, text: str | None) -> int:
    try:
        iterations = DEFAULT_ITERATIONS if text is None else int(text)
    except ValueError:
        raise ValueError(f"Failed to parse iterations count: {text}") from None
    for bound, symbol, fits in (
        (mechanism.min_iterations, ">=", iterations >= mechanism.min_iterations),
        (mechanism.max_iterations, "<=", iterations <= mechanism.max_iterations),
    ):
        if not fits:
            raise ValueError(f"The 'iterations' value must be {symbol} {bound} for add-scram using {mechanism.name}")
    return iterations


def _base64(text: str, key: str) -> bytes:
    try:
        return b64decode(text + "=" * (-len(text) % 4), validate=True)
    except binascii.Error:
        raise ValueError(f"The '{key}' value given to add-scram is not base64: {text}") from None
