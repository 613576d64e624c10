"""Runs of projects and single queries, and their reports.

- `engine`: one run of a project, alone: its queries, views, restarts, refreshes
- `runs`: the report of a run; whether a flow that has failed starts again
- `query`: one query from its start to its end, its progress and its checkpoint
- `upkeep`: small files merged, old rows and files removed
- `redrive`: rows that a table did not take, given to their flow again
- `reporting`: what a run reports to Prometheus, OpenTelemetry and OpenLineage
- `service`: several projects in one session, with a page and an interface over HTTP
- `status`: pipelines with their lag and last batches, as values or as a picture
"""
