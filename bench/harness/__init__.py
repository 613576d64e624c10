"""What the benchmarks of whole nodes share.

- `nodes`: a Kalda node and an Apache Kafka node, started and stopped the same way
- `client`: one client process: librdkafka's throughput, raw requests, round trips; prints its figures as JSON
- `figures`: alternating rounds, medians, ratios of medians, the table
"""
