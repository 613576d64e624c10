"""Builds the record codec's extensions where Cython and a C compiler are at hand; without them the install goes on.

Everything else about the package is in pyproject.toml.
"""

import os
import sysconfig

from setuptools import Extension, setup

MODULES = ("codec", "values", "scan", "key_offsets", "compacting", "compacting_runs", "appending", "consuming")

# One record's parsing is a chain of small functions that return structs. Inlined into the loops over records they are
# a third faster, but with its usual limits gcc stops short of that.
INLINE_ALL = [
    "--param=max-inline-insns-single=3000",
    "--param=large-function-growth=1000",
    "--param=large-stack-frame-growth=10000",
    "--param=inline-unit-growth=500",
]


def extensions() -> list[Extension]:
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or ""
    flags = ["-O3", "-g0", "-Wno-maybe-uninitialized", *(INLINE_ALL if "gcc" in compiler else [])]
    modules = [
        Extension(f"kalda.records.{name}", [f"src/kalda/records/{name}.py"], extra_compile_args=flags)
        for name in MODULES
    ]
    built: list[Extension] = cythonize(modules, include_path=["src"], build_dir="build/cython", quiet=True)
    for extension in built:
        extension.optional = True  # cythonize makes new objects and forgets it
    return built


setup(ext_modules=extensions())
