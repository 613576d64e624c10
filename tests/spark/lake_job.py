"""Loads one topic into a lake twice, in a session of its own: `python lake_job.py SETTINGS`.

SETTINGS is JSON: `servers`, `directory`, `needs` (formats whose jars Maven resolves), `load` (settings of the load),
`spark`. Prints one line of JSON: the number of rows after the first load, and the rows and the quarantined ones after
a second load with nothing new.
"""

from __future__ import annotations

import json
import sys

from kalda.pipeline.generators.load import QUARANTINE, Lake, LoadSettings
from kalda.pipeline.session import make_session


def main() -> None:
    given = json.loads(sys.argv[1])
    spark = make_session("lake", given["needs"], given.get("spark", {}), "local[2]")
    lake, options = Lake(given["directory"]), {"kafka.bootstrap.servers": given["servers"]}
    counts = []
    for wanted in (LoadSettings(("in",), options, **given["load"]), LoadSettings((), options)):
        with lake.alone():
            lake.load(spark, lake.agreed(wanted))
        counts.append(lake.frame(spark).count())
    rows = lake.frame(spark).orderBy("partition", "offset").selectExpr("to_json(struct(value)) as value").collect()
    bad = lake.frame(spark, QUARANTINE).select("reason").collect()
    print(json.dumps([counts[0], [row.value for row in rows], [row.reason for row in bad]]), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
