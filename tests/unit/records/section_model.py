"""Random sections of records, and what the compiled passes over them must find, computed record by record."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator
from typing import Any

from kalda.base.errors import CorruptRecord
from kalda.records import codec, values
from kalda.records.batch import (
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    MAGIC,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
)
from kalda.records.builder import Record
from kalda.records.compaction import BatchFilter, map_batch
from kalda.records.key_offsets import KeyOffsets
from kalda.records.scan import RecordScan

BASE_TIMESTAMP = 1_000
EARLIEST, LATEST = 600, 1_400
NOW, RETENTION_MS = 10**12, 5_000
PIECES = (1, 2, 3, 7, 64, 10**9)
_KEYS = [None, b"", *(b"%d" % at * (1 + at % 4) for at in range(12))]


def pieces(section: bytes, size: int) -> Iterator[bytes]:
    """`section` in pieces of `size` bytes."""
    for start in range(0, len(section), size):
        yield section[start : start + size]


def random_rows(rng: random.Random) -> list[Any]:
    """Up to 30 rows (timestamp, key, value, headers), with nulls, empty and long ones among them."""

    def some(limit: int) -> bytes | None:
        return rng.choice([None, b"", rng.randbytes(rng.randrange(limit))])

    return [
        (
            BASE_TIMESTAMP + rng.randrange(-500, 500),
            some(200),
            some(400),
            [("n" * rng.randrange(3), some(150)) for _ in range(rng.randrange(4))],
        )
        for _ in range(rng.randrange(1, 30))
    ]


def section_of(rows: list[Any]) -> bytes:
    """The section of rows at offsets 0, 1, 2 …"""
    return bytes(values.encode_records(rows, 0, 0, BASE_TIMESTAMP, False)[0])


def scanned(section: bytes, count: int, size: int, noted: int = 4) -> tuple[tuple[int, ...], list[int]]:
    """The result and the noted faults of a `RecordScan` that requires keys."""
    faults = array("q", bytes(16 * noted))
    scan = RecordScan(count, BASE_TIMESTAMP, EARLIEST, LATEST, True, faults)
    for piece in pieces(section, size):
        scan.feed(piece)
    scan.finish()
    return scan.result(), faults.tolist()


def check_scan(seed: int) -> None:
    """A sound section is scanned alike in pieces of any size, and as the rows say."""
    rows = random_rows(random.Random(seed))
    section = section_of(rows)
    timestamps = [row[0] for row in rows]
    faulty = [at for at, row in enumerate(rows) if row[1] is None or not EARLIEST <= row[0] <= LATEST]
    for size in PIECES:
        found, faults = scanned(section, len(rows), size)
        assert found == (max(timestamps), min(timestamps), -1, len(faulty))
        assert faults[: 2 * len(faulty) : 2] == faulty[:4]


def check_damage(seed: int) -> None:
    """A damaged section is judged alike in pieces of any size, and as `codec.survey` judges it."""
    rng = random.Random(seed)
    rows = random_rows(rng)
    section = bytearray(section_of(rows))
    for _ in range(rng.randrange(1, 4)):
        section[rng.randrange(len(section))] = rng.choice([0, 0x7F, 0x80, 0xFF, rng.randrange(256)])

    def outcome(size: int) -> object:
        try:
            return scanned(bytes(section), len(rows), size)
        except CorruptRecord:
            return None

    outcomes = [outcome(size) for size in PIECES]
    assert all(each == outcomes[0] for each in outcomes)
    try:
        codec.survey(bytes(section), 0, len(section), len(rows), BASE_TIMESTAMP)
    except CorruptRecord:
        assert outcomes[0] is None
    else:
        assert outcomes[0] is not None


def header_of(count: int, base_offset: int, last_delta: int, base_timestamp: int, attributes: int = 0) -> BatchHeader:
    """The header of a batch of the current format, with 10**6 as its largest timestamp."""
    return BatchHeader(
        base_offset,
        0,
        NO_LEADER_EPOCH,
        MAGIC,
        0,
        attributes,
        last_delta,
        base_timestamp,
        10**6,
        NO_PRODUCER_ID,
        NO_PRODUCER_EPOCH,
        NO_SEQUENCE,
        count,
    )


def new_filter(offsets: KeyOffsets, room_bytes: int = 10_000, **rules: Any) -> BatchFilter:
    """A filter without producers whose headers stay, unless `rules` have other arguments of it."""
    return BatchFilter(
        offsets,
        rules.get("last_offsets", array("q")),
        rules.get("round_end", -1),
        NOW,
        RETENTION_MS,
        rules.get("interval_bytes", 4_096),
        room_bytes,
    )


def check_compaction(seed: int) -> None:
    """The last offset of each key, the records that are kept, and their bytes against another base timestamp."""
    rng = random.Random(seed)
    base = rng.randrange(100)
    records = [
        Record(
            base + delta,
            BASE_TIMESTAMP + rng.randrange(-300, 300),
            rng.choice(_KEYS),
            rng.choice([None, b"v" * rng.randrange(50)]),
            (("h", b"x"),) * rng.randrange(2),
        )
        for delta in sorted(rng.sample(range(60), rng.randrange(1, 40)))
    ]
    base_timestamp = rng.choice([records[0].timestamp, 0, BASE_TIMESTAMP, NOW, NOW + 1])
    attributes = rng.choice([0, TIMESTAMP_TYPE_BIT]) | rng.choice([0, DELETE_HORIZON_BIT])
    header = header_of(len(records), base, 60, base_timestamp, attributes)
    section = bytes(values.encode_records(records, 0, base, base_timestamp, True)[0])
    start = base + rng.randrange(30)
    last = {record.key: record.offset for record in records if record.key is not None and record.offset >= start}
    offsets = KeyOffsets(24 * 100, rng.randbytes(16))
    assert map_batch(offsets, header, section, start)
    assert {key: offsets.get(key) for key in _KEYS if key is not None and offsets.get(key) >= 0} == last
    assert offsets.size == len(last)

    offsets.latest_offset = complete_to = rng.choice([records[-1].offset, base + rng.randrange(60)])
    wants_deletions = rng.random() < 0.8
    keeps_deletions = wants_deletions and not (header.has_delete_horizon and base_timestamp <= NOW)
    kept = [
        record
        for record in records
        if record.offset > complete_to
        or (
            record.key is not None
            and record.offset >= last.get(record.key, -1)
            and (record.value is not None or keeps_deletions)
        )
    ]
    batches = new_filter(offsets, 1_000)
    left, out = batches.filter_batch(header, section, wants_deletions)
    assert left.records_count == len(kept)
    becomes_due = not header.has_delete_horizon and any(record.value is None for record in kept)
    if not kept or (kept == records and not becomes_due):
        assert out is None
        assert not kept or left == header
        return
    if attributes & TIMESTAMP_TYPE_BIT:
        kept = [record._replace(timestamp=header.max_timestamp) for record in kept]
    new_base = kept[0].timestamp
    if becomes_due:
        new_base, attributes = NOW + RETENTION_MS, attributes | DELETE_HORIZON_BIT
    elif header.has_delete_horizon:
        new_base = base_timestamp
    assert left == header._replace(
        attributes=attributes,
        base_timestamp=new_base,
        max_timestamp=max(record.timestamp for record in kept),
        records_count=len(kept),
    )
    assert out is not None
    assert out[HEADER_SIZE:] == values.encode_records(kept, 0, base, new_base, True)[0]
