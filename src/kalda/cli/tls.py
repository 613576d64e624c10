"""`kalda tls`: certificates for a test cluster."""

from __future__ import annotations

from pathlib import Path

import click

from kalda.cli.common.failures import Failure
from kalda.cli.common.nouns import Noun


@click.group("tls", cls=Noun)
def tls() -> None:
    """Certificates for trying out TLS."""


@tls.command("make")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--host",
    "hosts",
    metavar="NAME|ADDRESS",
    multiple=True,
    default=("localhost", "127.0.0.1", "::1"),
    show_default=True,
    help="A name or address of a node, which its certificate is valid for. May be repeated.",
)
@click.option(
    "--client", "clients", metavar="NAME", multiple=True, default=("client",), show_default=True,
    help="A client that gets a certificate, CN=NAME. May be repeated.",
)  # fmt: skip
@click.option(
    "--days", type=click.IntRange(1, 36_500), default=365, show_default=True, help="For how long they are valid."
)
def make(directory: Path, hosts: tuple[str, ...], clients: tuple[str, ...], days: int) -> None:
    """Make a certificate authority, a certificate for nodes and one for each client in DIRECTORY.

    They are for tests: the keys have no password. An existing authority is not replaced.

    \b
    Examples:
      kalda tls make certificates --client alice
    """
    try:
        from kalda.network.tls.contexts import make_certificates

        files = make_certificates(directory, hosts, clients, days)
    except ImportError as error:
        raise Failure("certificates need the package cryptography: pip install 'kalda[security]'") from error
    except FileExistsError as error:
        raise Failure(f"{error.filename} exists: give another directory, or remove it first") from error
    except ValueError as error:
        raise Failure(str(error)) from error
    nodes = [
        "# server.properties: a listener of SSL or SASL_SSL needs",
        "ssl.keystore.type=PEM",
        f"ssl.keystore.location={files.node.absolute()}",
        "ssl.truststore.type=PEM",
        f"ssl.truststore.location={files.authority.absolute()}",
    ]
    click.echo("\n".join(nodes))
    for name, path in files.clients.items():
        lines = [
            f"\n# {name}.properties: a client, by --command-config",
            "security.protocol=SSL",
            "ssl.truststore.type=PEM",
            f"ssl.truststore.location={files.authority.absolute()}",
            "ssl.keystore.type=PEM",
            f"ssl.keystore.location={path.absolute()}",
        ]
        (directory / f"{name}.properties").write_text("\n".join(lines[1:]) + "\n")
        click.echo("\n".join(lines))
