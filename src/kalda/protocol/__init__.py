"""The wire: Kafka's messages as declarations, and the functions compiled from them.

A message is one class with all its versions; a field's annotation is its wire type. From that, straight-line encode
and decode functions are generated for a message and a version on their first use. This floor turns bytes into values
and back and keeps no state: it knows no socket, no log, no cluster. Whatever it decodes is hostile until bounded:
a malformed frame raises `InvalidRequest`, and never allocates beyond a small multiple of its own size.

- `notation`: `Struct`, `Request`, `Response`, `RecordBody`, `field`, `maker`, and the wire types
- `schema`: what a declaration says about one version
- `source`: what the two generators share
- `decoder`, `encoder`: generate a message's functions for one version
- `codec`: `encode`, `encode_buffers`, `decode`
- `messages/`: every message, one file a domain
- `apis`: the table of API keys, their versions and listeners
- `framing`: request and response headers
- `caller`: who sent a request
- `record_framing`: how metadata and coordinator records are wrapped
- `varint`: Kafka's variable-length integers
"""
