"""The section of records: varints as Kafka writes them, wrong counts and lengths, records as Python values."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from column_batches import build_batches, to_record_batch
from kafka_batches import FOLDER

import kalda
from kalda.base.errors import CorruptRecord
from kalda.records.arrow import SCHEMA, iter_record_batches
from kalda.records.batch import HEADER_SIZE, advance_sequence, crc32c, iter_batches, read_header, write_header
from kalda.records.builder import Record, build_batch, decode_section, read_records
from kalda.records.control import ControlType, read_control_record

VECTORS = json.loads((FOLDER / "vectors.json").read_text())


def section_of(timestamp_delta: bytes, offset_delta: bytes) -> bytes:
    body = b"\x00" + timestamp_delta + offset_delta + b"\x01\x01\x00"
    return bytes([2 * len(body)]) + body


@pytest.mark.parametrize("vector", VECTORS["crc32c"], ids=lambda v: v["hex"][:16] or "empty")
def test_crc32c(vector: dict[str, Any]) -> None:
    assert crc32c(bytes.fromhex(vector["hex"])) == vector["crc32c"]


@pytest.mark.parametrize("vector", VECTORS["varlong"], ids=lambda v: str(v["value"]))
def test_varlongs_are_timestamp_deltas(vector: dict[str, Any]) -> None:
    header = read_header(build_batch([(0, None, None, ())]))
    section = section_of(bytes.fromhex(vector["hex"]), b"\x00")
    assert decode_section(memoryview(section), header)[0].timestamp == vector["value"]
    two = build_batch([(0, None, None, ()), (vector["value"], None, None, ())])
    assert bytes.fromhex(vector["hex"]) in two[HEADER_SIZE:]


@pytest.mark.parametrize("vector", VECTORS["varint"], ids=lambda v: str(v["value"]))
def test_varints_are_offset_deltas(vector: dict[str, Any]) -> None:
    header = read_header(build_batch([(0, None, None, ())], base_offset=2**40))
    section = section_of(b"\x00", bytes.fromhex(vector["hex"]))
    assert decode_section(memoryview(section), header)[0].offset == 2**40 + vector["value"]


@pytest.mark.parametrize("vector", VECTORS["varlong"], ids=lambda v: str(v["value"]))
def test_varlongs_that_are_read_without_a_bounds_check_for_each_byte(vector: dict[str, Any]) -> None:
    header = read_header(build_batch([(0, None, None, ())] * 9))
    section = section_of(bytes.fromhex(vector["hex"]), b"\x00") + section_of(b"\x02", b"\x02") * 8
    assert [record.timestamp for record in decode_section(memoryview(section), header)] == [vector["value"], *[1] * 8]


@pytest.mark.parametrize("following_count", [0, 3])
def test_a_record_with_a_wrong_length_is_corrupt(following_count: int) -> None:
    """Both where its numbers are read with a bounds check for each byte, near the end of the section, and without."""
    following = [(300 + i, b"k" * 9, b"v" * 40, ()) for i in range(following_count)]
    buf = build_batch([(0, b"k", b"v" * 20, [("h", b"x")]), *following])
    right = buf[HEADER_SIZE]
    for wrong in set(range(0x80)) - {right}:
        buf[HEADER_SIZE] = wrong
        for read in (read_records, to_record_batch):
            with pytest.raises(CorruptRecord):
                read(buf)
    buf[HEADER_SIZE] = right
    assert len(read_records(buf)) == to_record_batch(buf).num_rows == 1 + following_count


@pytest.mark.parametrize("count", [-1, 0, 1, 3, 4, 2**31 - 1])
def test_a_wrong_record_count_is_corrupt(count: int) -> None:
    buf = build_batch([(0, b"k", b"v", ()), (1, b"k", b"v", ())])
    write_header(buf, 0, read_header(buf)._replace(records_count=count))
    with pytest.raises(CorruptRecord):
        read_records(buf)
    if count:
        with pytest.raises(CorruptRecord):
            to_record_batch(buf)


def test_iteration_stops_before_an_incomplete_batch_and_refuses_a_malformed_one() -> None:
    buf = build_batch([(0, b"k", b"v", ())])
    assert [pos for pos, _ in iter_batches(buf + buf + buf[:-1])] == [0, len(buf)]
    for length in (0, 13, 48, 2**32 - 1):
        broken = buf + buf[:8] + length.to_bytes(4, "big") + buf[12:]
        with pytest.raises(CorruptRecord):
            list(iter_batches(broken))
    with pytest.raises(CorruptRecord, match="magic 3"):
        list(iter_batches(buf[:16] + b"\x03" + buf[17:]))


def test_sequences_wrap_to_zero() -> None:
    assert advance_sequence(2**31 - 1, 1) == 0
    assert advance_sequence(2**31 - 3, 2) == 2**31 - 1
    assert advance_sequence(5, 0) == 5


def test_keys_and_values_may_be_any_buffers_but_not_numbers_or_text() -> None:
    buf = build_batch([(0, bytearray(b"k"), memoryview(b"v"), [("h", bytearray(b"x"))])])
    assert read_records(buf) == [Record(0, 0, b"k", b"v", (("h", b"x"),))]
    for wrong in (5, "text"):
        with pytest.raises(TypeError):
            build_batch([(0, None, wrong, ())])  # type: ignore[list-item]


def test_a_batch_without_records_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        build_batch([])


def test_an_unknown_control_type_is_read_as_unknown() -> None:
    assert read_control_record(Record(3, 4, b"\x00\x00\x00\x63", None, ())).type is ControlType.UNKNOWN
    for key in (None, b"", b"\x00\x00\x00", b"\xff\xff\x00\x00"):
        with pytest.raises(CorruptRecord):
            read_control_record(Record(3, 4, key, b"\x00\x00\x00\x00\x00\x00", ()))
    with pytest.raises(CorruptRecord):
        read_control_record(Record(3, 4, b"\x00\x00\x00\x02", b"\x00\x00\x00", ()))


def test_columns_may_be_text_large_or_missing() -> None:
    table = pa.table(
        {
            "value": pa.array(["a", None, "c"], pa.large_string()),
            "key": pa.array(["x", "y", "x"]).dictionary_encode(),
        }
    )
    (buf,) = build_batches(*table.to_batches(), now_ms=77)
    assert read_records(buf) == [
        Record(0, 77, b"x", b"a", ()),
        Record(1, 77, b"y", None, ()),
        Record(2, 77, b"x", b"c", ()),
    ]


def test_control_batches_and_refused_ones_are_not_in_the_columns() -> None:
    data = build_batch([(0, b"k", b"v", ())], producer_id=1)
    control = build_batch([(0, b"\x00\x00\x00\x01", b"\x00" * 6, ())], base_offset=1, is_control=True)
    aborted = build_batch([(0, b"k", b"v", ())], base_offset=2, producer_id=2)
    both = list(iter_record_batches(data + control + aborted, keep=lambda header: header.producer_id != 2))
    assert [batch.column("offset").to_pylist() for batch in both] == [[0]]
    assert to_record_batch(control).schema == SCHEMA
    assert to_record_batch(control).num_rows == 0


def test_a_header_key_that_is_not_utf8_is_read_with_replacements() -> None:
    buf = build_batch([(0, None, None, [("ab", b"x")])])
    at = buf.index(b"ab", HEADER_SIZE)
    buf[at] = 0xFF
    assert read_records(buf)[0].headers == (("�b", b"x"),)
    assert to_record_batch(buf).column("headers").to_pylist() == [[{"key": "�b", "value": b"x"}]]


def test_without_a_compiler_it_runs_and_warns_once(tmp_path: Path) -> None:
    """Runs a copy of the package without its extensions, in a process without Cython."""
    source = Path(kalda.__file__).parent
    for name in ("base", "records"):
        (tmp_path / "kalda" / name).mkdir(parents=True)
        for file in (source / name).glob("*.py"):
            (tmp_path / "kalda" / name / file.name).write_bytes(file.read_bytes())
    (tmp_path / "kalda" / "__init__.py").touch()
    program = """
import sys, warnings
sys.modules["cython"] = None
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from kalda.records import codec
    from kalda.records.builder import build_batch, read_records
    import section_model
assert not codec.COMPILED
for seed in range(5):
    section_model.check_scan(seed)
    section_model.check_damage(seed)
    section_model.check_compaction(seed)
from kalda.records.compaction import map_run
offsets = section_model.KeyOffsets(100, bytes(16))
plain = build_batch([(5, b"k", b"v", ())])
assert map_run(offsets, plain, 0, len(plain), 0) == section_model.new_filter(offsets).run(plain, 0, len(plain)) == 0
assert [w.category for w in caught] == [RuntimeWarning], caught
rows = [(5, b"k", None, [("h", b"x")]), (2**62, None, b"v" * 300, ())]
print([tuple(r[1:4]) for r in read_records(build_batch(rows))] == [(5, b"k", None), (2**62, None, b"v" * 300)])
"""
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(__file__).parent}"}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr
