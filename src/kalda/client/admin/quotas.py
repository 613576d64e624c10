"""Client quotas: describe and alter (KIP-546)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from kalda.client.cluster import ClusterClient
from kalda.client.core.errors import refused
from kalda.protocol.messages.admin import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    ComponentData,
    DescribeClientQuotasRequest,
    OpData,
)


class Match(IntEnum):
    """How a filter matches the names of one type of entity."""

    EXACT = 0
    DEFAULT = 1
    ANY = 2


class Filter(NamedTuple):
    """A condition on one type of entity: `user`, `client-id` or `ip`."""

    entity_type: str
    match: Match = Match.ANY
    name: str | None = None


class EntityQuotas(NamedTuple):
    """The quotas of one entity."""

    entity: dict[str, str | None]
    """Names by type; None is the default of the type."""
    quotas: dict[str, float]


def describe_quotas(
    cluster: ClusterClient, filters: Sequence[Filter] = (), *, strict: bool = False
) -> list[EntityQuotas]:
    """The entities that match every filter, and with `strict` have no other type. Raises `ApiError`."""
    request = DescribeClientQuotasRequest(
        components=[
            ComponentData(entity_type=each.entity_type, match_type=each.match, match=each.name) for each in filters
        ],
        strict=strict,
    )
    answer = cluster.any_broker(request)
    if answer.error_code:
        raise refused(answer.error_code, "quotas", answer.error_message)
    found = [
        EntityQuotas(
            {part.entity_type: part.entity_name for part in entry.entity},
            {each.key: each.value for each in entry.values},
        )
        for entry in answer.entries or ()
    ]
    return sorted(found, key=lambda each: repr(sorted(each.entity.items(), key=repr)))


def alter_quotas(
    cluster: ClusterClient,
    entity: Mapping[str, str | None],
    changes: Mapping[str, float | None],
    *,
    validate_only: bool = False,
) -> None:
    """Set quotas of an entity; None removes one. Raises `ApiError`."""
    request = AlterClientQuotasRequest(
        entries=[
            AlterClientQuotasRequestEntryData(
                entity=[
                    AlterClientQuotasRequestEntityData(entity_type=kind, entity_name=name)
                    for kind, name in entity.items()
                ],
                ops=[
                    OpData(key=key, value=0.0 if value is None else value, remove=value is None)
                    for key, value in changes.items()
                ],
            )
        ],
        validate_only=validate_only,
    )

    def check(answer: Any) -> None:
        for entry in answer.entries:
            if entry.error_code:
                raise refused(entry.error_code, "quota", entry.error_message)

    cluster.any_broker(request, check=check)
