"""Access control entries, by id. The authorizer evaluates them.

The host of an entry is `*`, an address as Java writes it, or a range of addresses as `10.1.0.0/16` or `fd00::/8`
(KIP-1276).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple, Protocol

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid, uuid_to_text
from kalda.base.texts import printable
from kalda.metadata.image_records import ImageWriter
from kalda.protocol.messages.metadata_records import AccessControlEntryRecord, RemoveAccessControlEntryRecord
from kalda.protocol.messages.security import AclOperation, AclResourceType

_IPV4 = re.compile(r"(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})", re.ASCII)
_PREFIX_SIZE = re.compile(r"\d{1,3}", re.ASCII)


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


class HostRange(NamedTuple):
    """Addresses with the same first bits."""

    bits: int
    """32 or 128: of an address of this kind."""
    first: int
    mask: int

    def has(self, address: str) -> bool:
        """Whether the address is one of them. A text that is no address is not."""
        parsed = _parsed_address(address)
        return parsed is not None and parsed[0] == self.bits and parsed[1] & self.mask == self.first


def host_range(host: str) -> HostRange:
    """The range that the host of an entry names. Raises `ValueError` where it names none."""
    address, _, size = host.partition("/")
    parsed = _parsed_address(address)
    if parsed is None or "%" in address:
        raise ValueError(f"{printable(address)} is no address")
    bits, number = parsed
    if not (_PREFIX_SIZE.fullmatch(size) and int(size) <= bits):
        raise ValueError(f"the size of the prefix must be a number from 0 to {bits}, not {printable(size)}")
    mask = (1 << bits) - (1 << bits - int(size))
    return HostRange(bits, number & mask, mask)


@lru_cache(maxsize=10_000)
def _range_or_none(host: str) -> HostRange | None:
    try:
        return host_range(host)
    except ValueError:
        return None


@lru_cache(maxsize=10_000)
def _parsed_address(text: str) -> tuple[int, int] | None:
    """The bits that such an address has, and its number; None for no address. A zone does not count."""
    if ":" not in text:
        match = _IPV4.fullmatch(text)
        octets = [int(octet) for octet in match.groups()] if match else []
        return (32, int.from_bytes(octets, "big")) if octets and max(octets) <= 255 else None
    try:
        return 128, int(ipaddress.IPv6Address(text.partition("%")[0]))
    except ValueError:
        return None


def is_from(acl_host: str, host: str) -> bool:
    """Whether the host of an entry is that of a caller, or has it. A range that is invalid has none."""
    if acl_host in (WILDCARD, host):
        return True
    if "/" not in acl_host:
        return False
    addresses = _range_or_none(acl_host)
    return addresses is not None and addresses.has(host)


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


# Filters of access control entries: those of DescribeAcls and DeleteAcls (KIP-140, KIP-290).

PATTERN_ANY, PATTERN_MATCH, PATTERN_LITERAL, PATTERN_PREFIXED = 1, 2, 3, 4
PERMISSION_ANY, PERMISSION_DENY, PERMISSION_ALLOW = 1, 2, 3
WILDCARD = "*"


class AclEntryFilter(Protocol):
    """The fields of a filter. None matches every value."""

    resource_type_filter: int
    resource_name_filter: str | None
    pattern_type_filter: int
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int


def filter_matcher(entry_filter: AclEntryFilter) -> Callable[[StandardAcl], bool]:
    """A predicate over entries. Raises `ApiError` INVALID_REQUEST for a filter with unknown parts."""
    if entry_filter.resource_type_filter not in range(
        AclResourceType.ANY, AclResourceType.USER + 1
    ) or entry_filter.pattern_type_filter not in range(PATTERN_ANY, PATTERN_PREFIXED + 1):
        raise ApiError(ErrorCode.INVALID_REQUEST, "Unknown patternFilter.")
    if entry_filter.operation not in range(
        AclOperation.ANY, AclOperation.TWO_PHASE_COMMIT + 1
    ) or entry_filter.permission_type not in range(PERMISSION_ANY, PERMISSION_ALLOW + 1):
        raise ApiError(ErrorCode.INVALID_REQUEST, "Unknown entryFilter.")

    def matches(acl: StandardAcl) -> bool:
        f = entry_filter
        return (
            f.resource_type_filter in (AclResourceType.ANY, acl.resource_type)
            and _pattern_matches(f.pattern_type_filter, f.resource_name_filter, acl)
            and f.principal_filter in (None, acl.principal)
            and f.host_filter in (None, acl.host)
            and f.operation in (AclOperation.ANY, acl.operation)
            and f.permission_type in (PERMISSION_ANY, acl.permission_type)
        )

    return matches


def _pattern_matches(pattern_type: int, name: str | None, acl: StandardAcl) -> bool:
    """MATCH matches every entry that applies to the resource `name`. The other types compare patterns."""
    if pattern_type not in (PATTERN_ANY, PATTERN_MATCH, acl.pattern_type):
        return False
    if name is None:
        return True
    if pattern_type != PATTERN_MATCH:
        return name == acl.resource_name
    if acl.pattern_type == PATTERN_PREFIXED:
        return name.startswith(acl.resource_name)
    return acl.resource_name in (name, WILDCARD)
