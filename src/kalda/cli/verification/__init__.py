"""What `kalda verify` runs: clients of transactions in processes of their own, which record what they see.

Records have unique values: transaction name, `#` and index for writers; transaction name, `<` and input value for
loops. The floor `verify` judges the history.

- `recording`: operations to a file of each process, and one history from the files
- `writers`: producers of transactions over several partitions
- `loops`: consume-transform-produce, with the offsets within the transaction
- `sources`: the input of loops, of which some are members of a group that may remove them
- `observers`: read_committed consumers, and samples of the last stable offset
- `processes`: the processes, their incarnations, kills and pauses, and the faults command
- `run`: one run from its topics to its history
"""
