"""Identifiers: UUIDs as Kafka writes them, and topic partitions.

A UUID is its 16 raw bytes: the wire and the disk hold them, they compare and hash fastest, and the data path parses
nothing. Its text form is unpadded URL-safe base64, 22 characters. Fresh ids come from a `UuidSource` that the shell
passes in, so a simulated cluster gets the same ids for the same seed.
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from typing import NamedTuple, NewType

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
