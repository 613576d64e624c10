"""Settings with which Spark takes little of the machine for queries of a few rows."""

from __future__ import annotations

_JAVA_OPTIONS = (
    # The quick compiler alone: the tests are too short for the other one, which takes as long as they do. Its space is
    # enlarged: where it is full, Java drops what it has compiled, and compiles it again.
    "-XX:TieredStopAtLevel=1",
    "-XX:ReservedCodeCacheSize=240m",
    "-XX:+UseSerialGC",
    "-XX:MetaspaceSize=256m",
    # Spark's classes are taken as they are, unverified.
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
)
SETTINGS = {
    "spark.driver.extraJavaOptions": " ".join(_JAVA_OPTIONS),
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.writeChecksumFile.enabled": "false",
    "spark.shuffle.compress": "false",
    # To plan a query again while it runs, to compile it and to describe it takes longer than its rows.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.ui.explainMode": "simple",
    "spark.ui.enabled": "false",
}
