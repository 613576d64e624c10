"""What `kalda verify` runs: clients of transactions in processes of their own, which record what they see.

Records have unique values: transaction name, `#` and index for writers; transaction name, `<` and input value for
loops. The floor `verify` judges the history.

- `writers`: producers of transactions over several partitions
- `loops`: consume-transform-produce, with the offsets within the transaction
- `sources`: what clients read: the input of loops, of which some are members of a group that may remove them; samples
  of the last stable offset
- `processes`: the processes, their incarnations, kills and pauses, and the faults command; operations to a file of each
  process, and one history from the files
- `run`: one run from its topics to its history
"""
