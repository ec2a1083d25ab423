"""`phalanx secret`: set, list and remove secrets of namespaces."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli import formatting
from phalanx.cli.connection import with_client
from phalanx.cli.help_pages import HelpCommand
from phalanx.cli.output import Json, Narrow, note, print_json, print_trimmed, table_of
from phalanx.cli.settings import refuse
from phalanx.cli.visible_text import say
from phalanx.core.errors import Invalid
from phalanx.core.spec.names import dns_label, secret_key
from phalanx.core.spec.secret_value import secret_value

if TYPE_CHECKING:
    from phalanx.client import Client
    from phalanx.core.spec.fields import Reader

app = typer.Typer(help="Set, list and remove secrets.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the secret.")]
Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        metavar="NAMESPACE",
        help="Namespace of the secret. [default: that of your settings or your token]",
    ),
]
Pairs = Annotated[
    list[str],
    typer.Argument(
        metavar="KEY=VALUE",
        help=(
            "Keys and values. KEY=@FILE reads the value from a file, as it is; KEY=- reads it from"
            " standard input, without the newline at its end."
        ),
    ),
]
Keys = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY", help="Keys to remove. [default: the whole secret]"),
]
File = Annotated[Path, typer.Argument(metavar="FILE", help="Key file of a server.")]


@app.command("set", cls=HelpCommand)
@with_client
def set_secret(
    client: "Client",
    *,
    name: Name,
    pairs: Pairs,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Set keys of a secret. Its other keys stay as they are.

    phalanx secret set training-data bucket=s3://models secret-key=-
    """
    namespace = _name(namespace or client.default_namespace())
    secret = client.set_secret(_name(name), _values(pairs), namespace=namespace)
    if as_json:
        print_json(secret)
    else:
        say(f"secret {secret.namespace}/{secret.name} has the keys {', '.join(secret.keys)}")


@app.command("list", cls=HelpCommand)
@with_client
def list_secrets(client: "Client", *, as_json: Json = False) -> None:
    """List secrets and the names of their keys. Values are never shown."""
    secrets = client.secrets()
    if as_json:
        print_json(secrets)
        return
    if not secrets:
        note("no secrets; set one with `phalanx secret set NAME KEY=VALUE`")
        return
    rows = [
        [
            secret.namespace,
            secret.name,
            ", ".join(secret.keys),
            formatting.ago(secret.changed_at, formatting.now()),
            secret.changed_by or "-",
        ]
        for secret in secrets
    ]
    headings = ["NAMESPACE", "SECRET", "KEYS", "CHANGED", "BY"]
    print_trimmed(table_of(headings, rows, Narrow(cut=("KEYS",), drop=("BY",))))


@app.command("rm", cls=HelpCommand)
@with_client
def remove_secret(
    client: "Client", *, name: Name, keys: Keys = None, namespace: Namespace = None
) -> None:
    """Remove a secret, or keys of it. Tasks that run already keep the values."""
    namespace = _name(namespace or client.default_namespace())
    client.remove_secret(_name(name), keys or (), namespace=namespace)
    what = f"keys {', '.join(keys)} of secret" if keys else "secret"
    say(f"removed {what} {namespace}/{name}")


@app.command("new-key", cls=HelpCommand)
def new_key(*, file: File) -> None:
    """Add a key to the key file of a server, or create the file.

    The new key encrypts the secrets that are set from then on, when the servers have started again
    with it. The earlier keys stay in the file, because they decrypt the others.
    """
    from phalanx.secrets.encryption import add_key  # noqa: PLC0415

    done = f"added a key to {file}" if file.exists() else f"created {file} with a new key"
    try:
        add_key(file)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a key file"
        refuse(f"{file}: cannot be written: {reason}")
    say(f"{done}; start the servers with --secret-key-file {file}")


def _name(name: str) -> str:
    """The name of a secret or a namespace, as the server accepts it."""
    return _read(dns_label, name, "the name")


def _read(read: "Reader[str]", value: str, what: str) -> str:
    try:
        return read(value)
    except Invalid as error:
        refuse(f"{what} {error}")


def _values(pairs: list[str]) -> dict[str, str]:
    values: dict[str, str] = {}
    if sum(pair.partition("=")[2] == "-" for pair in pairs) > 1:
        refuse("standard input has one value; read the values of other keys from files: KEY=@FILE")
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            refuse(f"{key or '='}: has no value; write KEY=VALUE, KEY=@FILE or KEY=-")
        if key in values:
            refuse(f"{key}: is given twice")
        _read(secret_key, key, "the key")
        values[key] = _read(secret_value, _value(key, value), f"the value of {key}")
    return values


def _value(key: str, written: str) -> str:
    """The value, or what a file has in its place, or standard input without its last newline."""
    if written != "-" and not written.startswith("@"):
        return written
    place = "standard input" if written == "-" else written[1:]
    try:
        if written == "-":
            return sys.stdin.buffer.read().decode().removesuffix("\n")
        return Path(written[1:]).read_bytes().decode()
    except OSError as error:
        refuse(f"{key}: {place} cannot be read: {error.strerror}")
    except UnicodeDecodeError:
        refuse(f"{key}: {place} is not UTF-8 text; encode it, for example with base64")
