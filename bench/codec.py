"""Rates of the record codec on one core: `python bench/codec.py [--quick] [--seconds S] [--value BYTES]`.

Each line is the best of many rounds, as disturbances of the machine only slow a round down.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

from kalda.records import codec
from kalda.records.arrow import RowEncoder, iter_record_batches
from kalda.records.batch import HEADER_SIZE, crc32c, read_header
from kalda.records.builder import build_batch, read_records
from kalda.records.compression import Compression, compress, decompress
from kalda.records.validation import RecordRules, validate_produced

NOW = 1_700_000_000_000
RECORDS = 10_000
BATCHES = 10


def best_of(action: Callable[[], object], seconds: float) -> float:
    """Seconds that the fastest call took."""
    best = float("inf")
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        action()
        best = min(best, time.perf_counter() - start)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="how long to repeat each")
    parser.add_argument("--value", type=int, default=88, help="bytes of a record's value; its key has 12")
    parser.add_argument("--quick", action="store_true", help="a tenth of the time")
    arguments = parser.parse_args()
    arguments.seconds *= 0.1 if arguments.quick else 1

    rows = [(NOW + i, b"key-%08d" % i, bytes([i & 0xFF]) * arguments.value, ()) for i in range(RECORDS)]
    batch = build_batch(rows)
    header = read_header(batch)
    joined = b"".join(build_batch(rows, base_offset=RECORDS * i) for i in range(BATCHES))
    (columns,) = iter_record_batches(joined)
    buffer = bytearray(len(joined) + 1_000_000)
    single = build_batch(rows[:10])
    section = bytes(batch[HEADER_SIZE:])
    rules = RecordRules()

    def survey() -> object:
        return codec.survey(batch, HEADER_SIZE, len(batch), RECORDS, header.base_timestamp)

    def validate() -> object:
        return validate_produced(single, rules, first_offset=0, leader_epoch=1, now_ms=NOW)

    def rate(name: str, count: int, action: Callable[[], object]) -> None:
        print(f"{name:<28}{count / best_of(action, arguments.seconds) / 1e6:10.2f} M records/s")

    print(f"compiled: {codec.COMPILED}; {len(section) / RECORDS:.0f} bytes a record")
    rate("parse", RECORDS, survey)
    rate("decode to Arrow", RECORDS * BATCHES, lambda: list(iter_record_batches(joined)))
    rate("encode from Arrow", RECORDS * BATCHES, lambda: RowEncoder(columns, NOW).encode(buffer, 0))
    rate("decode to Python", RECORDS, lambda: read_records(batch))
    rate("encode from Python", RECORDS, lambda: build_batch(rows))
    print(f"{'validate 10 records':<28}{best_of(validate, arguments.seconds) * 1e6:10.2f} µs")
    print(f"{'CRC32C':<28}{len(joined) / best_of(lambda: crc32c(joined), arguments.seconds) / 1e9:10.2f} GB/s")
    for kind in Compression:
        if kind is Compression.NONE:
            continue
        packed = compress(kind, section)
        down = len(section) / best_of(partial(compress, kind, section), arguments.seconds) / 1e6
        up = len(section) / best_of(partial(decompress, kind, packed), arguments.seconds) / 1e6
        ratio = len(section) / len(packed)
        print(f"{kind.name.lower():<28}{down:10.0f} MB/s in, {up:.0f} MB/s out, {ratio:.1f} to 1")


if __name__ == "__main__":
    main()
