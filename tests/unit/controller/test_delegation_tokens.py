"""Delegation tokens: who may create, renew and expire them, and when they end (KIP-48, KIP-373)."""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

import pytest

from kalda.base.errors import ErrorCode
from kalda.controller.credentials import DelegationTokenControl, TokenConfig, TokenRequest
from kalda.metadata.features import LATEST_PRODUCTION
from kalda.protocol.access import Caller
from kalda.protocol.messages.metadata_records import DelegationTokenRecord
from kalda.protocol.messages.security import (
    AclOperation,
    AclResourceType,
    CreatableRenewers,
    CreateDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from kalda.statemachine.timeline import SnapshotRegistry

HOUR_MS = 3_600_000


class Refusing:
    """An authorizer that denies everything."""

    version = 0

    def allows(self, caller: Caller, operation: AclOperation, resource: AclResourceType, *_: Any) -> bool:
        return False


class World:
    """Tokens of a controller, and the time of day."""

    def __init__(self, secret: str | None = "secret") -> None:
        self.now_ms = 1_000_000
        config = TokenConfig(secret, max_lifetime_ms=10 * HOUR_MS, renewal_ms=2 * HOUR_MS)
        ids = (number.to_bytes(16, "big") for number in range(1, 99))
        self.control = DelegationTokenControl(SnapshotRegistry(), config, lambda: next(ids), lambda: self.now_ms)

    def ask(self, request: TokenRequest, principal: str = "User:alice", **caller: Any) -> Any:
        """The response; its records are replayed."""
        result = self.control.handle(request, Caller(3, principal=principal, **caller), LATEST_PRODUCTION)
        self.replay(result.records)
        return result.response

    def replay(self, records: Any) -> None:
        for versioned in records:
            if isinstance(versioned.record, DelegationTokenRecord):
                self.control.replay(versioned.record)
            else:
                self.control.replay_removal(versioned.record)

    def token(self, *renewers: str, **fields: Any) -> Any:
        asked = [CreatableRenewers(principal_type="User", principal_name=each) for each in renewers]
        return self.ask(CreateDelegationTokenRequest(renewers=asked, **fields))


def test_a_token_has_an_hmac_and_two_ends() -> None:
    world = World()
    token = world.token("bob", max_lifetime_ms=HOUR_MS)
    assert (token.error_code, token.principal_name, token.token_requester_principal_name) == (0, "alice", "alice")
    assert (token.expiry_timestamp_ms, token.max_timestamp_ms) == (world.now_ms + HOUR_MS, world.now_ms + HOUR_MS)
    assert token.hmac == hmac.new(b"secret", token.token_id.encode(), hashlib.sha512).digest()
    longer = world.token(max_lifetime_ms=-1)
    assert longer.expiry_timestamp_ms == world.now_ms + 2 * HOUR_MS
    assert longer.max_timestamp_ms == world.now_ms + 10 * HOUR_MS


def test_owner_and_renewers_renew_until_the_end_of_its_life() -> None:
    world = World()
    token = world.token("bob")
    world.now_ms += HOUR_MS
    renew = RenewDelegationTokenRequest(hmac=token.hmac, renew_period_ms=-1)
    assert world.ask(renew, "User:bob").expiry_timestamp_ms == world.now_ms + 2 * HOUR_MS
    assert world.ask(renew, "User:eve").error_code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    while world.now_ms < token.max_timestamp_ms:
        assert world.ask(renew).error_code == 0
        world.now_ms += HOUR_MS
    world.now_ms = token.max_timestamp_ms + 1
    assert world.ask(renew).error_code == ErrorCode.DELEGATION_TOKEN_EXPIRED
    records, more = world.control.remove_expired()
    world.replay(records)
    assert (more, len(world.control.tokens)) == (False, 0)
    assert world.ask(renew).error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def test_expiry_at_once_and_later() -> None:
    world = World()
    token = world.token("bob")
    later = ExpireDelegationTokenRequest(hmac=token.hmac, expiry_time_period_ms=5)
    assert world.ask(later, "User:eve").error_code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    assert world.ask(later, "User:bob").expiry_timestamp_ms == world.now_ms + 5
    world.now_ms += 6
    assert world.ask(later).error_code == ErrorCode.DELEGATION_TOKEN_EXPIRED
    assert world.ask(ExpireDelegationTokenRequest(hmac=token.hmac, expiry_time_period_ms=-1)).error_code == 0
    assert len(world.control.tokens) == 0
    assert world.ask(later).error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def test_refusals() -> None:
    world = World()
    of_bob = CreateDelegationTokenRequest(owner_principal_type="User", owner_principal_name="bob")
    refused = world.ask(of_bob, authorizer=Refusing())
    assert refused.error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    created = world.ask(of_bob)
    assert (created.principal_name, created.token_requester_principal_name) == ("bob", "alice")
    renewers = [CreatableRenewers(principal_type="Group", principal_name="ops")]
    answer = world.ask(CreateDelegationTokenRequest(renewers=renewers))
    assert answer.error_code == ErrorCode.INVALID_PRINCIPAL_TYPE


@pytest.mark.parametrize("request_class", [CreateDelegationTokenRequest, RenewDelegationTokenRequest])
def test_without_a_secret_there_are_no_tokens(request_class: Any) -> None:
    assert World(None).ask(request_class()).error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED


def test_the_secret_is_in_no_representation() -> None:
    assert "planted" not in repr(TokenConfig("planted"))
