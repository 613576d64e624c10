"""The process of a node: start and stop, listeners, security, configuration, clocks, threads and files.

- `node`: one process: its parts and the order of its start; its stop
- `node_parts`: what every part is made with: identity, clocks, threads, directory locks, quotas, authorizer, security
- `lost_metadata`: an only controller without its metadata log does not start beside the logs of partitions
- `closing`: the order in which parts are closed
- `publishers`: what receives each image of the metadata, in which order
- `listeners`: the bound listeners of a node, and requests that arrive before the node can answer them
- `broker_side`: with the broker role: the logs, its registration, its services
- `controller_side`: with the controller role: what its listeners answer, its registration
- `node_security`: TLS and SASL of a node: its listeners, its connections to other nodes, changed key stores
- `listener_security`: what a listener with TLS or SASL does with its connections
- `sasl_answers`: credentials of users, delegation tokens, OAuth tokens
- `dynamic_configs`: the effective configuration, handed to all modules when it changes
- `loggers`: the loggers of this process as a config resource
- `logs`: the format of log lines
- `disk`: the operating system's files
- `shell`: timers, threads, entropy
- `watchdog`: how late the event loop is, and what holds it
"""
