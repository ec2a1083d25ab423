"""`phalanx serve`: run a server until it is stopped."""

from typing import TYPE_CHECKING

import typer

from phalanx.cli.settings import refuse, with_settings
from phalanx.host.interpreter import import_structlog
from phalanx.server.config import Config

if TYPE_CHECKING:
    from phalanx.server.process import ServerStarted


@with_settings()
def serve(config: Config) -> None:
    """Run a server. Servers that share a store elect a leader; the others stand by."""
    import_structlog()
    from phalanx.server import log_output  # noqa: PLC0415
    from phalanx.server.process import CannotServe, run  # noqa: PLC0415

    log_output.set_up(config["log_format"], config["log_level"])
    greet = _no_greeting if config["log_format"] == "json" else _greet
    try:
        status = run(config, greet)
    except CannotServe as error:
        refuse(str(error))
    raise typer.Exit(status)


def _no_greeting(started: "ServerStarted") -> None:
    """Print nothing: the JSON log has the same facts."""


def _greet(started: "ServerStarted") -> None:
    if started.term is not None:
        role = f"leader, term {started.term}"
    elif started.leader is not None:
        role = f"standby of {started.leader.url}"
    else:
        role = "standby; no leader yet"
    tokens = "required" if started.needs_tokens else "not required on loopback"
    page = f"  page     {started.url}/\n" if started.has_dashboard else ""
    pinned = f"  CA       {started.fingerprint}\n" if started.fingerprint else ""
    typer.echo(
        f"Phalanx server started.\n\n"
        f"  address  {started.url}\n"
        f"  store    {started.store}\n"
        f"  role     {role}\n"
        f"  tokens   {tokens}\n"
        f"  metrics  {started.url}/metrics\n"
        f"{page}"
        f"{pinned}\n"
        f"{_joining(started)}"
        f"Ctrl-C stops the server after it has finished the accepted requests.\n"
    )


def _joining(started: "ServerStarted") -> str:
    """The commands with which workers and users of a server with `tls auto` join."""
    if started.fingerprint is None:
        return ""
    fingerprint = f"--fingerprint {started.fingerprint}"
    token, cure = "", ""
    if started.needs_tokens:
        token = " --token-file FILE"  # noqa: S105
        cure = " (FILE has the output of `phalanx token create NAME --role join`)"
    return (
        f"Workers join with{cure}:\n"
        f"  phalanx worker --server {started.advertised} {fingerprint}{token}\n"
        f"Users log in with:\n"
        f"  phalanx login {started.advertised} {fingerprint}{token}\n\n"
    )
