"""Bytes over sockets: listeners and connections of a node, and clients that call other nodes.

This floor handles frames, their order, limits and time, not the meaning of a request: each frame goes to a handler
that the caller passes in, which returns the buffers of an answer. Only `client` encodes and decodes messages.

- `server`: listeners and the connections of peers
- `client`: connections to other nodes, as a node and as a client have them
- `tls`: TLS of both sides
- `login`: SASL mechanisms and their tokens
- `frames`: frames out of a byte stream, in memory bounded by what has arrived
- `config_providers`: secrets that the configuration of a node or a client refers to
- `named_files`: files that values name: regular ones of bounded size, without a wait
- `python_classes`: classes of the operator that the properties name
- `free_ports`: ports for servers that are not running yet
"""
