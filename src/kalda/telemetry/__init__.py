"""Telemetry: what a node measures, in the formats of others. Pure: no socket, no clock.

- `exposition.py`: sensors as OpenMetrics text, for Prometheus
- `names.py`: which sensors there are, under which of Kafka's names, and what they mean
"""
