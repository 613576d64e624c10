"""`kalda tls make`: the files it makes, and what it refuses."""

from __future__ import annotations

import ssl
from pathlib import Path

from click.testing import CliRunner

from kalda.base.texts import parse_properties
from kalda.cli.tls import tls
from kalda.network.client.security import ClientSecurity


def test_the_files_serve_a_node_and_a_client(tmp_path: Path) -> None:
    made = CliRunner().invoke(
        tls, ["make", str(tmp_path), "--client", "alice", "--host", "kalda.example", "--days", "2"]
    )
    assert made.exit_code == 0, made.output
    node = dict(parse_properties(made.output.split("\n\n")[0]))
    assert node["ssl.keystore.location"] == str(tmp_path / "node.pem")
    client = dict(parse_properties((tmp_path / "alice.properties").read_text()))
    security = ClientSecurity.of(client)
    assert security is not None
    assert security.tls is not None
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    context.load_cert_chain(tmp_path / "alice.pem")
    for name in ("ca.key", "node.pem", "alice.pem"):
        assert (tmp_path / name).stat().st_mode & 0o077 == 0


def test_an_authority_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "ca.key").write_text("mine")
    refused = CliRunner().invoke(tls, ["make", str(tmp_path)])
    assert refused.exit_code == 1
    assert "ca.key exists" in refused.output
    assert (tmp_path / "ca.key").read_text() == "mine"


def test_a_name_that_is_no_file_is_refused(tmp_path: Path) -> None:
    for name in ("../x", "ca", "node", ""):
        refused = CliRunner().invoke(tls, ["make", str(tmp_path / "new"), "--client", name])
        assert refused.exit_code == 1, name
        assert "names of clients" in refused.output
