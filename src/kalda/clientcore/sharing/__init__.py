"""Parts of `clientcore.share_consumer`: members of share groups (KIP-932).

- `held_records`: records that polls have returned, until they are acknowledged
- `share_chunks`: what a response has of one partition, and which of its records are acquired
- `share_fetcher`: fetches and acknowledges
- `share_metrics`: what a share consumer measures
"""
