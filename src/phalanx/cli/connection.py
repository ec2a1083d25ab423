"""Commands that speak to a server: where it is, as whom, and what becomes of refusals."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from phalanx.cli.exits import Status, end
from phalanx.cli.options import extended

if TYPE_CHECKING:
    from phalanx.client import Client

#: How long a command looks for a server before it says that there is none.
_BRIEF_S = 1.0
#: And once it has found one: a takeover is over by then.
PATIENT_S = 60.0

_PANEL = "Server"
_OPTIONS = {
    "server": Annotated[
        str | None,
        typer.Option(
            "--server",
            metavar="URL",
            help="Where the server is; several with commas between. Or PHALANX_SERVER.",
            rich_help_panel=_PANEL,
        ),
    ],
    "token": Annotated[
        str | None,
        typer.Option(
            "--token",
            metavar="TOKEN",
            help="Who you are. Or PHALANX_TOKEN, which no list of processes shows.",
            rich_help_panel=_PANEL,
        ),
    ],
}


class ServerAddress(NamedTuple):
    """What was said on the command line."""

    server: str | None
    token: str | None


def with_client(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command that takes a `Client` first the options to name its server."""

    def use(where: ServerAddress, given: dict[str, Any]) -> None:
        with connected(where) as client:
            command(client, **given)

    return _with_options(command, use)


def with_where(command: Callable[..., None]) -> Callable[..., None]:
    """Add the same options to a command that can run without a server."""
    return _with_options(command, lambda where, given: command(where, **given))


def _with_options(
    command: Callable[..., None], use: Callable[[ServerAddress, dict[str, Any]], None]
) -> Callable[..., None]:
    def run(**given: Any) -> None:
        use(ServerAddress(given.pop("server"), given.pop("token")), given)

    more = (
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in _OPTIONS.items()
    )
    return extended(command, run, *more)


@contextmanager
def connected(where: ServerAddress) -> "Iterator[Client]":
    """A client; what it meets ends the command with a sentence and a status."""
    from phalanx.cli.errors import end_for  # noqa: PLC0415
    from phalanx.client import Client, PhalanxError, settings  # noqa: PLC0415

    try:
        found = settings.load(where.server, where.token)
    except ValueError as error:
        end(Status.USAGE, str(error))
    with Client(found.servers, found.token, patience_s=_BRIEF_S) as client:
        try:
            yield client
        except PhalanxError as error:
            end_for(error, found.servers, is_default=found.is_default)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
