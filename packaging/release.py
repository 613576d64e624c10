"""A release: sdist, wheels, the context of the image, an SBOM and checksums, into `dist`. `make release` runs it.

    python packaging/release.py [--untagged] [--out dist]

The commit must have the tag `vVERSION` of pyproject.toml, unless `--untagged` says that it is a trial. The sources are
those of the commit, not of the directory. `SOURCE_DATE_EPOCH` is the commit's time, so that two builds of one commit by
the same tools are the same bytes.

With Docker, cibuildwheel builds the wheels of pyproject.toml (manylinux, x86-64 and aarch64). Without, there is the
wheel of this host alone, whose tag no index accepts.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import uuid
from email.message import Message
from importlib import metadata
from pathlib import Path
from typing import Any, cast

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
IMAGE = ("Dockerfile", ".dockerignore", "pyproject.toml", "setup.py", "README.md", "LICENSE", "packaging", "src")


class NotReleasable(Exception):
    """Why there is no release, and what to do."""


def git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotReleasable(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


def check_tag(version: str) -> None:
    tags = git("tag", "--points-at", "HEAD").split()
    if f"v{version}" not in tags:
        at = f"has {', '.join(tags)}" if tags else "has no tag"
        raise NotReleasable(f"version {version} needs the tag v{version}, and HEAD {at}. Run: git tag v{version}")
    if changed := git("status", "--porcelain", "--untracked-files=no"):
        raise NotReleasable(f"files differ from the commit: {changed.splitlines()[0].strip()}. Commit or stash them")


def pack(names: list[tuple[Path, str]], to: Path, epoch: int) -> None:
    """A tar.gz whose bytes depend on names, contents and the executable bit alone."""
    with (
        to.open("wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for path, name in sorted(names, key=lambda each: each[1]):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = path.stat().st_size, epoch
            entry.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            with path.open("rb") as content:
                tar.addfile(entry, content)


def files_of(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


def hook(source: Path, out: Path, name: str, epoch: int) -> Path:
    """Run a hook of the build backend (PEP 517) in the sources: what it has built."""
    code = f"import sys; from setuptools import build_meta; print(build_meta.{name}(sys.argv[1]))"
    environment = os.environ | {"SOURCE_DATE_EPOCH": str(epoch), "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(out)], cwd=source, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise NotReleasable(f"{name} has failed: {done.stderr[-2000:]}")
    return out / done.stdout.split()[-1]


def build_sdist(source: Path, out: Path, epoch: int) -> Path:
    """The backend's sdist, packed anew: it has the times of now."""
    built = hook(source, out, "build_sdist", epoch)
    with tempfile.TemporaryDirectory() as directory:
        with tarfile.open(built) as tar:
            tar.extractall(directory, filter="data")
        pack([(path, str(path.relative_to(directory))) for path in files_of(Path(directory))], built, epoch)
    return built


def build_wheels(source: Path, sdist: Path, out: Path, epoch: int) -> list[Path]:
    docker = shutil.which("docker")
    if docker and subprocess.run([docker, "info"], capture_output=True, check=False).returncode == 0:
        if importlib.util.find_spec("cibuildwheel") is None:
            raise NotReleasable("Docker runs, but cibuildwheel is not installed. Run: pip install 'kalda[release]'")
        command = [sys.executable, "-m", "cibuildwheel", "--platform", "linux", "--output-dir", str(out), str(sdist)]
        environment = os.environ | {"CIBW_ENVIRONMENT": f"SOURCE_DATE_EPOCH={epoch}"}
        subprocess.run(command, check=True, env=environment)
        return sorted(out.glob("*.whl"))
    print("release: Docker does not run, so there is the wheel of this host alone, which no index accepts")
    return [hook(source, out, "build_wheel", epoch)]


def licence_of(about: Message) -> str:
    """As the package names it: an expression, a text of which the first line counts, or classifiers."""
    named = about.get("License-Expression") or about.get("License")
    classifiers = [each.rpartition(" :: ")[2] for each in about.get_all("Classifier", ()) if "License ::" in each]
    return str(named or ", ".join(classifiers))


def components() -> list[dict[str, Any]]:
    """What a node needs, and what that needs: the versions that this environment has, and their licences."""
    found: dict[str, dict[str, Any]] = {}
    waiting = list(metadata.requires("kalda") or ())
    while waiting:
        requirement = Requirement(waiting.pop())
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        installed = metadata.distribution(name)
        licence = licence_of(cast(Message, installed.metadata))
        found[name] = {
            "type": "library", "name": name, "version": installed.version,
            "bom-ref": f"pkg:pypi/{name}@{installed.version}", "purl": f"pkg:pypi/{name}@{installed.version}",
            **({"licenses": [{"license": {"name": licence.splitlines()[0][:100]}}]} if licence else {}),
        }  # fmt: skip
        waiting += installed.requires or ()
    return sorted(found.values(), key=lambda each: str(each["name"]))


def sbom(version: str) -> str:
    """CycloneDX 1.6. cyclonedx-py describes a whole environment, development tools too; this is a node's part of it."""
    parts = components()
    described = {
        "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'kalda {version} {parts}')}",
        "metadata": {
            "component": {
                "type": "application", "name": "kalda", "version": version, "bom-ref": f"pkg:pypi/kalda@{version}",
                "purl": f"pkg:pypi/kalda@{version}", "licenses": [{"license": {"id": "Apache-2.0"}}],
            },
        },
        "components": parts,
    }  # fmt: skip
    return json.dumps(described, indent=1) + "\n"


def release(source: Path, out: Path, version: str, epoch: int) -> list[Path]:
    """Everything that a release has, built from clean sources."""
    out.mkdir(parents=True, exist_ok=True)
    sdist = build_sdist(source, out, epoch)
    built = [sdist, *build_wheels(source, sdist, out, epoch)]
    image = out / f"kalda-{version}-image.tar.gz"
    paths = [
        path for name in IMAGE for path in ([source / name] if (source / name).is_file() else files_of(source / name))
    ]
    kept = [path for path in paths if not re.search(r"\.egg-info/|\.so$|\.c$|\.pyc$", str(path.relative_to(source)))]
    pack([(path, f"kalda-{version}/{path.relative_to(source)}") for path in kept], image, epoch)
    bill = out / f"kalda-{version}.cdx.json"
    bill.write_text(sbom(version))
    built += [image, bill]
    sums = out / "SHA256SUMS"
    sums.write_text(
        "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(built))
    )
    return [*built, sums]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--untagged", action="store_true", help="a trial: the commit needs no tag")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    options = parser.parse_args()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    try:
        if not options.untagged:
            check_tag(version)
        epoch = int(git("log", "-1", "--format=%ct"))
        with tempfile.TemporaryDirectory() as directory, contextlib.chdir(ROOT):
            archive = subprocess.run(["git", "archive", "HEAD"], capture_output=True, check=True).stdout
            subprocess.run(["tar", "-x", "-C", directory], input=archive, check=True)
            for path in release(Path(directory), options.out.resolve(), version, epoch):
                print(f"{path.stat().st_size:>12,}  {path}")
    except NotReleasable as error:
        sys.exit(f"release: {error}")


if __name__ == "__main__":
    main()
