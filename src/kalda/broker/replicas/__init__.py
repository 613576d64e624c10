"""The replicas of a broker: metadata into partitions that are opened, led, followed and deleted.

- `log_keeper`: the log manager from the node's configuration, and its background work
- `log_maintenance`: the module of that work, with its metrics and dynamic configs
- `publisher`: metadata into partitions that are opened, led, followed, deleted
- `publishing_faults`: exceptions while an image is applied, contained by section
- `opening`: requests for partitions that are being opened wait until they are
- `coordinators`: this broker's coordinators, by internal topic, and what drives them
- `peers`: what replicas need of other nodes: fetches, decisions on ISRs
- `assignments`: reports to the controller in which log directories replicas are
"""
