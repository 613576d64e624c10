"""What a broker answers from its metadata image: quotas, SCRAM users, access control entries.

DescribeClientQuotas (48), DescribeUserScramCredentials (50).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from kalda.base.background import Steps
from kalda.base.errors import ApiError, ErrorCode
from kalda.broker.handlers.shared import error_on_items, error_on_top
from kalda.broker.metadata_cache import MetadataCache
from kalda.broker.module import Module
from kalda.broker.requests.context import RequestContext
from kalda.broker.requests.rows import Row, message_of, on_cluster
from kalda.metadata.acls import StandardAcl, filter_matcher
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.admin import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeClientQuotasResponseEntityData,
    DescribeClientQuotasResponseEntryData,
    ValueData,
)
from kalda.protocol.messages.security import (
    AclDescription,
    AclOperation,
    CredentialInfo,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)

_EXACT, _DEFAULT, _SPECIFIED = 0, 1, 2
_MATCH_TYPES = {_EXACT: "MATCH_TYPE_EXACT", _DEFAULT: "MATCH_TYPE_DEFAULT", _SPECIFIED: "MATCH_TYPE_SPECIFIED"}
_STEP_ITEMS = 1_000
"""Entities or users that are described in one step."""
_ENTITY_TYPES = ("user", "client-id", "ip")


class DescribeHandlers(Module):
    """Descriptions that this broker makes by itself."""

    def __init__(self, metadata: MetadataCache) -> None:
        self._metadata = metadata

    def rows(self) -> list[Row]:
        """One row an API."""
        return [
            Row(
                ApiKey.DESCRIBE_CLIENT_QUOTAS,
                self.describe_client_quotas,
                describe_client_quotas_failed,
                on_cluster(AclOperation.DESCRIBE_CONFIGS),
                has_large_answer=True,
            ),
            Row(
                ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
                self.describe_user_scram_credentials,
                describe_user_scram_credentials_failed,
                on_cluster(AclOperation.DESCRIBE),
                has_large_answer=True,
            ),
        ]

    # -- DescribeClientQuotas

    def describe_client_quotas(
        self, context: RequestContext, request: DescribeClientQuotasRequest
    ) -> Steps[DescribeClientQuotasResponse]:
        """Quotas of the entities that match every component; with `strict`, and have no other part (KIP-546)."""
        self._check_components(request.components)
        entries = []
        for count, (entity, quotas) in enumerate(self._metadata.image.client_quotas.entities.items(), 1):
            if count % _STEP_ITEMS == 0:
                yield
            parts = dict(entity)
            if _matches(parts, request.components, request.strict):
                entries.append(_quota_entry(parts, quotas))
        return DescribeClientQuotasResponse(entries=entries)

    def _check_components(self, components: Iterable[ComponentData]) -> None:
        seen: set[str] = set()
        for component in components:
            kind, match_type = component.entity_type, component.match_type
            if not kind:
                raise _invalid("Invalid empty entity type.")
            if kind in seen:
                raise _invalid(f"Entity type {kind} cannot appear more than once in the filter.")
            if kind not in _ENTITY_TYPES:
                raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
            seen.add(kind)
            if match_type not in _MATCH_TYPES:
                raise _invalid(f"Unknown match type {match_type}")
            if match_type == _EXACT and component.match is None:
                raise _invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
            if match_type != _EXACT and component.match is not None:
                raise _invalid(f"Request specified {_MATCH_TYPES[match_type]}, but also specified a match string.")
        if "ip" in seen and len(seen) > 1:
            raise _invalid(
                "Invalid entity filter component combination. IP filter component should not be used with user or "
                "clientId filter component."
            )

    # -- DescribeUserScramCredentials

    def describe_user_scram_credentials(
        self, context: RequestContext, request: DescribeUserScramCredentialsRequest
    ) -> Steps[DescribeUserScramCredentialsResponse]:
        """Mechanisms and iterations of some users, or of all; never the keys."""
        scram = self._metadata.image.scram
        named = Counter(user.name for user in request.users or ())
        response = DescribeUserScramCredentialsResponse()
        for count, name in enumerate(named or scram.users(), 1):
            if count % _STEP_ITEMS == 0:
                yield
            result = DescribeUserScramCredentialsResult(user=name)
            response.results.append(result)
            mechanisms = scram.mechanisms_of(name)
            if named[name] > 1:
                result.error_code = ErrorCode.DUPLICATE_RESOURCE
                result.error_message = (
                    f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
                )
            elif not mechanisms:
                result.error_code = ErrorCode.RESOURCE_NOT_FOUND
                result.error_message = f"Attempt to describe a user credential that does not exist: {name}"
            for mechanism in mechanisms:
                credential = scram.get(mechanism, name)
                assert credential is not None
                if not result.error_code:
                    result.credential_infos.append(
                        CredentialInfo(mechanism=mechanism, iterations=credential.iterations)
                    )
        return response


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, message)


def _matches(parts: Mapping[str, str | None], components: Iterable[ComponentData], strict: bool) -> bool:
    wanted = 0
    for component in components:
        wanted += 1
        if component.entity_type not in parts:
            return False
        name = parts[component.entity_type]
        if component.match_type == _EXACT and name != component.match:
            return False
        if component.match_type == _DEFAULT and name is not None:
            return False
    return not strict or len(parts) == wanted


def _quota_entry(parts: Mapping[str, str | None], quotas: Mapping[str, float]) -> DescribeClientQuotasResponseEntryData:
    return DescribeClientQuotasResponseEntryData(
        entity=[
            DescribeClientQuotasResponseEntityData(entity_type=kind, entity_name=name) for kind, name in parts.items()
        ],
        values=[ValueData(key=key, value=value) for key, value in quotas.items()],
    )


# How each API reports that the whole request failed.


def describe_client_quotas_failed(
    request: DescribeClientQuotasRequest, version: int, error: ApiError
) -> DescribeClientQuotasResponse:
    """The error on top, and no list of entries."""
    return DescribeClientQuotasResponse(error_code=error.code, error_message=message_of(error), entries=None)


describe_user_scram_credentials_failed = error_on_items("results", "users", on_top=True)
"""Without the names of the users, as in Apache Kafka."""


_ENTRIES_A_STEP = 2_000
"""Entries that are compared with the filter in one step."""


class AclHandlers(Module):
    """Access control entries: DescribeAcls (29), which every node answers from its own metadata.

    A node without an authorizer answers SECURITY_DISABLED: entries that nothing enforces would be taken for protection.

    The entries of the newest image.
    """

    def __init__(self, acls: Callable[[], Iterable[StandardAcl]]) -> None:
        self._acls = acls

    def rows(self) -> list[Row]:
        """DescribeAcls."""
        return [
            Row(
                ApiKey.DESCRIBE_ACLS,
                self.describe_acls,
                error_on_top,
                on_cluster(AclOperation.DESCRIBE),
                has_large_answer=True,
            )
        ]

    def describe_acls(self, context: RequestContext, request: DescribeAclsRequest) -> Steps[DescribeAclsResponse]:
        """The entries that match the filter, by the resource pattern that they are of."""
        if context.authorizer is None:
            raise ApiError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured on the broker")
        matches = filter_matcher(request)
        resources: dict[tuple[int, str, int], DescribeAclsResource] = {}
        for seen, acl in enumerate(self._acls(), 1):
            if seen % _ENTRIES_A_STEP == 0:
                yield
            if not matches(acl):
                continue
            pattern = (acl.resource_type, acl.resource_name, acl.pattern_type)
            resource = resources.get(pattern)
            if resource is None:
                resource = resources[pattern] = DescribeAclsResource(
                    resource_type=acl.resource_type, resource_name=acl.resource_name, pattern_type=acl.pattern_type
                )
            resource.acls.append(
                AclDescription(
                    principal=acl.principal,
                    host=acl.host,
                    operation=acl.operation,
                    permission_type=acl.permission_type,
                )
            )
        return DescribeAclsResponse(resources=list(resources.values()))


# How each API reports that the whole request failed.
