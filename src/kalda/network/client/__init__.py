"""Connections to other nodes: what a node uses for its peers, and a client for its brokers.

- `client`: asyncio client: pipelined requests, reconnect with backoff
- `security`: TLS and SASL of these connections
- `addresses`: the addresses of a host, which one a node connects to first, and whether they refuse connections
"""
