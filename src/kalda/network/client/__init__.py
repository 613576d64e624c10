"""Connections to other nodes: what a node uses for its peers, and a client for its brokers.

- `client`: asyncio client: pipelined requests, reconnect with backoff
- `security`: TLS and SASL of these connections
- `addresses`: the addresses of a host, and which one an attempt to connect takes first
- `channel`: requests of one purpose as pending results, over a client for each address
"""
