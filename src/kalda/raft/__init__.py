"""KRaft: the consensus on the metadata log, as a machine without input or output.

`machine.RaftMachine.step(event, now)` takes one event (a request, a response, a finished flush, the passing of time)
and returns effects in the order in which they must be carried out: what must survive a crash is persisted before
anything is sent that promises it. A driver carries them out and feeds the outcomes back as events.

The machine knows neither sockets nor files, and nothing here knows what the metadata records mean. Beside it are the
formats of Kafka's messages and files for the quorum, and the store that keeps the files.

- `values.py`: replica keys, offsets with epochs, endpoints
- `voters.py`: voter sets and their history (KIP-853), `controller.quorum.voters`
- `quorum_state.py`: the election state and its file
- `log_state.py`: where the log stands: epochs, ends, snapshots; divergence
- `events.py`, `effects.py`, `rpc.py`: what goes in, what comes out, what travels
- `roles.py`: the states of a replica with what each one remembers
- `leader.py`: what only a leader knows: acknowledgements, high watermark, check-quorum, start of epoch
- `outbox.py`: requests under way, one a destination, with backoff
- `machine.py`: the machine: dispatch, transitions, timers
- `elections.py`: votes asked and answered, Begin and EndQuorumEpoch
- `replication.py`: fetching as a follower, answering fetches as a leader, snapshots
- `reconfiguration.py`: adding, removing, updating voters (KIP-853)
- `wire.py`: Kafka's messages to and from `rpc.py`
- `batches.py`: batches of the metadata log, encoded and decoded
- `snapshots.py`: snapshot names, writing and reading snapshot files as batches
- `metadata_log.py`: the files of `__cluster_metadata-0`: log, snapshots, `quorum-state`
"""
