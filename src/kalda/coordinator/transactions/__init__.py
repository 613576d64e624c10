"""Transaction coordination: which producer owns a transactional id, and how its transactions end, kept in
`__transaction_state`.

A transaction ends in two steps. Its outcome is written as a prepared state; that is the decision, which whoever leads
the partition from then on carries out. Then a marker goes to each partition of the transaction, and when all are
written the transaction is complete. Requests come decoded, with the time; answers that must wait are `Pending`. Which
broker leads a partition is looked up through a function; authorization is done before.

- `transaction_coordinator.py`: every request, on the shard of its transactional id
- `shard.py`: one partition: replay, completion, timeouts, expiry
- `metadata.py`: what is stored of an id: its states, which may follow which, and its transitions
- `markers.py`: the queues of markers that are to be written
"""
