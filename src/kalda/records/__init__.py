"""Record batches: Kafka's unit of storage, replication and transfer, as bytes and as values.

A batch (of magic 2, the format that is written) is a 61-byte header and a section of records, which may be compressed.
Batches of the older magics 0 and 1 are read, and served as they are. The header alone has all that the broker needs on
its data path, so most other floors read and stamp headers and decode no record; a compiled scan checks the records of
clients before they are stored. This floor has the format only: it depends on no log, socket, topic or clock.

- `batch`: the header: reading, checking with CRC32C, stamping in place
- `codec`: parsing the section of records, and converting it to and from columns; compiled by Cython where the install
  had a C compiler
- `values`: the section of records to and from Python tuples; compiled likewise
- `scan`: checks the records of a section, piece by piece; compiled likewise
- `key_offsets`: the last offset of each key, for compaction; compiled likewise
- `compaction`: which records compaction keeps, of many batches at once or of one; compiled likewise
- `appending`: records appended to open batches, one at a time, by producers; compiled likewise
- `consuming`: the records that a consumer returns, their fields decoded when they are read; compiled likewise
- `messages`: the messages in metadata batches, most of them decoded by compiled code
- `builder`: batches from records and records from batches, of the older magics too, as Python values
- `compression`: the four codecs, with bounded output
- `control`: control batches: transaction markers and KRaft's own records
- `validation`: the checks of a leader on a produced batch, and the fields that it stamps; what a topic's configuration
  demands of the records, checked in bounded memory; how a refusal is reported
- `arrow`: batches from and to Arrow columns, and what `codec` converts between (needs the `arrow` extra)
"""
