"""`spark-pipeline.yml`: the name, places, settings and definition files of a project of `pyspark.pipelines`.

The fields are those of Spark's own file. It is read without PySpark.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kalda.pipeline.files import OWN, Place, place_of, read_text
from kalda.pipeline.session import PipelineError, modules_of_projects
from kalda.pipeline.stores import CONNECTION, SCHEMES, StorePath, store_settings

SPECIFICATIONS: Final = ("spark-pipeline.yml", "spark-pipeline.yaml")
CATALOG: Final = "spark_catalog"
CATALOGS: Final = ("spark.sql.catalogImplementation", "spark.sql.catalog.")
"""With such a setting, a session may have tables that the project does not define."""
QUARANTINE: Final = "__quarantine"
"""Behind a table's name: the table of rows that it did not take."""
DELETED: Final = "__deleted"
"""Behind a table's name: the table of the last deletes of its keys. In a batch of changes: whether one is a delete."""
LOCK: Final = "run.lock"
"""The file that is locked while a run goes on."""
_FIELDS: Final = ("name", "storage", "catalog", "database", "schema", "configuration", "libraries")
_MAX_FILES: Final = 10_000


@dataclass(frozen=True, slots=True)
class Specification:
    """`spark-pipeline.yml`."""

    file: Path
    name: str
    storage: Place
    database: str
    configuration: Mapping[str, str]
    libraries: tuple[str, ...]

    @property
    def directory(self) -> Path:
        return self.file.parent

    @property
    def state(self) -> Place:
        """The directory of the engine's own state: checkpoints, the lock, what `status` shows."""
        return self.storage / "kalda"

    @property
    def lock(self) -> Place:
        """What is locked against runs of other machines: beside the state, or, where only the tables are in a store,
        beside those. HDFS has no lock."""
        tables = self.warehouse
        if isinstance(self.storage, Path) and isinstance(tables, StorePath) and tables.keeps_state:
            return tables / OWN / f"{self.name}.{LOCK}"
        return self.state / LOCK

    @property
    def session_settings(self) -> dict[str, str]:
        """What the configuration has for Spark, and what its file systems need beside that. Raises `PipelineError`."""
        own = {name: value for name, value in self.configuration.items() if name.startswith("spark.")}
        has_store = self.stores or CONNECTION in self.configuration
        found = store_settings(self.configuration) if has_store else {}
        for each in self.stores:
            found = each.defaults | found
        return found | own

    @property
    def stores(self) -> list[StorePath]:
        """The storage and the warehouse, where they are in a store."""
        return [each for each in (self.storage, self.warehouse) if isinstance(each, StorePath)]

    @property
    def modules(self) -> list[str]:
        """What the project's session needs."""
        return [*modules_of_projects(), *filter(None, (each.module for each in self.stores))]

    def checkpoint(self, flow: str) -> Place:
        return self.state / "checkpoints" / flow.replace(os.sep, "_")

    @property
    def warehouse(self) -> Place:
        """Where tables are: `spark.sql.warehouse.dir`, or `spark-warehouse` beside the file."""
        given = self.configuration.get("spark.sql.warehouse.dir")
        return self.directory / "spark-warehouse" if given is None else _placed(self.file, given, self.configuration)

    def place(self, table: str) -> Place:
        """The directory of a table, where Spark's own catalog has one of this name."""
        database, _, name = table.partition(".")
        return self.warehouse / name if database == "default" else self.warehouse / f"{database}.db" / name


def read_specification(given: Path, settings: Mapping[str, str] | None = None) -> Specification:
    """Read `spark-pipeline.yml` of a directory, or this file. `settings`: of Spark, instead of those in its
    configuration. Raises `PipelineError` with what is wrong in it."""
    import yaml

    file = given.absolute()
    if file.is_dir():
        found = [file / name for name in SPECIFICATIONS if (file / name).is_file()]
        if len(found) != 1:
            reason = "has both" if found else "has no"
            raise PipelineError(f"{given} {reason} {' and '.join(SPECIFICATIONS) if found else SPECIFICATIONS[0]}")
        file = found[0]
    try:
        values = yaml.safe_load(read_text(file))
    except FileNotFoundError:
        raise PipelineError(f"{given}: there is no such file") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise PipelineError(f"{file}: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise PipelineError(f"{file}: an object with {', '.join(_FIELDS)} is expected")
    unknown = [str(name) for name in values if name not in _FIELDS]
    if unknown:
        raise PipelineError(f"{file} has no field {', '.join(unknown)}; there are {', '.join(_FIELDS)}")
    for name in ("name", "storage"):
        if not isinstance(values.get(name), str) or not values[name]:
            raise PipelineError(f"{file}: {name} is {values.get(name)!r}, and a text is expected")
    catalog = values.get("catalog")
    if catalog not in (None, CATALOG):
        raise PipelineError(
            f"{file}: catalog is {catalog!r}; Kalda's engine keeps tables in {CATALOG}: leave it out, or use "
            f"--engine spark"
        )
    configuration = {**_configuration(file, values.get("configuration") or {}), **(settings or {})}
    specification = Specification(
        file=file,
        name=values["name"],
        storage=_placed(file, values["storage"], configuration),
        database=str(values.get("database") or values.get("schema") or "default").lower(),
        configuration=configuration,
        libraries=tuple(_library(file, entry) for entry in values.get("libraries") or ()),
    )
    if isinstance(specification.storage, StorePath) and not specification.storage.keeps_state:
        raise PipelineError(f"{file}: storage is {specification.storage}: HDFS is for tables, not for state")
    return specification


def _placed(file: Path, given: str, configuration: Mapping[str, str]) -> Place:
    """A directory, from a path or a URI; relative paths begin beside the file."""
    settings = {**store_settings(configuration), **configuration} if "://" in given else {}
    found = place_of(given, settings, file.parent)
    if found is None:
        raise PipelineError(f"{file}: {given!r} is neither a directory nor a URI of {', '.join(SCHEMES)}")
    return found


def _configuration(file: Path, given: Any) -> dict[str, str]:
    if not isinstance(given, dict):
        raise PipelineError(f"{file}: configuration is {given!r}, and an object of names and texts is expected")
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise PipelineError(f"{file}: configuration: {name} is {value!r}; write it in quotes")
    return dict(given)


def _library(file: Path, entry: Any) -> str:
    try:
        pattern = entry["glob"]["include"]
    except (KeyError, TypeError):
        pattern = None
    if not isinstance(pattern, str):
        raise PipelineError(f"{file}: libraries has {entry!r}; entries are 'glob: {{include: transformations/**}}'")
    folder = pattern.removesuffix("/**")
    if any(letter in folder for letter in "*?["):
        raise PipelineError(f"{file}: include is {pattern!r}: a file, or a folder with /** behind it, is expected")
    return pattern


def files_of(specification: Specification) -> list[Path]:
    """The definition files, in the order of the libraries and of their names."""
    found: list[Path] = []
    for pattern in specification.libraries:
        folder = specification.directory / pattern.removesuffix("/**")
        inside = sorted(folder.rglob("*")) if pattern.endswith("/**") else [folder]
        found += [each for each in inside if each.is_file() and "__pycache__" not in each.parts]
        if len(found) > _MAX_FILES:
            raise PipelineError(f"{specification.file}: {pattern} has more than {_MAX_FILES} files")
        if not pattern.endswith("/**") and not folder.is_file():
            raise PipelineError(f"{specification.file}: libraries has {pattern}, and there is no such file")
    if not found:
        raise PipelineError(f"{specification.file}: its libraries have no .py or .sql files")
    for file in found:
        if file.suffix not in (".py", ".sql"):
            raise PipelineError(f"{file}: a definition file is .py or .sql")
    return list(dict.fromkeys(found))
