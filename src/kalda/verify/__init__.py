"""Judgement of what clients of transactions have seen: pure functions from a history to a verdict.

A history holds the transactions that clients attempted, what read_committed consumers read, offsets that were committed
within transactions, samples of the last stable offset, and the logs after everything has ended. The judgement does not
depend on how the history was recorded: by `kalda verify` on any cluster, or by the simulator.

- `history`: the operations of a history as values
- `history_file`: a history as JSON lines
- `findings`: the rules, and what violates one
- `view`: the place and visibility in the final logs of each record and each transaction
- `rules`: the final logs against the transactions, what consumers read against the final logs (G1a, G1b, G1c), inputs
  to outputs, and the last stable offset
- `judge`: all rules, and the verdict
"""
