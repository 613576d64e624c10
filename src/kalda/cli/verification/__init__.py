"""What `kalda verify` runs: clients of transactions in processes of their own, which record what they see.

Records have unique values: transaction name, `#` and index for writers; transaction name, `<` and input value for
loops. The floor `verify` judges the history.

- `processes`: the processes, their incarnations, kills and pauses, and the faults command; operations to a file of each
  process, and one history from the files
- `run`: one run from its topics to its history
- `clients`: producers of transactions, loops, the consumers that loops read with
"""
