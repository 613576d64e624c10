"""The node: asyncio shells that wire the floors together and carry their decisions out.

It owns the clock, threads, sockets and files; it decides nothing that a floor below could decide.

- `node.py`: one process: start, stop, listeners, identity
- `quorum_side.py`: the metadata log, its loader, and with the controller role a controller
- `broker_side.py`: with the broker role: the logs, coming up and going down
- `services.py`: what a broker serves clients with, wired
- `pipeline.py`: from a frame to an answer, through the stages of the API's row
- `rows.py`: a row an API: handler, authorization, quota, failure
- `context.py`: what a handler receives and may return
- `steps.py`: long work in steps, one in each turn of the loop
- `api_versions.py`: ApiVersions, which announces exactly the rows
- `handlers/`: what a broker's listener answers, one file a domain
- `controller_handlers.py`: what a controller's listener answers
- `controller_failures.py`: how the APIs of controllers alone report that the whole request failed
- `forwarding.py`: envelopes to and from the active controller
- `prober.py`: probes of brokers that may be gone
- `controller_channel.py`: requests to the active controller, wherever it is
- `raft_driver.py`, `raft_channel.py`: the quorum's machine on disk and network
- `lifecycle.py`: registration, heartbeats, controlled shutdown, as a machine
- `peers.py`: the rest of the cluster as replicas see it: fetchers, ISR changes
- `assignments.py`: tells the controller in which log directories replicas are
- `publisher.py`: metadata into partitions that are opened, led, followed, deleted
- `metadata_cache.py`: what clients are told of the cluster
- `auto_topics.py`: topics that come into being when somebody asks for them
- `coordinator_shell.py`: the group coordinator's log and timer
- `log_keeper.py`: the log manager out of the node's configuration
- `dir_locks.py`: the locks on a node's directories
- `config_providers.py`: secrets that `server.properties` refers to
- `policies.py`: the operator's own rules for topics and configs
- `loggers.py`: this process's loggers as a config resource
- `disk.py`: the operating system's files
- `shell.py`: clock, timers, threads, entropy
- `logs.py`: log lines
"""
