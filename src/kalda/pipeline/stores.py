"""Directories and files in an object store (S3, GCS, ADLS) or in HDFS, without Spark and Java: by pyarrow.

A `StorePath` has the part of `pathlib.Path` that a pipeline needs, so that code takes either. Of S3, keys are Hadoop's,
as Spark has them (`spark.hadoop.fs.s3a.endpoint`): Kalda and Spark reach the same place with the same rights. Without
keys both look where the cloud's own tools do: in the environment, in their files, on the machine. Of GCS and ADLS this
file does so in any case, but for an account's key.

Not obvious:

- What is written is there whole or not at all, and whoever reads later has it: the stores promise both. HDFS does not
  promise the first, so state is not kept there.
- What is not there is a `FileNotFoundError`; all else that a store answers is `Unavailable`, which no caller takes for
  an absent file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from kalda.base.configs.definition import InvalidConfig
from kalda.client.transport.config_files import read_profile
from kalda.pipeline.session import PipelineError, Unavailable

CONNECTION: Final = "kalda.storage.connection"
"""In a project's configuration: the profile of this machine that has keys of file systems (`fs.s3a.access.key`)."""
_HADOOP: Final = "spark.hadoop."
_ALIASES: Final = {"s3": "s3a", "s3n": "s3a"}
_MODULES: Final = {
    "s3a": "hadoop-aws",
    "gs": "hadoop-gcp",
    "abfs": "hadoop-azure",
    "abfss": "hadoop-azure",
    "hdfs": None,
}
"""By scheme: the module of Hadoop that Spark needs."""
SCHEMES: Final = ("s3", *_MODULES)
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REGIONS: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
_REGION: Final = "us-east-1"
"""Of a store that is not Amazon's, where nothing says another one."""
_ANONYMOUS: Final = "AnonymousAWSCredentialsProvider"
_CONNECT_S: Final = 5.0


def is_uri(text: str) -> bool:
    return "://" in text


def store_settings(configuration: Mapping[str, str]) -> dict[str, str]:
    """What Spark gets for its file systems beside a project's `configuration`: the keys of a connection, and an
    endpoint of the environment, as Amazon's tools have it. Raises `PipelineError`."""
    found: dict[str, str] = {}
    if name := configuration.get(CONNECTION):
        try:
            profile = read_profile(name)
        except InvalidConfig as error:
            raise PipelineError(error.message) from error
        found = {_HADOOP + key: value for key, value in profile.items() if key.startswith("fs.")}
    known = {**found, **configuration}
    s3 = f"{_HADOOP}fs.s3a."
    if endpoint := next((os.environ[name] for name in _ENDPOINTS if os.environ.get(name)), ""):
        found.setdefault(f"{s3}endpoint", endpoint)
    endpoint = known.get(f"{s3}endpoint", endpoint)
    if endpoint and "amazonaws.com" not in endpoint:
        found.setdefault(f"{s3}path.style.access", "true")
        found.setdefault(f"{s3}endpoint.region", next(filter(None, map(os.environ.get, _REGIONS)), _REGION))
    return found


@dataclass(frozen=True, slots=True)
class StorePath:
    """A directory or a file in a store."""

    scheme: str
    bucket: str
    """Of ADLS: container@account; of HDFS: host and port."""
    key: str = ""
    """Without a slash at its ends."""
    _keys: tuple[tuple[str, str], ...] = field(default=(), compare=False, repr=False)
    """Of file systems, as Hadoop names them."""

    @classmethod
    def of(cls, uri: str, settings: Mapping[str, str]) -> StorePath | None:
        """None for a place that is in no store. `settings`: of Spark, whose keys of file systems are taken."""
        parts = urlsplit(uri)
        scheme = _ALIASES.get(parts.scheme, parts.scheme)
        if scheme not in _MODULES or not parts.netloc:
            return None
        keys = {name.removeprefix(_HADOOP): value for name, value in settings.items() if name.startswith(_HADOOP)}
        return cls(scheme, parts.netloc, unquote(parts.path).strip("/"), tuple(sorted(keys.items())))

    @property
    def module(self) -> str | None:
        """What Spark needs to reach it."""
        return _MODULES[self.scheme]

    @property
    def keeps_state(self) -> bool:
        """Whether a file that is written there is whole or absent."""
        return self.scheme != "hdfs"

    @property
    def identity(self) -> str:
        """Of one place in all stores: buckets of two endpoints may have the same name."""
        return f"{dict(self._keys).get('fs.s3a.endpoint', '')} {self}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.key}".rstrip("/")

    def __truediv__(self, name: str) -> StorePath:
        return StorePath(self.scheme, self.bucket, f"{self.key}/{name}".lstrip("/"), self._keys)

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2] or self.bucket

    def exists(self) -> bool:
        from pyarrow.fs import FileType

        with self._answering() as system:
            return bool(system.get_file_info(self._path).type != FileType.NotFound)

    is_dir = exists  # there are no directories but as beginnings of names

    def times_in(self) -> dict[str, float]:
        """What is in it, and when each was written, by the store's clock."""
        from pyarrow.fs import FileSelector

        with self._answering() as system:
            found = system.get_file_info(FileSelector(self._path, allow_not_found=True))
        return {each.base_name: (each.mtime_ns or 0) / 1e9 for each in found}

    def read_bytes(self, max_bytes: int = -1) -> bytes:
        if self.scheme == "hdfs" and not self.exists():  # libhdfs would print a stack of Java
            raise FileNotFoundError(str(self))
        with self._answering() as system, system.open_input_stream(self._path) as opened:
            return bytes(opened.read() if max_bytes < 0 else opened.read(max_bytes))

    def read_text(self, encoding: str = "utf-8") -> str:
        return self.read_bytes().decode(encoding)

    def write_text(self, text: str) -> None:
        with self._answering() as system, system.open_output_stream(self._path) as opened:
            opened.write(text.encode())

    def unlink(self, missing_ok: bool = False) -> None:
        try:
            with self._answering() as system:
                system.delete_file(self._path)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def remove(self) -> None:
        """All that is in it."""
        try:
            with self._answering() as system:
                system.delete_dir(self._path)
        except FileNotFoundError:
            return

    def problem(self) -> str | None:
        """Why nothing can be read there; None where it can be."""
        from pyarrow.fs import FileType

        try:
            with self._answering() as system:
                if system.get_file_info(self._root).type == FileType.NotFound:
                    return f"{self}: there is no bucket {self.bucket}"
            return None
        except Unavailable as error:
            said = str(error)
        try:  # rights may be for this directory alone
            self.times_in()
        except Unavailable:
            return said
        return None

    @property
    def _root(self) -> str:
        return "/" if self.scheme == "hdfs" else self.bucket.partition("@")[0]

    @property
    def _path(self) -> str:
        return f"{self._root}/{self.key}".replace("//", "/").rstrip("/") or "/"

    @contextmanager
    def _answering(self) -> Iterator[Any]:
        """The file system. Raises `FileNotFoundError`, `Unavailable`."""
        import pyarrow

        try:
            yield _opened(self.scheme, self.bucket, self._keys)
        except FileNotFoundError:
            raise
        except (OSError, pyarrow.ArrowException) as error:
            said = str(error).splitlines()[0]
            if "Unable to load lib" in said:
                said += "; JAVA_HOME and HADOOP_HOME, or ARROW_LIBHDFS_DIR and CLASSPATH, say where a Hadoop is"
            raise Unavailable(f"{self}: {said.rpartition('AWS Error ')[2][:300]}") from error


@lru_cache(maxsize=64)
def _opened(scheme: str, bucket: str, keys: tuple[tuple[str, str], ...]) -> Any:
    """The file system of pyarrow with these keys of Hadoop."""
    from pyarrow import fs

    known = dict(keys)
    if scheme == "s3a":
        return fs.S3FileSystem(**_of_s3(bucket, known), connect_timeout=_CONNECT_S, allow_delayed_open=True)
    if scheme == "gs":
        return fs.GcsFileSystem()
    if scheme == "hdfs":
        return fs.HadoopFileSystem.from_uri(f"hdfs://{bucket}")
    account = bucket.partition("@")[2]
    return fs.AzureFileSystem(account.partition(".")[0], known.get(f"fs.azure.account.key.{account}"))


def _of_s3(bucket: str, known: Mapping[str, str]) -> dict[str, Any]:
    from pyarrow.fs import resolve_s3_region

    def key(name: str) -> str | None:
        """A key of this bucket, or of all."""
        return known.get(f"fs.s3a.bucket.{bucket}.{name}") or known.get(f"fs.s3a.{name}")

    endpoint = key("endpoint") or ""
    region = key("endpoint.region") or next(filter(None, map(os.environ.get, _REGIONS)), None)
    encrypts = endpoint.startswith("https://") if is_uri(endpoint) else key("connection.ssl.enabled") != "false"
    return {
        "access_key": key("access.key"),
        "secret_key": key("secret.key"),
        "session_token": key("session.token"),
        "role_arn": key("assumed.role.arn"),
        "anonymous": (key("aws.credentials.provider") or "").endswith(_ANONYMOUS),
        "region": region or (_REGION if endpoint else resolve_s3_region(bucket)),
        "scheme": "https" if encrypts else "http",
        "endpoint_override": endpoint.rpartition("://")[2].rstrip("/") or None,
        "force_virtual_addressing": key("path.style.access") == "false",
    }
