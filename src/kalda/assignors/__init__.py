"""Which member of a group gets which partitions, by Kafka's rules; for clients and coordinators alike.

Pure functions of members, subscriptions and partition counts, and the bytes in which members exchange them. It does not
depend on who computes an assignment, nor on when.

- `stateless`: what an assignor is given and gives, and those without memory: range and round robin
- `sticky`: the sticky assignors
- `consumer_protocol`: the subscriptions and assignments that members of a classic group exchange
"""
