"""Commands that make requests: their server and token, and how errors end them."""

import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from phalanx.cli.exits import Status, end
from phalanx.cli.options import extended, quiet_option
from phalanx.cli.visible_text import say

if TYPE_CHECKING:
    from phalanx.client import Client

#: How long a command looks for a server before it reports that there is none.
_FIRST_CONTACT_S = 1.0
#: The same if a standby answers: it will take over soon.
_FIRST_TAKEOVER_S = 30.0
#: The same for a command that has found one already: long enough for a standby to take over.
TAKEOVER_S = 60.0

SERVER_PANEL = "Server"
_OPTIONS = {
    "server": Annotated[
        str | None,
        typer.Option(
            "--server",
            metavar="URL",
            help="Server URL, or several separated by commas. [env: PHALANX_SERVER]",
            rich_help_panel=SERVER_PANEL,
        ),
    ],
    "quiet": Annotated[bool, quiet_option(SERVER_PANEL)],
    # A token itself on a command line could be read by other users in the list of processes.
    "token_file": Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help="File with the API token; - reads it from standard input."
            " [env: PHALANX_TOKEN_FILE, PHALANX_TOKEN]",
            rich_help_panel=SERVER_PANEL,
        ),
    ],
}


class _Wait:
    """When this command last said that it waits for a server."""

    said_at = float("-inf")


class ServerAddress(NamedTuple):
    """The values of `--server` and `--token-file`."""

    server: str | None
    token_file: Path | None


def with_client(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--server` and `--token-file` to a command whose first parameter is a `Client`."""

    def run(address: ServerAddress, given: dict[str, Any]) -> None:
        with connected(address) as client:
            command(client, **given)

    return _with_options(command, run)


def with_address(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--server` and `--token-file` to a command whose first parameter is a `ServerAddress`."""
    return _with_options(command, lambda address, given: command(address, **given))


def _with_options(
    command: Callable[..., None], use: Callable[[ServerAddress, dict[str, Any]], None]
) -> Callable[..., None]:
    def run(**given: Any) -> None:
        from phalanx.cli.output import be_quiet  # noqa: PLC0415

        be_quiet(bool(given.pop("quiet")))
        use(ServerAddress(given.pop("server"), given.pop("token_file")), given)

    more = (
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=False if name == "quiet" else None,
            annotation=kind,
        )
        for name, kind in _OPTIONS.items()
    )
    return extended(command, run, *more)


def _say_wait(stands_by: bool) -> None:
    """Several requests of a command can wait at the same time; it says so once."""
    now = time.monotonic()
    if now - _Wait.said_at < _FIRST_TAKEOVER_S:
        return
    _Wait.said_at = now
    if stands_by:
        text = "no server leads at the moment; waiting for one to take over"
        say(f"{text}, up to {_FIRST_TAKEOVER_S:.0f} s", err=True)
    else:
        say(f"no server answers; waiting up to {TAKEOVER_S:.0f} s", err=True)


def silence_text(client: "Client") -> str:
    """Of a display that may be out of date; empty while a server answers."""
    from phalanx.client.transport import SILENCE_S  # noqa: PLC0415

    silent_s = client.silent_s
    return f"waiting for a server for {silent_s:.0f} s" if silent_s > SILENCE_S else ""


@contextmanager
def connected(address: ServerAddress) -> "Iterator[Client]":
    """A client. An error that it raises ends the command with a sentence and a status."""
    from phalanx.cli.errors import end_for  # noqa: PLC0415
    from phalanx.client import Client, PhalanxError, settings  # noqa: PLC0415

    try:
        loaded = settings.load(address.server, token_file=address.token_file)
    except ValueError as error:
        end(Status.USAGE, str(error))
    with Client(
        loaded.servers,
        loaded.token,
        fingerprint=loaded.fingerprint,
        patience_s=_FIRST_CONTACT_S,
    ) as client:
        client.await_takeover(_FIRST_TAKEOVER_S, _say_wait)
        try:
            yield client
        except PhalanxError as error:
            end_for(error, loaded.servers, is_default=loaded.is_default)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
