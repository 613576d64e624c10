"""How a project is given to Spark's own engine."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kalda.pipeline.engine.engine import RunOptions, run_in_spark
from kalda.pipeline.projects.specification import Specification
from kalda.pipeline.session import PipelineError


def test_its_tables_are_kept_in_a_metastore_unless_a_catalog_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[tuple[list[str], dict[str, str]]] = []

    def run(command: list[str], env: dict[str, str], **_: Any) -> Any:
        began.append((command, env))
        return SimpleNamespace(returncode=3)

    monkeypatch.setattr(subprocess, "run", run)
    storage = tmp_path / "storage"
    specification = Specification(tmp_path / "spark-pipeline.yml", "shop", storage, "default", {}, ())
    options = RunOptions(refresh=("a", "b"), full_refresh=("c",))
    assert run_in_spark(specification, options, {"spark.sql.ansi.enabled": "false"}) == 3
    command, environment = began[-1]
    text = " ".join(command)
    assert command[0].endswith("/bin/spark-pipelines")
    assert f"run --spec {tmp_path}/spark-pipeline.yml --refresh a,b --full-refresh c --remote local[*]" in text
    for conf in (
        "spark.sql.ansi.enabled=false",
        "spark.sql.catalogImplementation=hive",
        f"spark.hadoop.javax.jdo.option.ConnectionURL=jdbc:derby:;databaseName={storage}/spark-metastore;create=true",
    ):
        assert conf in command
    assert f"-Dderby.stream.error.file={storage}/spark-metastore.log" in environment["SPARK_SUBMIT_OPTS"]
    run_in_spark(specification, RunOptions(), {"spark.sql.catalog.spark_catalog": "a.Catalog"})
    assert not any("catalogImplementation" in each for each in began[-1][0])


def test_what_it_cannot_do(tmp_path: Path) -> None:
    specification = Specification(tmp_path / "spark-pipeline.yml", "shop", tmp_path, "default", {}, ())
    with pytest.raises(PipelineError, match="no --follow"):
        run_in_spark(specification, RunOptions(follow=True), {})
    specification.state.mkdir()
    with pytest.raises(PipelineError, match="has checkpoints of Kalda's engine"):
        run_in_spark(specification, RunOptions(), {})
