"""Bytes over sockets: listeners and connections of a node, and clients that call other nodes.

This floor handles frames, their order, limits and time, not the meaning of a request: each frame goes to a handler
that the caller passes in, which returns the buffers of an answer. Only the client files encode and decode messages.

- `frames`: frames out of a byte stream, in memory bounded by what has arrived
- `connection`: one peer: requests in, answers out in order, holds that pause reading
- `turns`: how the requests of many connections share the event loop
- `server`: listeners, admission of connections, the sweep, graceful stop
- `admission`: which connections are accepted: counts and rates
- `tls`: TLS of listeners: a transport between the socket's and a connection
- `tls_contexts`: OpenSSL contexts of the two sides, out of settings
- `limits`: sizes, counts, rates and times that a peer may use
- `request_memory`: where that of arriving and unanswered requests is used up, one connection reads on, others wait
- `answer_memory`: few large answers are made at a time; who does not read is closed where unread ones are too many
- `peer_log`: log lines about peers, a limited number per second
- `deadlines`: of requests to other nodes, which a stall of the loop does not end
- `client`: asyncio client: pipelined requests, reconnect with backoff
- `client_security`: TLS and SASL of the connections of a client, or of a node to other nodes
- `config_providers`: secrets that the configuration of a node or a client refers to
- `certificate_files`: certificates of a test cluster, as files
- `kerberos`: the SASL mechanism GSSAPI on both sides, over the system's Kerberos library
- `jaas_file`: the login lines of a JAAS file that `KAFKA_OPTS` names
- `oauth`: OAuth tokens: validation of signed ones, and which URLs may be used
- `token_settings`: what the configuration says about them
- `token_endpoint`: where the OAuth tokens of a client come from
- `token_checks`: checks of such a token before it is used
- `http`: a small HTTP server for what operators read
- `named_files`: files that values name: regular ones of bounded size, without a wait
- `python_classes`: classes of the operator that the properties name
- `addresses`: the addresses of a host, and which one an attempt to connect takes first
- `probe`: whether every address of a host refuses connections to a port
- `free_ports`: ports for servers that are not running yet
"""
