"""Delegation tokens, by token id (KIP-48, KIP-900). No record contains the secret that signs them."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import NamedTuple

from kalda.metadata.image_records import ImageWriter
from kalda.protocol.messages.metadata_records import DelegationTokenRecord, RemoveDelegationTokenRecord


def token_hmac(secret: str, token_id: str) -> bytes:
    """What proves that a token was issued by the cluster with that `delegation.token.secret.key`. Its base64 form is
    the password with which clients authenticate (KIP-48)."""
    return hmac.digest(secret.encode(), token_id.encode(), "sha512")


class DelegationToken(NamedTuple):
    """Principals are in text form, `User:alice`; times are milliseconds since the epoch."""

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issue_timestamp: int
    max_timestamp: int
    expiration_timestamp: int

    def is_expired(self, now_ms: int) -> bool:
        """Whether the token is valid no more at that time of day."""
        return self.max_timestamp < now_ms or self.expiration_timestamp < now_ms

    def may_be_renewed_by(self, principal: str) -> bool:
        """Whether a principal may renew the token, or have it expire."""
        return principal == self.owner or principal in self.renewers

    def concerns(self, principal: str) -> bool:
        """Whether a principal owns the token, has requested it, or may renew it."""
        return principal in (self.owner, self.requester) or principal in self.renewers

    @classmethod
    def from_record(cls, record: DelegationTokenRecord) -> DelegationToken:
        return cls(
            token_id=record.token_id,
            owner=record.owner,
            requester=record.requester,
            renewers=tuple(record.renewers),
            issue_timestamp=record.issue_timestamp,
            max_timestamp=record.max_timestamp,
            expiration_timestamp=record.expiration_timestamp,
        )

    def to_record(self) -> DelegationTokenRecord:
        return DelegationTokenRecord(
            owner=self.owner,
            requester=self.requester,
            renewers=list(self.renewers),
            issue_timestamp=self.issue_timestamp,
            max_timestamp=self.max_timestamp,
            expiration_timestamp=self.expiration_timestamp,
            token_id=self.token_id,
        )


class DelegationTokensImage(NamedTuple):
    """Token by id."""

    tokens: Mapping[str, DelegationToken]

    @property
    def is_empty(self) -> bool:
        return not self.tokens

    def write(self, writer: ImageWriter) -> None:
        if self.is_empty:
            return
        if not writer.metadata_version.is_delegation_token_supported:
            writer.lose("delegation tokens")
            return
        for token in self.tokens.values():
            writer.write(token.to_record())


EMPTY = DelegationTokensImage({})


class DelegationTokensDelta:
    """Changed tokens; None for one that was removed."""

    __slots__ = ("changes", "image")

    def __init__(self, image: DelegationTokensImage) -> None:
        self.image = image
        self.changes: dict[str, DelegationToken | None] = {}

    @classmethod
    def of_whole(cls, image: DelegationTokensImage) -> DelegationTokensDelta:
        """From nothing to `image`."""
        delta = cls(EMPTY)
        delta.changes.update(image.tokens)
        return delta

    def replay(self, record: DelegationTokenRecord) -> None:
        self.changes[record.token_id] = DelegationToken.from_record(record)

    def remove(self, record: RemoveDelegationTokenRecord) -> None:
        self.changes[record.token_id] = None

    def finish_snapshot(self) -> None:
        for token_id in self.image.tokens:
            self.changes.setdefault(token_id, None)

    def apply(self) -> DelegationTokensImage:
        merged = {**self.image.tokens, **self.changes}
        return DelegationTokensImage({token_id: token for token_id, token in merged.items() if token is not None})
