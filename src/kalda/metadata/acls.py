"""Access control entries, by id. The authorizer evaluates them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kalda.base.ids import Uuid, uuid_to_text
from kalda.metadata.writing import ImageWriter
from kalda.protocol.messages.metadata_records import AccessControlEntryRecord, RemoveAccessControlEntryRecord


class StandardAcl(NamedTuple):
    """One entry. The numbers are Kafka's ids of resource types, pattern types, operations and permissions."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int

    @classmethod
    def from_record(cls, record: AccessControlEntryRecord) -> StandardAcl:
        return cls(
            record.resource_type,
            record.resource_name,
            record.pattern_type,
            record.principal,
            record.host,
            record.operation,
            record.permission_type,
        )

    def to_record(self, acl_id: Uuid) -> AccessControlEntryRecord:
        return AccessControlEntryRecord(
            id=acl_id,
            resource_type=self.resource_type,
            resource_name=self.resource_name,
            pattern_type=self.pattern_type,
            principal=self.principal,
            host=self.host,
            operation=self.operation,
            permission_type=self.permission_type,
        )


class AclsImage(NamedTuple):
    """Entry by id."""

    acls: Mapping[Uuid, StandardAcl]

    @property
    def is_empty(self) -> bool:
        return not self.acls

    def write(self, writer: ImageWriter) -> None:
        for acl_id, acl in self.acls.items():
            writer.write(acl.to_record(acl_id))


EMPTY = AclsImage({})


class AclsDelta:
    """Changed entries; None for one that was removed."""

    __slots__ = ("changes", "image")

    def __init__(self, image: AclsImage) -> None:
        self.image = image
        self.changes: dict[Uuid, StandardAcl | None] = {}

    @classmethod
    def of_whole(cls, image: AclsImage) -> AclsDelta:
        """From nothing to `image`."""
        delta = cls(EMPTY)
        delta.changes.update(image.acls)
        return delta

    def replay(self, record: AccessControlEntryRecord) -> None:
        self.changes[record.id] = StandardAcl.from_record(record)

    def remove(self, record: RemoveAccessControlEntryRecord) -> None:
        existing = self.changes[record.id] if record.id in self.changes else self.image.acls.get(record.id)
        if existing is None:
            raise ValueError(f"cannot replay the removal of ACL {uuid_to_text(record.id)}: it does not exist")
        self.changes[record.id] = None

    def finish_snapshot(self) -> None:
        for acl_id in self.image.acls:
            self.changes.setdefault(acl_id, None)

    def apply(self) -> AclsImage:
        merged = {**self.image.acls, **self.changes}
        return AclsImage({acl_id: acl for acl_id, acl in merged.items() if acl is not None})
