"""What `make release` builds, and whether it starts nodes where it is all of Kalda that is installed.

The wheels are those without compiled modules, which are built in seconds.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from pasted_pages import ROOT, Session, blocks_of

from kalda import Admin, ClusterDescription, Unreachable
from kalda.network.free_ports import free_ports

pytestmark = pytest.mark.compat
EPOCH = 1_700_000_000
IGNORED = shutil.ignore_patterns("*.so", "*.c", "__pycache__", "*.egg-info")


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("release", ROOT / "packaging" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def releases(script: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two releases of the same sources, made in different directories."""
    made = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KALDA_PURE", "1")
        for name in ("first", "a-second"):
            source = tmp_path_factory.mktemp(name) / "sources"
            for each in script.IMAGE:
                if (ROOT / each).is_dir():
                    shutil.copytree(ROOT / each, source / each, ignore=IGNORED)
                else:
                    source.mkdir(exist_ok=True)
                    shutil.copy(ROOT / each, source / each)
            out = source.parent / "dist"
            script.release(source, out, "0.1.0", EPOCH)
            made.append(out)
    return made[0], made[1]


def test_a_release_is_the_same_bytes_again(releases: tuple[Path, Path]) -> None:
    first, second = ({path.name: path.read_bytes() for path in out.iterdir()} for out in releases)
    assert [name for name in first if first[name] != second.get(name)] == []
    assert sorted(first) == [
        "SHA256SUMS", "kalda-0.1.0-image.tar.gz", "kalda-0.1.0-py3-none-any.whl", "kalda-0.1.0.cdx.json",
        "kalda-0.1.0.tar.gz",
    ]  # fmt: skip
    for line in first["SHA256SUMS"].decode().splitlines():
        digest, name = line.split("  ")
        assert digest == hashlib.sha256(first[name]).hexdigest()


def test_a_compiler_that_is_not_there_is_named(script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(
        script.NotReleasable, match=r"aarch64-linux-gnu-gcc\. On Debian: apt-get install gcc-aarch64-linux"
    ):
        script.cross_compiling(sys.executable, "aarch64", tmp_path)


@pytest.mark.skipif(os.environ.get("KALDA_WHEELS") != "all", reason="takes minutes: set KALDA_WHEELS=all")
def test_wheels_of_both_machines_fit_manylinux_and_are_the_same_bytes_again(script: Any, tmp_path: Path) -> None:
    made = []
    for name in ("first", "a-second"):
        source, out = tmp_path / name / "sources", tmp_path / name / "dist"
        out.mkdir(parents=True)
        shutil.copytree(ROOT / "src", source / "src", ignore=IGNORED)
        for each in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
            shutil.copy(ROOT / each, source)
        wheels = script.build_wheels(source, out, EPOCH, [sys.executable])
        made.append({path.name: path.read_bytes() for path in wheels})
    assert made[0] == made[1]
    for machine in ("x86_64", "aarch64"):
        (name,) = (each for each in made[0] if each.endswith(f"_{machine}.whl"))
        assert "manylinux" in name


def test_the_context_of_the_image_has_what_its_dockerfile_copies(releases: tuple[Path, Path]) -> None:
    with tarfile.open(releases[0] / "kalda-0.1.0-image.tar.gz") as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    for line in (ROOT / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY"):
            for source in line.split()[1:-1]:
                assert any(name == source or name.startswith(f"{source}/") for name in names), line
    assert not [name for name in names if name.endswith((".so", ".pyc", ".c"))]


def test_the_bill_of_materials_has_what_a_node_needs(releases: tuple[Path, Path]) -> None:
    bill = json.loads((releases[0] / "kalda-0.1.0.cdx.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    parts = {part["name"]: part for part in bill["components"]}
    assert {"uvloop", "crc32c", "lz4", "zstandard", "click", "rich"} <= parts.keys()
    assert "markdown-it-py" in parts, "what rich needs"
    assert parts.keys().isdisjoint(("pytest", "pyspark", "mkdocs")), "of extras"
    assert all(part["licenses"] for part in parts.values())
    assert parts["click"]["purl"] == f"pkg:pypi/click@{metadata.version('click')}"


def test_without_the_tag_of_its_version_nothing_is_released(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"tag": "v0.0.9\nv0.0.8", "status": ""}
    monkeypatch.setattr(script, "git", lambda *arguments: answers[arguments[0]])
    with pytest.raises(script.NotReleasable, match=r"0\.1\.0 needs the tag v0\.1\.0, and HEAD has v0\.0\.9, v0\.0\.8"):
        script.check_tag("0.1.0")
    answers["tag"] = "v0.1.0"
    script.check_tag("0.1.0")
    answers["status"] = " M README.md"
    with pytest.raises(script.NotReleasable, match=r"M README\.md\. Commit or stash"):
        script.check_tag("0.1.0")


@pytest.fixture(scope="module")
def python(releases: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel, and beside it with what this one has: nothing is downloaded."""
    home = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    interpreter = home / "bin" / "python"
    wheel = releases[0] / "kalda-0.1.0-py3-none-any.whl"
    install = ["-m", "pip", "--python", str(interpreter), "install", "--no-index", "--no-deps", "-q", str(wheel)]
    subprocess.run([sys.executable, *install], check=True)
    (packages,) = home.glob("lib/python3*/site-packages")
    places = {str(Path(str(metadata.distribution(name).locate_file("")))) for name in ("click", "uvloop", "rich")}
    (packages / "beside.pth").write_text("\n".join(sorted(places)))
    shown = subprocess.run([interpreter, "-c", "import kalda; print(kalda.__file__)"], capture_output=True, text=True)
    assert Path(shown.stdout.strip()).is_relative_to(home), shown.stderr
    return interpreter


def test_the_wheel_starts_nodes_by_both_ways_of_the_readme(python: Path, tmp_path: Path) -> None:
    blocks = [block for block in blocks_of(ROOT / "README.md") if not block.directive and block.language == "sh"][:3]
    assert [block.text.split(" ")[1] for block in blocks] == ["server", "topics", "storage"]
    with Session(tmp_path, python=str(python)) as session:
        for block in blocks:
            session.run(block)


def test_the_entry_of_the_image_formats_and_starts_a_node(python: Path, tmp_path: Path) -> None:
    (broker, controller) = free_ports(2)
    variables = {
        "CLUSTER_ID": "4L6g3nShT-eMCtK--X86sw",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_NODE_ID": "7",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": f"7@127.0.0.1:{controller}",
        "KAFKA_LISTENERS": f"PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}",
        "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
        "PATH": f"{python.parent}:{os.environ['PATH']}",
    }
    code = (
        f"import sys, pathlib; sys.argv = ['entry']; sys.path.insert(0, {str(ROOT / 'packaging')!r})\n"
        f"import image_entry; image_entry.DATA = pathlib.Path({str(tmp_path)!r}); image_entry.main()"
    )
    for _ in range(2):  # the second start finds formatted directories
        with subprocess.Popen([python, "-c", code], env=variables, cwd=tmp_path) as process:
            try:
                with Admin(bootstrap_servers=f"127.0.0.1:{broker}", request_timeout_ms=5_000) as admin:
                    assert described(admin).cluster_id == variables["CLUSTER_ID"]
            finally:
                process.terminate()
        assert process.returncode == 0


def described(admin: Admin) -> ClusterDescription:
    """What the node says of its cluster, when it serves."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return admin.describe_cluster()
        except Unreachable:
            assert time.monotonic() < deadline
            time.sleep(0.1)
