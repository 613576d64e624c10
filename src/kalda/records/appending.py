# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=False, binding=False
"""Records appended to open batches, one at a time, as a producer's `send` does it.

Written and compiled like `codec`; the C types of the classes are in `appending.pxd`. The record is encoded at the
moment of the append, straight into the memory of its batch. The only object that a record costs is its `Ticket`.

Threads: several may append at once, and another one may close a batch meanwhile. Compiled, `Records.put` makes its
check of room, the write, and the count in one piece: between them it runs no Python code and allocates no object that
the garbage collector tracks, so no other thread can run. Uncompiled this does not hold: the caller has to hold a lock.

Invariant of `Records`: `HEADER_SIZE <= position <= len(data)`, and `data[HEADER_SIZE:position]` holds `count` whole
records, with offset deltas from 0 on.

Not obvious:

- `Records.put` is atomic only by the interpreter's lock: between its check and its write it runs no Python code and
  allocates nothing that is garbage-collected.
"""

from __future__ import annotations

from array import array

try:
    import cython
except ImportError:
    from kalda.records import _uncompiled as cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
    from cython.cimports.kalda.records.codec import _copy, _put_varlong, _sum, _varlong_size
else:
    from kalda.records.codec import _copy, _put_varlong, _sum, _varlong_size

COMPILED = cython.compiled
HEADER_SIZE = 61
RECORD_OVERHEAD = 36
"""The most bytes that a record has beside its key, value and headers."""
NO_HEADERS = b"\x00"


class Ticket:
    """One appended record: its batch, its index in it, its timestamp, and what is to be called when it is delivered.

    A cycle over `callback` ends when the batch is done, and its tickets are dropped.
    """

    def __init__(self, batch: object = None, index: int = 0, timestamp: int = 0, callback: object = None) -> None:
        self.batch = batch
        self.index = index
        self.timestamp = timestamp
        self.callback = callback
        self.key_size = -1
        """Of the serialized key; -1 where there is none."""
        self.value_size = -1
        """Likewise."""


class Records:
    """The records of one batch, and room for its header before them."""

    def __init__(self, data: bytearray, limit: int) -> None:
        self.data = data
        self.position = HEADER_SIZE
        self.limit = min(limit, len(data))
        """Records are appended up to this position; the first one up to the end of `data`."""
        self.switch_at = self.limit
        """The position at which a batch is no longer its topic's sticky one, even where it is not full."""
        self.count = 0
        self.largest_record = 0
        """Bytes of the largest record as Kafka's metrics count them: with the header of a batch, and as many bytes as
        the numbers in a record may have."""
        self.base_timestamp = 0
        self.max_timestamp = 0
        self.is_open = True
        self.tickets = None
        """The tickets with a callback, in the order of the records."""

    def put(self, timestamp, key, value, tail, ticket):
        """Append a record, whose headers as on the wire are `tail`. False where the batch is closed or has no room."""
        key_length: cython.Py_ssize_t = -1 if key is None else len(key)
        value_length: cython.Py_ssize_t = -1 if value is None else len(value)
        tail_length: cython.Py_ssize_t = len(tail)
        pos: cython.Py_ssize_t
        size: cython.Py_ssize_t
        delta: cython.longlong = 0
        if not self.is_open:
            return False
        if self.count > 0:
            delta = _sum(timestamp, -self.base_timestamp)
        size = 1 + _varlong_size(delta) + _varlong_size(self.count) + tail_length
        size += _varlong_size(key_length) + (key_length if key_length > 0 else 0)
        size += _varlong_size(value_length) + (value_length if value_length > 0 else 0)
        bound: cython.Py_ssize_t = 61 + 21 + size - 1 - _varlong_size(delta) - _varlong_size(self.count)
        pos = self.position
        if pos + size + _varlong_size(size) > (self.limit if self.count > 0 else len(self.data)):
            return False
        if cython.compiled:
            p: cython.pointer[cython.uchar] = cython.cast(
                cython.pointer[cython.uchar], PyByteArray_AS_STRING(self.data)
            )
        else:
            p = self.data
        pos = _put_varlong(p, pos, size)
        p[pos] = 0
        pos = _put_varlong(p, pos + 1, delta)
        pos = _put_varlong(p, pos, self.count)
        pos = _put_varlong(p, pos, key_length)
        if key_length > 0:
            pos = _put(p, pos, key)
        pos = _put_varlong(p, pos, value_length)
        if value_length > 0:
            pos = _put(p, pos, value)
        pos = _put(p, pos, tail)
        if self.count == 0:
            self.base_timestamp = self.max_timestamp = timestamp
        elif timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        if bound > self.largest_record:
            self.largest_record = bound
        ticket.index = self.count
        ticket.key_size = key_length
        ticket.value_size = value_length
        self.count += 1
        self.position = pos
        if ticket.callback is not None:
            if self.tickets is None:
                self.tickets = []
            self.tickets.append(ticket)
        return True


class TopicAppender:
    """The open batches of one topic: the way of most records. What it cannot do, `append` leaves to its caller."""

    def __init__(self, ticket_type: type, partitions: int, ignore_keys: bool) -> None:
        self.ticket_type = ticket_type
        self.open = [None] * partitions
        """By partition, the batch that takes its records; None where there is none."""
        self.sticky = None
        """The batch that takes records without a partition or a key; None where one has to be chosen."""
        self.ignore_keys = ignore_keys

    def append(
        self, value: object, key: object, partition: object, timestamp: object, callback: object, now: cython.double
    ):
        """The ticket of a record without headers that has been appended; None where there is no open batch with room
        for it, or where an argument is not as usual. `now` is in seconds, `timestamp` in ms."""
        batch: Records
        ticket: Ticket
        time_ms: cython.longlong
        index: cython.Py_ssize_t
        if value is not None and type(value) is not bytes:
            return None
        if partition is not None:
            if type(partition) is not int:
                return None
            index = partition
            if index < 0 or index >= len(self.open):
                return None
            batch = self.open[index]
        elif key is not None and not self.ignore_keys:
            if type(key) is not bytes or len(self.open) == 0:
                return None
            index = (_murmur2(key) & 0x7FFFFFFF) % len(self.open)
            batch = self.open[index]
        else:
            batch = self.sticky
        if batch is None or (key is not None and type(key) is not bytes):
            return None
        if timestamp is None:
            time_ms = cython.cast(cython.longlong, now * 1000.0) if cython.compiled else int(now * 1000)
        elif type(timestamp) is not int or timestamp < 0 or timestamp >= 1 << 63:
            return None
        else:
            time_ms = timestamp
        if cython.compiled:
            ticket = Ticket.__new__(self.ticket_type)
        else:
            ticket = self.ticket_type()
        ticket.batch = batch
        ticket.timestamp = time_ms
        ticket.callback = callback
        if not batch.put(time_ms, key, value, NO_HEADERS, ticket):
            return None
        if partition is None and batch.position >= batch.switch_at and self.sticky is batch:
            self.sticky = None
        return ticket


@cython.cfunc
@cython.inline
def _put(p: cython.pointer[cython.uchar], pos: cython.Py_ssize_t, value: bytes) -> cython.Py_ssize_t:
    if cython.compiled:
        return _copy(p, pos, cython.cast(cython.pointer[cython.const[cython.uchar]], value), 0, len(value))
    else:
        return _copy(p, pos, value, 0, len(value))


@cython.cfunc
@cython.inline
def _murmur2(data: bytes) -> cython.uint:
    if cython.compiled:
        return _hash(cython.cast(cython.pointer[cython.const[cython.uchar]], data), 0, len(data))
    else:
        return _hash(data, 0, len(data))


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _hash(
    data: cython.pointer[cython.const[cython.uchar]], start: cython.Py_ssize_t, size: cython.Py_ssize_t
) -> cython.uint:
    """The 32-bit hash of Kafka's Java client, unsigned."""
    h: cython.uint
    k: cython.uint
    i: cython.Py_ssize_t = 0
    m: cython.uint = 0x5BD1E995
    if cython.compiled:
        p: cython.pointer[cython.const[cython.uchar]] = data + start
        h = cython.cast(cython.uint, 0x9747B28C) ^ cython.cast(cython.uint, size)
        while i + 4 <= size:
            k = p[i] | (p[i + 1] << 8) | (p[i + 2] << 16) | (cython.cast(cython.uint, p[i + 3]) << 24)
            k *= m
            k ^= k >> 24
            h = (h * m) ^ (k * m)
            i += 4
        if size - i == 3:
            h ^= p[i + 2] << 16
        if size - i >= 2:
            h ^= p[i + 1] << 8
        if size - i >= 1:
            h = (h ^ p[i]) * m
        h ^= h >> 13
        h *= m
        return h ^ (h >> 15)
    else:
        key = bytes(data[start : start + size])
        mask = 0xFFFFFFFF
        h = 0x9747B28C ^ size
        for i in range(0, size & ~3, 4):
            k = int.from_bytes(key[i : i + 4], "little") * m & mask
            k ^= k >> 24
            h = (h * m & mask) ^ (k * m & mask)
        if size & 3:
            h = (h ^ int.from_bytes(key[size & ~3 :], "little")) * m & mask
        h ^= h >> 13
        h = h * m & mask
        return h ^ h >> 15


def group_rows(
    keys: object,
    partitions: cython.Py_ssize_t,
    without_key: cython.Py_ssize_t,
    order: cython.longlong[::1],
    starts: cython.longlong[::1],
) -> None:
    """Sort the rows of a column of keys by partition, keeping their order within each: row numbers into `order`, and
    where each partition's rows begin into `starts`, one more than there are partitions.

    `keys` is a `columns.Column` that has passed `check_columns`. Raises `ValueError` where the results do not fit.
    """
    ends: cython.const[cython.int][::1] = keys.ends
    data: cython.const[cython.uchar][::1] = keys.data
    valid: cython.const[cython.uchar][::1] = keys.valid
    bit: cython.Py_ssize_t = keys.bit
    row: cython.Py_ssize_t
    at: cython.Py_ssize_t
    rows: cython.Py_ssize_t = len(order)
    any_null: cython.bint = len(valid) > 0
    chosen: cython.int[::1] = array("i", bytes(4 * rows))
    if len(ends) < rows + 1 or len(starts) < partitions + 1 or not 0 <= without_key < partitions:
        raise ValueError("the rows do not fit")
    if any_null and (bit + rows + 7) // 8 > len(valid):
        raise ValueError("the bitmap is too short")
    for at in range(partitions + 1):
        starts[at] = 0
    if len(data) > 0:
        if cython.compiled:
            p: cython.pointer[cython.const[cython.uchar]] = cython.address(data[0])
        else:
            p = data
    for row in range(rows):
        if any_null and not (valid[(bit + row) >> 3] >> ((bit + row) & 7)) & 1:
            at = without_key
        else:
            at = (_hash(p, ends[row], ends[row + 1] - ends[row]) & 0x7FFFFFFF) % partitions
        chosen[row] = at
        starts[at + 1] += 1
    for at in range(partitions):
        starts[at + 1] += starts[at]
    for row in range(rows):
        at = chosen[row]
        order[starts[at]] = row
        starts[at] += 1
    for at in range(partitions, 0, -1):
        starts[at] = starts[at - 1]
    starts[0] = 0


def murmur2(data: bytes) -> int:
    """The 32-bit hash of Kafka's Java client, unsigned. Kafka prints the same bits as a signed integer."""
    return _murmur2(data)
