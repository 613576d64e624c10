"""What a node measures, and what clients push: pages, gauges, a collector, receivers.

- `metrics_listener`: the HTTP listener for metrics and the use of quotas
- `request_metrics`: requests by API: counts and durations
- `node_gauges`: gauges of a node, its controller and its quorum; of its process: idle event loop, disks, memory, CPU
- `metrics_push`: posts what a node measures to an OpenTelemetry collector
- `client_metrics_receivers`: where what clients push goes: the topic `__client_metrics`, the operator's own classes
"""
