"""Runs of projects and single queries, and their reports.

- `engine`: one run of a project, alone: its queries, views, restarts, refreshes
- `runs`: the report of a run
- `restarts`: whether a flow that has failed starts again, and when
- `query`: one query from its start to its end, with progress
- `upkeep`: small files merged, old rows and files removed
- `redrive`: rows that a table did not take, given to their flow again
- `metrics`, `lineage`: what a run reports to Prometheus, OpenTelemetry and OpenLineage
- `service`: several projects in one session, with a page and an interface over HTTP
- `checkpoints`: what is in the checkpoint of a query
- `status`: pipelines with their lag and last batches
- `chart`: a picture of rates and lags, as PNG or as one HTML file
"""
