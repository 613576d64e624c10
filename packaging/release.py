"""A release: sdist, wheels, the context of the image, an SBOM and checksums, into `dist`. `make release` runs it.

    python packaging/release.py [--untagged] [--out dist] [--python python3.12 ...] [--machine x86_64 ...]

The commit must have the tag `vVERSION` of pyproject.toml, unless `--untagged` says that it is a trial. The sources are
those of the commit, not of the directory. `SOURCE_DATE_EPOCH` is the commit's time, so that two builds of one commit by
the same tools are the same bytes.

The wheels are compiled by the gcc of a Debian, one for each version of Python that is found and each of two machines:
the other machine's by Debian's cross compiler, which needs no emulator. auditwheel reads from the symbols in each the
oldest glibc that it runs with, which makes its tag; Debian 12 gives manylinux_2_17. Those of this machine are installed
and tried. `KALDA_PURE=1` builds the one without compiled modules instead.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import uuid
from collections.abc import Sequence
from email.message import Message
from importlib import metadata
from pathlib import Path
from typing import Any, cast

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("python3.11", "python3.12", "python3.13")
MACHINES = {  # and the packages of Debian that compile for each on the other
    "x86_64": "gcc-x86-64-linux-gnu libc6-dev-amd64-cross",
    "aarch64": "gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
}
OLDEST_GLIBC = 28  # 2.28, of manylinux_2_28: a wheel that needs a later one does not run where Kalda is to run
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


def run(command: list[str], environment: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    """What it prints on standard output."""
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | (environment or {}), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise NotReleasable(f"{' '.join(command)[:200]} has failed: {(done.stderr or done.stdout)[-2000:]}")
    return done.stdout


def hook(
    source: Path,
    out: Path,
    name: str,
    epoch: int,
    python: str = sys.executable,
    environment: dict[str, str] | None = None,
) -> Path:
    """Run a hook of the build backend (PEP 517) in the sources: what it has built."""
    code = f"import sys; from setuptools import build_meta; print(build_meta.{name}(sys.argv[1]))"
    always = {"SOURCE_DATE_EPOCH": str(epoch), "PYTHONHASHSEED": "0"}
    return out / run([python, "-c", code, str(out)], always | (environment or {}), source).split()[-1]


def build_sdist(source: Path, out: Path, epoch: int) -> Path:
    """The backend's sdist, packed anew: it has the times of now."""
    built = hook(source, out, "build_sdist", epoch)
    with tempfile.TemporaryDirectory() as directory:
        with tarfile.open(built) as tar:
            tar.extractall(directory, filter="data")
        pack([(path, str(path.relative_to(directory))) for path in files_of(Path(directory))], built, epoch)
    return built


def cross_compiling(python: str, machine: str, includes: Path) -> dict[str, str]:
    """What makes setuptools compile for `machine`.

    Python's headers are the same for both machines. Debian's `pyconfig.h` includes a file by the machine's name: that
    of this one is taken, which differs in what only the interpreter itself is compiled by.
    """
    compiler = f"{machine}-linux-gnu-gcc"
    if shutil.which(compiler) is None:
        raise NotReleasable(f"no {compiler}. On Debian: apt-get install {MACHINES[machine]}")
    asked = "import sysconfig; print(sysconfig.get_config_h_filename(), sysconfig.get_config_var('SOABI'))"
    header, tag = run([python, "-c", asked]).split()
    version = tag.split("-")[1]
    here = includes / f"{machine}-linux-gnu" / f"python{version[0]}.{version[1:]}"
    here.mkdir(parents=True, exist_ok=True)
    shutil.copy(header, here)
    return {
        "CC": f"{compiler} -I{includes}",
        "LDSHARED": f"{compiler} -shared",
        "_PYTHON_HOST_PLATFORM": f"linux-{machine}",
        "SETUPTOOLS_EXT_SUFFIX": f".cpython-{version}-{machine}-linux-gnu.so",
    }


def build_wheel(source: Path, out: Path, epoch: int, python: str, machine: str) -> Path:
    """A wheel whose tag says which glibc it needs."""
    with tempfile.TemporaryDirectory() as directory:
        other = cross_compiling(python, machine, Path(directory)) if machine != platform.machine() else {}
        built = hook(source, Path(directory), "build_wheel", epoch, python, other)
        environment = {"SOURCE_DATE_EPOCH": str(epoch), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        run([sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", directory, str(built)], environment)
        (tagged,) = Path(directory).glob(f"*-manylinux*_{machine}.whl")
        needed = min(int(minor) for minor in re.findall(r"manylinux_2_(\d+)_", tagged.name))
        if needed > OLDEST_GLIBC:
            raise NotReleasable(f"{tagged.name} needs glibc 2.{needed}: build on an older Debian")
        return Path(shutil.move(tagged, out))


def build_wheels(
    source: Path, out: Path, epoch: int, pythons: Sequence[str] = PYTHONS, machines: Sequence[str] = tuple(MACHINES)
) -> list[Path]:
    if os.environ.get("KALDA_PURE") == "1":
        return [hook(source, out, "build_wheel", epoch)]
    wheels = []
    tools = [f"{name}=={metadata.version(name)}" for name in ("setuptools", "cython")]
    for asked in pythons:
        if subprocess.run([asked, "-c", ""], capture_output=True, check=False).returncode:
            print(f"release: {asked} does not run here, so there are no wheels for it. Name one by --python")
            continue
        with tempfile.TemporaryDirectory() as directory:
            run([asked, "-m", "venv", directory])
            python = f"{directory}/bin/python"
            run([python, "-m", "pip", "install", "-q", *tools])
            for machine in machines:
                wheels.append(build_wheel(source, out, epoch, python, machine))
                if machine == platform.machine():
                    run([python, "-m", "pip", "install", "-q", str(wheels[-1])])
                    run([python, "-c", "from kalda.records.codec import COMPILED; assert COMPILED"], cwd=out)
                    run([python, "-m", "kalda", "version"], cwd=out)
    if not wheels:
        raise NotReleasable(f"none of {', '.join(pythons)} runs here. Name an interpreter by --python")
    return wheels


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


def release(
    source: Path,
    out: Path,
    version: str,
    epoch: int,
    pythons: Sequence[str] = PYTHONS,
    machines: Sequence[str] = tuple(MACHINES),
) -> list[Path]:
    """Everything that a release has, built from clean sources."""
    out.mkdir(parents=True, exist_ok=True)
    sdist = build_sdist(source, out, epoch)
    built = [sdist, *build_wheels(source, out, epoch, pythons, machines)]
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
    parser.add_argument("--python", action="append", help="an interpreter to build wheels for; several may be named")
    parser.add_argument("--machine", action="append", choices=MACHINES, help="a machine to build wheels for")
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
            asked = options.python or PYTHONS, options.machine or tuple(MACHINES)
            for path in release(Path(directory), options.out.resolve(), version, epoch, *asked):
                print(f"{path.stat().st_size:>12,}  {path}")
    except NotReleasable as error:
        sys.exit(f"release: {error}")


if __name__ == "__main__":
    main()
