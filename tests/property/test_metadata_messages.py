"""The compiled decoder of metadata records gives the same results as the messages' own decoders."""

from __future__ import annotations

from random import Random

import pytest
from random_messages import random_message

from kalda.base.errors import CorruptRecord, InvalidRequest
from kalda.protocol.messages import metadata_records
from kalda.protocol.notation import RecordBody
from kalda.protocol.record_framing import VersionedRecord, decode_metadata_record, encode_metadata_record
from kalda.protocol.schema import supported_versions
from kalda.records import messages
from kalda.records.batch import read_header
from kalda.records.builder import build_batch
from kalda.records.messages import decode_metadata_messages

CLASSES = [
    cls
    for cls in vars(metadata_records).values()
    if isinstance(cls, type) and issubclass(cls, RecordBody) and cls is not RecordBody
]
ALL = [(cls, version) for cls in CLASSES for version in supported_versions(cls)]


def read(values: list[bytes | None]) -> list[VersionedRecord]:
    batch = build_batch([(5, None, value, ()) for value in values], base_offset=40)
    return decode_metadata_messages(batch, 0, read_header(batch, 0))


def random_value(rng: Random, cls: type[RecordBody], version: int) -> bytes:
    record = random_message(rng, cls, version)
    assert isinstance(record, RecordBody)
    return encode_metadata_record(record, version)


def attributes(record: RecordBody) -> dict[str, object]:
    return {name: getattr(record, name) for name in type(record).declared}


@pytest.mark.parametrize(("cls", "version"), ALL, ids=[f"{cls.__name__}-{version}" for cls, version in ALL])
def test_random_records_are_read_as_their_decoders_read_them(cls: type[RecordBody], version: int) -> None:
    rng = Random(f"{cls.__name__} {version}")
    values = [random_value(rng, cls, version) for _ in range(60)]
    for _ in range(2):  # in the first round each kind is decoded by the messages' decoders and its program compiled
        found = read(list(values))
        for value, each in zip(values, found, strict=True):
            expected = decode_metadata_record(value)
            assert type(each) is VersionedRecord
            assert each == expected
            assert repr(attributes(each.record)) == repr(attributes(expected.record))


def test_most_records_of_a_log_are_read_by_compiled_code() -> None:
    rng = Random(1)
    for cls in (metadata_records.PartitionRecord, metadata_records.PartitionChangeRecord, metadata_records.TopicRecord):
        version = max(supported_versions(cls))
        frame = random_value(rng, cls, version)
        read([frame])
        assert int.from_bytes(frame[:3], "big") in messages._programs


@pytest.mark.parametrize("name", ["PartitionRecord", "PartitionChangeRecord", "ConfigRecord", "TopicRecord"])
def test_damaged_records_are_read_or_refused_alike(name: str) -> None:
    cls = getattr(metadata_records, name)
    version = max(supported_versions(cls))
    rng = Random(name)
    for _ in range(150):
        good = random_value(rng, cls, version)
        read([good])
        for _ in range(20):
            bad = bytearray(good)
            for _ in range(rng.choice((1, 1, 2))):
                bad[rng.randrange(len(bad))] = rng.choice((0, 1, 2, 5, 127, 128, 255, rng.randrange(256)))
            cut = bytes(
                bad[: rng.randint(0, len(bad))] if rng.random() < 0.4 else bad + rng.randbytes(rng.choice((0, 1)))
            )
            try:
                expected = decode_metadata_record(cut)
            except InvalidRequest:
                with pytest.raises(CorruptRecord, match="record at offset 41"):
                    read([good, cut])
            else:
                assert repr(read([good, cut])[1]) == repr(expected)


def test_a_record_without_a_value_is_refused() -> None:
    with pytest.raises(CorruptRecord, match="at offset 40 has no value"):
        read([None])
