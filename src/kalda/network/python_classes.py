"""Classes of the operator that the properties name, as `package.module.Class` or `package.module:Class`, and their
modules, loaded again where a file has changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import module_from_spec
from types import ModuleType
from typing import Any, Generic, TypeVar

from kalda.base.scheduling import Jobs, Timer, Timers

log = logging.getLogger("kalda.classes")
T = TypeVar("T")
_FILE_CHECK_INTERVAL_MS = 2_000


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


class WatchedClass(Generic[T]):
    """An object of a class, whose file is checked every few seconds: when it has changed, the object is made anew.
    Where that fails, the former one stays, and the reason is logged."""

    def __init__(
        self, key: str, path: str, make: Callable[[Any], T], expected: str = "A Python class is expected"
    ) -> None:
        """`make(class)` returns the object, and raises what is wrong with the class, or None where there is none of
        that name. Raises `ValueError` where the module cannot be imported, and what `make` raises."""
        self._key = key
        self._path = path
        self._make = make
        self._timer: Timer | None = None
        """For the next check of the file; None before `start` and after `close`."""
        module_name, _, self._class_name = path.rpartition(":" if ":" in path else ".")
        if not module_name or not self._class_name:
            raise ValueError(f"{key}={path}: package.module.Class or package.module:Class is expected")
        try:
            self._module = import_module(module_name)
        except Exception as error:
            raise ValueError(
                f"{key}={path} cannot be imported: {error}. {expected}, installed or on PYTHONPATH"
            ) from error
        self._changed_ns = self._modified_ns()
        self.made = self._made()

    def start(self, timers: Timers, jobs: Jobs, on_made: Callable[[T], None] = lambda _: None) -> None:
        """Watch the file from now on, and call `on_made` with each new object."""

        def check() -> None:
            jobs.run(self.has_changed, finish)

        def finish(changed: bool | None, error: BaseException | None) -> None:
            if self._timer is None:
                return  # the node stops
            if changed and error is None and self.make_anew():
                on_made(self.made)
            self._timer = timers.call_later_ms(_FILE_CHECK_INTERVAL_MS, check)

        self._timer = timers.call_later_ms(_FILE_CHECK_INTERVAL_MS, check)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def has_changed(self) -> bool:
        """Whether the file is another than when it was loaded last. Runs on a thread."""
        return self._modified_ns() not in (self._changed_ns, 0)

    def make_anew(self) -> bool:
        """Load the changed file. False, and a line in the log, where that cannot be."""
        self._changed_ns = self._modified_ns()
        former = self._module
        try:
            self._module = module_from_source(former)
            self.made = self._made()
        except Exception as error:
            self._module = former
            log.error("%s=%s has changed, and cannot be loaded: %s. The former one stays", self._key, self._path, error)
            return False
        log.info("%s=%s has changed, and is loaded anew", self._key, self._path)
        return True

    def _made(self) -> T:
        return self._make(getattr(self._module, self._class_name, None))

    def _modified_ns(self) -> int:
        from os import stat

        try:
            return stat(self._module.__file__ or "").st_mtime_ns
        except OSError:
            return 0
