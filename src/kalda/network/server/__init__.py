"""Listeners of a node, and the connections of peers, whose memory, rates and turns are bounded.

- `server`: listeners, admission of connections, the sweep, graceful stop
- `connection`: one peer: requests in, answers out in order, holds that pause reading
- `admission`: which connections are accepted: counts and rates
- `limits`: sizes, counts, rates and times that a peer may use
- `turns`: how the requests of many connections share the event loop
- `peer_log`: log lines about peers, a limited number per second
- `http`: a small HTTP server for what operators read
- `peer_memory`: the memory of requests that arrive, and of answers that are not read
"""
