"""`phalanx worker`: run tasks on this machine until told to stop."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from phalanx.cli.settings import refuse
from phalanx.core.errors import Invalid
from phalanx.core.model import Protocol
from phalanx.core.spec.fields import Reader
from phalanx.core.spec.names import label_key, worker_id
from phalanx.core.spec.quantities import capacity
from phalanx.server.config import state_directory
from phalanx.server.options import LogFormat, LogLevel

_SERVER = "http://127.0.0.1:8080"

Urls = Annotated[
    list[str] | None,
    typer.Option(
        "--server",
        envvar="PHALANX_SERVER",
        metavar="URL",
        help=f"A server; name several to know the standbys too. (default: {_SERVER})",
    ),
]
Name = Annotated[
    str | None,
    typer.Option(
        "--id",
        envvar="PHALANX_WORKER",
        help="The worker's name, which no other may have. (default: the host's name)",
    ),
]
State = Annotated[
    Path | None,
    typer.Option(
        "--state-dir",
        envvar="PHALANX_WORKER_STATE",
        help="Where it keeps what it runs. (default: worker, in the state directory)",
    ),
]
Amounts = Annotated[
    str | None,
    typer.Option(
        "--resources",
        envvar="PHALANX_RESOURCES",
        metavar="NAME=AMOUNT,…",
        help="What it has, like gpu=8,cpu=64,memory=512Gi; the rest is found out.",
    ),
]
Labels = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        envvar="PHALANX_LABELS",
        metavar="NAME=VALUE",
        help="A label that jobs can select by; may be repeated.",
    ),
]
Slots = Annotated[
    int | None,
    typer.Option("--slots", envvar="PHALANX_SLOTS", min=1, help="At most this many tasks at once."),
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        envvar="PHALANX_ADDRESS",
        metavar="HOST",
        help="Where other workers reach it. (default: the address it reaches the server from)",
    ),
]
Token = Annotated[
    str | None,
    typer.Option("--token", envvar="PHALANX_TOKEN", help="A worker's token.", show_envvar=True),
]
TokenFile = Annotated[
    Path | None,
    typer.Option("--token-file", envvar="PHALANX_TOKEN_FILE", help="A file with the token."),
]
Keep = Annotated[
    bool,
    typer.Option(
        "--keep", envvar="PHALANX_KEEP", help="When told to stop, leave the tasks to the next one."
    ),
]
Format = Annotated[
    LogFormat, typer.Option("--log-format", envvar="PHALANX_LOG_FORMAT", help="How to log.")
]
Level = Annotated[
    LogLevel, typer.Option("--log-level", envvar="PHALANX_LOG_LEVEL", help="What to log.")
]


def worker(  # noqa: PLR0913
    *,
    server: Urls = None,
    name: Name = None,
    state_dir: State = None,
    resources: Amounts = None,
    label: Labels = None,
    slots: Slots = None,
    address: Address = None,
    token: Token = None,
    token_file: TokenFile = None,
    keep: Keep = False,
    log_format: Format = LogFormat.TEXT,
    log_level: Level = LogLevel.INFO,
) -> None:
    """Run tasks on this machine. SIGTERM hands them to other workers; --keep leaves them here."""
    from phalanx.agent import hardware  # noqa: PLC0415
    from phalanx.agent import worker as agent  # noqa: PLC0415
    from phalanx.agent.link.link import Registration  # noqa: PLC0415
    from phalanx.server import logs  # noqa: PLC0415

    detected = hardware.detect()
    registration = Registration(
        id=_checked("--id", name or socket.gethostname(), worker_id),
        protocol=Protocol.SYNC,
        resources=detected.resources | _amounts(resources),
        tags=detected.labels | _labels(label or []),
        exec_addr=address,
        slots=slots,
    )
    settings = agent.WorkerSettings(
        servers=tuple(_url(url) for urls in server or [_SERVER] for url in urls.split(",")),
        state_dir=(state_dir or state_directory(os.environ) / "worker").absolute(),
        registration=registration,
        keep=keep,
        token=_token(token, token_file),
    )
    logs.set_up(log_format, log_level)
    try:
        status = agent.run(settings)
    except agent.WorkerStartError as error:
        refuse(str(error))
    raise typer.Exit(status)


def _url(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        refuse(f"--server: {url} is no address; write it like https://scheduler.example:8080")
    return url


def _pairs(flag: str, written: list[str]) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in written if pair]
    for key, equals, _ in pairs:
        if not key or not equals:
            refuse(f"{flag}: {key or '='} has no value; write it like name=value")
    return {key: value for key, _, value in pairs}


def _amounts(written: str | None) -> dict[str, Any]:
    amounts = _pairs("--resources", (written or "").split(","))
    try:
        capacity(amounts)
    except Invalid as error:
        refuse(*(f"--resources: {problem.path} {problem.message}" for problem in error.problems))
    return amounts


def _labels(written: list[str]) -> dict[str, str]:
    pairs = _pairs("--label", written)
    return {_checked("--label", key, label_key): value for key, value in pairs.items()}


def _checked(flag: str, name: str, read: Reader[str]) -> str:
    """Whatever the server would refuse as well, again and again."""
    try:
        return read(name)
    except Invalid as error:
        refuse(*(f"{flag} {problem.message}" for problem in error.problems))


def _token(given: str | None, file: Path | None) -> Callable[[], str | None]:
    """A file is read again with every call, so that a token can be replaced."""
    if file is None:
        return lambda: given
    try:
        file.read_text()
    except OSError as error:
        refuse(f"--token-file: {file} cannot be read: {error.strerror}")
    return lambda: file.read_text().strip()
