"""Classes of the operator that the properties name, as `package.module.Class` or `package.module:Class`, and their
modules, loaded again where a file has changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import module_from_spec
from types import ModuleType
from typing import Any


class ClassFailed(ValueError):
    """A class cannot be used. The message says why."""


def make(key: str, path: str, configs: Mapping[str, str], method: str) -> Any:
    """An object of the class, which must have `method`; its `configure(configs)` was called where it has one. Raises
    `ClassFailed`."""
    module_name, _, class_name = path.rpartition(":" if ":" in path else ".")
    if not module_name or not class_name:
        raise ClassFailed(f"{key}={path}: package.module.Class or package.module:Class is expected")
    try:
        found: Any = import_module(module_name)
        for part in class_name.split("."):
            found = getattr(found, part)
    except ImportError as error:
        raise ClassFailed(
            f"{key}={path} cannot be imported: {error}. A Python class is expected, installed or on PYTHONPATH"
        ) from error
    except AttributeError as error:
        raise ClassFailed(f"{key}={path}: the module {module_name} has no {class_name}") from error
    except Exception as error:
        raise ClassFailed(f"{key}={path} cannot be imported: {error!r}") from error
    if not isinstance(found, type) or not callable(getattr(found, method, None)):
        raise ClassFailed(f"{key}={path} is not a class with a method {method}")
    try:
        instance = found()
        if (configure := getattr(instance, "configure", None)) is not None:
            configure(dict(configs))
    except Exception as error:
        raise ClassFailed(f"{key}={path} cannot be configured: {type(error).__name__}") from error
    return instance


def module_from_source(former: ModuleType) -> ModuleType:
    """A module from the source of another one, as it is now. The former module does not change: its class is used where
    the new one fails. Bytecode is not used: Python takes it for current where a file has changed within a second, and
    has kept its length. Raises what the source raises."""
    spec: Any = former.__spec__
    module = module_from_spec(spec)
    with open(spec.origin, "rb") as file:
        exec(compile(file.read(), spec.origin, "exec"), module.__dict__)
    return module
