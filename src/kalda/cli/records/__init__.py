"""The commands that carry records: `produce`, `consume`, `perf`.

- `produce`: lines, JSON and files to records
- `consume` over `places`: records to lines, between two places of a log
- `formats`: records as text, and text as records
- `perf`: rates and latencies, as Kafka's perf tools print them
"""
