"""Builds the record codec's extension where Cython and a C compiler are at hand; without them the install goes on.

Everything else about the package is in pyproject.toml.
"""

from setuptools import Extension, setup

CODEC = "src/kalda/records/codec.py"


def extensions() -> list[Extension]:
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    codec = Extension(
        "kalda.records.codec",
        [CODEC],
        extra_compile_args=["-O3"],
        optional=True,
    )
    built: list[Extension] = cythonize([codec], quiet=True)
    return built


setup(ext_modules=extensions())
