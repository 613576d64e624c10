"""Members of groups, and when they commit.

- `membership`: what both group protocols have in common
- `classic_membership`: a member of a classic group
- `consumer_membership`: a member of a KIP-848 group
- `committing`: the order and the repetition of commits
"""
