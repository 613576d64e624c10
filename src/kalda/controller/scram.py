"""SCRAM credentials (KIP-554, KIP-900), derived from the salted passwords that clients send."""

from __future__ import annotations

import hashlib
import hmac
import logging

from kalda.base.background import ITEMS_A_STEP, Steps
from kalda.base.errors import ApiError, ErrorCode
from kalda.controller.answers import check_batch_size
from kalda.metadata.features import MetadataVersion
from kalda.metadata.scram import ScramKey, ScramMechanism, StoredScramCredential
from kalda.protocol.messages.metadata_records import RemoveUserScramCredentialRecord, UserScramCredentialRecord
from kalda.protocol.messages.security import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from kalda.protocol.record_framing import VersionedRecord
from kalda.statemachine.runtime import Result
from kalda.statemachine.timeline import SnapshotRegistry, TimelineDict

log = logging.getLogger("kalda.controller.scram")

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
