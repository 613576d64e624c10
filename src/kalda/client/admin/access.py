"""Access rules, SCRAM credentials and delegation tokens (KIP-48)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from kalda.base.errors import ApiError
from kalda.client.admin.acls import Acl, AclFilter
from kalda.clientcore.administration import ANY, Ask, Outcomes, Plan, error_in, error_of, per_item, single
from kalda.protocol.messages.security import (
    AclCreation,
    AlterUserScramCredentialsRequest,
    CreatableRenewers,
    CreateAclsRequest,
    CreateDelegationTokenRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
    DescribeUserScramCredentialsRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    UserName,
)
from kalda.protocol.naming import MAX_ELEMENTS_SENT, pieces


class ScramCredential(NamedTuple):
    """`mechanism`: 1 for SCRAM-SHA-256, 2 for SCRAM-SHA-512."""

    mechanism: int
    iterations: int


class ScramUpsertion(NamedTuple):
    """A credential to set. `salted_password` is PBKDF2 of the password with the salt and the iterations."""

    user: str
    mechanism: int
    iterations: int
    salt: bytes
    salted_password: bytes


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


def describe_acls(acl_filter: AclFilter) -> Plan[list[Acl]]:
    """DescribeAcls."""
    request = DescribeAclsRequest(
        resource_type_filter=acl_filter.resource_type,
        resource_name_filter=acl_filter.resource_name,
        pattern_type_filter=acl_filter.pattern_type,
        principal_filter=acl_filter.principal,
        host_filter=acl_filter.host,
        operation=acl_filter.operation,
        permission_type=acl_filter.permission,
    )
    answer = yield from single(Ask(ANY, request), error_of("ACLs"))
    return sorted(
        Acl(
            resource.resource_type,
            resource.resource_name,
            resource.pattern_type,
            acl.principal,
            acl.host,
            acl.operation,
            acl.permission_type,
        )
        for resource in answer.resources
        for acl in resource.acls
    )


def create_acls(acls: Collection[Acl]) -> Plan[Outcomes[Acl, None]]:
    """CreateAcls."""

    def build(group: list[Acl]) -> CreateAclsRequest:
        return CreateAclsRequest(
            creations=[
                AclCreation(
                    resource_type=acl.resource_type,
                    resource_name=acl.resource_name,
                    resource_pattern_type=acl.pattern_type,
                    principal=acl.principal,
                    host=acl.host,
                    operation=acl.operation,
                    permission_type=acl.permission,
                )
                for acl in group
            ]
        )

    def read(answer: Any, group: list[Acl]) -> Iterator[tuple[Acl, ApiError | None]]:
        for acl, each in zip(group, answer.results, strict=False):
            yield acl, error_in(each, f"ACL of {acl.principal} on {acl.resource_name}")

    return per_item(acls, lambda _: ANY, build, read)


def delete_acls(filters: Collection[AclFilter]) -> Plan[Outcomes[AclFilter, list[Acl]]]:
    """DeleteAcls: the rules that were deleted for each filter."""

    def build(group: list[AclFilter]) -> DeleteAclsRequest:
        return DeleteAclsRequest(
            filters=[
                DeleteAclsFilter(
                    resource_type_filter=each.resource_type,
                    resource_name_filter=each.resource_name,
                    pattern_type_filter=each.pattern_type,
                    principal_filter=each.principal,
                    host_filter=each.host,
                    operation=each.operation,
                    permission_type=each.permission,
                )
                for each in group
            ]
        )

    def read(answer: Any, group: list[AclFilter]) -> Iterator[tuple[AclFilter, list[Acl] | ApiError]]:
        for each, result in zip(group, answer.filter_results, strict=False):
            if (error := error_in(result, "ACLs")) is not None:
                yield each, error
                continue
            yield (
                each,
                [
                    Acl(
                        acl.resource_type,
                        acl.resource_name,
                        acl.pattern_type,
                        acl.principal,
                        acl.host,
                        acl.operation,
                        acl.permission_type,
                    )
                    for acl in result.matching_acls
                    if not acl.error_code
                ],
            )

    return per_item(filters, lambda _: ANY, build, read)


def describe_scram_credentials(users: Collection[str] | None) -> Plan[Outcomes[str, list[ScramCredential]]]:
    """DescribeUserScramCredentials; None: of all users."""
    if users is not None and len(users) > MAX_ELEMENTS_SENT:
        merged: Outcomes[str, list[ScramCredential]] = Outcomes()
        for some in pieces(users):
            merged.update((yield from describe_scram_credentials(some)))
        return merged
    names = None if users is None else [UserName(name=user) for user in users]
    answer = yield from single(Ask(ANY, DescribeUserScramCredentialsRequest(users=names)), error_of("users"))
    outcomes: Outcomes[str, list[ScramCredential]] = Outcomes()
    for each in answer.results:
        outcomes[each.user] = error_in(each, f"user {each.user}") or [
            ScramCredential(one.mechanism, one.iterations) for one in each.credential_infos
        ]
    return outcomes


def alter_scram_credentials(
    upsertions: Collection[ScramUpsertion], deletions: Collection[tuple[str, int]]
) -> Plan[Outcomes[str, None]]:
    """AlterUserScramCredentials, by user."""
    users = [*(each.user for each in upsertions), *(user for user, _ in deletions)]

    def build(group: list[str]) -> AlterUserScramCredentialsRequest:
        return AlterUserScramCredentialsRequest(
            deletions=[ScramCredentialDeletion(name=user, mechanism=m) for user, m in deletions if user in group],
            upsertions=[
                ScramCredentialUpsertion(
                    name=each.user,
                    mechanism=each.mechanism,
                    iterations=each.iterations,
                    salt=each.salt,
                    salted_password=each.salted_password,
                )
                for each in upsertions
                if each.user in group
            ],
        )

    def read(answer: Any, _: list[str]) -> Iterator[tuple[str, ApiError | None]]:
        for each in answer.results:
            yield each.user, error_in(each, f"user {each.user}")

    return per_item(users, lambda _: ANY, build, read)


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


_error = error_of("delegation token")
