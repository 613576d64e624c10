"""CRC32C, the checksum of record batches.

The `crc32c` wheel computes it in hardware, without copying, and releases the GIL for large buffers. At import its
package looks up its own version, which imports `importlib.metadata`, `email` and `zipfile`: some 20 ms, a tenth of the
time that a node may take to start. So only its extension module, which needs none of these, is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from typing import cast


def _load() -> Callable[..., int]:
    package = PathFinder.find_spec("crc32c")
    folders = package.submodule_search_locations if isinstance(package, ModuleSpec) else None
    spec = PathFinder.find_spec("crc32c._crc32c", folders) if folders else None
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        function = getattr(module, "crc32c", None)
        if function is not None:
            return cast(Callable[..., int], function)
    from crc32c import crc32c as of_package

    return cast(Callable[..., int], of_package)


crc32c: Callable[..., int] = _load()
"""`crc32c(data, value=0)`: the CRC32C of a buffer, or of one that continues a buffer whose CRC32C is `value`."""
