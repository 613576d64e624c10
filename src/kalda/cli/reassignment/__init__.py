"""Moving replicas between brokers: what `kalda reassign` is made of. It knows no command line.

- `documents`: plans as Kafka's tools read and write them
- `planner`: where replicas should be, and as few of them moved as that allows; pure
- `throttles`: the configs that keep copying from taking all there is
- `execution`: a plan checked against the cluster, begun, and tidied up after
- `progress`: what is on its way, and how many bytes remain
- `bar`: waiting for it
"""
