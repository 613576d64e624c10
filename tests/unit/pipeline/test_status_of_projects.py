"""What `status` says of a project without Spark."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from kalda.pipeline.engine.runs import FlowReport, FlowState, TableUpkeep
from kalda.pipeline.engine.status import statuses


def test_a_flow_has_its_state_its_restarts_and_the_upkeep_of_its_table(tmp_path: Path) -> None:
    (tmp_path / "spark-pipeline.yml").write_text("name: shop\nstorage: storage\nlibraries: [{glob: {include: a.py}}]\n")
    flow = FlowReport("orders", "default.orders", "StreamingTable", FlowState.DONE, restarts=2, lag=5, lag_seconds=9.2)
    flow.state_rows, flow.state_bytes, flow.watermark_ms, flow.failing = 1_000, 64_000, 1_704_067_200_000, {"a": 3}
    upkeep = {
        "default.orders": TableUpkeep(merges=1, files_merged=50, merged_ms=1_704_067_200_000, error="disk full"),
        "default.orders__quarantine": TableUpkeep(rows_deleted=7),
    }
    run = {
        "project": "shop",
        "flows": [asdict(flow)],
        "changes": [{"table": "default.orders", "change": "total double is new"}],
        "started_ms": 1,
        "upkeep": {name: asdict(each) for name, each in upkeep.items()},
    }
    (tmp_path / "storage" / "kalda").mkdir(parents=True)
    (tmp_path / "storage" / "kalda" / "run.json").write_text(json.dumps(run))
    (found,) = statuses(tmp_path, {})
    assert (found.name, found.state, found.lag) == ("orders", "done", 5)
    assert found.notes == (
        "a fails for 3 rows",
        "started again 2 times",
        "a record that is not read has waited for 9 s at least",
        "1,000 rows of state, 64,000 bytes",
        "the watermark is 2024-01-01 00:00:00 UTC",
        "total double is new",
        "50 small files were merged, the last 2024-01-01 00:00:00 UTC",
        "upkeep: disk full",
        "__quarantine: 7 rows were deleted by the table's retention",
    )
