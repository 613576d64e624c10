"""The quorum's side of a node: the metadata log on disk and network, its loader, and a controller.

- `quorum_side`: the metadata log, its loader, and with the controller role a controller
- `raft_driver`, `raft_channel`: the quorum's machine on disk and network
- `raft_times`: latencies and rates of the metadata log
- `raft_listeners`: delivery of the metadata log to the loader and the controller, in passes
- `controller_catch_up`: a controller that is far behind is made from the loader's image
"""
