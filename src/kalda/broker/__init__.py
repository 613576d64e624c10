"""The node: asyncio shells that wire the floors together and carry their decisions out.

It owns the clock, threads, sockets and files. It decides nothing that a floor below can decide.

The process:

- `node.py`: one process: start, stop, listeners, identity
- `gate.py`: requests that arrive before the node can answer them
- `node_security.py`: TLS and SASL of a node: its listeners, its connections to other nodes, changed key stores
- `listener_security.py`: what a listener with TLS or SASL does with its connections
- `sasl_answers.py`: credentials of users, delegation tokens, OAuth tokens
- `dynamic_configs.py`: the effective configuration, handed to all modules when it changes
- `config_providers.py`: `server.properties` with the secrets that it refers to
- `policies.py`: the operator's own rules for topics and configs
- `loggers.py`: the loggers of this process as a config resource
- `logs.py`: the format of log lines
- `dir_locks.py`: the locks on a node's directories
- `disk.py`: the operating system's files
- `shell.py`: timers, threads, entropy
- `system_clock.py`: the machine's clocks; compiled
- `watchdog.py`: how late the event loop is, and what holds it

From a frame to an answer:

- `pipeline.py`: from a frame to an answer, through the stages of the API's row
- `rows.py`: a row an API: handler, authorization, quota, failure
- `context.py`: what a handler receives and may return
- `api_versions.py`: ApiVersions, which announces exactly the rows
- `handlers/`: what a broker's listener answers, one file a domain
- `controller_handlers.py`: what a controller's listener answers
- `item_checks.py`: checks of the single items of a request
- `authorizing.py`: a node's authorizer, fed by the metadata
- `request_faults.py`: log lines about unforeseen exceptions of handlers
- `stopwatch.py`: for how long requests hold the event loop; compiled

Quotas:

- `quotas.py`: a node's client quotas, fed by the metadata
- `charging.py`: the stage of the pipeline that charges answers to quotas
- `charging_at_once.py`: the same for Produce and Fetch that wait for nothing
- `throttling.py`: which quotas a request counts against, by how much
- `replication_throttles.py`: rates and replicas of replication throttles, from configs

The broker's side:

- `broker_side.py`: with the broker role: the logs, the order of the start and of the stop
- `services.py`: what a broker serves clients with: the list of its modules
- `modules/`: one file for each area that a broker serves, and the manual for a new one
- `log_keeper.py`: the log manager from the node's configuration, and its background work
- `publisher.py`: metadata into partitions that are opened, led, followed, deleted
- `publishing_faults.py`: exceptions while an image is applied, contained by section
- `opening.py`: requests for partitions that are being opened wait until they are
- `metadata_cache.py`: the newest image, and the responses made from it
- `auto_topics.py`: topics that are created by the first request that names them
- `peers.py`: what replicas need of other nodes: fetches, decisions on ISRs
- `assignments.py`: reports to the controller in which log directories replicas are
- `coordinators.py`: the table of this broker's coordinators, by internal topic
- `producer_ids.py`: producer ids, from blocks that the controller allocates
- `transaction_markers.py`: sends the markers of ended transactions

The controller's side, and the quorum:

- `quorum_side.py`: the metadata log, its loader, and with the controller role a controller
- `raft_driver.py`, `raft_channel.py`: the quorum's machine on disk and network
- `raft_times.py`: latencies and rates of the metadata log
- `raft_listeners.py`: delivery of the metadata log to the loader and the controller, in passes
- `controller_catch_up.py`: a controller that is far behind is made from the loader's image
- `prober.py`: probes of brokers that may be dead

Requests to other nodes:

- `forwarding.py`: envelopes to and from the active controller
- `broker_channels.py`: requests to other brokers
- `controller_channel.py`: requests to the active controller, on whichever node it is
- `controller_registration.py`: registers this node's controller with the active one
- `lifecycle.py`: registration, heartbeats, controlled shutdown, as a machine

Metrics:

- `metrics_listener.py`: the HTTP listener for metrics and the use of quotas
- `request_metrics.py`: requests by API: counts and durations
- `node_gauges.py`: gauges of a node, its controller and its quorum
- `process_gauges.py`: of its process: idle event loop, disks
- `metrics_push.py`: posts what a node measures to an OpenTelemetry collector
- `client_metrics_topic.py`: appends what clients push to `__client_metrics`
- `client_metrics_plugins.py`: the operator's own classes that receive what clients push
"""
