"""`phalanx login`: store the server, its pinned authority and the token for later commands."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli.settings import refuse
from phalanx.cli.visible_text import say

if TYPE_CHECKING:
    from phalanx.client.settings import ClientSettings

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


def login(*, url: Url, fingerprint: Fingerprint = None, token_file: TokenFile = None) -> None:
    """Store a server, its certificate authority and your token for later commands.

    Log in again to trust the next certificate authority of the server.
    """
    from phalanx.cli.errors import end_for  # noqa: PLC0415
    from phalanx.client import Client, PhalanxError, settings  # noqa: PLC0415

    try:
        loaded = settings.load(url, token_file=token_file, fingerprint=fingerprint)
    except ValueError as error:
        refuse(str(error))
    try:
        with Client(
            loaded.servers, loaded.token, fingerprint=loaded.fingerprint, patience_s=0
        ) as client:
            bundle = client.authorities() if loaded.fingerprint else ""
            client.queues()
    except PhalanxError as error:
        end_for(error, loaded.servers, is_default=False)
    try:
        path = _store(loaded, bundle)
    except OSError as error:
        refuse(f"cannot write to {loaded.folder}: {error.strerror}")
    say(f"Logged in to {', '.join(loaded.servers)}. The settings are in {path}.")


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
    path = settings.settings_file(os.environ)
    lines = (f"{name} = {json.dumps(value)}\n" for name, value in values.items())
    write_private(path, "".join(lines))
    return path
