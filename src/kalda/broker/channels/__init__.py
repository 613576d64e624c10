"""Requests to other nodes: brokers, and the active controller on whichever node it is.

- `forwarding`: envelopes to and from the active controller
- `auto_topics`: topics that are created by the first request that names them
- `share_persister`: what share partitions and share groups read from and write to the share coordinator
- `dead_letter_writer`: writes the records that share groups give up to their dead letter topics; which topics these are
- `lifecycle`: registration, heartbeats, controlled shutdown of a broker, as a machine; the registration of a controller
- `node_channels`: requests to the active controller, to other brokers, to the members of the quorum
- `transaction_channels`: producer ids, from blocks that the controller allocates; sends the markers of ended
  transactions
"""
