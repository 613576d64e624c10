"""The node: asyncio shells that wire the floors together and carry their decisions out.

It owns the clock, threads, sockets and files. It decides nothing that a floor below can decide.

- `node.py`: one process: start, stop, listeners, identity
- `quorum_side.py`: the metadata log, its loader, and with the controller role a controller
- `broker_side.py`: with the broker role: the logs, the order of the start and of the stop
- `services.py`: what a broker serves clients with: the list of its modules
- `modules/`: one file for each area that a broker serves, and the manual for a new one
- `dynamic_configs.py`: the effective configuration, handed to all modules when it changes
- `pipeline.py`: from a frame to an answer, through the stages of the API's row
- `rows.py`: a row an API: handler, authorization, quota, failure
- `context.py`: what a handler receives and may return
- `steps.py`: long work in steps, one in each turn of the loop
- `large_requests.py`: requests that name very many things: decoded, handled and encoded in steps
- `watchdog.py`: how late the event loop is, and after which request
- `api_versions.py`: ApiVersions, which announces exactly the rows
- `handlers/`: what a broker's listener answers, one file a domain
- `controller_handlers.py`: what a controller's listener answers
- `controller_failures.py`: how the APIs of controllers alone report that the whole request failed
- `forwarding.py`: envelopes to and from the active controller
- `prober.py`: probes of brokers that may be dead
- `broker_channels.py`: requests to other brokers
- `controller_channel.py`: requests to the active controller, on whichever node it is
- `controller_registration.py`: registers this node's controller with the active one
- `raft_driver.py`, `raft_channel.py`: the quorum's machine on disk and network
- `raft_listeners.py`: delivery of the metadata log to the loader and the controller, in passes
- `controller_catch_up.py`: a controller that is far behind is made from the loader's image
- `lifecycle.py`: registration, heartbeats, controlled shutdown, as a machine
- `peers.py`: what replicas need of other nodes: fetches, decisions on ISRs
- `assignments.py`: tells the controller in which log directories replicas are
- `publisher.py`: metadata into partitions that are opened, led, followed, deleted
- `publishing_faults.py`: exceptions while an image is applied, contained by section
- `opening.py`: requests for partitions that are being opened wait until they are
- `metadata_cache.py`: the newest image, and the responses made from it
- `auto_topics.py`: topics that are created by the first request that names them
- `coordinators.py`: the table of this broker's coordinators, by internal topic
- `coordinator_shell.py`: a coordinator's log, timer and loads
- `producer_ids.py`: producer ids, from blocks that the controller allocates
- `transaction_markers.py`: sends the markers of ended transactions
- `log_keeper.py`: the log manager from the node's configuration, and its background work
- `dir_locks.py`: the locks on a node's directories
- `config_providers.py`: secrets that `server.properties` refers to
- `policies.py`: the operator's own rules for topics and configs
- `loggers.py`: the loggers of this process as a config resource
- `disk.py`: the operating system's files
- `shell.py`: clock, timers, threads, entropy
- `logs.py`: the format of log lines
"""
