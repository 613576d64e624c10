"""Loads one topic into a lake twice, in a session of its own: `python lake_job.py SETTINGS`.

SETTINGS is JSON: `servers`, `directory`, `needs` (formats whose jars Maven resolves), `load` (settings of the load),
`spark`. Prints one line of JSON: the number of rows after the first load, and the rows and the quarantined ones after
a second load with nothing new.
"""

from __future__ import annotations

import json
import sys

from kalda.pipeline.lake import QUARANTINE, Lake
from kalda.pipeline.load import LoadSettings, load
from kalda.pipeline.session import make_session


def main() -> None:
    given = json.loads(sys.argv[1])
    spark = make_session("lake", given["needs"], given.get("spark", {}), "local[2]")
    lake = Lake(given["directory"])
    wanted = LoadSettings(("in",), {"kafka.bootstrap.servers": given["servers"]}, **given["load"])
    load(spark, lake, wanted)
    first = lake.frame(spark).count()
    load(spark, lake, LoadSettings((), {"kafka.bootstrap.servers": given["servers"]}, format=wanted.format))
    rows = lake.frame(spark).orderBy("partition", "offset").selectExpr("to_json(struct(value)) as value").collect()
    bad = lake.frame(spark, QUARANTINE).select("reason").collect()
    print(json.dumps([first, [row.value for row in rows], [row.reason for row in bad]]), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
