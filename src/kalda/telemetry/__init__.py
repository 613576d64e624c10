"""Telemetry: metrics of a node, and those that clients push, as OpenMetrics and OTLP. Pure: no socket, no clock.

- `exposition.py`: sensors as OpenMetrics text, for Prometheus
- `client_instances.py`: clients that push metrics, what they are to push, and how often
- `otlp.py`: the metrics messages of OpenTelemetry
- `client_records.py`: pushed data points as records of a topic
- `client_series.py`: the newest pushed values, as OpenMetrics text
- `catalog.py`: the metrics of a node, with those of Kafka that it lacks, as a page of the docs
- `names.py`: which sensors there are, under which of Kafka's names, and what they mean
"""
