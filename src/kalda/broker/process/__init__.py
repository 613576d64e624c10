"""The process of a node: start and stop, listeners, security, configuration, clocks, threads and files.

- `node`: one process: its parts and the order of its start; its stop
- `node_parts`: what every part is made with: identity, clocks, threads, directory locks, quotas, authorizer, security
- `closing`: the order in which parts are closed
- `listeners`: the bound listeners of a node, and requests that arrive before the node can answer them
- `node_security`: TLS and SASL of a node: its listeners, its connections to other nodes, changed key stores
- `listener_security`: what a listener with TLS or SASL does with its connections
- `dynamic_configs`: the effective configuration, handed to all modules when it changes
- `loggers`: the format of log lines; loggers as a config resource
- `disk`: the operating system's files
- `shell`: timers, threads, entropy; the watchdog of the loop
- `broker_side`: the half with the broker role
- `controller_side`: the half with the controller role
- `publishers`: what follows metadata, in its order
"""
