"""What a node measures, and what clients push: pages, gauges, a collector, receivers.

- `request_metrics`: requests by API: counts and durations
- `node_gauges`: gauges of a node, its controller and its quorum; of its process: idle event loop, disks, memory, CPU
- `client_metrics_receivers`: where what clients push goes: the topic `__client_metrics`, the operator's own classes
- `metrics_export`: the listener of metrics, and posts to an OpenTelemetry collector
"""
