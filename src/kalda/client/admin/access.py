"""Access control entries, SCRAM credentials and delegation tokens: describe and change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kalda.client.admin import token_plans
from kalda.client.admin.acls import Acl, AclFilter
from kalda.client.cluster import ClusterClient
from kalda.client.core.errors import refused
from kalda.protocol.messages import security as messages


def _filter(acl_filter: AclFilter) -> dict[str, Any]:
    """The fields of a filter in requests."""
    return {
        "resource_type_filter": acl_filter.resource_type,
        "resource_name_filter": acl_filter.resource_name,
        "pattern_type_filter": acl_filter.pattern_type,
        "principal_filter": acl_filter.principal,
        "host_filter": acl_filter.host,
        "operation": acl_filter.operation,
        "permission_type": acl_filter.permission,
    }


def _creation(acl: Acl) -> messages.AclCreation:
    return messages.AclCreation(
        resource_type=acl.resource_type,
        resource_name=acl.resource_name,
        resource_pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


def describe_acls(cluster: ClusterClient, acl_filter: AclFilter) -> list[Acl]:
    """The entries that match. Raises `ApiError`."""
    answer = cluster.any_broker(messages.DescribeAclsRequest(**_filter(acl_filter)))
    if answer.error_code:
        raise refused(answer.error_code, "ACLs", answer.error_message)
    return [
        Acl(
            resource.resource_type,
            resource.resource_name,
            resource.pattern_type,
            each.principal,
            each.host,
            each.operation,
            each.permission_type,
        )
        for resource in answer.resources
        for each in resource.acls
    ]


def create_acls(cluster: ClusterClient, acls: Sequence[Acl]) -> None:
    """Create entries; one that exists already is left. Raises `ApiError`."""
    answer = cluster.any_broker(messages.CreateAclsRequest(creations=[_creation(acl) for acl in acls]))
    for acl, result in zip(acls, answer.results, strict=True):
        if result.error_code:
            raise refused(result.error_code, f"ACL of {acl.principal} on {acl.resource_name}", result.error_message)


def delete_acls(cluster: ClusterClient, filters: Sequence[AclFilter]) -> list[Acl]:
    """Delete the entries that match any of the filters, and return them. Raises `ApiError`."""
    asked = [messages.DeleteAclsFilter(**_filter(each)) for each in filters]
    answer = cluster.any_broker(messages.DeleteAclsRequest(filters=asked))
    deleted: dict[Acl, None] = {}
    for result in answer.filter_results:
        if result.error_code:
            raise refused(result.error_code, "ACLs", result.error_message)
        for each in result.matching_acls:
            deleted[
                Acl(
                    each.resource_type,
                    each.resource_name,
                    each.pattern_type,
                    each.principal,
                    each.host,
                    each.operation,
                    each.permission_type,
                )
            ] = None
    return list(deleted)


def describe_users(cluster: ClusterClient, users: Sequence[str] = ()) -> dict[str, dict[int, int]]:
    """Iterations by mechanism (1: SCRAM-SHA-256, 2: SCRAM-SHA-512) of each user, or of all. Raises `ApiError`."""
    asked = [messages.UserName(name=name) for name in users]
    answer = cluster.any_broker(messages.DescribeUserScramCredentialsRequest(users=asked))
    if answer.error_code:
        raise refused(answer.error_code, "users", answer.error_message)
    found: dict[str, dict[int, int]] = {}
    for result in answer.results:
        if result.error_code:
            raise refused(result.error_code, f"user {result.user}", result.error_message)
        found[result.user] = {each.mechanism: each.iterations for each in result.credential_infos}
    return found


def alter_users(
    cluster: ClusterClient,
    upsertions: Sequence[messages.ScramCredentialUpsertion] = (),
    deletions: Sequence[messages.ScramCredentialDeletion] = (),
) -> None:
    """Set and delete SCRAM credentials. Raises `ApiError`."""
    request = messages.AlterUserScramCredentialsRequest(deletions=list(deletions), upsertions=list(upsertions))
    for result in cluster.any_broker(request).results:
        if result.error_code:
            raise refused(result.error_code, f"user {result.user}", result.error_message)


def create_token(
    cluster: ClusterClient, *, owner: str | None = None, renewers: Sequence[str] = (), max_lifetime_ms: int = -1
) -> token_plans.Token:
    """A token of the caller, or of `owner`. Raises `ApiError`."""
    plan = token_plans.create_token(owner=owner, renewers=renewers, max_lifetime_ms=max_lifetime_ms)
    return cluster.run("creating a delegation token", plan)


def describe_tokens(cluster: ClusterClient, owners: Sequence[str] = ()) -> list[token_plans.Token]:
    """The tokens of some owners, or all that the caller may see. Raises `ApiError`."""
    return cluster.run("describing delegation tokens", token_plans.describe_tokens(owners))


def renew_token(cluster: ClusterClient, hmac: bytes, period_ms: int = -1) -> int:
    """When the token expires now; a negative period stands for the broker's own. Raises `ApiError`."""
    return cluster.run("renewing a delegation token", token_plans.renew_token(hmac, period_ms))


def expire_token(cluster: ClusterClient, hmac: bytes, period_ms: int = -1) -> int:
    """When the token expires now; with a negative period it is removed at once. Raises `ApiError`."""
    return cluster.run("expiring a delegation token", token_plans.expire_token(hmac, period_ms))
