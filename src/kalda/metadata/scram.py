"""SCRAM credentials, by mechanism and user (KIP-900)."""

from __future__ import annotations

from collections.abc import Mapping
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
