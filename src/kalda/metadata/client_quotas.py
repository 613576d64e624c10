"""Client quotas, by entity (KIP-546). Which entity's quotas apply to a client is decided elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from kalda.metadata.image_records import ImageWriter
from kalda.protocol.messages.metadata_records import ClientQuotaRecord, ClientQuotaRecordEntityData

USER = "user"
CLIENT_ID = "client-id"
IP = "ip"

QuotaEntity: TypeAlias = tuple[tuple[str, str | None], ...]
"""(type, name) pairs, sorted by type; the name None stands for the default of the type."""


def quota_entity(parts: Mapping[str, str | None]) -> QuotaEntity:
    return tuple(sorted(parts.items()))


class ClientQuotasImage(NamedTuple):
    """Value by quota key, by entity; entities without quotas are left out."""

    entities: Mapping[QuotaEntity, Mapping[str, float]]

    @property
    def is_empty(self) -> bool:
        return not self.entities

    def write(self, writer: ImageWriter) -> None:
        for entity, quotas in self.entities.items():
            for key, value in quotas.items():
                parts = [ClientQuotaRecordEntityData(entity_type=kind, entity_name=name) for kind, name in entity]
                writer.write(ClientQuotaRecord(entity=parts, key=key, value=value))


EMPTY = ClientQuotasImage({})


class ClientQuotasDelta:
    """Changed keys by changed entity; None for a key that was removed."""

    __slots__ = ("changes", "image")

    def __init__(self, image: ClientQuotasImage) -> None:
        self.image = image
        self.changes: dict[QuotaEntity, dict[str, float | None]] = {}

    @classmethod
    def of_whole(cls, image: ClientQuotasImage) -> ClientQuotasDelta:
        """From nothing to `image`."""
        delta = cls(EMPTY)
        delta.changes.update({entity: dict(quotas) for entity, quotas in image.entities.items()})
        return delta

    def replay(self, record: ClientQuotaRecord) -> None:
        entity = quota_entity({part.entity_type: part.entity_name for part in record.entity})
        self.changes.setdefault(entity, {})[record.key] = None if record.remove else record.value

    def finish_snapshot(self) -> None:
        for entity, quotas in self.image.entities.items():
            changes = self.changes.setdefault(entity, {})
            for key in quotas:
                changes.setdefault(key, None)

    def apply(self) -> ClientQuotasImage:
        entities = dict(self.image.entities)
        for entity, changes in self.changes.items():
            merged = {**entities.get(entity, {}), **changes}
            kept = {key: value for key, value in merged.items() if value is not None}
            if kept:
                entities[entity] = kept
            else:
                entities.pop(entity, None)
        return ClientQuotasImage(entities)
