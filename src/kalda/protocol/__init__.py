"""The wire: Kafka's messages as declarations, and the functions compiled from them.

A message is one class with all its versions; a field's annotation is its wire type. From that, straight-line encode
and decode functions are generated for a message and a version on their first use. This floor turns bytes into values
and back. It keeps no state and depends on no socket, log or cluster. Every size in the bytes is checked before memory
is allocated for it: a malformed frame raises `InvalidRequest`, and takes at most a small multiple of its own size.

- `notation`: `Struct`, `Request`, `Response`, `RecordBody`, `field`, `maker`, and the wire types
- `schema`: the fields of one version of a message, and the common part of the two generators
- `decoder`, `encoder`: generate a message's functions for one version; long lists in parts
- `codec`: `encode`, `encode_buffers`, `decode`; messages as JSON types
- `messages/`: every message, one file a domain
- `apis`: the table of API keys, their versions and listeners
- `framing`: request and response headers; one request and its response, as all clients need them
- `access`: who sent a request, and which operation on which resource each API needs
- `naming`: how many things the clients and nodes of Kalda name in one request
- `kinds`: kinds that requests have as numbers, for callers that need no messages
- `record_framing`: the framing of metadata records and coordinator records
- `varint`: Kafka's variable-length integers
"""
