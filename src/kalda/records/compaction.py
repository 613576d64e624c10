# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=False, binding=False
"""Log compaction's work on records: the last offset of each key, and what is left of a batch.

A batch is plain where it is neither compressed nor transactional nor a control batch, and lies whole in the chunk that
was read. `map_run` and `BatchFilter.run` work on plain batches one after the other, with the interpreter's lock
released for all of them, and stop before the first batch that is not plain, or damaged in any way. So a batch of one
record costs no Python at all. Whoever calls them gives the section of that one, decompressed, to `map_batch` or to
`BatchFilter.filter_batch`, and calls again behind it.

One set of rules decides for both: `_map_records` which keys are noted, `_Lookups` which records stay, `_judge` what
becomes of the header, `_rewrite` which bytes are left. `map_batch` and `filter_batch` name what is damaged.

Compiled like `codec`, whose safety rules hold here too. Where this module is not compiled, no batch is plain.
"""

from __future__ import annotations

from kalda.base.allocation import unfilled
from kalda.base.errors import CorruptRecord

try:
    import cython
except ImportError:
    from kalda.records import _uncompiled as cython

if cython.compiled:
    from cython.cimports.kalda.records.codec import _copy, _put_varlong, _record, _sum, _varlong_size
    from cython.cimports.kalda.records.key_offsets import KeyOffsets, _Hash, _Lookups
    from cython.cimports.kalda.records.native_crc import kalda_crc32c, kalda_crc_init
    from cython.cimports.libc.string import memset

    kalda_crc_init()
else:
    from kalda.records.codec import _copy, _put_varlong, _record, _sum, _varlong_size
    from kalda.records.key_offsets import KeyOffsets, _Hash, _Lookups

COMPILED = cython.compiled
ROOM_BYTES = 2 * 1024 * 1024
"""What a `BatchFilter` holds of runs at most; a batch of a third of that is not plain any more."""

# Literals below, as C constants:
#   61 the size of a header, 12 the bytes that its length does not count, 7 the size of the shortest record
#   14 by how much a record grows at most: its timestamp delta by 9 bytes, its length by 4
#   0x37 the attributes that a plain batch lacks: compression, transactional, control
#   0x08 the time is that of the append, 0x40 the base timestamp is a delete horizon


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _int32(p: cython.pointer[cython.const[cython.uchar]], at: cython.Py_ssize_t) -> cython.int:
    return cython.cast(
        cython.int,
        (cython.cast(cython.uint, p[at]) << 24) | (p[at + 1] << 16) | (p[at + 2] << 8) | p[at + 3],
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _int64(p: cython.pointer[cython.const[cython.uchar]], at: cython.Py_ssize_t) -> cython.longlong:
    return cython.cast(
        cython.longlong,
        (cython.cast(cython.ulonglong, cython.cast(cython.uint, _int32(p, at))) << 32)
        | cython.cast(cython.ulonglong, cython.cast(cython.uint, _int32(p, at + 4))),
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put(
    p: cython.pointer[cython.uchar], at: cython.Py_ssize_t, size: cython.int, number: cython.longlong
) -> cython.void:
    """Write an integer of so many bytes."""
    while size > 0:
        size -= 1
        p[at + size] = cython.cast(cython.uchar, number & 0xFF)
        number >>= 8


@cython.cclass
class _Batch:
    """The header of the batch that is worked on."""

    end: cython.Py_ssize_t
    """Of a plain batch: the position behind it."""
    attributes: cython.int
    base_offset: cython.longlong
    last_delta: cython.longlong
    base_timestamp: cython.longlong
    max_timestamp: cython.longlong
    producer_id: cython.longlong
    count: cython.Py_ssize_t
    malformed: cython.Py_ssize_t
    """The first record that is malformed."""

    @cython.cfunc
    def _set(self, header: object, size: cython.Py_ssize_t) -> None:
        """Take the header of a batch whose section has `size` bytes. Raises `CorruptRecord`."""
        self.attributes = header.attributes  # type: ignore[attr-defined]
        self.base_offset = header.base_offset  # type: ignore[attr-defined]
        self.last_delta = header.last_offset_delta  # type: ignore[attr-defined]
        self.base_timestamp = header.base_timestamp  # type: ignore[attr-defined]
        self.max_timestamp = header.max_timestamp  # type: ignore[attr-defined]
        self.producer_id = header.producer_id  # type: ignore[attr-defined]
        self.count = header.records_count  # type: ignore[attr-defined]
        if self.count <= 0 or self.count > self.last_delta + 1 or self.count > size // 7:
            raise CorruptRecord(
                f"the batch at offset {self.base_offset} claims {self.count} records in {self.last_delta + 1} offsets "
                f"and {size} bytes"
            )

    @cython.cfunc
    def _damage(self) -> object:
        return CorruptRecord(
            f"record {self.malformed} of {self.count} at offset {self.base_offset} is malformed, or not the last"
        )

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _read(
        self, p: cython.pointer[cython.const[cython.uchar]], at: cython.Py_ssize_t, size: cython.Py_ssize_t
    ) -> cython.bint:
        """Whether there is a plain batch at `at` that is not damaged, as far as header and CRC show."""
        length: cython.Py_ssize_t
        if size - at < 61:
            return False
        length = _int32(p, at + 8)
        self.attributes = (p[at + 21] << 8) | p[at + 22]
        if length < 49 or length > size - at - 12 or p[at + 16] != 2 or self.attributes & 0x37:
            return False
        self.end = at + 12 + length
        self.last_delta = _int32(p, at + 23)
        self.count = _int32(p, at + 57)
        if self.count <= 0 or self.count > self.last_delta + 1 or self.count > (length - 49) // 7:
            return False
        if cython.cast(cython.uint, _int32(p, at + 17)) != kalda_crc32c(p + at + 21, self.end - at - 21):
            return False
        self.base_offset = _int64(p, at)
        self.base_timestamp = _int64(p, at + 27)
        self.max_timestamp = _int64(p, at + 35)
        self.producer_id = _int64(p, at + 43)
        return True


def map_run(
    offsets: KeyOffsets,
    chunk: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    start: cython.longlong,
) -> int:
    """Put the keys of plain batches from position `at` on into the map, and raise its `latest_offset`. Returns the
    position behind them: that of the first batch that is not plain or has a key for which there is no room, or one
    beyond `stop`. Records below offset `start` are left out."""
    if cython.compiled:
        size: cython.Py_ssize_t = len(chunk)
        batch: _Batch = _Batch()
        key: _Hash = _Hash(offsets._k0, offsets._k1)
        lookups: _Lookups = _Lookups(offsets, None)
        if size == 0 or at < 0 or offsets._slots == 0:
            return at
        p: cython.pointer[cython.const[cython.uchar]] = cython.address(chunk[0])
        with cython.nogil:
            while at < stop and batch._read(p, at, size):
                if _map_records(p, at + 61, batch.end, batch, lookups, key, start) != 1:
                    break
                at = batch.end
                if batch.base_offset + batch.last_delta >= start:
                    offsets._latest = max(offsets._latest, batch.base_offset + batch.last_delta)
    return at


def map_batch(
    offsets: KeyOffsets, header: object, section: cython.const[cython.uchar][::1], start: cython.longlong
) -> bool:
    """Put the keys of one batch into the map: `header` is a `BatchHeader` with records, `section` what they are,
    decompressed. False where there is no room for a key: the map is complete up to the batch before. Records below
    offset `start` are left out. Raises `CorruptRecord`."""
    size: cython.Py_ssize_t = len(section)
    batch: _Batch = _Batch()
    outcome: cython.int
    if offsets._slots == 0:
        raise ValueError("the map has been released")
    batch._set(header, size)
    key: _Hash = _Hash(offsets._k0, offsets._k1)
    lookups: _Lookups = _Lookups(offsets, None)
    if cython.compiled:
        p: cython.pointer[cython.const[cython.uchar]] = cython.address(section[0])
    else:
        p = section
    with cython.nogil:
        outcome = _map_records(p, 0, size, batch, lookups, key, start)
    if outcome == 0:
        raise batch._damage()
    return outcome == 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _map_records(
    p: cython.pointer[cython.const[cython.uchar]],
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    batch: _Batch,
    lookups: _Lookups,
    key: _Hash,
    start: cython.longlong,
) -> cython.int:
    """1 done, 0 the records in `p[at:end]` are malformed, 2 there is no room for a key."""
    i: cython.Py_ssize_t
    delta: cython.longlong
    key_at: cython.Py_ssize_t
    key_size: cython.Py_ssize_t
    last: cython.longlong = -1
    for i in range(batch.count):
        at, _1, delta, key_at, key_size, _2, _3, _4, _5 = _record(p, at, end)
        if at < 0 or delta <= last or delta > batch.last_delta:
            batch.malformed = i
            return 0
        last = delta
        if key_size >= 0 and batch.base_offset + delta >= start:
            key._of(p, key_at, key_at + key_size)
            if not lookups._put(key, batch.base_offset + delta):
                return 2
    if not lookups._put_waiting():
        return 2
    batch.malformed = batch.count - 1
    return 1 if at == end else 0


@cython.cclass
class BatchFilter:
    """What is left of batches, for one cleaning of one group of segments.

    `run` appends what is left of plain batches to a buffer; `take` returns what came since the last `take`, and `clear`
    empties the buffer once that has been written. `filter_batch` returns what is left of one batch, of any size.
    """

    _is_full: cython.bint
    _offsets: KeyOffsets
    _lookups: _Lookups
    _hash: _Hash
    _batch: _Batch
    _attributes: cython.int
    _base: cython.longlong
    _max: cython.longlong
    """Attributes and timestamps of what is left of the batch."""
    _last_offsets: cython.longlong[::1]
    """Rising: the last offsets of batches that stay as headers, where no record is kept."""
    _next_last: cython.Py_ssize_t
    """The first of them that is not below the batch."""
    _round_end: cython.longlong
    _horizon_ms: cython.longlong
    """What a batch with deletions gets for its delete horizon."""
    _now_ms: cython.longlong
    _room: cython.uchar[::1]
    _buffer: bytearray
    _written: cython.Py_ssize_t
    _taken: cython.Py_ssize_t
    _interval: cython.Py_ssize_t
    _since: cython.Py_ssize_t
    """The bytes in the segment since its last index entry. Beyond `_interval` of them the next batch gets one."""
    _placed: cython.longlong[::1]
    """Three numbers each: last offset, largest timestamp, size. A batch that gets an index entry stands alone, as does
    the first of the segment. Those in between count as one, with the offset of that with the largest timestamp."""
    _places: cython.Py_ssize_t
    _is_first: cython.bint
    """The segment is empty."""
    _last: cython.longlong
    _largest: cython.longlong
    _size: cython.Py_ssize_t
    """Of the batches that are not in `_placed` yet."""

    def __init__(
        self,
        offsets: KeyOffsets,
        last_offsets: object,
        round_end: cython.longlong,
        now_ms: cython.longlong,
        delete_retention_ms: cython.longlong,
        interval_bytes: cython.Py_ssize_t,
        room_bytes: cython.Py_ssize_t = ROOM_BYTES,
    ) -> None:
        """`last_offsets`: an array of type q, in rising order; `interval_bytes`: between two index entries of the
        segment; `room_bytes`: how much the buffer holds."""
        self._offsets = offsets
        self._hash = _Hash(offsets._k0, offsets._k1)
        self._batch = _Batch()
        self._lookups = _Lookups(offsets, bytearray(room_bytes // 3 // 56 + 1))
        self._now_ms = now_ms
        self._horizon_ms = now_ms + delete_retention_ms
        self._is_full = False
        self._interval = max(interval_bytes, 0)
        self._buffer = unfilled(room_bytes)
        if cython.compiled:
            self._last_offsets = last_offsets
            self._next_last = 0
            self._round_end = round_end
            self._room = self._buffer
            self._placed = memoryview(bytearray(24 * (2 * (room_bytes // max(interval_bytes, 61)) + 8))).cast("q")
            self._since = 0
        self._written = self._taken = self._places = self._size = 0
        self._last = self._largest = -1
        self._is_first = True

    def filter_batch(
        self,
        header: object,
        section: cython.const[cython.uchar][::1],
        keeps_deletions: cython.bint = True,
    ) -> tuple:
        """What is left of one batch: `header` is a `BatchHeader` with records, `section` what they are, decompressed.

        Returns (header, records): that of what is left, with the length, the codec and the CRC of before; then room for
        a header and the records behind it, not compressed, or None where the batch stays as it is, or no record is
        kept. With `keeps_deletions` false no deletion stays, whatever its batch says. Raises `CorruptRecord`.
        """
        size: cython.Py_ssize_t = len(section)
        kept: cython.Py_ssize_t
        stop: cython.Py_ssize_t = 0
        intact: cython.bint
        if self._offsets._slots == 0:
            raise ValueError("the map has been released")
        self._batch._set(header, size)
        if 8 * len(self._lookups.bits) < self._batch.count:
            self._lookups.bits = bytearray((self._batch.count + 7) // 8)
        if cython.compiled:
            p: cython.pointer[cython.const[cython.uchar]] = cython.address(section[0])
        else:
            p = section
        with cython.nogil:
            intact = self._decide(p, 0, size, keeps_deletions)
        if not intact:
            raise self._batch._damage()
        kept = self._lookups.kept
        out: object = None
        if self._judge() and kept > 0:
            out = unfilled(61 + size + 14 * kept)
            room: cython.uchar[::1] = out
            if cython.compiled:
                to: cython.pointer[cython.uchar] = cython.address(room[0])
            else:
                to = out
            with cython.nogil:
                stop = self._rewrite(p, 0, size, to, 61)
            room = None  # type: ignore[assignment]  # a bytearray that is looked at cannot be cut
            del out[stop:]  # type: ignore[attr-defined]
        left = header._replace(  # type: ignore[attr-defined]
            attributes=self._attributes, base_timestamp=self._base, max_timestamp=self._max, records_count=kept
        )
        return left, out

    def run(self, chunk: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, stop: cython.Py_ssize_t) -> int:
        """Filter plain batches from position `at` on. Returns the position behind them: that of the first batch that is
        not plain or stays as a header alone, or one beyond `stop`."""
        self._is_full = False
        if cython.compiled:
            size: cython.Py_ssize_t = len(chunk)
            outcome: cython.int = 1
            if size == 0 or at < 0:
                return at
            if self._offsets._slots == 0:
                raise ValueError("the map has been released")
            p: cython.pointer[cython.const[cython.uchar]] = cython.address(chunk[0])
            out: cython.pointer[cython.uchar] = cython.address(self._room[0])
            with cython.nogil:
                while at < stop:
                    outcome = self._one(p, at, size, out)
                    if outcome != 1:
                        break
                    at = self._batch.end
            self._is_full = outcome == 2
        return at

    @property
    def is_full(self) -> bool:
        """Whether `run` stopped because the buffer has no room: `take`, write and `clear`, and call it again."""
        return bool(self._is_full)

    @property
    def written(self) -> int:
        """How many bytes the buffer holds."""
        return self._written

    def take(self) -> tuple:
        """(what was written since the last call, the batches there as (last offset, largest timestamp, size)): several
        in a row are one where a segment that is appended to gives none of them an index entry."""
        if cython.compiled:
            self._place()
            part = memoryview(self._buffer)[self._taken : self._written]
            self._taken = self._written
            rows = [
                (self._placed[3 * i], self._placed[3 * i + 1], self._placed[3 * i + 2]) for i in range(self._places)
            ]
            self._places = 0
            return part, rows
        else:
            return memoryview(b""), []

    def skip(self, size: cython.Py_ssize_t) -> None:
        """A batch of that size follows in the segment what `take` has returned, from elsewhere."""
        if cython.compiled:
            self._count(size)

    def clear(self) -> None:
        """What `take` returned has been written, and is not used any more."""
        self._written = self._taken = 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _place(self) -> cython.void:
        if self._size:
            self._placed[3 * self._places] = self._last
            self._placed[3 * self._places + 1] = self._largest
            self._placed[3 * self._places + 2] = self._size
            self._places += 1
            self._size = 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _one(
        self,
        p: cython.pointer[cython.const[cython.uchar]],
        at: cython.Py_ssize_t,
        size: cython.Py_ssize_t,
        out: cython.pointer[cython.uchar],
    ) -> cython.int:
        """Filter the batch at `at`: 1 done, 0 it is not plain, 2 there is no room for it."""
        begin: cython.Py_ssize_t = self._written
        last: cython.longlong
        if not self._batch._read(p, at, size):
            return 0
        if 3 * (self._batch.end - at) + 128 > self._room.shape[0] - begin:
            return 2 if begin > 0 else 0
        if not self._decide(p, at + 61, self._batch.end, True):
            return 0
        last = self._batch.base_offset + self._batch.last_delta
        if self._lookups.kept == 0:
            return 0 if self._keeps_header(last) else 1
        if self._judge():
            self._written = self._rewrite(p, at + 61, self._batch.end, out, begin + 61)
            self._seal(p, at, out, begin)
        else:
            self._written = _copy(out, begin, p, at, self._batch.end - at)
        if self._since > self._interval or self._is_first:
            self._place()
            self._add(last, self._max, self._written - begin)
            self._place()
        else:
            self._add(last, self._max, self._written - begin)
        self._count(self._written - begin)
        return 1

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _add(self, last: cython.longlong, largest: cython.longlong, size: cython.Py_ssize_t) -> cython.void:
        """Add a batch to those that are not in `_placed` yet."""
        if self._size == 0 or largest > self._largest:
            self._last = last
            self._largest = largest
        self._size += size

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _count(self, size: cython.Py_ssize_t) -> cython.void:
        """A batch follows in the segment."""
        if self._since > self._interval:
            self._since = 0
        self._since += size
        self._is_first = False

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _keeps_header(self, last: cython.longlong) -> cython.bint:
        """Whether the header of a batch with that last offset may have to stay."""
        if last + 1 == self._round_end:
            return True
        if self._batch.producer_id < 0:
            return False
        while self._next_last < self._last_offsets.shape[0] and self._last_offsets[self._next_last] < last:
            self._next_last += 1
        return self._next_last < self._last_offsets.shape[0] and self._last_offsets[self._next_last] == last

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _decide(
        self,
        p: cython.pointer[cython.const[cython.uchar]],
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        keeps_deletions: cython.bint,
    ) -> cython.bint:
        """Set the bits, and what is counted of them. False where the records in `p[at:end]` are malformed."""
        i: cython.Py_ssize_t
        timestamp: cython.longlong
        delta: cython.longlong
        key_at: cython.Py_ssize_t
        key_size: cython.Py_ssize_t
        value_size: cython.Py_ssize_t
        previous: cython.longlong = -1
        if self._batch.attributes & 0x40 and self._now_ms >= self._batch.base_timestamp:
            keeps_deletions = False
        self._lookups._begin()
        if cython.compiled:
            memset(cython.address(self._lookups.bits[0]), 0, (self._batch.count + 7) // 8)
        else:
            self._lookups.bits[:] = bytes(len(self._lookups.bits))
        for i in range(self._batch.count):
            at, timestamp, delta, key_at, key_size, _1, value_size, _2, _3 = _record(p, at, end)
            if at < 0 or delta <= previous or delta > self._batch.last_delta:
                self._batch.malformed = i
                return False
            previous = delta
            if key_size >= 0:
                self._hash._of(p, key_at, key_at + key_size)
            self._lookups._decide(
                self._hash,
                key_size >= 0,
                self._batch.base_offset + delta,
                _sum(self._batch.base_timestamp, timestamp),
                value_size >= 0,
                keeps_deletions,
            )
        self._lookups._decide_waiting()
        self._batch.malformed = self._batch.count - 1
        return at == end

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _judge(self) -> cython.bint:
        """From what was decided, whether the batch changes, and attributes and timestamps of what is left. The base
        timestamp becomes the delete horizon, or that of the first record (KIP-534)."""
        is_append_time: cython.bint = (self._batch.attributes & 0x08) != 0
        self._attributes = self._batch.attributes
        self._base = self._batch.base_timestamp
        self._max = self._batch.max_timestamp
        if self._batch.attributes & 0x40 or not self._lookups.tombstones:
            if self._lookups.kept == self._batch.count:
                return False
            if not self._batch.attributes & 0x40:
                self._base = self._batch.max_timestamp if is_append_time else self._lookups.first_timestamp
        else:
            self._base = self._horizon_ms
            self._attributes |= 0x40
        if not is_append_time:
            self._max = self._lookups.largest_timestamp
        return True

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _rewrite(
        self,
        p: cython.pointer[cython.const[cython.uchar]],
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        out: cython.pointer[cython.uchar],
        to: cython.Py_ssize_t,
    ) -> cython.Py_ssize_t:
        """Write those records of `p[at:end]` whose bit is set to position `to`, with their timestamp deltas against the
        new base timestamp. The other bytes of a record stay as they are. Returns the position behind them."""
        is_append_time: cython.bint = (self._batch.attributes & 0x08) != 0
        shift_ms: cython.longlong = _minus(
            self._batch.max_timestamp if is_append_time else self._batch.base_timestamp, self._base
        )
        after: cython.Py_ssize_t
        rest: cython.Py_ssize_t
        i: cython.Py_ssize_t
        number: cython.longlong
        for i in range(self._batch.count):
            after, number, _1, _2, _3, _4, _5, _6, _7 = _record(p, at, end)
            if (self._lookups.bits[i >> 3] >> (i & 7)) & 1:
                rest = _behind_number(p, _behind_number(p, at) + 1)
                number = _sum(0 if is_append_time else number, shift_ms)
                to = _put_varlong(out, to, 1 + _varlong_size(number) + (after - rest))
                out[to] = 0
                to = _put_varlong(out, to + 1, number)
                to = _copy(out, to, p, rest, after - rest)
            at = after
        return to

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _seal(
        self,
        p: cython.pointer[cython.const[cython.uchar]],
        at: cython.Py_ssize_t,
        out: cython.pointer[cython.uchar],
        begin: cython.Py_ssize_t,
    ) -> cython.void:
        """Write the header of the batch that was rewritten to `out[begin:]`, from that at `p[at:]`."""
        end: cython.Py_ssize_t = self._written
        _copy(out, begin, p, at, 61)
        _put(out, begin + 8, 4, end - begin - 12)
        _put(out, begin + 21, 2, self._attributes)
        _put(out, begin + 27, 8, self._base)
        _put(out, begin + 35, 8, self._max)
        _put(out, begin + 57, 4, self._lookups.kept)
        _put(out, begin + 17, 4, kalda_crc32c(out + begin + 21, end - begin - 21))


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _behind_number(p: cython.pointer[cython.const[cython.uchar]], at: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """The position behind a number that is known to be whole."""
    while p[at] >= 0x80:
        at += 1
    return at + 1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _minus(a: cython.longlong, b: cython.longlong) -> cython.longlong:
    if cython.compiled:
        return cython.cast(cython.longlong, cython.cast(cython.ulonglong, a) - cython.cast(cython.ulonglong, b))
    else:
        return _sum(a, -b)
