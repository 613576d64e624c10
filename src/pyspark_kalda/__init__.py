"""Makes `spark.read.format("kalda")` work without a call: PySpark loads `DefaultSource` of modules named pyspark_*.

With this source, Spark applies the conditions of queries after reading; `kalda.spark.register` has a choice.
"""

from kalda.spark.source import KaldaSource as DefaultSource

__all__ = ["DefaultSource"]
