"""Telemetry: metrics of a node, and those that clients push, as OpenMetrics and OTLP. Pure: no socket, no clock.

- `exposition.py`: which sensors there are, under which of Kafka's names; sensors as OpenMetrics text, for Prometheus
- `client_instances.py`: clients that push metrics, what they are to push, and how often
- `otlp.py`: the metrics messages of OpenTelemetry
- `catalog.py`: the metrics of a node, with those of Kafka that it lacks, as a page of the docs
- `client_metrics`: metrics that clients push, as records of a topic and as their newest values
"""
