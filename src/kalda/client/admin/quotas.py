"""Quotas of users, client ids and addresses (KIP-546)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kalda.base.errors import ApiError
from kalda.clientcore.administration import ANY, Ask, Outcomes, Plan, error_of, per_item, single
from kalda.clientcore.connections.errors import refused
from kalda.protocol.messages.admin import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    ComponentData,
    DescribeClientQuotasRequest,
    OpData,
)

QuotaEntity = tuple[tuple[str, str | None], ...]
"""Pairs of a type (`user`, `client-id`, `ip`) and a name, None for the default; sorted by type."""


def describe_client_quotas(
    components: Mapping[str, str | bool | None], *, strict: bool
) -> Plan[dict[QuotaEntity, dict[str, float]]]:
    """DescribeClientQuotas. A component's match is a name, None for the default, or True for any name."""
    data = [
        ComponentData(entity_type=kind, match_type=2)
        if match is True
        else ComponentData(entity_type=kind, match_type=1, match=None)
        if not isinstance(match, str)
        else ComponentData(entity_type=kind, match_type=0, match=match)
        for kind, match in components.items()
    ]
    for each in data:
        each.match = each.match if each.match_type == 0 else None
    request = DescribeClientQuotasRequest(components=data, strict=strict)
    answer = yield from single(Ask(ANY, request), error_of("quotas"))
    return {
        tuple(sorted((part.entity_type, part.entity_name) for part in entry.entity)): {
            value.key: value.value for value in entry.values
        }
        for entry in answer.entries or ()
    }


def alter_client_quotas(
    quotas: Mapping[QuotaEntity, Mapping[str, float | None]], *, validate_only: bool
) -> Plan[Outcomes[QuotaEntity, None]]:
    """AlterClientQuotas; a value of None removes the quota."""

    def build(entities: list[QuotaEntity]) -> AlterClientQuotasRequest:
        return AlterClientQuotasRequest(
            entries=[
                AlterClientQuotasRequestEntryData(
                    entity=[AlterClientQuotasRequestEntityData(entity_type=k, entity_name=n) for k, n in entity],
                    ops=[
                        OpData(key=key, value=0.0 if value is None else value, remove=value is None)
                        for key, value in quotas[entity].items()
                    ],
                )
                for entity in entities
            ],
            validate_only=validate_only,
        )

    def read(answer: Any, entities: list[QuotaEntity]) -> Iterator[tuple[QuotaEntity, ApiError | None]]:
        by_parts = {tuple(sorted(entity, key=str)): entity for entity in entities}
        for each in answer.entries:
            parts = tuple(sorted(((part.entity_type, part.entity_name) for part in each.entity), key=str))
            entity = by_parts.get(parts)
            if entity is not None:
                yield entity, refused(each.error_code, "quota", each.error_message) if each.error_code else None

    return per_item(quotas, lambda _: ANY, build, read)
