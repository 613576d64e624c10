"""Makes `spark.read.format("kalda-segments")` work without a call, as `pyspark_kalda` does for `kalda`."""

from kalda.spark.segments import SegmentSource as DefaultSource

__all__ = ["DefaultSource"]
