"""Directories and files in an object store (S3, GCS, ADLS) or in HDFS, without Spark and Java: by pyarrow.

A `StorePath` has the part of `pathlib.Path` that a pipeline needs, so that code takes either. Keys are Hadoop's, as
Spark has them (`spark.hadoop.fs.s3a.endpoint`, `fs.gs.auth.type`, `fs.azure.account.key`): Kalda and Spark reach the
same place with the same rights. Without keys both look where the cloud's own tools do: in the environment, in their
files, on the machine; of ADLS only Kalda does, since Hadoop has no such way.

Not obvious:

- What is written is there whole or not at all, and whoever reads later has it: the stores promise both. HDFS does not
  promise the first, so state is not kept there.
- pyarrow takes Google's credentials from a file that the environment names, when a file system is made. So the
  variable is set for that moment.
- What is not there is a `FileNotFoundError`; all else that a store answers is `Unavailable`, which no caller takes for
  an absent file.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from tempfile import NamedTemporaryFile
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
_ENDPOINT_KEYS: Final = {
    "s3a": "fs.s3a.endpoint",
    "gs": "fs.gs.storage.root.url",
    "abfs": "fs.azure.abfs.endpoint",
    "abfss": "fs.azure.abfs.endpoint",
}
"""By scheme: what names a store that is not the cloud's own. Of GCS, Google's connector alone has it."""
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REGIONS: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
_REGION: Final = "us-east-1"
"""Of a store that is not Amazon's, where nothing says another one."""
_ANONYMOUS: Final = "AnonymousAWSCredentialsProvider"
_CONNECT_S: Final = 5.0
_GOOGLE_RETRIES: Final = timedelta(seconds=10)
_GOOGLE_CREDENTIALS: Final = "GOOGLE_APPLICATION_CREDENTIALS"
_GOOGLE_FILES: Final = {
    "SERVICE_ACCOUNT_JSON_KEYFILE": "auth.service.account.json.keyfile",
    "WORKLOAD_IDENTITY_FEDERATION_CREDENTIAL_CONFIG_FILE": "auth.workload.identity.federation.credential.config.file",
}
"""By `fs.gs.auth.type`: the key that names the file of credentials."""
_USER: Final = {
    "client_id": "auth.client.id",
    "client_secret": "auth.client.secret",
    "refresh_token": "auth.refresh.token",
}
"""What Google's file of a user has, and the key of each."""
_SAID: Final = re.compile(r"AWS Error |Azure Error: |with a last message of |underlying error message was: ")
"""In an answer of a store: what is before the part that says what is wrong."""
_SECRETS: Final = "(?i)secret|password|token|access[.]?key|credential|account[.]key"
"""In the names of keys: Spark's own expression, and what Hadoop calls the key of an account of Azure."""
_environment_lock: Final = threading.Lock()


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
    def defaults(self) -> dict[str, str]:
        """Settings of Spark for such a store. Of Google: to look for credentials where Google's own tools do, and not
        on a machine of Google's alone. Of Azure: an account's key is a secret too, for event log and page."""
        if self.scheme == "gs":
            return {f"{_HADOOP}fs.gs.auth.type": "APPLICATION_DEFAULT"}
        return {"spark.redaction.regex": _SECRETS} if self.scheme in ("abfs", "abfss") else {}

    @property
    def keeps_state(self) -> bool:
        """Whether a file that is written there is whole or absent."""
        return self.scheme != "hdfs"

    @property
    def identity(self) -> str:
        """Of one place in all stores: buckets of two endpoints may have the same name."""
        return f"{dict(self._keys).get(_ENDPOINT_KEYS.get(self.scheme, ''), '')} {self}"

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
        """All that is in it, if there is anything."""
        if self.exists():  # else GCS would say what an error of any other kind looks like
            with suppress(FileNotFoundError), self._answering() as system:
                system.delete_dir(self._path)

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
            said = _SAID.split(str(error).partition(" error_info=")[0])[-1].splitlines()[0]
            if "Unable to load lib" in said:
                said += "; JAVA_HOME and HADOOP_HOME, or ARROW_LIBHDFS_DIR and CLASSPATH, say where a Hadoop is"
            raise Unavailable(f"{self}: {said[:300]}") from error


@lru_cache(maxsize=64)
def _opened(scheme: str, bucket: str, keys: tuple[tuple[str, str], ...]) -> Any:
    """The file system of pyarrow with these keys of Hadoop."""
    from pyarrow import fs

    known = dict(keys)
    if scheme == "s3a":
        return fs.S3FileSystem(**_of_s3(bucket, known), connect_timeout=_CONNECT_S, allow_delayed_open=True)
    if scheme == "gs":
        with _google_credentials(known):
            return fs.GcsFileSystem(**_of_gcs(known), retry_time_limit=_GOOGLE_RETRIES)
    if scheme == "hdfs":
        return fs.HadoopFileSystem.from_uri(f"hdfs://{bucket}")
    return fs.AzureFileSystem(**_of_azure(scheme, bucket.partition("@")[2], known))


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


def _of_gcs(known: Mapping[str, str]) -> dict[str, Any]:
    scheme, _, endpoint = known.get(_ENDPOINT_KEYS["gs"], "").rpartition("://")
    return {
        "anonymous": _google_key(known, "auth.type") == "UNAUTHENTICATED",
        "scheme": scheme or None,
        "endpoint_override": endpoint.rstrip("/") or None,
    }


def _google_key(known: Mapping[str, str], name: str) -> str | None:
    return known.get(f"fs.gs.{name}") or known.get(f"google.cloud.{name}")


@contextmanager
def _google_credentials(known: Mapping[str, str]) -> Iterator[None]:
    """The environment names the file of credentials that the keys say, if they say any."""
    kind = _google_key(known, "auth.type") or ""
    with ExitStack() as stack:
        if kind == "USER_CREDENTIALS":
            user = {name: _google_key(known, key) or "" for name, key in _USER.items()}
            if address := _google_key(known, "token.server.url"):
                user["token_uri"] = address
            file = stack.enter_context(NamedTemporaryFile("w", suffix=".json"))  # no other user can read it
            json.dump({"type": "authorized_user", **user}, file)
            file.flush()
            given: str | None = file.name
        else:
            given = _google_key(known, _GOOGLE_FILES[kind]) if kind in _GOOGLE_FILES else None
        stack.enter_context(_environment_lock)
        before = os.environ.get(_GOOGLE_CREDENTIALS)
        if given is not None:
            os.environ[_GOOGLE_CREDENTIALS] = given
        try:
            yield
        finally:
            if given is not None:
                del os.environ[_GOOGLE_CREDENTIALS]
            if before is not None:
                os.environ[_GOOGLE_CREDENTIALS] = before


def _of_azure(scheme: str, account: str, known: Mapping[str, str]) -> dict[str, Any]:
    """`account`: with the domain of its cloud. Without keys, and with a way to log in that only Hadoop has, Azure's
    library looks in the environment and on the machine."""
    name, _, domain = account.partition(".")

    def key(name: str) -> str | None:
        """A key of this account, or of all."""
        return known.get(f"fs.azure.{name}.{account}") or known.get(f"fs.azure.{name}")

    found: dict[str, Any] = {"account_name": name}
    provider = (key("account.oauth.provider.type") or "").rpartition(".")[2]
    match key("account.auth.type") or "SharedKey", provider:
        case "SharedKey", _:
            found["account_key"] = key("account.key")
        case "SAS", _:
            found["sas_token"] = key("sas.fixed.token")
        case "OAuth", "ClientCredsTokenProvider":
            found["client_id"] = key("account.oauth2.client.id")
            found["client_secret"] = key("account.oauth2.client.secret")
            # https://login.microsoftonline.com/TENANT/oauth2/token
            found["tenant_id"] = urlsplit(key("account.oauth2.client.endpoint") or "").path.strip("/").partition("/")[0]
        case "OAuth", "MsiTokenProvider":
            found["client_id"] = key("account.oauth2.client.id")
    cloud = domain.partition(".")[2]
    transport = "http" if scheme == "abfs" and key("always.use.https") == "false" else "https"
    for service in ("blob", "dfs"):
        found[f"{service}_storage_authority"] = known.get(_ENDPOINT_KEYS["abfs"]) or f".{service}.{cloud}"
        found[f"{service}_storage_scheme"] = transport
    return found
