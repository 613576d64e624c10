"""The quorum's side of a node: the metadata log on disk and network, its loader, and a controller.

- `quorum_side`: the quorum's half of a node, and the catch-up of a controller that is far behind
- `raft_driver`: the quorum's machine on disk and network
- `raft_listeners`: delivery of the metadata log to the loader and the controller, in passes
"""
