"""Where PySpark finds `spark.read.format("kalda")` by itself: it looks for `DefaultSource` in modules named pyspark_*.

Conditions of queries are applied by Spark here; `kalda.spark.register(spark)` lets them narrow what is read.
"""

from kalda.spark.source import KaldaSource as DefaultSource

__all__ = ["DefaultSource"]
