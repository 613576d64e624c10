"""Builds the extensions, of which most are the record codec's, where Cython and a C compiler are at hand.

Without a compiler, or with KALDA_PURE=1, there are no extensions, and a wheel is tagged py3-none-any: it must not be
taken for one of this platform. With a compiler that works, an extension that cannot be compiled ends the build.
Everything else about the package is in pyproject.toml.
"""

import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from setuptools import Extension, setup

RECORDS = ("codec", "values", "scan", "key_offsets", "compaction", "appending", "consuming")
MODULES = (
    *(f"records/{name}" for name in RECORDS), "base/samples", "broker/system_clock",
)  # fmt: skip

# One record's parsing is a chain of small functions that return structs. Inlined into the loops over records they are
# a third faster, but with its usual limits gcc stops short of that.
INLINE_ALL = [
    "--param=max-inline-insns-single=3000",
    "--param=large-function-growth=1000",
    "--param=large-stack-frame-growth=10000",
    "--param=inline-unit-growth=500",
]


def compiles(compiler: str) -> bool:
    """Whether the compiler and Python's headers are there."""
    include = sysconfig.get_paths()["include"]
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / "probe.c"
        source.write_text("#include <Python.h>\nint probe;\n")
        command = [*compiler.split(), f"-I{include}", "-c", str(source), "-o", str(source.with_suffix(".o"))]
        try:
            return subprocess.run(command, capture_output=True, check=False).returncode == 0
        except OSError:
            return False


def extensions() -> list[Extension]:
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or ""
    if os.environ.get("KALDA_PURE") == "1":
        return []
    if os.name == "posix" and not compiles(compiler):
        print(f"kalda: {compiler or 'no compiler'} does not compile: the record codec is pure Python", file=sys.stderr)
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    flags = ["-O3", "-g0", "-Wno-maybe-uninitialized", *(INLINE_ALL if "gcc" in compiler else [])]
    modules = [
        Extension(f"kalda.{name.replace('/', '.')}", [f"src/kalda/{name}.py"], extra_compile_args=flags)
        for name in MODULES
    ]
    built: list[Extension] = cythonize(modules, include_path=["src"], build_dir="build/cython", quiet=True)
    return built


# The compiler takes most of an install's time, and has the cores to itself.
setup(ext_modules=extensions(), options={"build_ext": {"parallel": os.cpu_count() or 1}})
