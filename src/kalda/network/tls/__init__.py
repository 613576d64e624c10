"""TLS of listeners and of clients.

- `contexts`: OpenSSL contexts of the two sides, out of settings
- `transport`: TLS of a listener: a transport between the socket's and a connection
"""
