"""Record batches: Kafka's unit of storage, replication and transfer, as bytes and as values.

A batch (magic 2) is a 61-byte header and a section of records, which may be compressed. The header alone carries all
that the broker needs on its data path, so most of the house reads and stamps headers and never looks at a record.
This floor knows the format and nothing of logs, sockets, topics or clocks.

- `batch`: the header: reading, checking, stamping in place
- `checksum`: CRC32C
- `codec`: the records' section, parsed, and to and from columns; compiled by Cython where a compiler was at hand
- `values`: the records' section to and from Python tuples; compiled likewise
- `messages`: metadata records out of batches, most of them by compiled code
- `builder`: batches from records and records from batches, as Python values
- `compression`: the four codecs, bounded before anything is allocated
- `control`: control batches: transaction markers and KRaft's own records
- `validate`: what a leader demands of a produced batch, and what it stamps
- `arrow`: batches from and to Arrow columns (needs the `arrow` extra)
"""
