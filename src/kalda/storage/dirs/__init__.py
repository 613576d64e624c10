"""The logs of a node in its log directories.

- `log_manager`: the logs of a node, from its start to its stop; which of their files stay open
- `log_dirs`: one log directory; those of a node, and where a new log goes
- `future_logs`: replicas on their way to another directory
- `maintenance`: what is due in the logs again and again
"""
