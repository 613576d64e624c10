"""Requests to other nodes: brokers, and the active controller on whichever node it is.

- `forwarding`: envelopes to and from the active controller
- `broker_channels`: requests to other brokers
- `controller_channel`: requests to the active controller, on whichever node it is
- `controller_registration`: registers this node's controller with the active one
- `lifecycle`: registration, heartbeats, controlled shutdown, as a machine
"""
