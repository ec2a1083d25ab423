"""`phalanx login` and `logout`: the stored server, its pinned authority, the token, a namespace."""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli.settings import refuse
from phalanx.cli.visible_text import say

if TYPE_CHECKING:
    from phalanx.client.settings import ClientSettings
    from phalanx.wire.identity import Identity

Url = Annotated[
    str, typer.Argument(metavar="URL", help="Server URL, or several separated by commas.")
]
Fingerprint = Annotated[
    str | None,
    typer.Option(
        "--fingerprint",
        envvar="PHALANX_FINGERPRINT",
        metavar="SHA256",
        help="Fingerprint of the server's certificate authority, as the server prints it.",
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        envvar="PHALANX_TOKEN_FILE",
        metavar="FILE",
        help="File with the API token; - reads it from standard input."
        " [default: PHALANX_TOKEN, or the token of an earlier login to the server]",
    ),
]


Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        metavar="NAME",
        help="Namespace of jobs, crons and secrets that name none. [default: the only one of the"
        " token, or default]",
    ),
]


def login(
    *,
    url: Url,
    fingerprint: Fingerprint = None,
    token_file: TokenFile = None,
    namespace: Namespace = None,
) -> None:
    """Store a server, its certificate authority, your token and a namespace for later commands.

    The file is readable for you alone. On a terminal, the token is asked for if the server requires
    one. Log in again to trust the next certificate authority of the server.

    phalanx login https://scheduler.example:8080 --namespace ml
    """
    from phalanx.cli.errors import end_for  # noqa: PLC0415
    from phalanx.client import DeniedError, PhalanxError, settings  # noqa: PLC0415

    try:
        loaded = settings.load(
            url, token_file=token_file, fingerprint=fingerprint, namespace=namespace
        )
    except ValueError as error:
        refuse(str(error))
    try:
        try:
            bundle, identity = _check(loaded)
        except DeniedError:
            if loaded.token is not None or not sys.stdin.isatty():
                raise
            token = typer.prompt("Token", hide_input=True, err=True)
            loaded = loaded._replace(token=token.strip())
            bundle, identity = _check(loaded)
    except PhalanxError as error:
        end_for(error, loaded.servers, is_default=False)
    own = identity.namespaces
    if namespace is not None and own is not None and namespace not in own:
        refuse(f"the token has no access to namespace {namespace}; it has: {', '.join(own)}")
    loaded = loaded._replace(namespace=namespace)
    try:
        path = _store(loaded, bundle)
    except OSError as error:
        refuse(f"cannot write to {loaded.folder}: {error.strerror}")
    who = f" as {identity.name}" if identity.name else ""
    say(f"Logged in to {', '.join(loaded.servers)}{who}. The settings are in {path}.")


def logout() -> None:
    """Remove the stored server, token and namespace.

    phalanx logout
    """
    from phalanx.client import settings  # noqa: PLC0415

    path = settings.settings_file(os.environ)
    try:
        path.unlink()
    except FileNotFoundError:
        say("You are not logged in.")
        return
    except OSError as error:
        refuse(f"cannot remove {path}: {error.strerror}")
    say(f"Logged out. The settings in {path} were removed.")


def _check(loaded: "ClientSettings") -> "tuple[str, Identity]":
    """The authorities of the servers if they are pinned, and the caller as they see it."""
    from phalanx.client import Client  # noqa: PLC0415

    with Client(
        loaded.servers, loaded.token, fingerprint=loaded.fingerprint, patience_s=0
    ) as client:
        return client.authorities() if loaded.fingerprint else "", client.whoami()


def _store(loaded: "ClientSettings", bundle: str) -> Path:
    """Write the settings; the latest authority of the bundle becomes the pinned one."""
    from phalanx.client import settings  # noqa: PLC0415
    from phalanx.host.file_replacement import write_private  # noqa: PLC0415
    from phalanx.tls.fingerprint import fingerprint_of  # noqa: PLC0415
    from phalanx.tls.pinning import Pin, certificates_of  # noqa: PLC0415

    values: dict[str, object] = {"server": list(loaded.servers)}
    if bundle:
        values["fingerprint"] = fingerprint_of(certificates_of(bundle)[0])
        Pin(str(values["fingerprint"]), loaded.folder).store(bundle)
    if loaded.token is not None:
        values["token"] = loaded.token
    if loaded.namespace is not None:
        values["namespace"] = loaded.namespace
    path = settings.settings_file(os.environ)
    lines = (f"{name} = {json.dumps(value)}\n" for name, value in values.items())
    write_private(path, "".join(lines))
    return path
