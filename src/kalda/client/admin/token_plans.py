"""Plans about delegation tokens (KIP-48): create, describe, renew, expire."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from kalda.base.errors import ApiError
from kalda.client.core.administration import ANY, Ask, Plan, single
from kalda.client.core.errors import refused
from kalda.protocol.messages.security import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)


class Token(NamedTuple):
    """A delegation token. Principals are `User:alice`, times milliseconds since 1970."""

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_ms: int
    expires_ms: int
    max_ms: int
    hmac: bytes
    """The secret: whoever has it can log in as the owner."""

    def __repr__(self) -> str:
        return f"Token({self.token_id!r}, owner={self.owner!r}, expires_ms={self.expires_ms})"


def create_token(*, owner: str | None, renewers: Collection[str], max_lifetime_ms: int) -> Plan[Token]:
    """CreateDelegationToken, for the caller where `owner` is None."""
    kind, name = (None, None) if owner is None else _parts(owner)
    request = CreateDelegationTokenRequest(
        owner_principal_type=kind,
        owner_principal_name=name,
        renewers=[CreatableRenewers(principal_type=k, principal_name=n) for k, n in map(_parts, renewers)],
        max_lifetime_ms=max_lifetime_ms,
    )
    answer = yield from single(Ask(ANY, request), _error)
    return Token(
        answer.token_id,
        f"{answer.principal_type}:{answer.principal_name}",
        f"{answer.token_requester_principal_type}:{answer.token_requester_principal_name}",
        tuple(renewers),
        answer.issue_timestamp_ms,
        answer.expiry_timestamp_ms,
        answer.max_timestamp_ms,
        bytes(answer.hmac),
    )


def describe_tokens(owners: Collection[str]) -> Plan[list[Token]]:
    """DescribeDelegationToken: the tokens of some owners, or with none, all that the caller may see."""
    asked = [DescribeDelegationTokenOwner(principal_type=k, principal_name=n) for k, n in map(_parts, owners)]
    answer = yield from single(Ask(ANY, DescribeDelegationTokenRequest(owners=asked or None)), _error)
    return [
        Token(
            each.token_id,
            f"{each.principal_type}:{each.principal_name}",
            f"{each.token_requester_principal_type}:{each.token_requester_principal_name}",
            tuple(f"{one.principal_type}:{one.principal_name}" for one in each.renewers),
            each.issue_timestamp,
            each.expiry_timestamp,
            each.max_timestamp,
            bytes(each.hmac),
        )
        for each in answer.tokens
    ]


def renew_token(hmac: bytes, period_ms: int) -> Plan[int]:
    """RenewDelegationToken: when the token expires now. A negative period stands for the brokers' own."""
    answer = yield from single(Ask(ANY, RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=period_ms)), _error)
    return int(answer.expiry_timestamp_ms)


def expire_token(hmac: bytes, period_ms: int) -> Plan[int]:
    """ExpireDelegationToken: when the token expires now. With a negative period it is removed at once."""
    request = ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=period_ms)
    answer = yield from single(Ask(ANY, request), _error)
    return int(answer.expiry_timestamp_ms)


def _parts(principal: str) -> tuple[str, str]:
    kind, _, name = principal.partition(":")
    return kind, name


def _error(answer: Any) -> ApiError | None:
    return refused(answer.error_code, "delegation token") if answer.error_code else None
