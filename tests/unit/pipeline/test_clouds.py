"""Google's and Azure's stores: which requests Hadoop's keys lead to, and emulators where the environment names one.

`KALDA_FAKE_GCS_SERVER` is the program of fake-gcs-server, `KALDA_AZURITE` that of Azurite's blob service.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from pyarrow import fs

from kalda.network.free_ports import free_ports
from kalda.pipeline.engine.runs import FlowReport, FlowState, RunReport
from kalda.pipeline.engine.status import statuses
from kalda.pipeline.files import Lease, is_locked, locked, place_of, read_state, remove_tree, replace_text, times_in
from kalda.pipeline.projects.specification import read_specification
from kalda.pipeline.session import PipelineError, Unavailable
from kalda.pipeline.stores import StorePath
from waiting import wait_until

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Of each Azurite."""
CREDENTIALS = "GOOGLE_APPLICATION_CREDENTIALS"


def settings_of(**keys: str) -> dict[str, str]:
    return {f"spark.hadoop.fs.{name.replace('__', '.')}": value for name, value in keys.items()}


def store(uri: str, settings: dict[str, str]) -> StorePath:
    found = place_of(uri, settings)
    assert isinstance(found, StorePath)
    return found


class Requests:
    """A server that knows no file, and notes who has asked it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.seen: list[tuple[str, str]] = []
        """Paths, and what said who has asked."""


@pytest.fixture
def requests() -> Iterator[Requests]:
    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            said = self.headers.get("Authorization") or self.rfile.read(length).decode()
            found.seen.append((self.path, said))
            token = {"access_token": "a-token", "expires_in": 3600, "token_type": "Bearer"}
            body = json.dumps(token if self.path == "/token" else {}).encode()
            self.send_response(200 if self.path == "/token" else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_HEAD = do_POST = answer  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found = Requests(server.server_port)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join()


def asked_of_google(requests: Requests, **keys: str) -> str:
    root = f"http://127.0.0.1:{requests.port}"
    place = store("gs://lake/a", settings_of(gs__storage__root__url=root, **keys))
    assert read_state(place / "x", {}) is None
    return requests.seen[-1][1]


def test_the_keys_of_google_say_who_asks(tmp_path: Path, requests: Requests, monkeypatch: pytest.MonkeyPatch) -> None:
    pem = generate_private_key(65537, 2048).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    file = tmp_path / "account.json"
    tokens = f"http://127.0.0.1:{requests.port}/token"
    account = {"client_email": "a@b", "private_key_id": "1", "private_key": pem, "token_uri": tokens}
    file.write_text(json.dumps({"type": "service_account", **account}))
    monkeypatch.setenv(CREDENTIALS, "of-another.json")
    assert asked_of_google(requests, gs__auth__type="UNAUTHENTICATED") == ""
    asked = asked_of_google(
        requests, gs__auth__type="SERVICE_ACCOUNT_JSON_KEYFILE", gs__auth__service__account__json__keyfile=str(file)
    )
    assert asked.startswith("Bearer ey")  # signed by the key of the file
    user = {"gs__auth__client__id": "one", "gs__auth__client__secret": "two", "gs__auth__refresh__token": "three"}
    asked = asked_of_google(requests, gs__auth__type="USER_CREDENTIALS", gs__token__server__url=tokens, **user)
    assert asked == "Bearer a-token"
    (granted,) = {said for path, said in requests.seen if path == "/token"}
    assert granted == "grant_type=refresh_token&client_id=one&client_secret=two&refresh_token=three"
    assert os.environ[CREDENTIALS] == "of-another.json"
    monkeypatch.setenv(CREDENTIALS, str(file))
    assert asked_of_google(requests, gs__auth__type="APPLICATION_DEFAULT").startswith("Bearer ey")


def test_credentials_of_google_that_are_not_there_are_one_sentence(requests: Requests) -> None:
    keys = {"gs__auth__type": "SERVICE_ACCOUNT_JSON_KEYFILE", "gs__auth__service__account__json__keyfile": "none.json"}
    with pytest.raises(Unavailable, match=r"^gs://lake/a/x: Cannot open credentials file none.json$"):
        asked_of_google(requests, **keys)


def asked_of_azure(requests: Requests, **keys: str) -> tuple[str, str]:
    settings = settings_of(
        azure__abfs__endpoint=f"127.0.0.1:{requests.port}", azure__always__use__https="false", **keys
    )
    place = store(f"abfs://lake@{ACCOUNT}.dfs.core.windows.net/a", settings)
    with suppress(FileNotFoundError, Unavailable):
        (place / "x").read_bytes()
    return requests.seen[-1]


def test_the_keys_of_azure_say_who_asks(requests: Requests) -> None:
    of_account = f"azure__account__key__{ACCOUNT}__dfs__core__windows__net"
    path, said = asked_of_azure(requests, **{of_account: KEY})
    assert path.startswith(f"/{ACCOUNT}/lake")
    assert said.startswith(f"SharedKey {ACCOUNT}:")
    assert asked_of_azure(requests, azure__account__key=KEY)[1].startswith(f"SharedKey {ACCOUNT}:")
    path, said = asked_of_azure(requests, azure__account__auth__type="SAS", azure__sas__fixed__token="sv=1&sig=signed")
    assert (said, "sig=signed" in path) == ("", True)


def test_programs_and_machines_of_azure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their tokens come from Azure alone."""
    made: list[dict[str, Any]] = []

    def azure(**given: Any) -> fs.FileSystem:
        made.append(given)
        return fs.LocalFileSystem()

    monkeypatch.setattr(fs, "AzureFileSystem", azure)
    kind = {"azure__account__auth__type": "OAuth"}
    providers = "org.apache.hadoop.fs.azurebfs.oauth2"
    program = {
        "azure__account__oauth__provider__type": f"{providers}.ClientCredsTokenProvider",
        "azure__account__oauth2__client__id": "one",
        "azure__account__oauth2__client__secret": "two",
        "azure__account__oauth2__client__endpoint": "https://login.microsoftonline.com/three/oauth2/token",
    }
    machine = {"azure__account__oauth__provider__type": f"{providers}.MsiTokenProvider"}
    for keys in (program, machine, {}):
        store("abfss://lake@shop.dfs.core.chinacloudapi.cn/programs", settings_of(**kind, **keys)).exists()
    endpoints = {
        "account_name": "shop",
        "blob_storage_authority": ".blob.core.chinacloudapi.cn",
        "blob_storage_scheme": "https",
        "dfs_storage_authority": ".dfs.core.chinacloudapi.cn",
        "dfs_storage_scheme": "https",
    }
    assert made == [
        {**endpoints, "client_id": "one", "client_secret": "two", "tenant_id": "three"},
        {**endpoints, "client_id": None},
        endpoints,
    ]


def test_spark_looks_for_googles_credentials_as_googles_tools_do(tmp_path: Path) -> None:
    file = tmp_path / "spark-pipeline.yml"
    head = "name: a\nstorage: gs://lake/state\nlibraries: [{glob: {include: a.py}}]\n"
    file.write_text(head)
    name = "spark.hadoop.fs.gs.auth.type"
    assert read_specification(tmp_path).session_settings == {name: "APPLICATION_DEFAULT"}
    file.write_text(f"{head}configuration:\n  {name}: COMPUTE_ENGINE\n")
    assert read_specification(tmp_path).session_settings == {name: "COMPUTE_ENGINE"}


def test_spark_shows_no_key_of_an_account_of_azure(tmp_path: Path) -> None:
    name = f"spark.hadoop.fs.azure.account.key.{ACCOUNT}.dfs.core.windows.net"
    head = f"name: a\nstorage: abfss://lake@{ACCOUNT}.dfs.core.windows.net/state\nlibraries: []\n"
    (tmp_path / "spark-pipeline.yml").write_text(f"{head}configuration: {{{name}: '{KEY}'}}\n")
    settings = read_specification(tmp_path).session_settings
    assert re.search(settings["spark.redaction.regex"], name)
    assert not re.search(settings["spark.redaction.regex"], "spark.hadoop.fs.azure.account.auth.type")


@contextmanager
def served(program: str, *options: str) -> Iterator[None]:
    with subprocess.Popen([program, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            yield
        finally:
            server.kill()


@pytest.fixture(scope="module", params=["gs", "abfs"])
def lake(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Any]]:
    """The URI of a bucket in an emulator, and the keys to it."""
    variable = {"gs": "KALDA_FAKE_GCS_SERVER", "abfs": "KALDA_AZURITE"}[request.param]
    program = os.environ.get(variable)
    if not program:
        pytest.skip(f"needs an emulator: {variable}")
    port = free_ports(1)[0]
    with ExitStack() as stack:
        system: fs.FileSystem
        if request.param == "gs":
            address = f"127.0.0.1:{port}"
            options = f"-host 127.0.0.1 -port {port} -scheme http -backend memory -public-host {address}"
            stack.enter_context(served(program, *options.split()))
            system = fs.GcsFileSystem(anonymous=True, scheme="http", endpoint_override=address, project_id="a")
            uri = "gs://lake"
            settings = settings_of(gs__storage__root__url=f"http://{address}", gs__auth__type="UNAUTHENTICATED")
        else:
            folder = tmp_path_factory.mktemp("azurite")
            options = f"--blobPort {port} --silent --disableTelemetry --skipApiVersionCheck --location {folder}"
            stack.enter_context(served(program, *options.split()))
            address = f"127.0.0.1:{port}"
            system = fs.AzureFileSystem(
                account_name=ACCOUNT, account_key=KEY, blob_storage_authority=address, dfs_storage_authority=address,
                blob_storage_scheme="http", dfs_storage_scheme="http",
            )  # fmt: skip
            uri = f"abfs://lake@{ACCOUNT}.dfs.core.windows.net"
            settings = settings_of(
                azure__abfs__endpoint=address, azure__always__use__https="false", azure__account__key=KEY
            )

        def makes() -> bool:
            with suppress(OSError):
                system.create_dir("lake")
                return True
            return False

        wait_until(makes)
        yield uri, settings


def test_a_place_in_a_store_is_used_as_a_path(lake: tuple[str, dict[str, str]]) -> None:
    uri, settings = lake
    place = store(f"{uri}/a/b/", settings)
    file = place / "state" / "run.json"
    assert read_state(file, {}) is None
    assert (place.exists(), times_in(place), place.problem()) == (False, {}, None)
    for number in (1, 2):
        replace_text(file, json.dumps({"number": number}))
        assert read_state(file, {"number": int}) == {"number": number}
    assert list(times_in(place / "state")) == ["run.json"]
    assert (place.is_dir(), (place / "state").is_dir()) == (True, True)
    file.unlink()
    file.unlink(missing_ok=True)
    with pytest.raises(FileNotFoundError):
        file.unlink()
    replace_text(place / "x" / "y", "")
    remove_tree(place)
    remove_tree(place)
    assert not place.exists()
    other = store(uri.replace("lake", "other") + "/a", settings)
    assert other.problem() == f"{other}: there is no bucket {other.bucket}"
    with pytest.raises((Unavailable, FileNotFoundError)):
        replace_text(other / "x", "")


def test_the_status_and_the_lock_of_a_project(
    lake: tuple[str, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, settings = lake
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    keys = "".join(f"  {name}: '{value}'\n" for name, value in settings.items())
    head = f"name: shop\nstorage: {uri}/state\nlibraries: [{{glob: {{include: a.py}}}}]\nconfiguration:\n"
    (tmp_path / "spark-pipeline.yml").write_text(f"{head}  spark.sql.warehouse.dir: {uri}/tables\n{keys}")
    specification = read_specification(tmp_path)
    (found,) = statuses(tmp_path, {})
    assert found.state == "never started"
    report = RunReport(specification, "once")
    report.flows = {"orders": FlowReport("orders", "default.orders", "StreamingTable", FlowState.RUNNING)}
    report.save(at_once=True)
    checkpoint = specification.checkpoint("orders")
    lines = ["v1", json.dumps({"batchTimestampMs": 1_704_067_200_000}), json.dumps({"events": {"0": 5}})]
    replace_text(checkpoint / "offsets" / "0", "\n".join(lines))
    replace_text(checkpoint / "commits" / "0", "v1\n{}")
    assert isinstance(specification.lock, StorePath)
    with locked(specification.lock, "it runs"):
        assert is_locked(specification.lock)
        (found,) = statuses(tmp_path, {})
        assert (found.state, list(found.done.values())) == ("running", [5])
        monkeypatch.setattr("kalda.pipeline.files._machine", lambda: "another")
        with pytest.raises(PipelineError, match="it runs"):
            Lease(specification.lock, "it runs", 1.0).__enter__()
    (found,) = statuses(tmp_path, {})
    assert found.state == "killed"
