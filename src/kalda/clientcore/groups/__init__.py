"""Members of groups, and when they commit.

- `membership`: what members of all kinds have in common, and those whose every request is a heartbeat
- `classic_membership`: a member of a classic group
- `consumer_membership`: a member of a KIP-848 group
- `commits`: the order and the repetition of commits
"""
