"""`phalanx serve`: run a server until it is told to stop."""

from typing import TYPE_CHECKING

import typer

from phalanx.cli.settings import refuse, with_settings
from phalanx.server.config import Config

if TYPE_CHECKING:
    from phalanx.server.process import ServerStarted


@with_settings()
def serve(config: Config) -> None:
    """Run a server. Several on one store elect a leader; the others stand by."""
    from phalanx.server import logs  # noqa: PLC0415
    from phalanx.server.process import CannotServe, run  # noqa: PLC0415

    logs.set_up(config["log_format"], config["log_level"])
    greet = _say_nothing if config["log_format"] == "json" else _greet
    try:
        status = run(config, greet)
    except CannotServe as error:
        refuse(str(error))
    raise typer.Exit(status)


def _say_nothing(started: "ServerStarted") -> None:
    """The log says it, for machines."""


def _greet(started: "ServerStarted") -> None:
    if started.term is not None:
        role = f"leader, term {started.term}"
    elif started.leader is not None:
        role = f"standby of {started.leader.url}"
    else:
        role = "standby; nobody leads yet"
    needed = "needed" if started.needs_tokens else "not needed on loopback"
    typer.echo(
        f"Phalanx is here.\n\n"
        f"  listens on  {started.url}\n"
        f"  store       {started.store}\n"
        f"  role        {role}\n"
        f"  tokens      {needed}\n"
        f"  metrics     {started.url}/metrics\n\n"
        f"Ctrl-C finishes what was accepted and leaves.\n"
    )
