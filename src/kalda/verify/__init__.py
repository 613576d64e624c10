"""Judgement of what clients of transactions have seen: pure functions from a history to a verdict.

A history holds the transactions that clients attempted, what read_committed consumers read, offsets that were committed
within transactions, samples of the last stable offset, and the logs after everything has ended. The judgement does not
depend on how the history was recorded: by `kalda verify` on any cluster, or by the simulator.

- `history`: the operations of a history as values, and what of them is in the final logs
- `rules`: the final logs against the transactions, what consumers read against the final logs (G1a, G1b, G1c), inputs
  to outputs, and the last stable offset; the verdict
"""
