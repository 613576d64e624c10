"""Which fields of metadata records are secrets, and so are not shown where records are: in dumps and in errors."""

from __future__ import annotations

from kalda.base.configs.broker import is_sensitive
from kalda.base.configs.resources import ConfigResourceType
from kalda.protocol.messages.metadata_records import ConfigRecord, UserScramCredentialRecord

REDACTED = "[redacted]"
_OF_SCRAM = frozenset(("salt", "stored_key", "server_key"))
_OF_CONFIG = frozenset(("value",))


def secret_fields(record: object) -> frozenset[str]:
    """The names of the fields of a record that are not shown."""
    if isinstance(record, UserScramCredentialRecord):
        return _OF_SCRAM
    if isinstance(record, ConfigRecord) and record.resource_type == ConfigResourceType.BROKER:
        return _OF_CONFIG if is_sensitive(record.name) else frozenset()
    return frozenset()
