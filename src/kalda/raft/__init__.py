"""KRaft: the consensus on the metadata log, as a machine without input or output.

`machine.RaftMachine.step(event, now)` takes one event (a call of another replica, a reply, a finished flush, the
passing of time) and returns effects in the order in which they must be carried out: what must survive a crash is
persisted before anything is sent that promises it. A driver carries the effects out and feeds their outcomes back as
events.

The machine has no sockets and no files, and nothing here depends on what the metadata records mean. Beside it are the
formats of Kafka's messages and files for the quorum, and the store that keeps the files.

Imports go down only, and an import contract enforces it. From the top:

- `machine.py`: events to the functions below, what is due, effects out
- `replication.py`: Fetch on both sides: the leader's high watermark and check-quorum, the follower's log
- `elections.py`: pre-votes and votes, BeginQuorumEpoch and EndQuorumEpoch
- `reconfiguration.py`: adding, removing, updating voters (KIP-853), raising kraft.version
- `snapshot_transfer.py`: FetchSnapshot on both sides, the installation of what was fetched
- `replica.py`: what a replica holds, and its transitions from role to role
- `roles.py`: the roles and the state that each one has; the leader's progress of replicas and high watermark
- `events.py`, `rpc.py`: what goes into the machine and what comes out, what replicas exchange
- `log_state.py`: the bounds of the log: epochs, ends, snapshots; whether a follower's log agrees
- `voters.py`: replica keys and endpoints, voter sets and their history (KIP-853), `controller.quorum.voters`

Formats and files:

- `metadata_log.py`: the files of `__cluster_metadata-0`: log, snapshots, `quorum-state`
- `wire.py`: Kafka's messages to and from `rpc.py`
- `quorum_state.py`: the election state and its file
- `snapshots.py`: batches of the metadata log; snapshot names, writing and reading snapshot files as batches
"""
