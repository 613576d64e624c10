"""Moving replicas between brokers: the parts of `kalda reassign` that do not depend on the command line.

- `documents`: plans in the format of Kafka's tools
- `planner`: an even placement of replicas that moves as few as possible; pure
- `execution`: checking and starting a plan, removing its throttles
- `progress`: reassignments in progress and the bytes that remain; waiting for the end, with a line of them
"""
