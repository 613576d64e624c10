"""The node: asyncio shells that wire the floors together and carry their decisions out.

It owns the clock, threads, sockets and files. It decides nothing that a floor below can decide.

- `process/`: one process: start, stop, listeners, identity, security, configuration
- `requests/`: from a frame to an answer, through the stages of the API's row
- `handlers/`: what the listeners of brokers and controllers answer, one file a domain; the list of a broker's modules
- `replicas/`: metadata into partitions, the log manager's background work, what replicas need of other nodes
- `quorum/`: the metadata log, its loader, and with the controller role a controller
- `channels/`: requests to other brokers and to the active controller
- `metrics/`: what a node measures, and what clients push
- `module.py`: what a module of a broker is, and what modules share: the manual for a new one
- `metadata_cache.py`: the newest image, and the responses made from it
- `policies.py`: the operator's own rules for topics and configs; its name is public
- `system_clock.py`: the machine's clocks; compiled
"""
