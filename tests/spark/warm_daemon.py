"""The process that forks Spark's Python processes, with the modules that these import.

PySpark's own imports none, since a library could have started threads: to import them takes each process longer than
its task, of a few records.
"""

from __future__ import annotations

import gc
import importlib
import sys

from pyspark import daemon

MODULES = ("pyarrow", "kalda.spark.cluster", "kalda.spark.exactly_once", "kalda.spark.range_reader", "kalda.spark.sink")

if __name__ == "__main__":
    for name in (*sys.argv[1:2], *MODULES):
        importlib.import_module(name)
    gc.freeze()
    daemon.manager()
