"""Free memory that the host of a virtual machine has provided already."""

from __future__ import annotations

import mmap

_WRITTEN = 1.3
"""Bytes of files for a byte of records, at most."""
_SPARE_BYTES = 512 << 20
"""For the memory of clients and nodes themselves."""


def provide_pages(records_bytes: int) -> None:
    """Touch as much memory as files of so many bytes of records need in the page cache, and some more, and free it.

    The host of a virtual machine provides a page where it is touched first, and may take back what is free for some
    seconds. That costs some 2 ms/MB here, several times what writing to a page costs which is there. A machine that
    writes for longer than its memory lasts reuses its pages.
    """
    memory = mmap.mmap(-1, int(_WRITTEN * records_bytes) + _SPARE_BYTES)
    try:
        for at in range(0, len(memory), mmap.PAGESIZE):
            memory[at] = 1
    finally:
        memory.close()
