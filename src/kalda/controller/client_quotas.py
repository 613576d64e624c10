"""Client quotas: requests that change them (KIP-546). Brokers apply and describe them from their image."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Mapping, Sequence

from kalda.base.background import ITEMS_A_STEP, Steps
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.java_order import java_order
from kalda.controller.answers import check_batch_size
from kalda.metadata.client_quotas import CLIENT_ID, IP, USER, QuotaEntity, quota_entity
from kalda.protocol.messages.admin import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntityData,
    AlterClientQuotasResponseEntryData,
    OpData,
)
from kalda.protocol.messages.metadata_records import ClientQuotaRecord, ClientQuotaRecordEntityData
from kalda.protocol.record_framing import VersionedRecord
from kalda.statemachine.runtime import Result
from kalda.statemachine.timeline import SnapshotRegistry, TimelineDict

_INTEGRAL_LIMITS = {"LONG": 2.0**63, "INT": 2.0**31 - 1}
"""The largest values: as in Kafka doubles, of which none is 2^63 - 1."""
_USER_KEYS = {
    "producer_byte_rate": "LONG",
    "consumer_byte_rate": "LONG",
    "request_percentage": "DOUBLE",
    "controller_mutation_rate": "DOUBLE",
}
_IP_KEYS = {"connection_creation_rate": "INT"}
_FRACTION_TOLERANCE = 1e-6


class ClientQuotaControl:
    """Quotas by entity."""

    def __init__(self, registry: SnapshotRegistry) -> None:
        self.quotas: TimelineDict[QuotaEntity, Mapping[str, float]] = TimelineDict(registry)

    def alter(self, request: AlterClientQuotasRequest) -> Steps[Result[VersionedRecord, AlterClientQuotasResponse]]:
        """An entity with an invalid key or value, or one that the request has twice, is not altered; the others are."""
        check_batch_size(len(request.entries) + sum(len(entry.ops) for entry in request.entries))
        records: list[VersionedRecord] = []
        results: list[AlterClientQuotasResponseEntryData] = []
        counts: Counter[tuple[tuple[str, str | None], ...]] = Counter()
        by_entity: dict[tuple[tuple[str, str | None], ...], AlterClientQuotasRequestEntryData] = {}
        for number, entry in enumerate(request.entries, 1):
            if number % ITEMS_A_STEP == 0:
                yield
            given = _entity_as_given(entry)
            counts[given] += 1
            by_entity[given] = entry
        for number, (given, entry) in enumerate(by_entity.items(), 1):
            if number % ITEMS_A_STEP == 0:
                yield
            error: ApiError | None = None
            try:
                if counts[given] > 1 or len({op.key for op in entry.ops}) < len(entry.ops):
                    raise _duplicate(entry)
                entity, keys = _validated_entity(entry)
                records += self._records(entity, keys, entry.ops)
            except ApiError as refused:
                error = refused
            results.append(
                AlterClientQuotasResponseEntryData(
                    error_code=ErrorCode.NONE if error is None else error.code,
                    error_message=None if error is None else error.message,
                    entity=[
                        AlterClientQuotasResponseEntityData(entity_type=kind, entity_name=name)
                        for kind, name in _in_java_order(entry).items()
                    ],
                )
            )
        outcome = Result(records, AlterClientQuotasResponse(entries=results), atomic=True)
        return outcome.without_records() if request.validate_only else outcome

    def replay(self, record: ClientQuotaRecord) -> None:
        entity = quota_entity({part.entity_type: part.entity_name for part in record.entity})
        quotas = dict(self.quotas.get(entity) or {})
        if record.remove:
            quotas.pop(record.key, None)
        else:
            quotas[record.key] = record.value
        if quotas:
            self.quotas[entity] = quotas
        else:
            self.quotas.pop(entity, None)

    def _records(self, entity: QuotaEntity, keys: Mapping[str, str], ops: Sequence[OpData]) -> list[VersionedRecord]:
        proposed: dict[str, float | None] = {op.key: None if op.remove else op.value for op in ops}
        current = self.quotas.get(entity) or {}
        records = []
        for key, value in proposed.items():
            if value is not None:
                _validate_value(keys, key, value)
            if value == current.get(key):
                continue
            record = ClientQuotaRecord(
                entity=[ClientQuotaRecordEntityData(entity_type=kind, entity_name=name) for kind, name in entity],
                key=key,
                value=0.0 if value is None else value,
                remove=value is None,
            )
            records.append(VersionedRecord(record, 0))
        return records


def _entity_as_given(entry: AlterClientQuotasRequestEntryData) -> tuple[tuple[str, str | None], ...]:
    """The entity of an entry, valid or not."""
    return tuple(sorted(_parts(entry).items(), key=repr))


def _parts(entry: AlterClientQuotasRequestEntryData) -> dict[str, str | None]:
    """Name by type. Of a type that is given twice the last name counts, as in Kafka."""
    return {part.entity_type: part.entity_name for part in entry.entity}


def _in_java_order(entry: AlterClientQuotasRequestEntryData) -> dict[str, str | None]:
    """As `_parts`, in the order in which Kafka returns and prints them."""
    parts = _parts(entry)
    capacity = 1 << (len(entry.entity) - 1).bit_length() if entry.entity else 1  # Kafka's table is made for them
    return {kind: parts[kind] for kind in java_order(parts, capacity=capacity)}


def _duplicate(entry: AlterClientQuotasRequestEntryData) -> ApiError:
    """Kafka's, of an entity that is given twice, and of one with a key that is."""
    shown = ", ".join(f"{kind}={'null' if name is None else name}" for kind, name in _in_java_order(entry).items())
    return _invalid(f"Ignoring duplicate entity ClientQuotaEntity(entries={{{shown}}})")


def _validated_entity(entry: AlterClientQuotasRequestEntryData) -> tuple[QuotaEntity, Mapping[str, str]]:
    """The entity, and its valid keys with their types. Raises `ApiError` INVALID_REQUEST."""
    parts = _parts(entry)
    for kind, name in parts.items():
        if kind not in (USER, CLIENT_ID, IP):
            raise _invalid(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise _invalid(f"Empty {kind} not supported")
    if not parts:
        raise _invalid("Invalid empty client quota entity")
    if IP not in parts:
        return quota_entity(parts), _USER_KEYS
    if len(parts) > 1:
        raise _invalid("Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId")
    address = parts[IP]
    if address is not None and not _is_address(address):
        raise _invalid(f"{address} is not a valid IP or resolvable host.")
    return quota_entity(parts), _IP_KEYS


def _is_address(text: str) -> bool:
    """Only IP addresses and `localhost` are valid: the result of resolving other names depends on the node."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return text == "localhost"
    return True


def _validate_value(keys: Mapping[str, str], key: str, value: float) -> None:
    kind = keys.get(key)
    if kind is None:
        raise _invalid(f"Invalid configuration key {key}")
    if not value > 0.0:
        raise _invalid(f"Quota {key} must be greater than 0")
    if kind == "DOUBLE":
        return
    if value > _INTEGRAL_LIMITS[kind]:
        raise _invalid(f"Proposed value for {key} is too large for {'an INT' if kind == 'INT' else 'a LONG'}.")
    if value % 1.0 > _FRACTION_TOLERANCE:
        raise _invalid(f"{key} cannot be a fractional value.")


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, message)
