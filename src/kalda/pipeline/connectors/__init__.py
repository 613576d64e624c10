"""What pipelines write and read beside topics and tables of Delta.

- `sinks`: the sinks of a project, and their options
- `jdbc_table`: a table of a database, each batch in one transaction
- `mirror`: topics of one cluster in another one, with the offsets of groups
- `increments`: rows that a source has since the last time, by a column that grows
"""
