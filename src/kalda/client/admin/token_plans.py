"""Plans about delegation tokens, and the requests and answers that the command-line tools share with them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from kalda.base.errors import ApiError
from kalda.client.core.administration import ANY, Ask, Plan, single
from kalda.client.errors import refused
from kalda.protocol.messages import security as messages


class Token(NamedTuple):
    """A delegation token (KIP-48). Principals are `User:alice`, times milliseconds since 1970."""

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


def create_delegation_token(owner: str | None, renewers: Collection[str], max_lifetime_ms: int) -> Plan[Token]:
    """CreateDelegationToken."""
    answer = yield from single(Ask(ANY, creation(owner, renewers, max_lifetime_ms)), error_of)
    return created(answer, renewers)


def describe_delegation_tokens(owners: Collection[str] | None) -> Plan[list[Token]]:
    """DescribeDelegationToken."""
    answer = yield from single(Ask(ANY, description(owners)), error_of)
    return described(answer)


def renew_delegation_token(hmac: bytes, period_ms: int) -> Plan[int]:
    """RenewDelegationToken."""
    request = messages.RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=period_ms)
    answer = yield from single(Ask(ANY, request), error_of)
    return int(answer.expiry_timestamp_ms)


def expire_delegation_token(hmac: bytes, period_ms: int) -> Plan[int]:
    """ExpireDelegationToken."""
    request = messages.ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=period_ms)
    answer = yield from single(Ask(ANY, request), error_of)
    return int(answer.expiry_timestamp_ms)


# -- requests and answers


def error_of(answer: Any) -> ApiError | None:
    """The error of any of these answers."""
    return refused(answer.error_code, "delegation token") if answer.error_code else None


def creation(
    owner: str | None, renewers: Collection[str], max_lifetime_ms: int
) -> messages.CreateDelegationTokenRequest:
    """For a token of the caller, or of `owner`."""
    kind, name = _principal(owner) if owner is not None else (None, None)
    return messages.CreateDelegationTokenRequest(
        owner_principal_type=kind,
        owner_principal_name=name,
        renewers=[
            messages.CreatableRenewers(principal_type=_principal(each)[0], principal_name=_principal(each)[1])
            for each in renewers
        ],
        max_lifetime_ms=max_lifetime_ms,
    )


def created(answer: Any, renewers: Collection[str]) -> Token:
    """The new token."""
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


def description(owners: Collection[str] | None) -> messages.DescribeDelegationTokenRequest:
    """For the tokens of some owners; None: for all that the caller may see."""
    if owners is None:
        return messages.DescribeDelegationTokenRequest(owners=None)
    asked = [
        messages.DescribeDelegationTokenOwner(principal_type=_principal(each)[0], principal_name=_principal(each)[1])
        for each in owners
    ]
    return messages.DescribeDelegationTokenRequest(owners=asked)


def described(answer: Any) -> list[Token]:
    """The tokens of an answer."""
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


def _principal(text: str) -> tuple[str, str]:
    kind, _, name = text.partition(":")
    return kind, name
