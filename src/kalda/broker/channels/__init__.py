"""Requests to other nodes: brokers, and the active controller on whichever node it is.

- `forwarding`: envelopes to and from the active controller
- `broker_channels`: requests to other brokers
- `controller_channel`: requests to the active controller, on whichever node it is
- `auto_topics`: topics that are created by the first request that names them
- `streams_topics`: internal topics of streams groups, created for their members
- `producer_ids`: producer ids, from blocks that the controller allocates
- `share_persister`: what share partitions and share groups read from and write to the share coordinator
- `dead_letter_writer`: writes the records that share groups give up to their dead letter topics; which topics these are
- `transaction_markers`: sends the markers of ended transactions
- `controller_registration`: registers this node's controller with the active one
- `lifecycle`: registration, heartbeats, controlled shutdown, as a machine
"""
