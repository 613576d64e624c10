"""SCRAM credentials and delegation tokens (KIP-48, KIP-554, KIP-900), as the active controller keeps them.

SCRAM credentials (KIP-554, KIP-900), derived from the salted passwords that clients send.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, assert_never

from kalda.base.background import ITEMS_A_STEP, Steps
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import UuidSource, uuid_to_text
from kalda.base.texts import printable
from kalda.controller.answers import MAX_RECORDS_PER_USER_OPERATION, check_batch_size
from kalda.metadata.delegation_tokens import DelegationToken, token_hmac
from kalda.metadata.features import MetadataVersion
from kalda.metadata.scram import ScramKey, ScramMechanism, StoredScramCredential
from kalda.protocol.access import CREATE_TOKENS, Caller
from kalda.protocol.messages.metadata_records import (
    DelegationTokenRecord,
    RemoveDelegationTokenRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)
from kalda.protocol.messages.security import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from kalda.protocol.record_framing import VersionedRecord
from kalda.statemachine.runtime import Result
from kalda.statemachine.timeline import SnapshotRegistry, TimelineDict

log = logging.getLogger("kalda.controller.credentials")
tokens_log = logging.getLogger("kalda.controller.tokens")

Alteration = ScramCredentialDeletion | ScramCredentialUpsertion


class ScramControl:
    """Credentials by mechanism and user."""

    def __init__(self, registry: SnapshotRegistry) -> None:
        self.credentials: TimelineDict[ScramKey, StoredScramCredential] = TimelineDict(registry)

    def alter(
        self, request: AlterUserScramCredentialsRequest, metadata_version: MetadataVersion
    ) -> Steps[Result[VersionedRecord, AlterUserScramCredentialsResponse]]:
        """Alter the credentials of users. A user that the request has twice, even for two mechanisms, is refused."""
        check_batch_size(len(request.deletions) + len(request.upsertions))
        outcome: dict[str, ApiError | None] = {}
        accepted: dict[str, Alteration] = {}
        alterations: list[Alteration] = [*request.deletions, *request.upsertions]
        for number, alteration in enumerate(alterations, 1):
            if number % ITEMS_A_STEP == 0:
                yield
            user = alteration.name
            if user in accepted:
                del accepted[user]
                outcome[user] = ApiError(
                    ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request"
                )
                continue
            if outcome.get(user) is not None:
                continue
            outcome[user] = self._refusal(alteration, metadata_version)
            if outcome[user] is None:
                accepted[user] = alteration
        records: list[VersionedRecord] = []
        for alteration in accepted.values():
            records.append(VersionedRecord(_record_of(alteration), 0))
            if len(records) % ITEMS_A_STEP == 0:
                yield
        results = [
            AlterUserScramCredentialsResult(
                user=user,
                error_code=ErrorCode.NONE if error is None else error.code,
                error_message=None if error is None else error.message,
            )
            for user, error in outcome.items()
        ]
        return Result(records, AlterUserScramCredentialsResponse(results=results), atomic=True)

    def replay_credential(self, record: UserScramCredentialRecord) -> None:
        key = (record.mechanism, record.name)
        # Kafka's text: the test suites of other clients wait for it.
        log.info(
            "Replayed UserScramCredentialRecord %s entry for %s with mechanism %s.",
            "updating" if key in self.credentials else "creating new",
            record.name,
            ScramMechanism(record.mechanism).name,
        )
        self.credentials[key] = StoredScramCredential(
            bytes(record.salt), bytes(record.stored_key), bytes(record.server_key), record.iterations
        )

    def replay_removal(self, record: RemoveUserScramCredentialRecord) -> None:
        del self.credentials[record.mechanism, record.name]

    def _refusal(self, alteration: Alteration, metadata_version: MetadataVersion) -> ApiError | None:
        if not metadata_version.is_scram_supported:
            return ApiError(ErrorCode.UNSUPPORTED_VERSION, "The current metadata version does not support SCRAM")
        if not alteration.name:
            return ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
        if alteration.mechanism not in ScramMechanism.__members__.values():
            return ApiError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
        mechanism = ScramMechanism(alteration.mechanism)
        if isinstance(alteration, ScramCredentialDeletion):
            if (alteration.mechanism, alteration.name) in self.credentials:
                return None
            return ApiError(ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
        if alteration.iterations < mechanism.min_iterations:
            return ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
        if alteration.iterations > mechanism.max_iterations:
            return ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
        return None


def _record_of(alteration: Alteration) -> RemoveUserScramCredentialRecord | UserScramCredentialRecord:
    if isinstance(alteration, ScramCredentialDeletion):
        return RemoveUserScramCredentialRecord(name=alteration.name, mechanism=alteration.mechanism)
    digest = ScramMechanism(alteration.mechanism).digest
    salted_password = bytes(alteration.salted_password)
    client_key = hmac.digest(salted_password, b"Client Key", digest)
    return UserScramCredentialRecord(
        name=alteration.name,
        mechanism=alteration.mechanism,
        salt=bytes(alteration.salt),
        stored_key=hashlib.new(digest, client_key).digest(),
        server_key=hmac.digest(salted_password, b"Server Key", digest),
        iterations=alteration.iterations,
    )


_NO_TIME = -1
_FIRST_WITH_REQUESTER = 3
_MAX_TIME = 2**63 - 1
_USER = "User"


TokenRequest: TypeAlias = CreateDelegationTokenRequest | RenewDelegationTokenRequest | ExpireDelegationTokenRequest
EVENTS: Mapping[type[TokenRequest], str] = {
    CreateDelegationTokenRequest: "createDelegationToken",
    RenewDelegationTokenRequest: "renewDelegationToken",
    ExpireDelegationTokenRequest: "expireDelegationToken",
}
"""The events of requests, by their names in Apache Kafka."""


@dataclass(frozen=True, slots=True)
class TokenConfig:
    """The keys `delegation.token.*`."""

    secret: str | None = field(default=None, repr=False)
    """`secret.key`; None: there are no tokens."""
    max_lifetime_ms: int = 604_800_000
    renewal_ms: int = 86_400_000
    """`expiry.time.ms`"""
    expiry_check_interval_ms: int = 3_600_000


class DelegationTokenControl:
    """Delegation tokens (KIP-48, KIP-900): created, renewed, expired and removed here.

    A token has an id, which the metadata log has, and an HMAC of it, which only those have that know
    `delegation.token.secret.key`. Requests name a token by its HMAC. Where the key is not set, there are no tokens.

    Tokens by id.
    """

    def __init__(
        self, registry: SnapshotRegistry, config: TokenConfig, new_id: UuidSource, wall_ms: Callable[[], int]
    ) -> None:
        """`wall_ms()` is the time of day."""
        self._secret = config.secret
        self._max_lifetime_ms = config.max_lifetime_ms
        self._renewal_ms = config.renewal_ms
        self._new_id = new_id
        self._wall_ms = wall_ms
        self.tokens: TimelineDict[str, DelegationToken] = TimelineDict(registry)
        self._ids: TimelineDict[bytes, str] = TimelineDict(registry)
        """Id by HMAC; empty without a secret."""

    def handle(
        self, request: TokenRequest, caller: Caller, metadata_version: MetadataVersion
    ) -> Result[VersionedRecord, Any]:
        """The records and the response of one request."""
        match request:
            case CreateDelegationTokenRequest():
                return self.create(request, caller, metadata_version)
            case RenewDelegationTokenRequest():
                return self.renew(request, caller, metadata_version)
            case ExpireDelegationTokenRequest():
                return self.expire(request, caller, metadata_version)
            case _:
                assert_never(request)

    def create(
        self, request: CreateDelegationTokenRequest, caller: Caller, metadata_version: MetadataVersion
    ) -> Result[VersionedRecord, CreateDelegationTokenResponse]:
        """A token of the caller, or with the right CREATE_TOKENS of another owner (KIP-373)."""
        owner = caller.principal
        if request.owner_principal_name:
            owner = f"{request.owner_principal_type}:{request.owner_principal_name}"
        refused = self._refusal(caller, metadata_version)
        if refused is ErrorCode.NONE and owner != caller.principal and not CREATE_TOKENS.holds(caller, owner):
            refused = ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
        if refused is ErrorCode.NONE and any(each.principal_type != _USER for each in request.renewers):
            refused = ErrorCode.INVALID_PRINCIPAL_TYPE
        response = created(owner, caller.principal, refused, caller.api_version)
        if refused is not ErrorCode.NONE or self._secret is None:
            return Result([], response)
        now_ms = self._wall_ms()
        lifetime_ms = self._max_lifetime_ms
        if request.max_lifetime_ms > 0:
            lifetime_ms = min(lifetime_ms, request.max_lifetime_ms)
        token = DelegationToken(
            token_id=uuid_to_text(self._new_id()),
            owner=owner,
            requester=caller.principal,
            renewers=tuple(f"{each.principal_type}:{each.principal_name}" for each in request.renewers),
            issue_timestamp=now_ms,
            max_timestamp=_later(now_ms, lifetime_ms),
            expiration_timestamp=min(_later(now_ms, lifetime_ms), _later(now_ms, self._renewal_ms)),
        )
        response.issue_timestamp_ms = token.issue_timestamp
        response.expiry_timestamp_ms = token.expiration_timestamp
        response.max_timestamp_ms = token.max_timestamp
        response.token_id = token.token_id
        response.hmac = token_hmac(self._secret, token.token_id)
        return Result([VersionedRecord(token.to_record(), 0)], response, atomic=True)

    def renew(
        self, request: RenewDelegationTokenRequest, caller: Caller, metadata_version: MetadataVersion
    ) -> Result[VersionedRecord, RenewDelegationTokenResponse]:
        """Move the expiry of a token on, at most to the end of its life."""
        token, refused = self._find(request.hmac, caller, metadata_version)
        now_ms = self._wall_ms()
        if token is not None and token.is_expired(now_ms):
            refused = ErrorCode.DELEGATION_TOKEN_EXPIRED
        elif token is not None and not token.may_be_renewed_by(caller.principal):
            refused = ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
        if token is None or refused is not ErrorCode.NONE:
            return Result([], RenewDelegationTokenResponse(error_code=refused))
        period_ms = self._renewal_ms
        if request.renew_period_ms > 0:
            period_ms = min(period_ms, request.renew_period_ms)
        expiry_ms = min(token.max_timestamp, _later(now_ms, period_ms))
        record = token._replace(expiration_timestamp=expiry_ms).to_record()
        response = RenewDelegationTokenResponse(expiry_timestamp_ms=expiry_ms)
        return Result([VersionedRecord(record, 0)], response, atomic=True)

    def expire(
        self, request: ExpireDelegationTokenRequest, caller: Caller, metadata_version: MetadataVersion
    ) -> Result[VersionedRecord, ExpireDelegationTokenResponse]:
        """Set when a token expires; with a negative period it is removed at once."""
        token, refused = self._find(request.hmac, caller, metadata_version)
        now_ms, period_ms = self._wall_ms(), request.expiry_time_period_ms
        if token is not None and not token.may_be_renewed_by(caller.principal):
            refused = ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
        elif token is not None and period_ms >= 0 and token.is_expired(now_ms):
            refused = ErrorCode.DELEGATION_TOKEN_EXPIRED
        if token is None or refused is not ErrorCode.NONE:
            return Result([], ExpireDelegationTokenResponse(error_code=refused))
        record: RemoveDelegationTokenRecord | DelegationTokenRecord
        if period_ms < 0:
            expiry_ms = now_ms
            record = RemoveDelegationTokenRecord(token_id=token.token_id)
        else:
            expiry_ms = min(token.max_timestamp, _later(now_ms, period_ms))
            record = token._replace(expiration_timestamp=expiry_ms).to_record()
        response = ExpireDelegationTokenResponse(expiry_timestamp_ms=expiry_ms)
        return Result([VersionedRecord(record, 0)], response, atomic=True)

    def remove_expired(self) -> tuple[list[VersionedRecord], bool]:
        """The records that remove expired tokens, and whether there are more."""
        now_ms = self._wall_ms()
        expired = [token for token in self.tokens.values() if token.is_expired(now_ms)]
        for token in expired[:MAX_RECORDS_PER_USER_OPERATION]:
            tokens_log.info(
                "Delegation token expired for token: %s for owner: %s",
                printable(token.token_id),
                printable(token.owner),
            )
        removed = [
            VersionedRecord(RemoveDelegationTokenRecord(token_id=token.token_id), 0)
            for token in expired[:MAX_RECORDS_PER_USER_OPERATION]
        ]
        return removed, len(expired) > len(removed)

    def replay(self, record: DelegationTokenRecord) -> None:
        self.tokens[record.token_id] = DelegationToken.from_record(record)
        if self._secret is not None:
            self._ids[token_hmac(self._secret, record.token_id)] = record.token_id

    def replay_removal(self, record: RemoveDelegationTokenRecord) -> None:
        self.tokens.pop(record.token_id, None)
        if self._secret is not None:
            self._ids.pop(token_hmac(self._secret, record.token_id), None)

    def _refusal(self, caller: Caller, metadata_version: MetadataVersion) -> ErrorCode:
        if not caller.may_request_tokens:
            return ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        if self._secret is None:
            return ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
        if not metadata_version.is_delegation_token_supported:
            return ErrorCode.UNSUPPORTED_VERSION
        return ErrorCode.NONE

    def _find(
        self, hmac: bytes | bytearray | memoryview, caller: Caller, metadata_version: MetadataVersion
    ) -> tuple[DelegationToken | None, ErrorCode]:
        """The token, or why there is none."""
        refused = self._refusal(caller, metadata_version)
        if refused is not ErrorCode.NONE:
            return None, refused
        token_id = self._ids.get(bytes(hmac))
        if token_id is None:
            return None, ErrorCode.DELEGATION_TOKEN_NOT_FOUND
        return self.tokens[token_id], ErrorCode.NONE


def created(owner: str, requester: str, refused: ErrorCode, version: int) -> CreateDelegationTokenResponse:
    """The response to a creation before it has a token, or without one."""
    owner_type, _, owner_name = owner.partition(":")
    requester_type, _, requester_name = requester.partition(":")
    response = CreateDelegationTokenResponse(error_code=refused, principal_type=owner_type, principal_name=owner_name)
    if version >= _FIRST_WITH_REQUESTER:
        response.token_requester_principal_type = requester_type
        response.token_requester_principal_name = requester_name
    if refused is not ErrorCode.NONE:
        response.issue_timestamp_ms = response.expiry_timestamp_ms = response.max_timestamp_ms = _NO_TIME
    return response


def _later(now_ms: int, duration_ms: int) -> int:
    return min(_MAX_TIME, now_ms + duration_ms)
