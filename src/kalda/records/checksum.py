"""CRC32C, the checksum of record batches.

The `crc32c` wheel does it in hardware, without copying, and lets go of the GIL for large buffers. Its package looks up
its own version when it is imported, for which `importlib.metadata`, `email` and `zipfile` come along: some 20 ms, a
tenth of what a node may take to start. Its extension module needs none of that, so it is loaded by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from typing import cast


def _load() -> Callable[..., int]:
    package = PathFinder.find_spec("crc32c")
    places = package.submodule_search_locations if isinstance(package, ModuleSpec) else None
    spec = PathFinder.find_spec("crc32c._crc32c", places) if places else None
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        found = getattr(module, "crc32c", None)
        if found is not None:
            return cast(Callable[..., int], found)
    from crc32c import crc32c as whole

    return cast(Callable[..., int], whole)


crc32c: Callable[..., int] = _load()
"""`crc32c(data, value=0)`: the CRC32C of a buffer, going on from `value`."""
