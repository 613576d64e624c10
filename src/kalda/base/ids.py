"""Identifiers: UUIDs as Kafka writes them, topic partitions, and names of topics.

A UUID is its 16 raw bytes: the wire and the disk hold them, they compare and hash fastest, and the data path parses
nothing. Its text form is unpadded URL-safe base64, 22 characters. Fresh ids come from a `UuidSource` that the shell
passes in, so a simulated cluster gets the same ids for the same seed.

Names of topics: which are legal, and which are internal.

A name becomes that of a directory, so it has only characters that every file system takes. In metric names '.' becomes
'_', so two topics whose names differ in these only would have the same metrics: the second one is refused.
"""

from __future__ import annotations

import binascii
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from typing import NamedTuple, NewType

from kalda.base.errors import ApiError, ErrorCode

Uuid = NewType("Uuid", bytes)
UuidSource = Callable[[], Uuid]

ZERO_UUID = Uuid(bytes(16))
METADATA_TOPIC_ID = Uuid(bytes(15) + b"\x01")
METADATA_TOPIC_NAME = "__cluster_metadata"

# Ids below 100 are reserved. As directory ids of a replica (KIP-858) they mean: its broker predates JBOD (migrating),
# no directory is assigned yet (unassigned), its directory has failed (lost).
DIRECTORY_MIGRATING = Uuid(bytes(16))
DIRECTORY_UNASSIGNED = Uuid(bytes(15) + b"\x01")
DIRECTORY_LOST = Uuid(bytes(15) + b"\x02")
_RESERVED_BELOW = 100


class TopicPartition(NamedTuple):
    """One partition of one topic, by name. `str` gives the name of its directory: `topic-partition`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def is_reserved(uuid: Uuid) -> bool:
    """Whether the id has a fixed meaning. `random_uuid` returns no such id."""
    return int.from_bytes(uuid, "big") < _RESERVED_BELOW


def uuid_to_text(uuid: Uuid) -> str:
    """22 characters of unpadded URL-safe base64."""
    return urlsafe_b64encode(uuid)[:22].decode("ascii")


def uuid_from_text(text: str) -> Uuid:
    """The inverse of `uuid_to_text`; padding is accepted as Kafka accepts it. Raises `ValueError` on anything else."""
    if len(text) > 24:
        raise ValueError(f"{text[:24]!r}… is too long for a UUID: 22 characters of URL-safe base64 are expected")
    try:
        raw = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"{text!r} is not a UUID: 22 characters of URL-safe base64 are expected") from error
    if len(raw) != 16:
        raise ValueError(f"{text!r} is not a UUID: it holds {len(raw)} bytes, not 16")
    return Uuid(raw)


def random_uuid(entropy: Callable[[int], bytes]) -> Uuid:
    """A fresh UUID from `entropy(16)`: version 4, never reserved, and never starting with '-' in text form.

    A leading dash would be read as an option on every command line.
    """
    while True:
        raw = bytearray(entropy(16))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        uuid = Uuid(bytes(raw))
        if not is_reserved(uuid) and not uuid_to_text(uuid).startswith("-"):
            return uuid


OFFSETS_TOPIC = "__consumer_offsets"
"""The group coordinator's."""
TRANSACTIONS_TOPIC = "__transaction_state"
"""The transaction coordinator's."""
SHARE_STATE_TOPIC = "__share_group_state"
"""The share coordinator's."""
CLIENT_METRICS_TOPIC = "__client_metrics"
"""Metrics that clients have pushed."""
INTERNAL_TOPICS = frozenset((OFFSETS_TOPIC, TRANSACTIONS_TOPIC, SHARE_STATE_TOPIC, CLIENT_METRICS_TOPIC))
"""Topics of coordinators and brokers. They are listed as internal, and clients cannot append to them or delete their
records."""
MAX_LENGTH = 249
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def validate_topic_name(name: str) -> None:
    """Raises `ApiError` INVALID_TOPIC_EXCEPTION."""
    if (what := _fault(name)) is not None:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {what}")


def is_topic_name(name: str) -> bool:
    """Whether the name is legal."""
    return _fault(name) is None


def can_be_requested(name: object) -> bool:
    """Whether a request can ask about a topic of this name, legal or not: a text that can be encoded."""
    if not isinstance(name, str) or not name.strip():
        return False
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _fault(name: str) -> str | None:
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > MAX_LENGTH:
        return f"the length of '{name}' is longer than the max allowed length {MAX_LENGTH}"
    if not _LEGAL.fullmatch(name):
        return f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    return None


def collision_key(name: str) -> str | None:
    """Equal for names that collide; None for a name that cannot."""
    return name.replace(".", "_") if "." in name or "_" in name else None
