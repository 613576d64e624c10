"""Runs of projects and single queries, and what they say of themselves.

- `engine`: one run of a project, alone: its queries, views, restarts, refreshes
- `runs`: what a run says of itself, and when a flow starts again
- `query`: one query from its start to its end, with progress
- `upkeep`: small files merged, old rows and files removed
- `redrive`: rows that a table did not take, given to their flow again
- `metrics`, `lineage`: what a run reports to Prometheus, OpenTelemetry and OpenLineage
- `service`: several projects in one session, with a page and an interface over HTTP
- `checkpoints`: what the checkpoint of a query says
- `status`: pipelines with their lag and last batches
- `chart`: a picture of rates and lags, as PNG or as one HTML file
"""
