"""The files of the metadata partition, as replicas write and read them for one another."""

from __future__ import annotations

from pathlib import Path

import pytest
from driving import topic

from kalda.broker.disk import RealDisk
from kalda.raft.batches import encode_batch, inspect_fetched
from kalda.raft.metadata_log import MetadataLog, MetadataLogConfig


@pytest.mark.parametrize(("at", "value"), [(8, 0xFF), (16, 9), (23, 0xFF), (30, 0xFF)])
def test_what_is_sound_before_a_damaged_batch_is_appended(tmp_path: Path, at: int, value: int) -> None:
    """Its length, its magic, its number of records, a byte of a record."""
    damaged = encode_batch([topic("b")], 1, 1, 1)
    damaged[at] = value
    fetched = encode_batch([topic("a")], 0, 1, 1) + damaged
    assert [batch.last_offset for batch in inspect_fetched(fetched)] == [0]
    log = MetadataLog.open(RealDisk(), f"{tmp_path}/m", MetadataLogConfig(), now_ms=1)
    log.append_fetched(fetched, 1, 1)
    assert log.log.log_end_offset == 1
    log.close()
