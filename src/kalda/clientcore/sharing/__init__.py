"""Parts of `clientcore.share_consumer`: members of share groups (KIP-932).

- `acknowledgements`: what the application says of records, as runs of offsets, and as requests name it
- `held_records`: records that polls have returned, until they are acknowledged
- `share_sessions`: which partitions a broker has for this member
- `share_chunks`: what a response has of one partition, and which of its records are acquired
- `share_fetcher`: fetches and acknowledges
- `share_metrics`: what a share consumer measures
"""
