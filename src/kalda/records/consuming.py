# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=False, binding=False
"""The records that a consumer returns: made in bulk from a batch's section, their fields decoded when they are read.

`Section` is the section of records of one batch, decompressed, with what its records have in common. It owns a copy of
the bytes, so a record that the application keeps holds the memory of one batch, never that of a whole response.
`SectionReader` walks a section and makes records, as many at a time as the caller has room for. A `Record` holds the
positions of its key, value and headers; the Python objects are made at the first access and kept.

With deserializers the objects are made when the record is made, so that a failure is raised by `poll`, at a position
that the application can skip.

Compiled like `codec`, whose safety rules hold here too: a record's positions come from `_record`, which has verified
them, and the section outlives its records.
"""

from __future__ import annotations

from types import GenericAlias

from kalda.records.codec import _check_section, _left_over, _malformed

try:
    import cython
except ImportError:
    from kalda.records import _uncompiled as cython

if cython.compiled:
    from cython.cimports.kalda.records.codec import _record, _sum
    from cython.cimports.kalda.records.values import _read_headers
else:
    from kalda.records.codec import _record, _sum
    from kalda.records.values import _read_headers

COMPILED = cython.compiled
_UNREAD = object()
"""In a record's field that was not decoded yet."""
_NO_HEADERS = ()


@cython.cfunc
@cython.inline
def _slice(p: cython.pointer[cython.const[cython.uchar]], at: cython.Py_ssize_t, length: cython.Py_ssize_t) -> bytes:
    # Here as in `values`: a call into another module costs 4 % of reading a key and a value.
    if cython.compiled:
        return cython.cast(cython.p_char, p)[at : at + length]
    return bytes(p[at : at + length])


@cython.final
@cython.cclass
class Section:
    """One batch's records, uncompressed, and the fields that they share."""

    _topic: str
    _partition: object
    _timestamp_type: object
    _leader_epoch: object
    _delivery_count: object
    _data: cython.const[cython.uchar][::1]
    """Keeps the memory alive into which `_p` points."""
    _p: cython.pointer[cython.const[cython.uchar]]
    _size: cython.Py_ssize_t

    def __init__(
        self,
        topic: str,
        partition: object,
        timestamp_type: object,
        leader_epoch: object,
        data: cython.const[cython.uchar][::1],
        delivery_count: object = None,
    ) -> None:
        """`data` must not change any more."""
        self._topic = topic
        self._partition = partition
        self._timestamp_type = timestamp_type
        self._leader_epoch = leader_epoch
        self._delivery_count = delivery_count
        self._data = data
        self._size = len(data)
        if cython.compiled:
            if self._size > 0:
                self._p = cython.address(self._data[0])
        else:
            self._p = data


@cython.final
@cython.no_gc
@cython.freelist(4096)
@cython.cclass
class Record:
    """One record of one partition. Its key, value and headers are decoded when they are first read."""

    _section: Section
    """None where the record was made by the application, without a delivery count."""
    _topic: str
    _partition: object
    _timestamp_type: object
    _leader_epoch: object
    _offset: cython.longlong
    _timestamp: cython.longlong
    _key_at: cython.Py_ssize_t
    _key_length: cython.Py_ssize_t
    _value_at: cython.Py_ssize_t
    _value_length: cython.Py_ssize_t
    _headers_at: cython.Py_ssize_t
    _header_count: cython.Py_ssize_t
    _end: cython.Py_ssize_t
    _key: object
    _value: object
    _headers: object

    @classmethod
    def __class_getitem__(cls, types: object) -> GenericAlias:
        """`Record[str, dict]`, in annotations that are evaluated: the types of the key and of the value."""
        return GenericAlias(cls, types)

    def __init__(
        self,
        topic: str,
        partition: object,
        offset: cython.longlong,
        timestamp_ms: cython.longlong,
        timestamp_type: object,
        key: object,
        value: object,
        headers: object = (),
        leader_epoch: object = None,
        delivery_count: object = None,
    ) -> None:
        """A record from its fields, for interceptors and tests. Sizes are those of bytes, else -1."""
        if delivery_count is not None:
            self._section = Section(topic, partition, timestamp_type, leader_epoch, b"", delivery_count)
        self._topic = topic
        self._partition = partition
        self._timestamp_type = timestamp_type
        self._leader_epoch = leader_epoch
        self._offset = offset
        self._timestamp = timestamp_ms
        self._key = key
        self._value = value
        self._headers = headers
        self._key_length = len(key) if isinstance(key, bytes) else -1
        self._value_length = len(value) if isinstance(value, bytes) else -1

    @property
    def topic(self) -> str:
        return self._topic

    @property
    def partition(self) -> object:
        return self._partition

    @property
    def offset(self) -> int:
        return self._offset

    @property
    def timestamp_ms(self) -> int:
        """-1 where the record has none."""
        return self._timestamp

    @property
    def timestamp_type(self) -> object:
        return self._timestamp_type

    @property
    def leader_epoch(self) -> object:
        """The epoch in which the batch was appended; None where the broker did not store one."""
        return self._leader_epoch

    @property
    def delivery_count(self) -> object:
        """How often the record was handed out in its share group, this time included; None for other consumers."""
        return None if self._section is None else self._section._delivery_count

    @property
    def key(self) -> object:
        if self._key is _UNREAD:
            self._key = None if self._key_length < 0 else _slice(self._section._p, self._key_at, self._key_length)
        return self._key

    @property
    def value(self) -> object:
        if self._value is _UNREAD:
            self._value = (
                None if self._value_length < 0 else _slice(self._section._p, self._value_at, self._value_length)
            )
        return self._value

    @property
    def headers(self) -> object:
        if self._headers is _UNREAD:
            self._headers = _read_headers(self._section._p, self._headers_at, self._end, self._header_count)
        return self._headers

    @property
    def serialized_key_size(self) -> int:
        """Bytes of the key as stored; -1 for null."""
        return self._key_length

    @property
    def serialized_value_size(self) -> int:
        """Bytes of the value as stored; -1 for null."""
        return self._value_length

    def __repr__(self) -> str:
        return (
            f"Record(topic={self._topic!r}, partition={self._partition}, offset={self._offset}, "
            f"timestamp_ms={self._timestamp}, key={self.key!r}, value={self.value!r}, headers={self.headers!r})"
        )

    def __reduce__(self) -> object:
        fields = (
            self._topic,
            self._partition,
            self._offset,
            self._timestamp,
            self._timestamp_type,
            self.key,
            self.value,
            self.headers,
            self._leader_epoch,
            self.delivery_count,
        )
        return Record, fields


@cython.final
@cython.cclass
class SectionReader:
    """Makes the records of one section, in order. `next_offset` is that of the record that comes next."""

    _section: Section
    _pos: cython.Py_ssize_t
    _index: cython.Py_ssize_t
    _count: cython.Py_ssize_t
    _base_offset: cython.longlong
    _base_timestamp: cython.longlong
    _append_timestamp: cython.longlong
    _stamped: cython.bint
    _next_offset: cython.longlong
    _end_offset: cython.longlong
    """The offset after the batch: compaction may have removed its last records."""
    _bytes: cython.longlong
    _read_key: object
    _read_value: object
    _deserializes: cython.bint

    def __init__(
        self,
        section: Section,
        count: cython.Py_ssize_t,
        base_offset: cython.longlong,
        end_offset: cython.longlong,
        base_timestamp: cython.longlong,
        append_timestamp: object,
        read_key: object = None,
        read_value: object = None,
    ) -> None:
        """`read_key` and `read_value` are None, or are called with topic, headers and bytes, never with null. Raises
        `CorruptRecord` where the count cannot be right."""
        _check_section(section._size, 0, section._size, count)
        self._section = section
        self._pos = 0
        self._index = 0
        self._count = count
        self._base_offset = base_offset
        self._next_offset = base_offset
        self._end_offset = end_offset
        self._base_timestamp = base_timestamp
        self._stamped = append_timestamp is not None
        self._append_timestamp = append_timestamp if append_timestamp is not None else 0
        self._bytes = 0
        self._read_key = read_key
        self._read_value = read_value
        self._deserializes = read_key is not None or read_value is not None

    @property
    def next_offset(self) -> int:
        """Where reading continues: after the last record that was made or skipped, after the batch where it is done."""
        return self._next_offset

    @property
    def is_done(self) -> bool:
        return self._index >= self._count

    @property
    def bytes_read(self) -> int:
        """The size of all records that were made, as stored."""
        return self._bytes

    def count_deliveries(self, count: object) -> None:
        """Records that are made from now on have been handed out so often in their share group."""
        now: Section = self._section
        if now._delivery_count != count:
            self._section = Section(
                now._topic, now._partition, now._timestamp_type, now._leader_epoch, now._data, count
            )

    def skip(self) -> None:
        """Pass over the record at which `take` failed. Raises `CorruptRecord` where its end is not known."""
        following: cython.Py_ssize_t
        delta: cython.longlong
        if self._index >= self._count:
            return
        following, _time, delta, _ka, _kl, _va, _vl, _hc, _ha = _record(
            self._section._p, self._pos, self._section._size
        )
        if following < 0:
            raise _malformed(self._index, self._count)
        self._pos = following
        self._index += 1
        self._next_offset = self._end_offset if self._index == self._count else _sum(self._base_offset, delta) + 1

    def take(self, out: list, room: cython.Py_ssize_t, start_offset: cython.longlong) -> cython.Py_ssize_t:
        """Append up to `room` records from `start_offset` on to `out`; returns how many.

        Raises `CorruptRecord`, or what a deserializer raises; the records before that one are in `out`, and
        `next_offset` is that record's.
        """
        following: cython.Py_ssize_t
        timestamp_delta: cython.longlong
        offset_delta: cython.longlong
        key_at: cython.Py_ssize_t
        key_length: cython.Py_ssize_t
        value_at: cython.Py_ssize_t
        value_length: cython.Py_ssize_t
        header_count: cython.Py_ssize_t
        headers_at: cython.Py_ssize_t
        offset: cython.longlong
        made: cython.Py_ssize_t = 0
        record: Record
        section: Section = self._section
        pos: cython.Py_ssize_t = self._pos
        end: cython.Py_ssize_t = section._size
        while self._index < self._count and made < room:
            (
                following,
                timestamp_delta,
                offset_delta,
                key_at,
                key_length,
                value_at,
                value_length,
                header_count,
                headers_at,
            ) = _record(section._p, pos, end)
            if following < 0:
                raise _malformed(self._index, self._count)
            offset = _sum(self._base_offset, offset_delta)
            if offset >= start_offset:
                record = Record.__new__(Record)
                record._section = section
                record._topic = section._topic
                record._partition = section._partition
                record._timestamp_type = section._timestamp_type
                record._leader_epoch = section._leader_epoch
                record._offset = offset
                record._timestamp = (
                    self._append_timestamp if self._stamped else _sum(self._base_timestamp, timestamp_delta)
                )
                record._key_at = key_at
                record._key_length = key_length
                record._value_at = value_at
                record._value_length = value_length
                record._headers_at = headers_at
                record._header_count = header_count
                record._end = following
                record._key = _UNREAD
                record._value = _UNREAD
                record._headers = _NO_HEADERS if header_count == 0 else _UNREAD
                if self._deserializes:
                    self._next_offset = offset
                    self._deserialize(record)
                out.append(record)
                made += 1
                self._bytes += following - pos
            pos = following
            self._pos = pos
            self._index += 1
            self._next_offset = self._end_offset if self._index == self._count else offset + 1
        if self._index == self._count and pos != end:
            raise _left_over(end - pos, self._count)
        return made

    @cython.cfunc
    def _deserialize(self, record: Record) -> object:
        if self._read_key is not None and record._key_length >= 0:
            record._key = self._read_key(record._topic, record.headers, record.key)
        if self._read_value is not None and record._value_length >= 0:
            record._value = self._read_value(record._topic, record.headers, record.value)
        return None


@cython.final
@cython.cclass
class RecordIterator:
    """Iterates over lists of records that a function supplies, one record a call and no Python code between two."""

    _records: list
    _index: cython.Py_ssize_t
    _refill: object

    def __init__(self, refill: object) -> None:
        """`refill` returns the next list, which is not empty, or None at the end."""
        self._records = []
        self._index = 0
        self._refill = refill

    def __iter__(self) -> object:
        return self

    def __next__(self) -> object:
        if self._index >= len(self._records):
            records = self._refill()
            if not records:
                raise StopIteration
            self._records = records
            self._index = 0
        record = self._records[self._index]
        self._index += 1
        return record

    @property
    def last(self) -> object:
        """The record that was returned last; None before the first."""
        return self._records[self._index - 1] if self._index > 0 else None

    @property
    def rest(self) -> list:
        """The records that were supplied but not returned."""
        return self._records[self._index :]

    def replace_rest(self, records: list) -> None:
        """From now on return these before more are requested."""
        self._records = self._records[self._index - 1 : self._index] + records if self._index > 0 else records
        self._index = 1 if self._index > 0 else 0
