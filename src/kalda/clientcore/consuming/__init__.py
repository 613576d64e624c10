"""What a consumer reads, from its position to the record.

- `subscription`: what a consumer reads, and where it is in each partition
- `fetcher`: records fetched ahead, and handed out in order
- `positions`: committed offsets, resets, validation by leader epoch, offsets by time
- `consumer_errors`: what a consumer raises, and operations that take several steps
- `consumer_metrics`: a consumer's metrics, by Kafka's names
"""
