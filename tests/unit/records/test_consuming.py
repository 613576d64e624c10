"""The records that a consumer returns: what they hold, in which order they are made, and hostile sections."""

from __future__ import annotations

import contextlib
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kalda.base.errors import CorruptRecord
from kalda.records.batch import HEADER_SIZE, TimestampType, read_header
from kalda.records.builder import build_batch, read_records
from kalda.records.consuming import Record, RecordIterator, Section, SectionReader

NEW = st.tuples(
    st.integers(0, 2**40),
    st.none() | st.binary(max_size=20),
    st.none() | st.binary(max_size=200),
    st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=9)), max_size=3),
)


def reader_of(data: bytes, count: int, **options: object) -> SectionReader:
    section = Section("t", 3, TimestampType.CREATE, 7, data)
    return SectionReader(section, count, 100, 100 + count, 1_000, None, **options)  # type: ignore[arg-type]


def section_of(*rows: tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]) -> bytes:
    return bytes(build_batch(rows, base_offset=100)[HEADER_SIZE:])


@given(st.lists(NEW, min_size=1, max_size=20), st.integers(1, 7))
def test_they_equal_what_the_codec_decodes(
    rows: list[tuple[int, None, None, list[tuple[str, None]]]], room: int
) -> None:
    batch = build_batch(rows, base_offset=100)
    header = read_header(batch)
    section = Section("t", 3, TimestampType.CREATE, 7, bytes(batch[HEADER_SIZE:]))
    reader = SectionReader(section, len(rows), 100, 100 + len(rows), header.base_timestamp, None)
    made: list[Record] = []
    while not reader.is_done:
        assert reader.next_offset == 100 + len(made)
        assert reader.take(made, room, 0) <= room
    expected = [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in read_records(batch)]
    assert [(r.offset, r.timestamp_ms, r.key, r.value, r.headers) for r in made] == expected
    assert {(r.topic, r.partition, r.timestamp_type, r.leader_epoch) for r in made} == {
        ("t", 3, TimestampType.CREATE, 7)
    }
    assert made[0].value is made[0].value
    assert [pickle.loads(pickle.dumps(r)).headers for r in made] == [r.headers for r in made]


def test_records_before_the_start_are_passed_over() -> None:
    reader = reader_of(section_of(*[(0, None, b"%d" % n, []) for n in range(5)]), 5)
    made: list[Record] = []
    assert reader.take(made, 10, 103) == 2
    assert [record.offset for record in made] == [103, 104]
    assert reader.next_offset == 105


def test_deserializers_get_topic_headers_and_bytes_and_never_null() -> None:
    calls: list[object] = []

    def read(topic: str, headers: object, data: bytes) -> str:
        calls.append((topic, headers, data))
        return data.decode()

    data = section_of((0, b"k", None, [("h", b"x")]), (0, None, b"v", []))
    made: list[Record] = []
    reader_of(data, 2, read_key=read, read_value=read).take(made, 10, 0)
    assert [(record.key, record.value) for record in made] == [("k", None), (None, "v")]
    assert calls == [("t", (("h", b"x"),), b"k"), ("t", (), b"v")]
    assert [(record.serialized_key_size, record.serialized_value_size) for record in made] == [(1, -1), (-1, 1)]


def test_a_failed_deserializer_stops_at_its_record() -> None:
    reader = reader_of(section_of((0, None, b"1", []), (0, None, b"x", []), (0, None, b"3", [])), 3, read_value=_int)
    made: list[Record] = []
    with pytest.raises(ValueError, match="invalid literal"):
        reader.take(made, 10, 0)
    assert ([record.value for record in made], reader.next_offset) == ([1], 101)
    reader.skip()
    reader.take(made, 10, 0)
    assert [record.value for record in made] == [1, 3]


def _int(_topic: str, _headers: object, data: bytes) -> int:
    return int(data)


@given(st.binary(max_size=60), st.integers(0, 9))
def test_hostile_sections_are_refused(data: bytes, count: int) -> None:
    try:
        reader = reader_of(data, count)
        made: list[Record] = []
        reader.take(made, 100, 0)
    except CorruptRecord:
        return
    for record in made:
        assert record.value is None or len(record.value) <= len(data)


@given(st.data())
def test_a_changed_byte_is_refused_or_stays_within_the_section(data: st.DataObject) -> None:
    section = bytearray(section_of(*[(n, b"k", b"v" * 20, [("h", b"x")]) for n in range(4)]))
    section[data.draw(st.integers(0, len(section) - 1))] = data.draw(st.integers(0, 255))
    made: list[Record] = []
    with contextlib.suppress(CorruptRecord):
        reader_of(bytes(section), 4).take(made, 10, -(2**62))
    for record in made:
        assert len(record.value or b"") + len(record.key or b"") <= len(section)
        assert len(record.headers) <= len(section)


def test_iteration_asks_for_more_only_when_it_needs_them() -> None:
    lists = [[1, 2], [3], None]
    iterator = RecordIterator(lambda: lists.pop(0))  # type: ignore[arg-type, return-value]
    assert next(iterator) == 1
    assert (iterator.last, iterator.rest) == (1, [2])
    iterator.replace_rest([9])  # type: ignore[list-item]
    assert [*iterator] == [9, 3]
    assert iterator.last == 3
