"""Bytes over sockets: listeners and connections of a node, and clients that call other nodes.

It knows frames, order, limits and time. It does not know what a request means: a frame goes to a handler that is
handed in, and comes back as the buffers of an answer. Only the client files know messages, to write and read them.

- `frames`: frames out of a byte stream, bounded by what has really arrived
- `connection`: one peer: requests in, answers out in order, holds that slow it down
- `server`: listeners, admission of newcomers, the sweep, graceful stop
- `admission`: who may connect: counts and rates
- `limits`: what a peer may take
- `complaints`: log lines about peers, at most so many a second
- `calls`: what both clients share: one request, one answer, versions
- `client`: asyncio client: pipelined requests, reconnect with backoff
- `blocking`: the same over a plain socket, for tools and Spark tasks
- `probe`: whether anybody listens at an address
- `free_ports`: addresses for servers that do not run yet
"""
