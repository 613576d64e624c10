"""What a node measures, and what clients push: pages, gauges, a collector, a topic.

- `metrics_listener`: the HTTP listener for metrics and the use of quotas
- `request_metrics`: requests by API: counts and durations
- `node_gauges`: gauges of a node, its controller and its quorum; of its process: idle event loop, disks, memory, CPU
- `consumer_lag`: offsets and lag of the groups that it coordinates
- `metrics_push`: posts what a node measures to an OpenTelemetry collector
- `client_metrics_topic`: appends what clients push to `__client_metrics`
- `client_metrics_plugins`: the operator's own classes that receive what clients push
"""
