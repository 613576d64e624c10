"""The peak of memory while hostile bytes are decoded, measured in a process that does nothing else.

`tracemalloc` counts what every thread of a process allocates. The process that runs the tests has threads that other
tests left, so what is measured there is theirs too; a process of its own has one thread.
"""

from __future__ import annotations

import gc
import multiprocessing
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

from kalda.base.errors import InvalidRequest
from kalda.protocol import codec
from kalda.protocol.notation import Message


@contextmanager
def measuring_process() -> Iterator[ProcessPoolExecutor]:
    """One process for `peak_bytes`; it starts without this one's threads (spawn, not fork)."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


def peak_bytes(cls: type[Message], version: int, raws: list[bytes]) -> list[int]:
    """The peak for each of the byte strings, decoded or refused."""
    _decode(cls, memoryview(b""), version)  # compiles the decoder
    gc.disable()
    peaks = []
    for raw in raws:
        buffer = memoryview(bytearray(raw))
        tracemalloc.start()
        _decode(cls, buffer, version)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    gc.enable()
    return peaks


def _decode(cls: type[Message], buffer: memoryview, version: int) -> None:
    try:
        codec.decode_at(cls, buffer, version)
    except InvalidRequest:
        return
