"""Projects of `pyspark.pipelines`: what their files define, and what is wrong with them before they run.

- `specification`: `spark-pipeline.yml`
- `definitions`: what a project's files define, in Python and in SQL
- `graph`: which output reads which; functions are called when their inputs exist
- `check`: what is wrong with a project, from plans that are made without Java
"""
