"""Moving replicas between brokers: the parts of `kalda reassign` that do not depend on the command line.

- `planner`: an even placement of replicas that moves as few as possible; pure
- `plans`: plans in Kafka's JSON format, carrying them out, reassignments in progress
"""
