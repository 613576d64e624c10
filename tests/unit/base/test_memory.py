"""Memory that is not filled."""

from __future__ import annotations

import pytest

from kalda.base.allocation import unfilled


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 1_000_000])
def test_it_has_the_size_and_can_be_cut(size: int) -> None:
    buffer = unfilled(size)
    assert (type(buffer), len(buffer)) == (bytearray, size)
    del buffer[size // 2 :]
    assert len(buffer) == size // 2
